r"""The boxes of an answer, each with the formula that it stands in.

`x = 2\boxed{12}` says that x is 24: the side of the equation that has the box counts, read whole. A box alone
on its side is its contents; so is one that a true equation fills: `3 \times \boxed{5} = 15`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from .comparing import same
from .lexing import FORMULA, ROWS
from .texts import readings
from .vocabulary import FACTORS, QUANTITIES, UNITS

MAX_CONTEXT = 1000
"""Characters on each side of a box in which its formula is looked for."""

OPEN_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])")
_BARE_BOX = re.compile(r"\\(?:boxed|fbox)\s*(-?\d[\d.,]*(?<![.,])|(?<=\s)[A-Za-z](?![A-Za-z])|\\[a-z]+(?![A-Za-z{]))")
_DELIMITERS = re.compile(r"(?<!\\)(?:\\\\)*(\\[()\[\]]|\$\$?)")
_FORMULA = re.compile(
    FORMULA + r"|\\begin\s*\{(?P<name>(?:align|equation|gather|multline)\*?)\}(?P<lines>.+?)\\end\s*\{(?P=name)\}",
    re.DOTALL,
)
_BOX = "\x00"
"""Stands for every character of a box while its surroundings are read."""
_LOOKS = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal|color)?|math(?:bf|it|rm|sf|tt)|boldsymbol|bm|bold|mbox|hbox|emph|pmb|underline"
    r"|large|Large|huge|Huge|displaystyle|color|bf|rm|left|right|hspace|quad|qquad)(?![A-Za-z])\*?(?:\s*\{\w*\}(?=\s*\{))?"
    r"|\\[,;:!> ]|[\s{}.&~$*]|\\$"
)
"""Commands around a box that change only its looks."""
_PROSE = re.compile(
    r"(?<![A-Za-z\\])(?!(?:sqrt|sin|cos|tan|cot|sec|csc|ln|log|exp|gcd|lcm|max|min|mod|det)\b)[A-Za-z]{2,}"
)
_TEXT = r"\\(?:text|textrm|mathrm|mbox|textbf|textit)\s*\{[^{}]*\}"
_RELATION = re.compile(
    r":?=|[<>≤≥≠≈≡∈]|\\(?:approx|leq?|geq?|leqslant|geqslant|lt|gt|neq?|in|notin|equiv|simeq|sim|cong|subset(?:eq)?)(?![A-Za-z])"
)
_APART = re.compile(
    rf"(?<!\\)[,;](?!\s*\\?!?\d{{3}})|\\q?quad(?![A-Za-z])|\n\s*\n|\\(?:implies|iff|therefore|because|(?:long)?(?:left)?rightarrow|to|(?:Long)?(?:left)?[Rr]ightarrow)"
    rf"(?![A-Za-z])|=>|[⇒→∴✓✔✅∎■□🎉]|\\(?:checkmark|blacksquare|qed|square|Box)(?![A-Za-z])|\\\\(?!\s*&?\s*=)|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|{_TEXT}(?!\s*&?\s*(?:=|:|\\approx))"
)
"""Between the statements of a formula."""
_TOKEN = r"\\[A-Za-z]+|(?<![A-Za-z])[A-Za-z](?![A-Za-z])'*|\d+(?:[.,]\d+)*|[-+*/^_=<>≤≥≠≈×·÷±−√π∞∈°!'%|(){}\[\]\x00 ]"
_TAIL, _HEAD = re.compile(rf"(?:{_TOKEN})+\Z"), re.compile(rf"(?:{_TOKEN})+")
_OPERATOR = (
    r"(?:[+/^=<>≤≥≠≈×·÷±√∈]|(?<![\s*])\*|(?<!\w\s)[-−](?!\s)|(?<=[\d)}]\s)[-−]|(?<=(?<![A-Za-z])[A-Za-z]\s)[-−]"
    r"|\\(?:times|cdot|div|pm|mp|sqrt|approx|leq?|geq?|lt|gt|neq?|in|notin|equiv)(?![A-Za-z]))"
)
_OPERATOR_BEFORE = re.compile(rf"(?:{_OPERATOR}|(?:\A|\s)[-−](?!\s))\s*\Z")
_OPERATOR_BEHIND = re.compile(
    r"\s*(?:\^|[+/=<>≤≥≈×·÷±]|\*(?=[\w(\\])|[-−](?=\s?[\d(\\])|\\(?:times|cdot|div|pm|approx)(?![A-Za-z]))"
    r"\s*[\w\\({√\x00]"
)
_TOUCHES = re.compile(
    r"!(?=\s*[-+*/=^)])|\d|_|√|π|\\(?!text|mathrm|[^A-Za-z])[A-Za-z]+|[A-Za-z](?![A-Za-z])"
    r"|\((?=[^()A-Za-z]*[\w]?[^()A-Za-z]*\))"
)
_VALUE_BEFORE = re.compile(r"=[^=\x00]*\d(?:\s|\\[,;: ]|~)+\Z")
_ALTERNATIVE = re.compile(r"\s*(?:\\text\s*\{\s*(?:or|and)\s*\}|\\lor)\s*([^$\n\x00.,]*[\w}])")
_MARKS_OF_LINES = re.compile(r"(?:\s|[-*•>]\s|#+\s|\d+[.)]\s|\(?(?:[a-h]|i{1,3}|\d)\)(?=[\s*:]):?|\*\*)*")
_SAID = {
    **dict.fromkeys(("twice", "double"), r"2\cdot @"),
    **dict.fromkeys(("thrice", "triple"), r"3\cdot @"),
    **dict.fromkeys(("greater than", "more than", "larger than"), "x > @"),
    **dict.fromkeys(("less than", "fewer than", "smaller than"), "x < @"),
    **{"half": r"\frac12\cdot @", "minus": "-@", "negative": "-@", "square root": r"\sqrt@", "cube root": r"\sqrt[3]@"},
}
_SAID_WITH_OF = {
    **dict.fromkeys(("logarithm", "log"), r"\log@"),
    **{"sine": r"\sin@", "cosine": r"\cos@", "tangent": r"\tan@", "absolute value": "|@|", "factorial": "@!"},
    **{
        "square": "@^2",
        "cube": "@^3",
        "reciprocal": r"\frac1@",
        "a third": r"\frac13\cdot @",
        "a quarter": r"\frac14\cdot @",
    },
}
_WORDS_BEFORE = re.compile(  # `the log of @`, but not `a log of @`, which says its value
    rf"(?i)(?:\b({'|'.join(_SAID)})(?:\s+(?:of|the))*"
    rf"|(?<!\ba )(?<!\ban )\b({'|'.join(_SAID_WITH_OF)})\s+of(?:\s+the)?)[\s$*]*\Z"
)
_POWER_BEHIND = re.compile(r"[\s*]*(squared|cubed)\b")
_SYMBOL = r"(?:\\[a-z]+|[A-Za-z])(?:_(?:\{\w+\}|\w))?'*(?:\(\w\))?"
_NAME = re.compile(rf"{_SYMBOL}|\\(?:text|mathrm|textrm)\s*\{{\s*(?:the\s+)?(?:{'|'.join(QUANTITIES)})\s*\}}")
_NAME_IN_PROSE = re.compile(
    rf"(?i)(?:\bthe\s+)?(?<![A-Za-z\\_^])((?-i:{_SYMBOL}|[A-Z][a-z]+)|{'|'.join(QUANTITIES)})(?![A-Za-z])\s*"
    r"(?:=|:|\b(?:is|are|equals|has|gets)\b)[\s*]*\Z"
)
_LABEL = r"(?:\\?\*\*)?(?:(?:Part|part)\s+\(?|\(|(?<=\n)|\A)(?P<label>[a-h]|i{1,3}v?|\d)\s*[).:]"
_PART = re.compile(rf"(?:^|(?<=\n))[\s*#-]*{_LABEL}")
_JOINT = re.compile(
    rf"(?:[\s,;&*:•]|\.(?=\s*\n)|\\q?quad|\\\\|\\text\s*\{{\s*,?\s*(?:and|or|then)\s*,?\s*\}}|\\[,;: ]"
    rf"|\b(?:and|or|then)\b|[-–—•]\s|{_LABEL})*"
)
"""Between boxes that are one list."""
_NAMES = "|".join(sorted({*UNITS} - {"in"}, key=len, reverse=True))
_UNIT = rf"(?:(?:square|cubic)\s)?(?:{_NAMES})(?:\^?[23²³])?(?:\s?(?:/|per\s)(?:{_NAMES})(?:\^?[23²³])?)?(?![A-Za-z])"
_BEHIND = re.compile(
    rf"(?:[ ~$*]|\\[,;: )]){{0,9}}+(?:\\(?:text|mathrm)\{{\s*)?({_UNIT}|(?:{'|'.join(FACTORS)})\b|percent\b|\\?%)"
    r"(?:\}\s*\^\{?([23]))?"
)


def find_boxes(text: str) -> list[tuple[int, int]]:
    r"""Beginning and end of the contents of every complete `\boxed{...}`, by their beginnings."""
    starts = {opening.end() for opening in re.finditer(r"\\(?:boxed|fbox|framebox)\s*+\{", text)}
    spans: list[tuple[int, int]] = []
    pending: list[int] = []
    for brace in re.finditer(r"(?<!\\)(?:\\\\)*+([{}])", text):
        if brace[1] == "{":
            pending.append(brace.end())
        elif pending and (start := pending.pop()) in starts:
            spans.append((start, brace.start(1)))
    return sorted(spans)


def _outermost(text: str) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for start, end in find_boxes(text):
        if not spans or start > spans[-1][1]:
            spans.append((start, end))
    return spans


def _contents(text: str) -> str:
    """The contents of a box, of the inner one where it stands alone."""
    while len(inner := _outermost(text)) == 1:
        start, end = inner[0]
        if not re.fullmatch(r"[\s$]*\\\w+\s*\{", text[:start]) or text[end:].strip("} $"):
            break
        text = text[start:end]
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Parts of the formula around a box: the value to read, the name before it, the label of its part, if any."""

    start: int
    end: int
    value: str
    name: str = ""
    label: str = ""


class Boxes:
    """The complete boxes of an answer that are not empty, in its order."""

    def __init__(self, answer: str) -> None:
        if r"\begin" in answer:
            answer = ROWS.sub(lambda mark: r"\\".ljust(len(mark[0])), answer)
        self.answer = answer
        spans = [(answer.rindex("\\", 0, start), start, end, end + 1) for start, end in _outermost(answer)]
        spans = [span for span in spans if answer[span[1] : span[2]].strip()]
        last = spans[-1][3] if spans else 0
        spans += [(bare.start(), *bare.span(1), bare.end()) for bare in _BARE_BOX.finditer(answer, last)]
        self._spans = spans
        pieces, at = [], 0
        for start, _, _, end in spans:
            pieces += [answer[at:start], _BOX * (end - start)]
            at = end
        masked = "".join([*pieces, answer[at:]])
        masked = self._masked = re.sub(r"</?[A-Za-z]+>", lambda tag: " " * len(tag[0]), masked)
        self._flat = _DELIMITERS.sub(lambda mark: " " * len(mark[0]), masked)

    def __bool__(self) -> bool:
        return bool(self._spans)

    def last(self, *, with_parts: bool) -> list[Statement]:
        """The last box, or those side by side that are a list; with parts, the last box of each labelled part."""
        if with_parts and (parts := self._parts()):
            return parts
        statements: list[Statement] = []
        for index in reversed(range(len(self._spans))):
            if statements and self._spans[index][0] >= statements[0].start:
                continue  # in the same formula
            found = self._statements(index)
            between = self._flat[found[-1].end : statements[0].start] if statements else ""
            joint = _JOINT.fullmatch(between)
            if joint is None or (joint["label"] and not with_parts):
                break
            statements = found + statements
        if statements and (other := _ALTERNATIVE.match(self._masked, statements[-1].end)):  # `\boxed{1} \text{ or } 2`
            statements.append(Statement(start=other.start(1), end=other.end(), value=other[1]))
        return statements

    def _parts(self) -> list[Statement]:
        """The last box of each of `(a)`, `(b)`, `(c)`; none where the labels are not in order."""
        labels = list(_PART.finditer(self._flat))
        for alphabet in ("abcdefgh", ("i", "ii", "iii", "iv"), "123456789"):
            chosen = [label for label in labels if label["label"] in alphabet]
            if len(chosen) < 2 or any(label["label"] != name for label, name in zip(chosen, alphabet, strict=False)):
                continue
            ends = [*(label.start() for label in chosen[1:]), len(self.answer)]
            spans = [
                [index for index, span in enumerate(self._spans) if label.end() <= span[0] < end]
                for label, end in zip(chosen, ends, strict=True)
            ]
            if all(spans):
                found = [self._statements(inside[-1])[-1] for inside in spans]
                return [replace(each, label=name) for each, name in zip(found, alphabet, strict=False)]
        return []

    # ---- the formula around a box ----------------------------------------------------------------------------------

    def _statements(self, index: int) -> list[Statement]:
        """The formula around a box as parts; one for each box if they fill the blanks of a true equation."""
        start, end = self._clause(index)
        members = list(_pieces(self._masked, start, end, _RELATION))
        marks = [self._masked[one[1] : other[0]].strip("& ") for one, other in pairwise(members)]
        boxed = [place for place, (left, right) in enumerate(members) if _BOX in self._masked[left:right]]
        place = boxed[0]
        is_alone = not _LOOKS.sub("", self._masked[slice(*members[place])].replace(_BOX, "")).strip()
        is_alone &= len(boxed) == 1 and len(self._inside(*members[place])) == 1
        is_equal = [mark in _EQUALS for mark in marks]
        name = ""
        if place and all(is_equal[:place]) and not {"≡", r"\equiv"} & {*marks}:
            name = self._masked[slice(*members[0])].strip("& \n")
            name = name if _NAME.fullmatch(name) else ""
        if is_alone and all(is_equal[:place]) and (place or all(is_equal)):
            value = self._contents(*members[place])[0]
        elif len(boxed) == 1 and place == len(members) - 1 and all(is_equal):
            value = self._filled(*members[place])
        elif all(is_equal) and self._is_true(members, boxed):
            last = self._masked[slice(*members[-1])]
            is_result = (
                len(boxed) > 1 and last.strip() and not last.strip().strip(_BOX)
            )  # `\boxed{3} + \boxed{4} = \boxed{7}`
            contents = self._contents(*members[-1]) if is_result else self._contents(start, end)
            return [Statement(start=start, end=end, value=each) for each in contents]
        else:
            value = self._filled(start, end, braces="" if is_alone else "{}")
        return [self._with_words(Statement(start=start, end=end, value=value, name=name))]

    def _inside(self, start: int, end: int) -> list[tuple[int, int, int, int]]:
        return [span for span in self._spans if start <= span[0] < end]

    def _contents(self, start: int, end: int) -> list[str]:
        return [_contents(self.answer[first:last]) for _, first, last, _ in self._inside(start, end)]

    def _filled(self, start: int, end: int, braces: str = "{}") -> str:
        """The text with the contents of its boxes in their places."""
        pieces, at = [], start
        for left, first, last, right in self._inside(start, end):
            pieces += [self.answer[at:left], braces[:1], _contents(self.answer[first:last]), braces[1:]]
            at = right
        text = "".join([*pieces, self.answer[at:end]])
        return re.sub(r"\\(?:begin|end)\s*\{(?:align|equation|gather|split|aligned|gathered)\*?\}|&", " ", text)

    def _is_true(self, members: list[tuple[int, int]], boxed: list[int]) -> bool:
        r"""An equation holds, of which a side has more than a box: `3 \times \boxed{5} = 15`."""
        sides = [readings(self._filled(*member)) for member in members]
        return all(sides) and all(same(one[0].node, sides[boxed[0]][0].node) for one in sides)

    def _clause(self, index: int) -> tuple[int, int]:
        """Beginning and end of the statement in which a box stands."""
        box_start, _, _, box_end = self._spans[index]
        text = self._masked
        begin = max(text.rfind("\n\n", 0, box_start) + 1, box_start - MAX_CONTEXT, 0)
        stop = min(end if (end := text.find("\n\n", box_end)) >= 0 else len(text), box_end + MAX_CONTEXT)
        for formula in _FORMULA.finditer(text, begin, stop):
            start, end = formula.span(str(formula.lastgroup))
            if start <= box_start and box_end <= end and not _PROSE.search(_without_commands(text[start:end])):
                break
        else:
            begin = max(text.rfind("\n", begin, box_start) + 1, begin)
            stop = end if (end := text.find("\n", box_end, stop)) >= 0 else stop
            begin += len(_MARKS_OF_LINES.match(text[begin:box_start])[0])  # type: ignore[index]
            if _PROSE.search(_without_commands(text[begin:stop])):
                return self._attached(box_start, box_end, begin, stop)
            start, end = begin, stop
        left, right = next(
            piece for piece in _pieces(text, start, end, _APART) if piece[0] <= box_start and box_end <= piece[1]
        )
        if apart := _VALUE_BEFORE.search(text, left, box_start):  # `5 + 7 = 12 \boxed{12}`
            left = apart.end()
        is_first = not _LOOKS.sub("", text[left:box_start]).strip()
        is_last = not _LOOKS.sub("", text[box_end:right]).strip()
        before, behind = self._attached(box_start, box_end, begin, stop)
        return (min(left, before) if is_first else left), (
            max(right, behind) if is_last and behind > box_end else right
        )

    def _attached(self, start: int, end: int, begin: int, stop: int) -> tuple[int, int]:
        """A box among words with the rest of its formula, which touches it or is joined by an operator."""
        before = self._flat[begin:start]
        closer = end
        while closer < stop and self._flat[closer] == " " and self._masked[closer] in "$\\()[]":
            closer += 1  # the end of a formula
        behind = self._flat[closer:stop]
        touches = re.search(r"(?:[\d)}√±]|\\[A-Za-z]+)\Z", before)
        is_apart = re.search(rf"(?:{_APART.pattern})\s*\Z", before)
        if not is_apart and (touches or _OPERATOR_BEFORE.search(before)) and (tail := _TAIL.search(before)):
            start = begin + tail.start() + len(tail[0]) - len(tail[0].lstrip(" )}]*="))
        is_apart = re.match(rf"\s*(?:{_APART.pattern})", behind)
        if (
            not is_apart
            and (_TOUCHES.match(behind) or _OPERATOR_BEHIND.match(behind))
            and (head := _HEAD.match(behind))
        ):
            end = closer + len(head[0].rstrip(" ({[*-=<>"))
        return start, end

    def _with_words(self, statement: Statement) -> Statement:
        """The statement with the words around its formula: `twice`, a name, a unit."""
        before = self._flat[max(0, statement.start - 100) : statement.start]
        start, name, value = statement.start, statement.name, statement.value
        if power := _POWER_BEHIND.match(self._flat, statement.end):
            value = f"{{{value}}}^{2 if power[1] == 'squared' else 3}"
        if words := _WORDS_BEFORE.search(before):
            said = {**_SAID, **_SAID_WITH_OF}[(words[1] or words[2]).lower()]
            start, value = start - len(before) + words.start(), said.replace("@", f"{{{value}}}")
        elif not name and (named := _NAME_IN_PROSE.search(before)):
            start, name = start - len(before) + named.start(), named[1]
        return replace(statement, start=start, name=name, value=value + unit_behind(value, self.answer, statement.end))


_EQUALS = ("=", "≡", r"\equiv", ":=", "≈", r"\approx", r"\simeq", r"\sim", r"\cong")


def _without_commands(text: str) -> str:
    return re.sub(rf"{_TEXT}|\\(?:begin|end)\s*\{{\w*\*?\}}|\\[A-Za-z]+", " ", text)


def _pieces(text: str, start: int, end: int, apart: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """The parts of a text between the marks that stand outside of all brackets."""
    depth, at = 0, start
    whole = r"\{(?:\w*matrix|array|\w*cases)\}"
    pattern = rf"(?P<mark>{apart.pattern})|(?P<open>\\begin\s*{whole}|\\?[({{\[])|(?P<close>\\end\s*{whole}|\\?[)}}\]])"
    for found in re.compile(pattern).finditer(text, start, end):
        if found["mark"] is None:
            depth = depth + 1 if found["open"] else max(0, depth - 1)
        elif not depth:
            yield at, found.start()
            at = found.end()
    yield at, end


def unit_behind(item: str, text: str, end: int) -> str:
    """The unit or multiplier behind a formula that ends in a number."""
    unit = _BEHIND.match(text, end) if re.search(r"(?:\d|\\pi)[\s})]*\Z", item) else None
    if unit is None:
        return ""
    return r"\%" if unit[1][-1] == "%" else rf" \text{{ {unit[1]}}}" + (f"^{unit[2]}" if unit[2] else "")
