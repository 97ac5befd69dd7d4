"""SGLang's and vLLM's own tool parsers beside ours, on one corpus of replies: where they see another call.

    python -m benchmarks.serving_parsers [--sglang PYTHON] [--vllm PYTHON]  # run them, keep the outcomes
    python -m benchmarks.serving_parsers --write docs/serving-parsers.md  # the tables, from what is kept
    python -m benchmarks.serving_parsers --format NAME  # every outcome of one format, from what is kept

The interpreters default to those of `scripts/sglang-cpu install` and `scripts/vllm-cpu install`. A server that is not
installed is named, and its column says so. The replies are made here: each is a call as its format writes it, for
`f(text: string, count: integer, ratio: number, flag: boolean, items: array, any: untyped)`, or such a call with one
thing changed. The outcomes are kept in `benchmarks/results/serving_parsers.json`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.shape import ROOT, markers, write_between
from tests.tool_call_writer import InexpressibleError, render, write

from strands_sglang.tool_parsers import BareToolParser, ParameterTypes, ToolParser, get_tool_parser
from strands_sglang.tool_parsers.message_formats import MessageToolParser
from strands_sglang.tool_parsers.tags import KEY, VALUE

KEPT = ROOT / "benchmarks" / "results" / "serving_parsers.json"


class Server(NamedTuple):
    """A server, where its interpreter is, and the command that installs it."""

    name: str
    python: Path
    command: str


SERVERS = {
    "sglang": Server(
        "SGLang", ROOT / ".cache" / "sglang-cpu" / "venv" / "bin" / "python", "scripts/sglang-cpu install"
    ),
    "vllm": Server("vLLM", ROOT / ".cache" / "vllm-cpu" / "venv" / "bin" / "python", "scripts/vllm-cpu install"),
}
PARSERS: dict[str, tuple[str | None, str | None]] = {
    "hermes": ("qwen25", "hermes"),
    "qwen_xml": ("qwen3_coder", "qwen3_coder"),
    "mimo": ("mimo", "mimo"),
    "seed_oss": (None, "seed_oss"),
    "glm": ("glm45", "glm45"),
    "kimi_k2": ("kimi_k2", "kimi_k2"),
    "minimax_m2": ("minimax-m2", "minimax_m2"),
    "deepseek_v3": ("deepseekv3", "deepseek_v3"),
    "deepseek_v31": ("deepseekv31", "deepseek_v31"),
    "deepseek_v32": ("deepseekv32", "deepseek_v32"),
    "deepseek_v4": ("deepseekv4", "deepseek_v4"),
    "kimi_k3": ("kimi_k3", "kimi_k3"),
    "minimax_m3": ("minimax-m3", "minimax_m3"),
    "muse_glimmer": ("muse", "muse_glimmer"),
    "inkling": ("inkling", "inkling"),
    "mistral": ("mistral", "mistral"),
    "llama_json": ("llama3", "llama3_json"),
    "gpt_oss": ("gpt-oss", None),
    "gemma4": ("gemma4", "gemma4"),
    "command": ("cohere_command4", None),
    "granite": (None, "granite"),
    "apertus": ("apertus2509", "apertus"),
    "xlam": (None, "xlam"),
    "olmo3": (None, "olmo3"),
    "longcat": (None, "longcat"),
    "gigachat": ("gigachat3", "gigachat3"),
    "intern_s1": ("interns1", "internlm"),
}
"""Our format, and the parser of each server for it. vLLM reads gpt-oss and Command in another way."""
IN_FRONT = {"gpt_oss": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"}
"""What a reply of the format begins with."""
ENDS_TURN = {"apertus", "gigachat", "gpt_oss"}
"""Formats whose end marker is a stop token: nothing follows it. Servers take that of GigaChat off the text."""

KINDS = {
    "text": "string",
    "count": "integer",
    "ratio": "number",
    "flag": "boolean",
    "items": "array",
}
PROPERTIES: dict[str, Any] = {**{key: {"type": kind} for key, kind in KINDS.items()}, "any": {}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": {**schema, "type": "object"}}}
    for name, schema in (("f", {"properties": PROPERTIES}), ("g", {"properties": {}}))
]

GOOD: dict[str, dict[str, Any]] = {
    "a string and an integer": {"text": "two words", "count": 3},
    "no arguments": {},
    "the string `null`": {"text": "null"},
    "the string `true`": {"text": "true"},
    "the string `1.50`": {"text": "1.50"},
    "a string in quotes": {"text": '"x"'},
    "a string with spaces and newlines around it": {"text": "  a\n"},
    "a string with a newline inside": {"text": "a\nb"},
    "a string that looks like a list": {"text": "[1]"},
    "a string outside of ASCII": {"text": "🚀 é"},
    "-5 for an integer": {"count": -5},
    "an integer beyond 64 bits": {"count": 2**70},
    "1.0 for a number": {"ratio": 1.0},
    "true for a boolean": {"flag": True},
    "5 for an untyped parameter": {"any": 5},
    "true for an untyped parameter": {"any": True},
    "a nested list": {"items": ["a", {"b": None}]},
}
"""Calls of `f`, as the format writes them."""


def changed(parser: ToolParser, arguments: dict[str, Any], old: str, new: str) -> str | None:
    """A call with one text in it replaced; None where it does not stand in the call."""
    text = write(parser, "f", arguments, None, ParameterTypes(TOOLS))
    return text.replace(old, new) if old in text else None


def cut(parser: ToolParser) -> str:
    """A call that breaks off inside a string."""
    text = render(parser, "f", {"text": "abcdef"}, tools=TOOLS)
    return text[: text.index("abc") + 3]


def call(parser: ToolParser, name: str = "f", **arguments: Any) -> str:
    """A call as the format writes it."""
    return render(parser, name, arguments, tools=TOOLS)


def in_json(parser: ToolParser, text: str | None) -> str | None:
    """The text, where the format writes arguments as JSON."""
    return text if '"text": "x"' in call(parser, text="x") else None


CHANGED: dict[str, Callable[[ToolParser], str | None]] = {
    "two blocks of calls": lambda p: f"{call(p, text='x')}\n{call(p, 'g')}" if p.tool_end_token else None,
    "text in front of a call": lambda p: f"I look.\n{call(p, text='x')}",
    "a tool that is not declared": lambda p: call(p, "nope"),
    "a string that holds the end marker": lambda p: p.tool_end_token and call(p, text=f"a {p.tool_end_token} b"),
    "a second end marker": lambda p: p.tool_end_token and f"{call(p, text='x')}\n{p.tool_end_token}",
    "`five` for an integer": lambda p: changed(p, {"count": "five"}, "five", "five"),
    "5.0 for an integer": lambda p: changed(p, {"count": 77}, "77", "5.0"),
    "`True` for a boolean": lambda p: changed(p, {"flag": True}, "true", "True"),
    "`yes` for a boolean": lambda p: changed(p, {"flag": "yes"}, "yes", "yes"),
    "cut off inside a string": cut,
    "no begin marker": lambda p: (
        None if isinstance(p, BareToolParser) else call(p, text="x").removeprefix(p.tool_start_token)
    ),
    "no end marker": lambda p: call(p, text="x").removesuffix(p.tool_end_token) if p.tool_end_token else None,
    "an argument given twice": lambda p: changed(p, {"count": 1, "counu": 2}, "counu", "count"),
    "1e400 for a number": lambda p: changed(p, {"ratio": 77.5}, "77.5", "1e400"),
    "NaN for a number": lambda p: changed(p, {"ratio": 77.5}, "77.5", "NaN"),
    "a comma too many": lambda p: in_json(p, changed(p, {"count": 77}, "77}", "77,}")),
    "arguments that are a list": lambda p: in_json(p, changed(p, {"count": 77}, '{"count": 77}', "[77]")),
    "text behind the JSON": lambda p: in_json(p, changed(p, {"count": 77}, "77}", "77} ok")),
}
"""Replies with one thing changed, by what it is; None where a format has no such reply."""
BESIDE = {"text in front of a call", "two blocks of calls"}
FOLLOWED = {"two blocks of calls", "a second end marker", "no end marker"}


def replies(name: str, parser: ToolParser) -> Iterator[tuple[str, str]]:
    """The replies of a format, each with what it is."""
    made = {title: lambda p, arguments=arguments: call(p, **arguments) for title, arguments in GOOD.items()}
    for title, make in {**made, **CHANGED}.items():
        try:
            text = make(parser)
        except InexpressibleError:
            continue
        alone = isinstance(parser, BareToolParser | MessageToolParser) and title in BESIDE
        if text and not alone and not (name in ENDS_TURN and title in FOLLOWED):
            yield title, IN_FRONT.get(name, "") + text


def ours(parser: ToolParser, text: str) -> str:
    """The outcome here."""
    output = parser.parse_all(text, tools=TOOLS)
    calls = [*output.calls, *([output.unclosed_call] if output.unclosed_call else [])]
    return "; ".join("malformed" if each.is_error else shown_call(each.name, json.dumps(each.input)) for each in calls)


def shown_call(name: str, arguments: str) -> str:
    """A call as the page shows it."""
    try:
        value = json.dumps(json.loads(arguments), ensure_ascii=False)
    except ValueError:
        return f"`{name}`, arguments not JSON: `{arguments}`"
    return f"`{name}({value})`"


def shown(outcome: dict[str, Any]) -> str:
    """The outcome of a server."""
    if "error" in outcome:
        return f"raises {outcome['error'].partition(':')[0]}"
    calls = "; ".join(shown_call(*call) for call in outcome["calls"])
    return calls or ("no call" if outcome["text"].strip() else "no call, text lost")


def run(server: str, python: str, asked: list[tuple[str, str]], special: list[str]) -> tuple[str, list[str]]:
    """The version of a server and its outcomes, by its own interpreter."""
    question = {"server": server, "tools": TOOLS, "markers": special, "replies": asked}
    child = Path(__file__).with_name("serving_child.py")
    try:
        done = subprocess.run([python, str(child)], input=json.dumps(question), capture_output=True, text=True)
    except OSError as error:
        raise SystemExit(f"--{server} {python} cannot be run: {error.strerror}") from None
    if f"No module named '{server}'" in done.stderr:
        raise SystemExit(f"{python} has no {SERVERS[server].name}: run `{SERVERS[server].command}`")
    if done.returncode:
        raise SystemExit(f"{SERVERS[server].name}'s parsers failed in {python}:\n{done.stderr[-2000:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    return answer["version"].partition("+")[0], [shown(outcome) for outcome in answer["outcomes"]]


def measure(pythons: dict[str, str | None]) -> dict[str, Any]:
    """Every reply and its outcomes."""
    parsers = {name: get_tool_parser(name) for name in PARSERS}
    rows: list[dict[str, Any]] = [
        {"format": name, "reply": title, "text": text, "ours": ours(parser, text)}
        for name, parser in parsers.items()
        for title, text in replies(name, parser)
    ]
    tags = {tag for p in parsers.values() for tag in (*p.tool_call_tokens, *(p.think_tokens or ()))}
    tags |= {*KEY, *VALUE, *(tag for row in rows for tag in re.findall(r"<[|｜][^<>]*[|｜]>|\[[A-Z_]+\]", row["text"]))}
    special = sorted(tag for tag in tags if tag[:1] + tag[-1:] in ("<>", "[]") and len(tag) > 2)
    versions: dict[str, str] = {}
    for index, (key, server) in enumerate(SERVERS.items()):
        python = pythons[key] or (str(server.python) if server.python.exists() else None)
        if python is None:
            print(f"{server.name} is absent: run `{server.command}`, or give --{key} PYTHON", file=sys.stderr)
            continue
        asked = [row for row in rows if PARSERS[row["format"]][index]]
        texts = [(str(PARSERS[row["format"]][index]), served(row, parsers[row["format"]])) for row in asked]
        versions[key], outcomes = run(key, python, texts, special)
        for row, outcome in zip(asked, outcomes, strict=True):
            row[key] = outcome
    for row in rows:
        del row["text"]  # made again by whoever wants to see it
    return {"versions": versions, "rows": rows}


def served(row: dict[str, Any], parser: ToolParser) -> str:
    """The text of a reply as a server hands it to its parser."""
    text: str = row["text"]
    return text.removesuffix(parser.tool_end_token) if row["format"] == "gigachat" else text


# ---- the page


def is_call(outcome: str) -> bool:
    """True if the outcome has a call, be it with arguments that are not JSON."""
    return outcome.startswith("`")


def table(kept: dict[str, Any]) -> str:
    """The page's tables: how often each parser differs, and where."""
    rows, versions = kept["rows"], kept["versions"]
    names = [f"{s.name} {versions[key]}" if key in versions else f"{s.name}: not run" for key, s in SERVERS.items()]
    blind = {
        (row["format"], key)
        for row in rows
        for key in SERVERS
        if not any(is_call(each.get(key, "")) for each in rows if each["format"] == row["format"])
    }
    lines = [f"| format | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for name, parsers in PARSERS.items():
        cells = []
        for key, parser in zip(SERVERS, parsers, strict=True):
            mine = [row for row in rows if row["format"] == name and key in row]
            if (name, key) in blind:
                cells.append(f"`{parser}`, which reads none of them" if mine else "")
                continue
            right = [row[key] != row["ours"] for row in mine if is_call(row["ours"])]
            wrong = [is_call(row[key]) for row in mine if not is_call(row["ours"])]
            cells.append(f"`{parser}`: {sum(right)} of {len(right)}, {sum(wrong)} of {len(wrong)}")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    lines += ["", f"| reply | here | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    for title in TITLES:
        mine = [row for row in rows if row["reply"] == title]
        cells = [
            differing([row for row in mine if key in row and (row["format"], key) not in blind], key) for key in SERVERS
        ]
        if any(cells):
            here = Counter(row["ours"] for row in mine if any(differs(row, key) for key in SERVERS)).most_common(1)[0][
                0
            ]
            printed = [cell.replace("|", "\\|").replace("\n", "\\n") for cell in (here, *cells)]
            lines.append(f"| {title} | {' | '.join(printed)} |")
    return "\n".join(lines)


def differs(row: dict[str, Any], key: str) -> bool:
    """True if the server sees another call than we do, a call where we see none, or none where we see one."""
    outcome = row.get(key, row["ours"])
    return bool(outcome != row["ours"] and (is_call(outcome) or is_call(row["ours"])))


def differing(rows: list[dict[str, Any]], key: str) -> str:
    """A cell of the page: how many formats differ at a server, and the outcome that most of them have."""
    outcomes = Counter(row[key] for row in rows if differs(row, key))
    if not outcomes:
        return ""
    (most, count), total = outcomes.most_common(1)[0], outcomes.total()
    return f"{total} of {len(rows)}: {most}" + (f" ({count})" if count < total else "")


TITLES = [*GOOD, *CHANGED]


def main() -> None:
    """Run the parsers and keep the outcomes, or write the page from them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for key, server in SERVERS.items():
        parser.add_argument(f"--{key}", metavar="PYTHON", help=f"an interpreter that has {server.name}")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the tables between the markers of a page")
    parser.add_argument("--format", choices=PARSERS, help="print what is kept of one format, a line for each reply")
    options = parser.parse_args()
    if options.format is not None:
        for row in json.loads(KEPT.read_text("utf-8"))["rows"]:
            if row.pop("format") == options.format:
                print(json.dumps(row, ensure_ascii=False))
    elif options.write is None:
        kept = measure({key: getattr(options, key) for key in SERVERS})
        if len(kept["versions"]) == len(SERVERS):
            rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in kept["rows"])
            KEPT.write_text(f'{{"versions": {json.dumps(kept["versions"])}, "rows": [\n{rows}\n]}}\n', "utf-8")
        else:
            print("not kept: a server is absent", file=sys.stderr)
        print(table(kept))
    else:
        printed = table(json.loads(KEPT.read_text("utf-8")))
        page = write_between(options.write.read_text("utf-8"), *markers("serving_parsers"), printed)
        options.write.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
