"""Verifies answers in a process of its own, which may be killed at any moment.

Run as a script by `math_reward`. Requests and answers are lines of JSON. The first
line of output says that a first verification has been done, which imports and builds more than all later ones.

Symbolic arithmetic cannot be interrupted from inside (`9^{9^{9^9}}` is one call into C), so the limit is the kernel's:
a signal without a handler ends the process. It counts CPU time: on a busy machine, seconds pass without any.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import re
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))  # last: what lies beside this package shadows nothing

from strands_env.mathematics import Node, foreign_nouns, judge, plain, readings

MAX_LENGTH = 2000
"""Characters of an answer that is read."""
MEMORY_LIMIT_BYTES = 2 * 1024**3
START_CPU_SECONDS = 120.0
PR_SET_PDEATHSIG = 1

_OPEN_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])")
_BARE_BOX = re.compile(r"\\(?:boxed|fbox)\s*(-?\d[\d.,]*(?<![.,])|(?<=\s)[A-Za-z](?![A-Za-z])|\\[a-z]+(?![A-Za-z{]))")
_MARKER = re.compile(
    r"(?i)(?:final\s+)?answer\s*(?:\*\*)?\s*(?:is|=|:|：)\s*(?:\*\*)?\s*:?(?!\s*$)|答案\s*(?:是|为|为：|：|:)\s*[：:]?|####"
)
_DENIAL = re.compile(r"(?i)\b(?:not|never|neither|nor|isn't|cannot|wrong|incorrect|except)\b")
_BEFORE = re.compile(
    r"(?i)(?:\b(?:twice|half|thrice|double|triple|negative|minus|plus|times|over|under|above|below|root|square|cube"
    r"|not|never|least|most|(?:more|less|fewer|greater|larger|smaller) than|between\b[^.\n]*\band|by|per|dozen|except)"
    r"|n['’]t|(?:[\d)}]|\b[a-z])[^\S\n]*[-+/^]|[^\S\n][<>]|\d\s*\*(?!\*)|[≤≥≠√×])"
    r"(?:\s+(?:of|the|be|to|equal|a|an))*[\s*_`\"']*(?:\$|\\[(\[])?\s*\Z"
)
_AFTER = re.compile(
    r"(?i)[\s*_`\"']*(?:\$|\\[)\]])?\s*(?:[\^+/?×÷]|[-*]\s*\d|\b(?:squared|cubed|factorial|dozen|score|gross|hundred|thousand|million"
    r"|billion|trillion|lakh|crore|bn|halves|thirds|quarters|fifths|times|minus|plus|less|more|below|above|over|reciprocal"
    r"|negative|is\s+(?:not|wrong|incorrect|false)|isn['’]t|(?:or|to)\s+\d)\b)"
)
_BETWEEN = re.compile(r"(?:[\s,;$.&]|\\[()\[\]]|and|or|[A-Za-z](?:_\w)?\s*=)*")
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_NUMBER = re.compile(
    r"(?i)(?<![\w.:])\d{1,2}:\d\d(?::\d\d)?(?:\s?[ap]\.?m\b\.?)?(?![\w:])|"
    r"(?<![\w.])[-−]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3}|\s*/\s*\d+)?%?|(?<![\w.])-?\.\d+"
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


def candidates(answer: str) -> list[str]:
    r"""Texts that may be the final answer, the first that can be read counts.

    The last box, whole; without a box what follows the last "answer is", the whole text, the last formula, the last
    number.
    """
    boxes = [answer[start:end] for start, end in _outermost(answer) if answer[start:end].strip()]
    while boxes and (inner := _outermost(boxes[-1])):  # a box in a box
        start, end = inner[0]
        if len(inner) > 1 or not re.fullmatch(r"[\s$]*\\\w+\s*\{", boxes[-1][:start]) or boxes[-1][end:].strip("} $"):
            break
        boxes[-1] = boxes[-1][start:end]
    bare = list(_BARE_BOX.finditer(answer))
    if bare and (not boxes or bare[-1].start() > answer.rfind(boxes[-1])):
        return [bare[-1][1]]
    if boxes:
        return [boxes[-1]]
    if _OPEN_BOX.search(answer):
        return []
    tail = answer
    if markers := list(_MARKER.finditer(answer)):
        tail = answer[markers[-1].end() :]
        sentence = re.match(r"\s*(.+?)(?:(?<!\d)\.(?:\s|$)|\.\s+(?=[A-Z])|\.?\s*(?:\n|$))", tail)
        found = [sentence[1]] if sentence else []
        is_formula = bool(re.match(r"[\s*]*(?:\$|\\[(\[])", tail))
        if sentence and (_DENIAL.search(sentence[1]) or not is_formula):  # read whole or not at all
            return [re.split(r",?\s+(?:because|since|as|which|so|where)\b", sentence[1])[0]]
    else:
        found = [answer] if "\n" not in answer.strip() else []
    formulas = [next(filter(None, match.groups())) for match in _FORMULA.finditer(tail)]
    if formulas:
        found = []
    if last := [*(_FORMULA if formulas else _NUMBER).finditer(tail)][-1:]:
        before = tail[max(0, last[0].start() - 100) : last[0].start()]
        if _BEFORE.search(before) or _AFTER.match(tail, last[0].end()):
            return found  # `the square root of 42`, `42 squared`, `not 42`
    return [*found, *(formulas[-1:] or [match[0] for match in last])]


def is_prose(node: Node) -> bool:
    """Whether words say something, rather than being a label or a unit."""
    if node.kind == "group" and node.detail == "list":
        return any(is_prose(item) for item in node.args)
    return node.kind in ("word", "phrase")


def _side_by_side(answer: str) -> str:
    r"""The last boxes of a text as a list, where nothing but a comma, an `and` or a name stands between them."""
    items: list[str] = []
    last = len(answer)
    for start, end in reversed(_outermost(answer)):
        if items and not _BETWEEN.fullmatch(answer[end + 1 : last]):
            break
        items.insert(0, answer[start:end])
        last = answer.rindex("\\", 0, start)
    return ", ".join(dict.fromkeys(items)) if len(items) > 1 and not any("," in item for item in items) else ""


def verify(gold: str, answer: str, question: str = "") -> dict[str, Any]:
    """Compare an answer with the expected one mathematically.

    Both are read whole or not at all. The last boxed expression counts; several boxes together count only where a set
    or list is expected, so boxing many guesses gains nothing.
    """
    gold_boxes = find_boxes(gold)
    gold = gold[slice(*gold_boxes[-1])] if gold_boxes else _MARKER.sub("", gold)
    expected = readings(gold)
    info: dict[str, Any] = {"gold_parsed": [str(reading.node)[:500] for reading in expected]}
    if plain(gold) and plain(answer) == plain(gold):
        return {**info, "matched": True, "answer_parsed": info["gold_parsed"] or [plain(gold)]}
    has_box = bool(_OPEN_BOX.search(answer))
    is_word = bool(expected) and expected[0].node.kind == "word"
    choices = candidates(answer)
    reason = "answer_parse_failed"
    for choice in choices:
        if plain(choice) == plain(gold):
            return {**info, "matched": True, "answer_parsed": info["gold_parsed"] or [plain(gold)]}
        if has_box and len(choice) > max(MAX_LENGTH, 2 * len(gold)):
            return {**info, "reason": "too_complex", "error": f"{len(choice)} characters"}
        found = readings(choice) if len(choice) <= max(MAX_LENGTH, 2 * len(gold)) else []
        found = [reading for reading in found if not foreign_nouns(reading.node, gold, question)]
        if not found or (not has_box and not is_word and is_prose(found[0].node)):
            continue
        info["answer_parsed"] = [str(reading.node)[:500] for reading in found]
        if not expected:
            return {**info, "reason": "gold_parse_failed"}
        verdict = judge(expected, found)
        if verdict is False and expected[0].node.kind == "group" and (together := _side_by_side(answer)):
            verdict = judge(expected, readings(together)) or False
        return {**info, "reason": "undecided"} if verdict is None else {**info, "matched": verdict}
    if not choices or not any(char.isalnum() for choice in choices for char in choice):
        return {**info, "reason": reason}
    if not expected:
        return {**info, "reason": "gold_parse_failed"}
    if has_box:
        return {**info, "reason": "answer_unreadable"}
    words = plain(gold).split()
    return {**info, "reason": "undecided" if is_word and set(words) <= set(plain(answer).split()) else reason}


def _limit_cpu_time(seconds: float) -> None:
    """End this process after so much CPU time from now; 0 for no limit."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)


def main() -> None:
    """Serve requests until the input ends."""
    logging.disable(logging.CRITICAL)
    sys.set_int_max_str_digits(0)
    if sys.platform == "linux":  # elsewhere this ends at its limit, or with its input
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _limit_cpu_time(START_CPU_SECONDS)
    verify("3/7", r"\boxed{\frac{6}{14}}")
    with contextlib.suppress(ImportError, ValueError, OSError):  # without it, the CPU time bounds what is allocated
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    _limit_cpu_time(0.0)
    output = sys.stdout
    output.write("ready\n")
    output.flush()
    for line in sys.stdin:
        request = json.loads(line)
        _limit_cpu_time(request["seconds"])
        try:
            answer = verify(request["gold"], request["answer"], request.get("question", ""))
        except (RecursionError, MemoryError) as error:
            answer = {"reason": "too_complex", "error": type(error).__name__}
        except Exception as error:
            answer = {"reason": "verifier_error", "error": f"{type(error).__name__}: {error}"[:1000]}
        _limit_cpu_time(0.0)
        output.write(json.dumps(answer) + "\n")
        output.flush()


if __name__ == "__main__":
    main()
