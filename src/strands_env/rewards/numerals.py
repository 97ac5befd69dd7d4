"""The numbers of a text: each a whole token of one value, of which one is the answer."""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

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
    is_whole,
    remarks,
    takes_back,
)

_LONG = 4000
"""Digits above which a number is compared as text: Python converts no more than 4,300."""
_LAST = 1000
"""Numbers of a text that may be its answer."""
_AROUND = 120
"""Characters before and after a number that say its role."""

_DASHES = str.maketrans("\u2212\u2012\u2013\u2014\u2010\u2011\u2044", "------/")
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_POWER = r"\^\s*(?:\{\s*([-+]?\d{1,4})\s*\}|([-+]?\d{1,4})(?!\d))"
_LETTER = r"[^\W\d_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # Chinese, Japanese and Korean write no space
_BOX = "\ue000"
"""Stands in front of the contents of a box."""
_REPLACED = [
    (re.compile(pattern), text)
    for pattern, text in (
        (r"</?[A-Za-z]\w*>|[-=]{1,2}>|\\(?:left|right)\b|\\(?:displaystyle|,|;|:|!|\ )|(?<=\d)~(?=\d)", " "),
        (r"(?<=\d)\{,\}(?=\d)", ","),
        (r"\\[dt]?frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"(?<=\d)\s*\*\*\s*(?=\d)", "^"),
        (r"(?<![\w*])\*([-\w.,$%]+)\*(?![\w*])", r"\1"),
        (r"\*\*|__|`|\\[()\[\]]", ""),
        (r"\\\$", "$"),
        (r"(?i:\b(answer|result|total))\s+-+\s+", r"\1: "),
        (r"\\(?:text|math)(?:bf|it|rm|sf)?\s*\{([^{}]*)\}", r"\1"),
        (r"(?<=\d)\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}", r" \1/\2"),
        (r"\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}", r"\1/\2"),
        (rf"(?<=\d)\s*(?:×|\\times|\\cdot|·|x|\*)\s*10\s*{_POWER}", r"e\1\2"),
        (rf"(?<![\w.,])10\s*{_POWER}", r"1e\1\2"),
        (r"\\f?box(?:ed)?\s*\{([^{}]*)\}", rf"{_BOX}\1"),
    )
]
_MARKED = re.compile(r"[\\<>~{*_`^]|\s-+\s")
"""Matches every text that a pattern of `_REPLACED` matches, and few others."""
NUMERAL = r"""(?:(?P<whole>\d+)\s(?=\d+/\d))?                                    # of a mixed number
        (?P<digits>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,3}(?:[ ]\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)
        (?P<exponent>[eE][-+]?\d{1,4}(?!\w)|/0*[1-9]\d*)?
        (?P<percent>\s?\\?%|[ ]percent\b)?
        (?P<scale>[ ](?i:thousand|million|billion|trillion|lakh|crore|bn)\b|[kKM]\b)?"""
"""A number as it is written, as a verbose pattern for a text from `without_markup`."""
_CORE = re.compile(NUMERAL, re.VERBOSE)
SCALES = {"": 1, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
SCALES |= {"lakh": 10**5, "crore": 10**7, "bn": 10**9, "k": 10**3, "m": 10**6}
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBER_WORDS = dict(zip(f"{_ONES} {_TENS}".split(), [*range(20), *range(20, 100, 10)], strict=True))
_SMALL = "|".join(NUMBER_WORDS)
_LARGE = "hundred|thousand|million|billion|trillion"
_IN_WORDS = re.compile(
    rf"""\b(?i:(?!one\b)|(?<=is\ )|(?<=[=:]\ )|\A|(?=one[\s-]+(?:{_LARGE})\b))
        (?<!point\ )(?!one\s+(?:of|by)\b)(?i:{_SMALL})(?i:(?:[\s-]+and)?[\s-]+(?:{_SMALL}|{_LARGE}))*\b
        (?![-\w]|\s+(?i:point|and\s+an?\s+(?:half|third|quarter)|half|halves|thirds?|quarters?|[a-z]+ths?)\b)(?:!(?=\s|\Z))?""",
    re.VERBOSE,
)
_EITHER = re.compile(
    r"([-$]?(?<![\d.,/])\d[\d.,/]{0,40}(?<![.,])%?)[^\w\n]{1,3}or\s+([-$]*\.?\d(?:[\d.,/]*\d)?%?|[A-Za-z]+(?:-[A-Za-z]+)?)(?![\w/^])"
)
_LEAD = re.compile(
    r"(?P<sign>\b(?i:minus|negative)\s+|[负負]|(?<![\w)\]}])(?<![\d)\]}]\s)[-+][^\S\n]?)?"
    r"(?:[$£€¥₹][^\S\n]?)?(?P<second>[-+])?\Z"
)
_OTHER_BEFORE = re.compile(
    rf"""(?:{_LETTER}|[\d_)\]}}^{{√≠±∓<≤≥\\!+*×÷·⋅/-]|[A-Za-z0-9_]\(|[-+√^]\s?[(\[]|>|\d[.,:])\Z
      | [-+*/^]\s?(?:\||\\[lr]?vert\s?)\Z
      | (?:[\w)\]}}]\s?[-+*×÷·⋅/^]|[√≠±∓<≤≥]|!=|(?<!^)(?<!\n)>)\s?[(\[]?\Z
      | \\(?:sqrt|log|ln|exp|sin|cos|tan|neq?|pm|mp|leq?|geq?|lt|gt|times|cdot|div)\s*[({{]?\s*\Z
      | (?i:\b(?:than|factorial\ of)|\d[^\w%]{{0,3}}\b(?:and|to|else|otherwise))
        \s+(?i:(?:be|equal\ to)\s+)?[$(\[]?\Z""",
    re.VERBOSE,
)
_OTHER_AFTER = re.compile(
    rf"""(?:(?!(?:cm|mm|km|kg|mg|ml|ms|min|mph)\b){_LETTER}|[_{{}}(\[万億亿千百兆])
      | [)\]}}]*(?:!|\^|[.,:/]?\d)
      | [)\]}}]*\s?(?:[*^×÷·⋅+]\s?[\w(\\{{$√]|/\s?[\d(\\]|-\s?[\d(\\$√])
      | [^\S\n]?(?:\\(?![)\]%,;:!\ \\$]|quad|circ|degree|end)|π|pi\b|√|[xyzij]\b)
      | \s+(?i:to\ the\ power\b|(?:times|divided\ by)\s+\S*\d)""",
    re.VERBOSE,
)
_REASON = re.compile(
    r"(?i)\d[^.\n]*(?:\b(?:because|since|instead\s+of|rather\s+than|unlike|namely|to\s+(?:reach|get|make))\b"
    r"|\b(?:in\s+total|altogether|in\s+all):)[^,;.\n]*\Z|\d[^().\n]*\s\([^()\n]*\Z"
)
"""In front of a number that explains another, or stands in brackets behind it."""
_ADJUNCT = re.compile(r"(?i)\d[^.,;:=\n]*\s(?:after|in)\s+(?:an?\s+|the\s+|each\s+)?(?:[$£€]|\\\$)?\Z")
"""In front of a number of an adjunct: `36 students in 2 classes`."""
_STATED = re.compile(
    rf"(?:{ANSWER}(?i:\s+(?:to|for)\b[^.\n]{{0,80}}?)?\s*(?:{IS}|\bequals\b)"
    r"|(?i:\bactually,?(?:\s+it\s+is)?|\bcorrection:|\b(?:wait|no|rather|instead)\b[^.\n\d]{0,40}?\b(?:it|that)(?:['’]s|\s+is)))[\s:=\"'(\[$]*(?:(?i:indeed|thus|probably|exactly|simply|equal\s+to)\s+)?\Z"
    r"|####\s*\Z"
)


@dataclass(frozen=True, slots=True)
class Numeral:
    """A number with its spelling; of more than 4,000 digits, its value is their text."""

    text: str
    value: Fraction | str
    is_percent: bool


def without_markup(text: str) -> str:
    """The text without marks of emphasis and markup, powers and fractions written in letters of ASCII."""
    if not text.isascii():
        text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+", lambda found: "^" + found[0].translate(_SUPERSCRIPTS), text)
        text = re.sub("(?<=\\d)(?=[¼-¾⅐-⅞])", " ", re.sub("[₀-₉]+|[①-⑳]", "_", text))
        text = unicodedata.normalize("NFKC", text).translate(_DASHES)
    if _MARKED.search(text):
        for pattern, replaced in _REPLACED:
            text = pattern.sub(replaced, text)
    return text


def numerals(text: str) -> tuple[tuple[Numeral, ...], Numeral | None, str]:
    """The numbers of a text, the one that it answers with, and the text without them.

    A number in a larger expression, or denied, is none. A stated answer counts before numbers that follow it.
    """
    # A proof of a reward reads the same short texts at every task.
    return (_numerals if len(text) <= _LONG else _numerals.__wrapped__)(text)


@lru_cache(maxsize=256)
def _numerals(text: str) -> tuple[tuple[Numeral, ...], Numeral | None, str]:
    text = calmed(without_markup(text))
    if not re.search(r"\d", text):
        text = _IN_WORDS.sub(
            lambda found: found[0] if (value := number_in_words(found[0])) is None else str(value), text
        )
    if "or" in text:
        text = _EITHER.sub(lambda pair: pair[1] if _value(pair[1]) == _value(pair[2]) != "" else pair[0], text)
    found: list[Numeral] = []
    answer: Numeral | None = None
    is_stated, rest, end, place = False, "", 0, 0
    places: list[int] = []
    for core in deque(_CORE.finditer(text), maxlen=_LAST):
        before, after = text[max(0, core.start() - _AROUND) : core.start()], text[core.end() : core.end() + _AROUND]
        lead = _LEAD.search(before)
        assert lead is not None  # it may be empty
        head = before[: lead.start()]
        is_boxed, head = head.rstrip(" $").endswith(_BOX), head.replace(_BOX, "")
        numeral = None
        sentence = re.split(r"[.!?;\n](?:\s|$)", head)[-1] + re.split(r"[.!?;\n](?:\s|$)", after)[0]
        is_adjunct = found and len(core["digits"]) < 4 and _ADJUNCT.search(head)
        is_beside = is_whole(head) or is_adjunct or (found and _REASON.search(head)) or has_no_answer(sentence)
        is_other = is_beside or _OTHER_BEFORE.search(head) or _OTHER_AFTER.match(after)
        if not (is_other or is_part(head, after) or is_denied(head, after)):
            start = core.start() - len(lead[0])
            is_negative = any(sign and sign.strip().lower() not in "+" for sign in lead.groups())
            numeral = _read(core, text[start : core.end()].strip(), is_negative)
            found.append(numeral)
            places.append(start)
            rest, end = rest + text[end:start], core.end()
        clause = re.split(r"[.!?\n]\s+|\n", head)[-1]
        if is_boxed or (_STATED.search(head) and not (is_stated and is_aside(clause))):
            answer, is_stated, place = numeral, True, core.end()
        elif numeral is not None and (not is_stated or (answer is None and re.search(r"[=≈]\s*\Z", head))):
            answer, place = None if re.search(r"\d \Z", head) else numeral, core.end()  # numbers side by side
    given = answer
    for remark, at in remarks(text[place:]) if answer is not None else ():
        later = next(((one, start) for one, start in zip(found, places, strict=True) if start >= place + at), None)
        if remark is Remark.DENIED:
            given = None
        elif remark is Remark.CONFIRMED:
            given = given or answer
        elif later is not None and not text[place + at : later[1]].strip(" *$\n(=:"):
            given = later[0] if remark is Remark.CORRECTED or later[0] == answer else None
    is_choice = (is_list(text.strip()) and not takes_back(text)) or (gives_up(text) and not is_stated)
    return tuple(found), None if is_choice else given, (rest + text[end:]).replace(_BOX, "")


def number_in_words(text: str) -> int | None:
    """The number that words say; None where they say none: `two three`."""
    total = group = 0
    least = 10**15
    for word in re.findall("[a-z]+", text.lower()):
        value = NUMBER_WORDS.get(word, SCALES.get(word, 100))
        if word == "and":
            is_next = group % 100 == 0 and group + total > 0
        elif word in NUMBER_WORDS:
            is_next = group % 100 == 0 or (group % 100 in range(20, 100, 10) and 0 < value < 10)
            group += value
        elif value == 100:
            is_next, group = 0 < group < 10, group * 100
        else:
            is_next, total, group, least = group > 0 and value < least, total + group * value, 0, value
        if not is_next:
            return None
    return total + group


def _value(text: str) -> Fraction | str:
    number = only_number(text)
    if number is None or isinstance(number.value, str):
        return "" if number is None else number.value
    return number.value / (100 if number.is_percent else 1)


def only_number(text: str) -> Numeral | None:
    """The number that a text consists of; None for any other text."""
    found, number, rest = numerals(text)
    return number if len(found) == 1 and not rest.strip(" .$\n") else None


def _read(core: re.Match[str], text: str, is_negative: bool) -> Numeral:
    digits, exponent = re.sub("[, ]", "", core["digits"]), core["exponent"] or ""
    is_percent = core["percent"] is not None
    if len(core[0]) > _LONG:
        whole, _, part = digits.partition(".")
        value = f"{whole.lstrip('0')}.{part.rstrip('0')}{exponent}{core['scale'] or ''}"
        return Numeral(text, f"-{value}" if is_negative else value, is_percent)
    number = Fraction(digits) / Fraction(exponent[1:]) if exponent[:1] == "/" else Fraction(digits + exponent)
    number = (number + Fraction(core["whole"] or 0)) * SCALES[(core["scale"] or "").strip().lower()]
    return Numeral(text, -number if is_negative else number, is_percent)
