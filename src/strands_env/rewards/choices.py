"""Answers to a choice that a text states: the letter of an option, yes or no."""

from __future__ import annotations

import re
import unicodedata
from collections import deque

from strands_env.rewards.sentences import ANSWER, IS, Remark, is_denied, is_supposed, remarks, takes_back

_WORD = r"[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # Chinese, Japanese and Korean write no space
_END = rf"(?!{_WORD}|['’]\w|-\w|[^\S\n]*[=+/^<>])"  # the letter is no word, formula or `B-cell`
# "Answer: A good question"
_ARTICLE = (
    r"(?!(?<=[AI])[^\S\n]+"
    r"(?!(?:because|since|as|is|for|which|with|or|and|but|not|if|due|from|fits|works|remains)\b)[a-z])"
)
_LETTER = rf"(?P<letter>[A-J]){_END}{_ARTICLE}"
_OPTION = r"(?i:(?:option|choice|letter|lettre|letra|lettera)\W{0,3})"
_ADVERB = r"(?i:(?:I\s+(?:think|believe)|it\s+is|likely|probably|definitely|clearly|donc|also|quindi)\b\W{0,3})"
_OPINION = (
    r"(?:^|[.!?:;,]\s)\W{0,3}(?i:(?:(?:clearly|definitely|obviously|surely|certainly|probably|likely|(?:must|has\s+to|would)\s+be"
    r"|I(?:['’]d|\s+would|['’]ll)?\s+(?:think|believe|say|answer|guess|go\s+for|go\s+with)|I\s+am\s+confident\s+in|let['’]s\s+say"
    r"|my\s+(?:guess|pick|bet)\s+is|that(?:['’]s|\s+is)|that\s+would\s+be|which\s+is)\b\W{0,3})+)"
)
"""Opens a clause that ends with the letter: `Clearly B.`, `I'd say B.`"""
_LABEL = (
    rf"(?:{ANSWER}|\b(?i:ans|option|choice)\b|选项)(?i:\s+(?:choice|option|letter|finale?|correct[ae]?|corrett?a|giusta|juste|الصحيحة|đúng))?"
    rf"(?i:\s+(?:to|for)\b[^.:\n]{{0,80}}?)?(?:,[^,.\n]{{1,20}},)?\W{{0,4}}(?:{IS}|(?<=ns)\.)\W{{0,8}}(?:(?:la|a|die|de)\s)?{_ADVERB}{{0,2}}"
)
_ALONE = r"[^\w\n]*$"
_CLAUSE_ENDS = r"\)?[^\S\n]*(?=[.,;!\n]|\Z)"
_RIGHT = (
    r"\)?\s+(?:is|seems|looks)\s+(?:the\s+)?(?:only\s+)?(?:correct|right|best|most\s+(?:plausible|likely|reasonable)|(?:possible\s+|final\s+)?answer(?!\s+\w)"
    r"|(?:one|option|choice|answer)\s+(?:left|remaining|that\s+(?:fits|works)))\b"
)
# Patterns before and after a stated letter, with a weight: one of more weight overrules those before it.
_STATED = [
    (weight, re.compile(rf"{before}{_OPTION}?{_LETTER}{after}", re.MULTILINE))
    for weight, before, after in (
        (4, rf"(?i:\bfinal\W{{1,3}}){_LABEL}", ""),  # The final answer is B.
        (3, _LABEL, ""),  # The answer is (B). Answer: B. La respuesta correcta es la B.
        (3, r"(?i:\banswer)\s+\(", ""),
        (3, r"^[^\w\n]*(?i:answer)\s+", _ALONE),
        (3, r"\\f?boxed\W{0,6}", ""),
        (3, r"(?:答案|选项|选择|选|应为|而是)\W{0,4}(?:应该)?[是为]?\W{0,4}(?:选项)?", ""),
        (2, r"^[^\w\n]*", _ALONE),
        (1, r"(?i:\b(?:but|rather|actually|instead|no,|wait,)\W{0,4})", _CLAUSE_ENDS),  # not B but C
        (1, rf"(?i:\bit(?:['’]s|\s+(?:is|must\s+be|has\s+to\s+be))\W{{0,4}}){_ADVERB}?", _CLAUSE_ENDS),
        (1, r"\b(?i:reconsider|hmm|wait|actually|instead|correction)\b[^\n]{0,60}?(?<!\w)", _RIGHT),
        (
            1,
            r"(?i:\b(?:so|thus|therefore|hence|it\s+is)\b\W{0,4}(?:the\s+(?:answer|option|choice)\W{0,3})?)",
            _CLAUSE_ENDS,
        ),
        (1, r"(?i:\b(?:leav(?:es|ing)|left\s+with)\s+(?:us\s+with\s+|only\s+|just\s+)?\W{0,2})", _CLAUSE_ENDS),
        (1, r"(?i:\b(?:only|just)\s+)", r"\)?\s+(?:is\s+left|remains|fits|works|is\s+(?:right|correct|possible))\b"),
        (1, r"(?:^|[.!?]\s)[^\w\n]{0,8}", r"\)?\s+it\s+is\b"),
        (1, r"(?i:\bby\s+(?:elimination|exclusion)\b\W{0,3})", _CLAUSE_ENDS),
        (1, r"(?i:\b(?:choose|chose|pick|select|conclude|go(?:ing)?\s+with)\b\W{0,4})", _CLAUSE_ENDS),
        # Only where nothing above is there: the one that is called right, named as an option, or listed.
        (0, r"(?<!\w)", _RIGHT),
        (0, _OPINION, _CLAUSE_ENDS),
        (
            0,
            r"^[^\w\n]*(?i:(?:correct|right|best|solution|result|verdict|final|selected|chosen|conclusion)\s*[:=]\W{0,4})",
            _ALONE,
        ),
        # "B, since A fails", but not "B, since it fails, is out"
        (0, r"(?:^|[.!?]\s)[^\w\n]{0,8}", r"\)?,?\s+(?:because|since|as)\b(?![^.\n]*,\s*(?:is|was|can|must|fails)\b)"),
        (-1, r"(?:\((?=[A-J]\))|(?i:\b(?:option|choice)\s+)\(?)", ""),
        (-2, r"^[^\w\n]*", r"(?:[.):]|[^\S\n]-)[^\S\n]"),
    )
]
_SMALL = re.compile(rf"(\\f?boxed\{{\W*|{_LABEL}|\A\W*)([a-j])(?=\W*\}}|\)?[^\w\n]*$)", re.MULTILINE)
# "A or B", "(A) (B)", "A; B", "A..D", "B, though C is also right".
_OTHER = (
    rf"[A-HJ]{_ARTICLE}(?!\w)(?!\)?(?:,?\s+(?:and|or)\s+\(?[A-J]\)?)*\s+(?:is|are|was|were|has|have|does|do|can(?:not)?|could|would"
    r"|fails?|contradicts?)\b)"
)
_COMBINED = re.compile(
    r"[).:]\s+(?:(?i:both|either|neither|only)\s+)?[A-J](?:,\s*[A-J])*,?\s+(?i:and|or|nor)\s+[A-J](?!\w)"
)
"""Behind a stated letter, the text of its option: `D) A and C`."""
_HEDGE = re.compile(
    rf"""(?:\W{{0,3}}(?:\b(?i:or|and|else|otherwise|oder|und|ou|et|o|y|e|или)\b|또는|または)
          |[^\S\n]+if\b[^.\n]*(?:\b(?:else|otherwise)\b|[,;](?=\W+[A-J]\)?\s+(?:if|else|otherwise)\b))|\)(?=\()|[^\S\n]*(?:\.{{2,}}|[–—]|\b(?:to|through)\b)
          |[^\w\n]{{0,3}}(?:[/,;|&、或和+~]|[^\S\n]))[^\w\n]{{0,4}}
        (?:(?:maybe|possibly|perhaps|also|alternatively|failing\s+that)\W{{1,3}})?(?:\\f?boxed\{{)?\(?{_OTHER}
      | ,\s*(?:maybe|possibly|perhaps)\b
      | [^\n]{{0,60}}?\b[A-J]\)?\s(?:(?!not\b|n['’]t)[^.\n]){{0,40}}?\b(?:also|equally)\b
        (?:(?!not\b|n['’]t)[^.\n]){{0,40}}?\b(?:right|correct|possible|valid|acceptable|plausible|works?|fits?)\b""",
    re.VERBOSE,
)


def find_letter(text: str) -> str | None:
    """The letter that an answer states: as its answer, in a box, or alone on a line; in several languages.

    Where it states two that differ, the later one counts only if it stands in a clearer form (an answer or a box after
    a conclusion in prose, "the final answer" after an answer) or after words that take the first one back ("Wait");
    otherwise there is no answer. Where it states none, the one that it calls right, or the only one that it names as an
    option. None where there is no such letter, or two at once ("A or B"). A letter that is denied ("B is wrong"), or
    that is supposed or chosen by others ("If the answer is B"), is none.
    """
    text = re.sub(r"[*`]|__|\\(?:text|math)(?:bf|it|rm|sf)?\b", "", unicodedata.normalize("NFKC", text))
    text = _SMALL.sub(lambda small: small[1] + small[2].upper(), text)
    text = text.replace("<answer>", "Answer: ").replace("</answer>", "\n")
    denied, supposed = {}, set()
    for found in deque(re.finditer(rf"(?<!{_WORD}){_LETTER}", text), maxlen=400):
        start, end = found.span()
        before, after = text[max(0, start - 200) : start], text[end : end + 200]
        if is_supposed(before):
            supposed.add(end)
        elif is_denied(before, after):
            denied[found[0]] = end
    weights: dict[int, int] = {}
    for weight, pattern in _STATED:
        for found in pattern.finditer(text):
            weights.setdefault(found.end("letter"), weight)
    combined = [(end, behind.end()) for end in weights if (behind := _COMBINED.match(text, end))]
    weights = {end: each for end, each in weights.items() if not any(first < end <= last for first, last in combined)}
    # A letter that is denied where it was stated, or later, is no answer any more.
    ends = sorted(end for end in weights if end not in supposed and end > denied.get(text[end - 1], 0))
    least = min(1, max((weights[end] for end in ends), default=1))
    ends = [end for end in ends if weights[end] >= least]
    hedged = [end for end in ends if not _COMBINED.match(text, end)]
    if not ends or any((hedge := _HEDGE.match(text, end)) and hedge.end() >= ends[-1] for end in hedged):
        return None  # `A or B`, of which one may be stated
    letter, last = text[ends[-1] - 1], ends[-1]
    others = [end for end in ends if text[end - 1] != letter]
    if others and max(weights[end] for end in others) >= max(weights[end] for end in ends if end > others[-1]):
        return letter if takes_back(text[others[-1] : last]) else None
    given: str | None = letter
    for remark, place in remarks(text[last:]):
        if remark is Remark.DENIED:
            given = None
        elif remark is Remark.CONFIRMED:
            given = given or letter
        elif other := re.match(rf"\W*{_LETTER}(?=\)?\W*(?:[.,;!\n]|\Z))", text[last + place :]):
            given = other["letter"]
    return given


_YES = "yes|yeah|yep|yup|true|ja|oui"
_NO = "no|nope|nah|false|nein|non"
_POLAR = rf"(?:(?P<yes>(?i:{_YES}))|(?P<no>(?i:{_NO})))(?!\w|-\w)"
_POLAR_STATED = re.compile(
    rf"(?:(?:{ANSWER})\W{{0,4}}(?:{IS}|\W{{1,4}}(?=\w))\W{{0,6}}|\b(?i:it\s+is|(?:so|thus|hence|therefore),?)\s|\A\W*)(?={_POLAR}\W*(?:[,.;:!–—\n]|\Z|way\b))"
)
_JUDGED = re.compile(
    r"(?i)\b(?:is|it['’]s|that['’]s)(?P<not>\s+not|n['’]t)?\s+(?:(?:indeed|actually|always|clearly)\s+)?(?P<word>true|false)\b"
)
_QUESTIONS = re.compile(r"\A(?:[^.!?\n]*\?\s*)+(?=\S)")


def find_polar(text: str) -> bool | None:
    """The truth of a text that answers with yes or no, or calls something true or false; None for any other.

    The first word counts, or the one behind "the answer is", unless a later sentence takes it back.
    """
    text = _QUESTIONS.sub("", re.sub(r"[*`{}$]|__|\\(?:text|math)\w*", "", text))
    stated = [(found.end(), found["yes"] is not None) for found in _POLAR_STATED.finditer(text)]
    if not stated:
        judged = [*_JUDGED.finditer(text)][-1:]
        return (judged[0]["word"].lower() == "true") != bool(judged[0]["not"]) if judged else None
    start, value = stated[-1]
    word = re.compile(_POLAR).match(text, start)
    assert word is not None  # the look-ahead saw it
    tail = text[word.end() :]
    if again := re.match(rf"\W{{1,3}}(?:(?P<hedge>and|or|maybe|perhaps)\b|{_POLAR}(?=\W*(?:[.,;!\n]|\Z)))", tail):
        if again["hedge"] or not re.search(r"[,.]\s*(?:true|false)", again[0]):
            return None
        value = again["yes"] is not None  # `No, true`
    given: bool | None = value
    for remark, place in remarks(tail):
        if remark is Remark.DENIED:
            if re.search(r"[.!?\n]", tail[:place]):  # `No, that is wrong`
                given = None
        elif remark is Remark.CONFIRMED:
            given = value if given is None else given
        elif other := re.match(rf"\W*{_POLAR}", tail[place:]):
            given = other["yes"] is not None
    return given
