"""Proof from the syntax tree that what a template prints after the messages begin does not depend on the tools.

Rendering the schemas of many tools is the main cost of a short rendering, and it ends up in the part that is cut away.
It may be left out only if nothing behind it can change, for any tools and any content. The proof is conservative: where
it fails, the tools are rendered.

Names whose value may depend on the tools are *tainted*: `tools` itself, and what is set from a tainted expression or
under a tainted condition. The template passes if tainted text is printed only by top-level statements that come before
the first loop over anything else (that loop, or a later statement, prints the messages) and that show no message except
the first.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes

from strands_sglang.template._environment import parse_template


def tools_end_before_messages(source: str) -> bool:
    """Whether the proof succeeds for a template."""
    try:
        body = parse_template(source).body
    except Exception:  # does not parse here: nothing is proved
        return False
    tainted = _closure(body, {"tools"})
    if _ALIASED in tainted:
        return False
    messages = _message_names(body)
    start = next((i for i, node in enumerate(body) if _may_print_messages(node, tainted, messages)), len(body))
    return not any(_prints_tainted(node, tainted) for node in body[start:])


_ALIASED = "*"
"""Stands for a namespace that a macro received under another name and set from a tainted value."""


def _closure(body: list[nodes.Node], tainted: set[str]) -> set[str]:
    size = 0
    while size != len(tainted):
        size = len(tainted)
        for statement in body:
            _taint(statement, tainted, under=False)
    return tainted


def _taint(node: nodes.Node, tainted: set[str], *, under: bool) -> None:
    """Add the names that a statement sets from tainted values, or under a tainted condition."""
    if isinstance(node, nodes.Assign | nodes.AssignBlock):
        if under or _depends(node, tainted):
            tainted |= _targets(node.target)
    elif isinstance(node, nodes.Macro):
        if under or _depends(node, tainted):
            tainted.add(node.name)
            if node.find(nodes.NSRef) is not None:
                tainted.add(_ALIASED)
    elif isinstance(node, nodes.For):
        if under or _depends(node.iter, tainted) or (node.test is not None and _depends(node.test, tainted)):
            tainted |= _targets(node.target)
            under = True
    elif isinstance(node, nodes.If):
        under = under or _depends(node.test, tainted) or any(_depends(other.test, tainted) for other in node.elif_)
    elif isinstance(node, nodes.CallBlock | nodes.FilterBlock):
        under = under or _depends(node, tainted)
    elif isinstance(node, nodes.With):
        for target, value in zip(node.targets, node.values, strict=True):
            if under or _depends(value, tainted):
                tainted |= _targets(target)
    for child in node.iter_child_nodes():
        if isinstance(child, nodes.Stmt):
            _taint(child, tainted, under=under)


def _targets(target: nodes.Node) -> set[str]:
    names = {node.name for node in target.find_all((nodes.Name, nodes.NSRef))}
    if isinstance(target, nodes.Name | nodes.NSRef):
        names.add(target.name)
    return names


def _names(node: nodes.Node) -> Iterator[str]:
    if isinstance(node, nodes.Name | nodes.NSRef):
        yield node.name
    for child in node.find_all((nodes.Name, nodes.NSRef)):
        yield child.name


def _depends(node: nodes.Node, tainted: set[str]) -> bool:
    return any(name in tainted for name in _names(node))


def _may_print_messages(statement: nodes.Node, tainted: set[str], messages: set[str]) -> bool:
    """Whether a top-level statement shows a message, or prints in a loop over something that is not tainted."""
    if isinstance(statement, nodes.Macro | nodes.Assign | nodes.AssignBlock):
        return False  # prints nothing itself; what it sets or is called with is looked at where it is used
    everything = (statement, *statement.find_all((nodes.For, nodes.Output, nodes.CallBlock, nodes.FilterBlock)))
    for node in everything:
        if isinstance(node, nodes.For):
            if not _depends(node.iter, tainted) and node.find(nodes.Output) is not None:
                return True
        elif isinstance(node, nodes.Output | nodes.CallBlock | nodes.FilterBlock) and _shows_messages(node, messages):
            return True
    return False


def _prints_tainted(node: nodes.Node, tainted: set[str]) -> bool:
    """Whether what a statement prints, or whether it goes on, may depend on tainted values."""
    if isinstance(node, nodes.Macro | nodes.Assign | nodes.AssignBlock):
        return False
    if isinstance(node, nodes.If):
        if any(_depends(test, tainted) for test in (node.test, *(other.test for other in node.elif_))):
            return _acts(node)
    elif isinstance(node, nodes.For):
        if _depends(node.iter, tainted) or (node.test is not None and _depends(node.test, tainted)):
            return _acts(node)
    elif not isinstance(node, nodes.Stmt) or isinstance(
        node, nodes.Output | nodes.CallBlock | nodes.FilterBlock | nodes.With | nodes.ExprStmt
    ):
        return _depends(node, tainted)
    return any(_prints_tainted(child, tainted) for child in node.iter_child_nodes() if isinstance(child, nodes.Stmt))


def _acts(node: nodes.Node) -> bool:
    """Whether a statement does more than set names (whose taint is known)."""
    kinds = (nodes.Output, nodes.CallBlock, nodes.FilterBlock, nodes.Break, nodes.Continue, nodes.ExprStmt)
    return node.find(kinds) is not None


def _message_names(body: list[nodes.Node]) -> set[str]:
    """Names that may hold messages other than the first."""
    names = {"messages"}
    size = 0
    while size != len(names):
        size = len(names)
        for statement in body:
            for node in (statement, *statement.find_all((nodes.Assign, nodes.AssignBlock, nodes.For, nodes.Macro))):
                if (isinstance(node, nodes.Assign | nodes.AssignBlock) and _shows_messages(node, names)) or (
                    isinstance(node, nodes.For) and _shows_messages(node.iter, names)
                ):
                    names |= _targets(node.target)
                elif isinstance(node, nodes.Macro) and _shows_messages(node, names):
                    names.add(node.name)
    return names


def _shows_messages(node: nodes.Node, names: set[str]) -> bool:
    """Whether messages are used other than as `messages[0]` or `messages|length`."""
    if isinstance(node, nodes.Getitem) and _is_name(node.node, names) and isinstance(node.arg, nodes.Const):
        return bool(node.arg.value != 0)
    if isinstance(node, nodes.Filter) and node.name in ("length", "count") and _is_name(node.node, names):
        return False
    if isinstance(node, nodes.Name | nodes.NSRef) and node.name in names:
        return not (isinstance(node, nodes.Name) and node.ctx != "load")
    return any(_shows_messages(child, names) for child in node.iter_child_nodes())


def _is_name(node: nodes.Node | None, names: set[str]) -> bool:
    return isinstance(node, nodes.Name) and node.name in names
