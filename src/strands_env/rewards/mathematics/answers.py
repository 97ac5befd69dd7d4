"""Answers to mathematical questions: found among words, formulas and boxes, and graded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strands_env.rewards.choices import find_letter, find_polar
from strands_env.rewards.numerals import NUMERAL, numerals, only_number, without_markup
from strands_env.rewards.sentences import (
    ANSWER,
    IS,
    Remark,
    calmed,
    gives_up,
    has_no_answer,
    is_aside,
    is_denied,
    is_list,
    is_part,
    is_supposed,
    is_whole,
    remarks,
    says_none,
    without_confidence,
)

from .boxes import OPEN_BOX, Boxes, Statement, find_boxes, unit_behind
from .comparing import same
from .formulas import comparing_under
from .lexing import FORMULA
from .nodes import Node, is_plain_name
from .products import ordered_letters, reads_as_word
from .texts import Question, Reading, plain, readings
from .vocabulary import QUANTITIES

MAX_LENGTH = 2000
"""Characters of an answer that is read."""
_NEAR = 300
"""Characters at the end of a sentence in which its result stands."""
_TAIL = 20_000
"""Characters behind an answer that may take it back."""

_TEXT = re.compile(r"\\text\w*\s*\{")
_RANGE = re.compile(
    r"[\s$*}]*(?:\\to\b|\b(?:to|through)\b)[\s$}]*\d+(?![.\d]|\s*(?:decimal|significant|digit|place|d\.?p|s\.?f))"
)
"""Behind a box that is the first of two ends: `to 10`, but not `to 2 decimal places`."""
_MARKER = re.compile(rf"(?i:final\s+)?{ANSWER}\s*(?:\*\*)?\s*{IS}\s*(?:\*\*)?\s*[:：]?(?!\s*$)|故选|####")
_COPULA = re.compile(
    r"(?i)\b(?:is|are|was|were|(?<!would )be|equals|has|have|takes?|took|costs?|pays?|earns?|needs?|weighs"
    r"|lasts|falls\s+on|ist|sind|lautet|beträgt|est(?:\s+de)?|sont)\b\s*:?|[是为為有]\s*[：:]?|(?<=[A-Za-z]):\s|\b(?:it|that|there)['’]s\b"
    r"|(?<=\w)\s+(?=(?:does\s+not\s+exist|doesn['’]t\s+exist|diverges|converges)\b)"
)
"""In front of the predicate of a sentence."""
_RESULT = re.compile(
    r"(?i)\b(?:leav(?:es|ing)|giv(?:es|ing)|mak(?:es|ing)|yield(?:s|ing)|total(?:s|l?ing)|com(?:es|ing)\s+to|amount(?:s|ing)\s+to|results?\s+in"
    r"|left\s+with|a\s+total\s+of)\s+(?:(?:us|him|her|them|me|you|it|only|just|exactly|with|a\s+total\s+of)\s+)*(?!not\b)"
)
"""In front of a result: `one was eaten, leaving 7`."""
_NOT_BUT = re.compile(r"(?i)(?:\bnot|n['’]t)\b[^.;\n]*?\bbut\s+(?:rather\s+)?(.+)")
_TERM = r"[-(\s]*(?:\\?\$|[£€¥₹])?[\d.,]+[%)\s]*(?:[A-Za-z]{2,}\s*)?"
_SUM = re.compile(rf"(?:[^=\n]*[\s:])?(?:{_TERM}(?:[-+*/×÷·=]|\\times|\\cdot))*{_TERM}=([^=\n]*\d[^=\n]*)")
"""Arithmetic with numbers alone, and its result."""
_DENIAL = re.compile(
    r"(?i)\b(?:not(?!\s+exist)|never|neither|nor|cannot|wrong|incorrect|except|false\s+that|different\s+from|other\s+than"
    r"|anything\s+but|otherwise|alternatively|too\s+(?:many|much|few|large|small|big|high|low)|(?<!no )doubt"
    r"|nicht|kein)\b|n['’]t\b|不是|并非"
)
_REMARK = re.compile(
    r"(?i),?\s+(?:because|since|as|which|so|denn|weil|car|parce|puisque|porque|perché|where(?![^,;]*\binteger))\b|,?\s+(?:and|but)\s+not\b|,\s*(?:not|by)\b"
    r"|,?\s+(?:instead\s+of|rather\s+than|unlike|namely|to\s+(?:reach|get|make))\b|(?<=in total|together|. in all):\s"
    r"|\s+in\s+\d+\s+(?:seconds?|minutes?|hours?|days?|weeks?|months?|years?)\W*\Z"
    r"|\s+\((?:(?:that\s+is|i\.e|which|because|since|as|not)\b|[^()\n]*\d\s*[-+*/×÷=]\s*[^()\n]*\))|;\s+(?=[^;]*\bwould\b)|,?\s+\(?(?:if|unless)\s+I\b"
)
"""Begins a remark about the answer before it."""
_PREPOSITION = re.compile(r"(?i)\A\W*(?:in|on|at)\s+(?=\d{3,4}\b|\d{1,2}:|[A-Z][a-z]+\s\d|\d{1,2}\s[A-Z])")
_ADJUNCT = re.compile(r",?\s+(?:after|in|at|from|between|among|across|per|with|on)\s(?=[^\n]*\d)|\s+\((?=[^()]*\d)")
"""Begins an adjunct of place, time or kind that has a number: `36 students in 2 classes`."""
_BETWEEN = re.compile(r"(?:[\s,;$&*]|\\[()\[\]]|and|or|then|[A-Za-z](?:_\w)?\s*=)*")
_FORMULA = re.compile(FORMULA, re.DOTALL)
_MONTH = r"(?:jan|feb|mar|apr|may|june?|july?|aug|sept?|oct|nov|dec)[a-z]*\.?"
_NUMBER = re.compile(
    rf"""(?i)\b{_MONTH}\s+\d{{1,2}}(?:st|nd|rd|th)?,?\s+\d{{4}}\b|\b\d{{1,2}}(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTH},?\s+\d{{4}}\b|(?<![\w.:])\d{{1,2}}:\d\d(?::\d\d)?(?:\s?[ap]\.?m\b\.?)?(?![\w:])
      | (?<![A-Za-z0-9_.:^])-?\$?{NUMERAL}(?:(?:st|nd|rd|th)\b)?""",
    re.VERBOSE,
)
_OR = re.compile(
    r"(?i)(?:\s*[,;(]?\s*\b(?:or|i\.e\.|that\s+is|equivalently|in\s+other\s+words|which\s+(?:is|equals))(?:,|\s+(?:equivalently|simply|just))?\s+"
    r"|\s+\((?=[^()]+\)\W*\Z))((?:about|approximately|approx\.?|roughly|around|nearly)\s+|≈\s*)?"
)
"""Between two spellings of one value; the group says that the second is rounded."""
_QUOTED = re.compile(r"\A\s*[\"“]([^\"“”]*)[\"”]\W*\Z")
_DOLLAR = re.compile(r"(?<!\\)\$")
_FIRST_SENTENCE = re.compile(
    r"\s*(.+?)(?:です|입니다|이다)?(?:(?<!\d)(?<!\bsq)(?<!\bcu)\.(?:\s|$)|。|\.\s+(?=[A-Z(\d])|\.?\s*(?:\n|$))"
)
_POLAR = re.compile(r"(?i)(?<!\w)\W*(yes|no|true|false)(?!\w)")
_A_FEW_WORDS = re.compile(r"(?:(?!(?:a|an|not|very|so|too)\b)[^\W\d_]{2,}[ .'’-]{0,2}){1,3}")
_OPTION = re.compile(r"\W*([A-J])\)?(?=\W*(?:[.,;!\n]|\Z))")


def candidates(answer: str, known: str, *, with_parts: bool) -> list[list[str]]:
    r"""Candidates for the final answer, of which the first that can be read counts: items, several of which are a list.

    The last boxes; without a box the text behind the last "answer is", or the predicate of the last sentence,
    the sentence, its last formulas, the last numbers.

    Args:
        known: The expected answer and the question.
        with_parts: The expected answer has several parts.
    """
    if boxes := Boxes(answer):
        statements = boxes.last(with_parts=with_parts)
        items = _named(statements, known)
        return _settled(answer, statements[0].start, statements[-1].end, items)
    if OPEN_BOX.search(answer):
        return []
    markers = list(_MARKER.finditer(answer))
    own = [each for each in markers if not is_aside(re.split(r"[.!?\n]\s*", answer[: each.start()])[-1] + each[0])]
    if markers := own or markers:  # `For 5 players the answer is 20` is another's
        tail = answer[markers[-1].end() :]
        first = _FIRST_SENTENCE.match(tail)
        if first is None:
            return []
        stated = re.sub(r"(?i)^not\b.*?\bbut\s+(?:rather\s+)?", "", _REMARK.split(first[1])[0])
        left = _settled(answer, markers[-1].end(), markers[-1].end() + first.end(1), [stated])
        if left != [[stated]]:
            return left
        is_formula = re.match(r"[\s*]*(?:\$|\\[(\[])", stated)
        runs = _runs(_FORMULA, tail)[:1] if is_formula and not _DENIAL.search(first[1]) else []
        return [[stated], *(run.items for run in runs)]
    if gives_up(answer):
        return []
    sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z$\\])|。(?=.)", answer.strip().rpartition("\n")[2])[-1]
    *_, last = parts = re.split(r",\s+(?:so|but|hence|thus|therefore)\b", sentence)
    if len(parts) > 1 and re.search(r"\d", last) and not is_aside(last):  # `There were 8, but 7 are left`
        sentence = last
    stated = _REMARK.split(sentence)[0]
    if any(remark is Remark.DENIED for remark, _ in remarks(sentence[len(stated) :])):
        return []
    corrected = [place for remark, place in remarks(sentence) if remark is Remark.CORRECTED]
    found = [[value] for place in corrected[-1:] if (value := _stated(sentence[place:], ""))]
    found += [[_REMARK.split(sentence[behind.end() :])[0]] for behind in [*_RESULT.finditer(sentence)][-1:]]
    if rather := _NOT_BUT.search(sentence[-_NEAR:]):
        found.append([_REMARK.split(rather[1])[0]])
    if total := _SUM.fullmatch(sentence[-_NEAR:]):
        found.append([total[1]])
    clauses = re.split(r";\s+|,\s+(?:so|but|hence|thus|therefore)\b", sentence)
    for clause in dict.fromkeys([sentence, *reversed(clauses)]):
        clause = _REMARK.split(clause)[0]
        if not _DENIAL.search(clause):
            verbs = [*_COPULA.finditer(clause)][-1:]
            said = [clause[verb.end() :] for verb in verbs if not is_supposed(clause[: verb.start()])]
            said = [_PREPOSITION.sub("", each) for each in said]
            found += [[each] for each in dict.fromkeys([*said, _PREPOSITION.sub("", clause)])]
            found += [[cut] for each in said if (cut := _ADJUNCT.split(each)[0]) != each and re.search(r"\d", cut)]
    if is_list(sentence):
        return found
    numbers = (_NUMBER, without_markup(stated)), (_NUMBER, without_markup(answer))
    for pattern, text in ((_FORMULA, stated), (_FORMULA, answer), *numbers):
        if runs := _runs(pattern, text):
            run = runs[-1]
            return [*found, *(_settled(text, run.start, run.end, run.items) if run.items else [])]
    number = numerals(answer)[1]  # in words
    return found if number is None else [*found, [number.text]]


def _named(statements: Sequence[Statement], known: str) -> list[str]:
    """Contents of boxes, with names that tell them apart, or that the question knows: `x = 3` where y was asked for."""
    names = [statement.name for statement in statements]
    if all(statement.label for statement in statements):
        return [f"({statement.label}) {statement.value}" for statement in statements]
    words = [name for name in names if re.fullmatch("[A-Z][a-z]+", name) and name.lower() not in QUANTITIES]
    if any(word not in known for word in words):  # `Answer: \\boxed{2}`
        names = [""] * len(names)
    if len(names) == 1:
        is_known = "=" in known and re.search(rf"(?<![A-Za-z\\]){re.escape(names[0])}(?![A-Za-z(])", known)
        names = names if is_known else [""]
    elif len({*names} - {""}) < len(names):
        names = [""] * len(names)
    marks = [":" if re.fullmatch("[A-Za-z]{3,}", name) else "=" for name in names]
    named = zip(names, marks, statements, strict=True)
    return [f"{name} {mark} {statement.value}" if name else statement.value for name, mark, statement in named]


def _settled(answer: str, start: int, end: int, items: list[str]) -> list[list[str]]:
    """The candidates that an answer leaves: itself, another that a later remark puts in its place, or none."""
    tail = answer[end : end + _TAIL]
    kind = _kind(items[-1])
    before, after = (_TEXT.sub(" ", each) for each in (answer[max(0, start - 200) : start], tail[:200]))
    is_wrong = is_denied(before, after) or _RANGE.match(after) is not None
    left = [] if is_wrong and not (kind == "polar" and tail[:1] == ",") else [items]
    denied: int | None = None
    for remark, place in remarks(tail):
        if remark is Remark.DENIED:
            if kind != "polar" or re.search(r"[.!?\n]", tail[:place]):  # `No, that is wrong`
                left, denied = [], place
        elif remark is Remark.CONFIRMED:
            left, denied = left or [items], None
        elif other := _stated(tail[place:], kind):
            verdicts = [judge(one, readings(other)) for item in items if (one := readings(item))]
            if True in verdicts:
                left, denied = [items], None
            elif verdicts and not any(verdict is None for verdict in verdicts):
                left, denied = [[other]] if remark is Remark.CORRECTED else [], None
    return candidates(tail[denied:], "", with_parts=False) if denied is not None and not kind else left


def _kind(item: str) -> str:
    """The kind of an answer that only its own can replace: a letter of an option, yes and no, a name, a word."""
    text = plain(item).strip("().* ")
    if text.casefold() in ("yes", "no", "true", "false"):
        return "polar"
    if re.fullmatch("[A-Ja-j]", text):
        return "letter"
    return ("name" if re.match(r"\W*[A-Z]", item) else "word") if _A_FEW_WORDS.fullmatch(text) else ""


def _stated(tail: str, kind: str) -> str | None:
    """The value at the beginning of a text, if it is one of this kind."""
    if kind in ("polar", "letter"):
        found = _POLAR.match(tail) if kind == "polar" else _OPTION.match(tail)
        return None if found is None else rf"\text{{{found[1]}}}"
    sentence = _FIRST_SENTENCE.match(tail)
    value = _REMARK.split(sentence[1])[0].strip(" *!") if sentence else ""
    if kind:
        return value if _A_FEW_WORDS.fullmatch(value) and (kind == "word" or value[0].isupper()) else None
    # `Answer: A` behind a box names its option.
    stated = readings(value) if len(value) < MAX_LENGTH and re.search(r"[\d=+*/^\\]", value) else []
    return value if stated and not is_prose(stated[0].node) else None


@dataclass(slots=True)
class _Run:
    """Formulas or numbers side by side, and their place."""

    items: list[str]
    start: int
    end: int


def _runs(pattern: re.Pattern[str], text: str) -> list[_Run]:
    """Matches side by side, as their contents; no contents where the words around deny them: `not 42`."""
    runs: list[_Run] = []
    for match in pattern.finditer(text):
        item = next(filter(None, match.groups())) if pattern is _FORMULA else match[0]
        if pattern is _NUMBER and is_whole(text[max(0, match.start() - 60) : match.start()]):
            continue
        if runs and _BETWEEN.fullmatch(text[runs[-1].end : match.start()]):
            runs[-1].items.append(item)
            runs[-1].end = match.end()
        else:
            runs.append(_Run([item], *match.span()))
    for run in runs:
        run.items[-1] += unit_behind(run.items[-1], text, run.end)
        clause = re.split(r"[.;\n](?:\s|$)", text[max(0, run.start - 2 * _NEAR) : run.start])[-1]
        rest = re.split(r"[.;\n](?:\s|$)", text[run.end : run.end + 2 * _NEAR])[0]
        around = text[max(0, run.start - 200) : run.start], text[run.end : run.end + 200]
        if is_part(*around) or is_denied(*around) or has_no_answer(f"{clause} {rest}") or _DENIAL.search(clause):
            run.items.clear()
    return runs


def repeats(answer: str, prompt: str, truth: str) -> bool:
    """True if an answer is the prompt or most of it, ignoring case, punctuation and repetition."""
    said, asked, expected = (" ".join(re.findall(r"\w+", text.casefold())) for text in (answer, prompt, truth))
    if not asked or asked == expected or "boxed" in said.split():
        return False
    rest = re.sub(rf"(?<!\w){re.escape(asked)}(?!\w)", " ", said).split()
    return {*rest} <= {"question", "problem", "prompt", "user", "q"} or (said in asked and len(said) > 0.7 * len(asked))


def is_prose(node: Node) -> bool:
    """True if words carry meaning, rather than being a label or a unit."""
    if node.kind == "group" and node.detail in ("list", "any", "all"):
        return any(is_prose(item) for item in node.args)
    if node.kind == "relation" and node.args[0].kind == "word":  # `We obtain x = 5` is no value of "we obtain x"
        return not node.args[0].args[0].startswith("\\") and not is_plain_name(node.args[0])
    return node.kind in ("word", "phrase")


# ---- grading ---------------------------------------------------------------------------------------------------------


def judge(gold: Sequence[Reading], answer: Sequence[Reading], asked: Question | None = None) -> bool | None:
    """True if an answer equals the expected one; None if that depends on how they are read."""
    if asked is not None:
        gold, answer = asked.settle(gold, is_gold=True), asked.settle(answer, is_gold=False)
    verdicts = [(same(one.node, other.node), one is gold[0] and other.certain) for one in gold for other in answer]
    if (True, True) in verdicts:
        return True
    return None if any(verdict for verdict, _ in verdicts) else verdicts[0][0]


def _without_repeats(text: str) -> str:
    """The first of several spellings of one value: `1/2, or 50%`; any other text as it is."""
    first, *others = _OR.split(text) if len(text) <= MAX_LENGTH else [text]
    for rough, other in zip(others[::2], others[1::2], strict=True):
        one, two = only_number(first), only_number(other.rstrip(" )."))
        if rough:
            values = [
                each.value / (100 if each.is_percent else 1)
                for each in (one, two)
                if each and not isinstance(each.value, str)
            ]
            if len(values) < 2 or abs(values[0] - values[1]) > abs(values[0]) / 20:
                return text
        elif not ((read := readings(first)) and (again := readings(other.rstrip(" )."))) and judge(read, again)):
            return text
    return first


def verify(gold: str, answer: str, question: str = "") -> dict[str, Any]:
    """Compare an answer with the expected one mathematically.

    Both are read whole or not at all. The last boxed expression counts; several boxes together count only where a set
    or list is expected, so boxing many guesses gains nothing. `decided` says how a verdict was found: by `proof`, by
    `sample`, or as equal `text`.
    """
    answer = without_confidence(answer, question)
    if all(re.match(r"-?\.?\d", answer[sign.end() :]) for sign in _DOLLAR.finditer(answer)):  # no end of a formula
        answer = _DOLLAR.sub(r"\\$", answer)
    calm = calmed(answer)
    if "!" in gold or calm == answer:
        return _verify(gold, answer, question)
    found = _verify(gold, calm, question)
    is_factorial = not found.get("matched") and _verify(gold, answer, question).get("matched")
    return {**found, "matched": False, "reason": "undecided"} if is_factorial else found


def _chosen(gold: str, answer: str, question: str) -> tuple[str, bool] | None:
    """The answer to a choice, a yes-or-no question or a count of none, with its verdict; None for others."""
    if gold.casefold() in ("yes", "no", "true", "false"):
        polar = find_polar(answer)
        if polar is not None or _POLAR.search(answer):  # `Yes and no` is wrong
            return ("yes" if polar else "no"), polar == (gold.casefold() in ("yes", "true"))
    if re.fullmatch("[A-J]", gold) and (letter := find_letter(answer)) is not None:
        return letter, letter == gold
    if says_none(answer, question):
        return "0", gold in ("0", "none")
    # `Alice is the oldest`, with all other words from the question.
    subject = re.match(rf"(?i)\W*{re.escape(gold)}\s+(?:is|was|has|had|did|does|will)\b", answer) if gold else None
    if subject is None or not gold.replace(" ", "").isalpha():
        return None
    rest = {*re.findall(r"\w+", answer[subject.end() :].casefold())} - {"the", "a", "an"}
    return (gold, True) if rest and rest <= {*re.findall(r"\w+", question.casefold())} else None


def _verify(gold: str, answer: str, question: str) -> dict[str, Any]:
    gold_boxes = find_boxes(gold)
    gold = gold[slice(*gold_boxes[-1])] if gold_boxes else _MARKER.sub("", gold)
    expected = readings(gold)
    asked = Question(question, gold, expected)
    info: dict[str, Any] = {"gold_parsed": [str(reading.node)[:500] for reading in expected]}
    if not expected or expected[0].node.kind == "phrase":  # unscored whatever the answer, so that none gains by it
        return {**info, "reason": "gold_parse_failed"}
    if repeats(answer, question, gold):
        return {**info, "reason": "prompt_repeated"}
    whole = plain(gold)
    has_box = bool(OPEN_BOX.search(answer))
    is_word = expected[0].node.kind == "word" or whole.strip("()").isalpha()
    if not has_box and (chosen := _chosen(whole, answer, question)) is not None:
        return {**info, "matched": chosen[1], "decided": "text", "answer_parsed": [chosen[0]]}
    choices = candidates(answer, f"{gold} {question}", with_parts=expected[0].node.kind == "group")
    # The words of the gold in a sentence that neither denies them nor has others to choose from.
    is_named = whole and not re.search(rf"{_DENIAL.pattern}|\bor\b", answer)
    is_named = is_named and {*whole.casefold().split()} <= {*plain(answer).casefold().split()}
    before, _, after = answer.rpartition(whole)
    is_named = is_named and not is_part(before, after)  # `6 squared`
    for items in ([], *choices):
        text = _without_repeats(", ".join(dict.fromkeys(items))) if items else answer
        text = _QUOTED.sub(r"\1", text)
        stated = plain(text)
        is_same_word = whole.isalpha() and reads_as_word(whole, ()) and stated.casefold() == whole.casefold()
        if whole and (stated == whole or is_same_word):
            return {**info, "matched": True, "decided": "text", "answer_parsed": info["gold_parsed"]}
        if not items:
            continue
        if has_box and len(text) > max(MAX_LENGTH, 2 * len(gold)):
            return {**info, "reason": "too_complex", "error": f"{len(text)} characters"}
        found = readings(text) if len(text) <= max(MAX_LENGTH, 2 * len(gold)) else []
        found = [reading for reading in found if asked.knows_nouns(reading.node)]
        if not found or (not has_box and not is_word and is_prose(found[0].node)):
            continue
        info["answer_parsed"] = [str(reading.node)[:500] for reading in found]
        with comparing_under(asked.terms):
            verdict = judge(expected, found, asked)
            if verdict and (ordered := ordered_letters(gold, text, asked.is_about_matrices)):
                one, other = readings(gold, ordered), readings(text, ordered)
                verdict = judge(one, other, asked) if one and other else None
            if verdict is False and len(items) > 1:
                verdicts = [bool(each := readings(item)) and judge(expected, each) for item in items]
                has_names = all("=" in item for item in items)  # of which one may be asked for
                verdict = True if all(verdicts) else None if has_names and any(verdicts) else False
        if verdict is False and not has_box:
            verdict = None if is_named and len(whole) > 1 and is_word and not _MARKER.search(answer) else False
        if verdict is None:
            return {**info, "reason": "undecided"}
        decided = "sample" if verdict and asked.terms.sampled else "proof"
        return {**info, "matched": verdict, "decided": decided}
    is_empty = not any(char.isalnum() for items in choices for item in items for char in item)
    if has_box:
        return {**info, "reason": "answer_parse_failed" if is_empty else "answer_unreadable"}
    return {**info, "reason": "undecided" if is_named else "answer_parse_failed"}
