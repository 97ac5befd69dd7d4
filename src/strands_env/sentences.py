r"""What the words around an answer say of it: that it is denied, one of several, or a part of something larger.

One set of rules for boxes, numbers in prose and letters of options; `before` and `after` are the text around it.
"""

from __future__ import annotations

import re

ANSWER = (
    r"(?<![A-Za-z])(?i:answer|antwort|lösung|réponse|respuesta|risposta|resposta|antwoord|svar(?:et)?|ответ|odpowiedź|odpověď"
    r"|cevap|jawaban(?:nya)?|đáp\ án|الإجابة|उत्तर|答案|答え|正解|정답)(?![A-Za-z])"
)
"""The answer, in several languages."""
IS = (
    r"(?:(?i:\b(?:is|was|ist|lautet|est|es|è|é|är|là|adalah|هي)\b(?!n['’]t)|(?:should|would|must|has\s+to)\s+be\b)"
    r"|[:：=→]|\s[-—–]+\s|は|은|는|是|为)"
)
"""Between the word for the answer and the answer."""

_OPENING = r"[\s*_`\"'$:(\[\\]*(?:f?box(?:ed)?\s*\{[\s$(\\{]*)?\Z"
_CLOSING = r"[\s*_`\"'$)\]}\\]*"
_SAME_CLAUSE = r"(?:(?!\b(?:so|thus|hence|therefore|and|but|because|since|instead)\b)[^,;:.!?\n])*"
_WRONG = (
    r"(?:wrong|incorrect|false|impossible|untrue|invalid|excluded|eliminated|rejected|ruled\s+out"
    r"|falsch|faux|fausse|incorrecte|incorrecta|falsa|errata|errada)"
)
_NOT_IT = (
    r"(?:not|n['’]t)(?:\s+(?:be\s+)?(?:the|right|correct|true|it|my|our|possible|valid|what|an?\s+(?:answer|solution|option))\b"
    r"|\s*[.!,;\n]|\s*\Z)"
)

_DENIED_BEFORE = re.compile(
    rf"""(?i)(?:
        (?:\b(?:not|never|cannot|nicht|kein|pas|jamais|no\ es|non\ è|não\ é|не
            |reject(?:ed|s)?|eliminated?|excluded?|ruled?\ out|discard(?:ed)?|anything\ but
            |except(?:\ for)?|nobody\ says|other\ than|(?:differs?|different|far)\ from|unequal\ to
            |exceeds?|neither)|n['’]t|不是|并非|不等于)
        (?:\s+(?:be|is|equal|to|the|final|answer|option|choice|letter|it))*
      | \b(?:wrong|incorrect|worst|second-best)\s+(?:\w+\s+)?(?:answer|option|choice|one|solution|result|value)\s*
        (?:is|was|would\ be|:|=)(?:\s+(?:option|choice))?
      | (?:\b(?:false|untrue)|\b(?:it|that)\s+is\s+not\s+(?:true|correct|the\ case|so)
          |(?:n['’]t|\bnot)\s+(?:think|believe|say|claim)
          |(?<!no\ )(?<!any\ )(?<!without\ )(?<!without\ a\ )(?<!beyond\ )\bdoubt)\b{_SAME_CLAUSE}
      ){_OPENING}""",
    re.VERBOSE,
)
_STATING = (
    r"(?:\s+(?:that|(?:the|my|this|our|a)\b|final|correct|right|true|answer|option|choice|letter|result|value|it(?:['’]s)?|is|was|were|be"
    r"|would|equals?))*"
)
_SUPPOSED = re.compile(
    rf"""(?i)\b(?:
        (?:if|unless|whether|suppos(?:e|ing)|assum(?:e|ing)|imagin(?:e|ing)
        |tempting\ to\ (?:say|think|answer|choose|pick))
      | (?:people|students?|others|someone|some|many|they|(?:one|you)(?=\ (?:would|could|might|may)))\s+
        (?:(?:would|could|might|may|often|wrongly|mistakenly|first)\s+)*
        (?:choose|chose|pick|select|go\ with|say|think|answer)
      | I\s+(?:(?:first|initially|originally)\s+)?(?:thought|assumed|suspected)
    ){_STATING}{_OPENING}""",
    re.VERBOSE,
)
_DENIED_AFTER = re.compile(
    rf"(?i){_CLOSING}(?:,?\s*\b(?:(?:which|that|it)\s+)?(?:is|was|would\s+be|must\s+be|seems|has\s+been|can\s+be|ist|est|es|è|é)\s*"
    rf"(?:(?:also|definitely|clearly|obviously|certainly|simply|plainly)\s+)?(?:(?:the\s+|an?\s+)?{_WRONG}\b|{_NOT_IT})"
    rf"|\s*\b(?:can|could|would)\s*(?:not|n['’]t)\s+be\b|\s*\?\s*(?:no|not|nope|never|wrong)\b"
    rf"|\s*[.!,;-]*\s+(?:no,\s+)?(?:that|this|it)(?:['’]s|\s+is|\s+was)\s+(?:{_WRONG}\b|{_NOT_IT})"
    r"|\s*(?:是错|不对|不正确|では(?:ない|ありません)|じゃない|[가이]\s*아니))"
)
_PART_BEFORE = re.compile(
    r"""(?i)(?:\b(?:twice|half|thrice|double|triple|negative|minus|plus|times|over|under|above|below|root|square|cube
        |not|cannot|never|least|most|(?:more|less|fewer|greater|larger|smaller)\ than|between\b[^.\n]*\band|dozen|except
        |\d\s*by|(?:divided|multiplied)\ by|per|sqrt|log|ln|sin|cos|tan|base|mod(?:ulo)?
        |step|case|part|problem|question|equation|example|page|chapter|section|figure|exercise|line)
      | n['’]t|(?:[\d)}]|\b[a-z])[^\S\n]*[-+/^]|[^\S\n][<>]|\d\s*\*(?!\*)|[≤≥≠√×]|\bout\ of
      |\d[kKM]?\W{0,3}(?:\b[^\W\d_]+\W{1,3})?\b(?:or|maybe|perhaps|possibly)|\b(?:either|[^\W\d_]+\s+or))
      (?:\s+(?:of|the|be|to|equal|a|an))*(?:\s+[a-z]\s*=)?[\s*_`"']*(?:\$|\\[(\[])?\s*\Z""",
    re.VERBOSE,
)
_PART_AFTER = re.compile(
    r"""(?i)[^\S\n]*[*_`"']*(?:\$|\\[)\]])?[^\S\n]*(?:[\^+/?×÷‰‱]|[-*]\s*\d|k\b|\b(?:squared|cubed|factorial|dozen|score|gross|hundred|thousand
          |million|billion|trillion|lakh|crore|bn|halves|thirds|quarters|fifths|tenths|hundredths|minus|plus|below|above|over
          |(?:less|more|fewer)(?=\s+than)|reciprocal|negative|is\s+(?:not|wrong|incorrect|false)|isn['’]t
          |times\s+(?:\S*\d|as|more|the|larger|that|what)|(?:in\s+)?base\s+\d+|(?:out\s+of|to|through|vs\.?|versus)\s+\d+
          |if\b[^.\n]*\b(?:else|otherwise))\b
        | \\?%?\s*\b(?:sure|certain|certainty|confident|confidence)\b)""",
    re.VERBOSE,
)
_ANOTHER_AFTER = re.compile(
    r"""(?i)[\s*_`"'$)\]}]*(?:,\s*[-$]*\d[\d.]*)*(?:
        [,;(]?\s*\(?and\s+[-$]*\d[\d.,]*[kKM]?(?!\s*[-+*/=^]|\w|\s+(?:is|are)\b)
      | [,;(]\s*\(?(?:otherwise|else|alternatively|maybe|possibly|perhaps)\b[\s,]*[-$]*\d
      | [.,;(]?\s*\(?(?:[^\W\d_]{1,3}\s+|[^\W\d_]+\W{1,2}(?=or\s+[-$]*\d))?or\b[\s,]+
        (?!so\b|equivalent|more\s+precise|exact|approx|about|roughly|in\s|as\s|simply)\S)""",
    re.VERBOSE,
)
_NO_ANSWER = re.compile(
    r"(?i)\b(?:no\s+answer|unknown(?=\s*[.!,;]|\s*\Z)|no\s+idea|unable\s+to|(?:could|can|do|did)(?:\s+not|n['’]t)\s+"
    r"(?:finish|know|solve|determine|find|answer|say|tell)|cannot\s+(?:finish|solve|determine|find|answer|say|tell))\b"
)
_ITEM = (
    r"(?!(?:so|thus|hence|therefore|then|finally|well|ok|okay|sure|indeed|is|are|was|were|as|which|since|because|not)\b)"
    r"[^\s,;:!?]+(?:[ ][^\s,;:!?]+)?"
)
_LIST = re.compile(rf"(?i)\W*{_ITEM}(?:,\s*{_ITEM}){{2,}}")
_CORRECTION = r"(?:actually|wait|correction|sorry|oops|hmm+|scratch\s+that|instead|rather)"
_TAKEN_BACK = re.compile(
    rf"(?i)\b(?:(?:final|correct|right|true)\s+answer|answer|(?:{_CORRECTION}|no)\b"
    r"[^\n]{0,60}?\b(?:it|that|(?:right|correct)\s+(?:one|value)))\s*(?:is|was|should\s+be|=|:)\s*:?\s*|\bactually,?\s+(?=[-$\d])"
    r"|\A[\s$*]*[.;,(]?\s*or\s+(?=[-$\d\\])"
)
_TAKES_BACK = re.compile(
    rf"(?i)\b(?:{_CORRECTION}|no[,.:!]|re-?(?:consider|check|examin|think)\w*|second\s+thoughts?|mistake[ns]?|revis\w+|chang\w+\s+my"
    r"|(?:was|is|that['’]s)\s+(?:wrong|incorrect|not\s+(?:right|correct)))(?!\w)|不对"
)


def is_denied(before: str, after: str) -> bool:
    """Whether the sentence around an answer, or what follows it at once, says that it is not the one."""
    return bool(_DENIED_BEFORE.search(before[-200:]) or _DENIED_AFTER.match(after) or is_supposed(before))


def is_supposed(before: str) -> bool:
    """Whether an answer is only supposed, or said by others: `If the answer is B`, `Many would choose B`."""
    return _SUPPOSED.search(before[-200:]) is not None


def is_part(before: str, after: str) -> bool:
    """Whether a number is a part of a larger expression in words, a label, or one of several: `double 7`, `7 or 8`."""
    return bool(_PART_BEFORE.search(before[-100:]) or _PART_AFTER.match(after) or _ANOTHER_AFTER.match(after))


def has_no_answer(sentence: str) -> bool:
    """Whether a sentence says that there is none: `I could not finish`."""
    return _NO_ANSWER.search(sentence) is not None


def is_list(sentence: str) -> bool:
    """Whether a sentence is a list of short items, of which none is the answer: `yes, 0, New York`."""
    return len(sentence) <= 300 and _LIST.fullmatch(sentence) is not None


def later_answers(after: str) -> list[str]:
    """Where text behind an answer states one again: what follows `Wait, no, it is`, `the final answer is`, `Or`."""
    return [after[stated.end() :] for stated in _TAKEN_BACK.finditer(after)]


def takes_back(between: str) -> bool:
    """Whether the text between two answers takes the first one back: `Wait`, `that is wrong`."""
    return _TAKES_BACK.search(between) is not None
