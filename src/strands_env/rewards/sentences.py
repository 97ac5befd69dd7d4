r"""The words around an answer: those that deny it, or make it one of several, or a part of something larger.

One set of rules for boxes, numbers in prose and letters of options; `before` and `after` are the text around it.
"""

from __future__ import annotations

import re
from enum import StrEnum

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
    r"(?:wrong|incorrect|false|impossible|untrue|invalid|excluded|eliminated|rejected|(?:ruled\s+)?out(?=\s*[.,;!\n]|\s*\Z)"
    r"|falsch|faux|fausse|incorrecte|incorrecta|falsa|errata|errada)"
)
_NOT_IT = (
    r"(?:not|n['’]t)(?:\s+(?:be\s+)?(?:the|right|correct|true|it|my|our|valid|what|an?\s+(?:answer|solution|option)|possible(?=\s*[.!,;\n]|\s*\Z))\b"
    r"|\s*[.!,;\n]|\s*\Z)"
)

_DENIED_BEFORE = re.compile(
    rf"""(?i)(?:
        (?:\b(?:all\ but|everything\ but|not|never|cannot|nicht|kein|pas|jamais|no\ es|non\ è|não\ é|не
            |reject(?:ed|s)?|eliminated?|excluded?|ruled?\ out|discard(?:ed)?|anything\ but|instead\ of|rather\ than
            |except(?:\ for)?|nobody\ says|other\ than|(?:differs?|different|far)\ from|unequal\ to
            |exceeds?|neither)|n['’]t|不是|并非|不等于)
        (?:\s+(?:be|is|equal|have|has|need|cost|take|get|to|the|final|answer|option|choice|letter|it))*
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
      | (?:people|nobody|no\ one|students?|others|someone|some|many|they|(?:one|you)(?=\ (?:would|could|might|may)))\s+
        (?:(?:would|could|might|may|often|wrongly|mistakenly|first)\s+)*
        (?:choose|chose|pick|select|go\ with|say|think|answer)
      | if\b[^.!?\n]*\bwere\b[^.!?\n]*\bwould
      | I\s+(?:(?:first|initially|originally)\s+)?(?:thought|assumed|suspected)
    ){_STATING}{_OPENING}""",
    re.VERBOSE,
)
_DENIED_AFTER = re.compile(
    rf"(?i){_CLOSING}(?:,?\s*\b(?:(?:which|that|it)\s+)?(?:is|was|would\s+be|must\s+be|seems|has\s+been|can\s+be|ist|est|es|è|é)\s*"
    rf"(?:(?:also|definitely|clearly|obviously|certainly|simply|plainly)\s+)?(?:(?:the\s+|an?\s+)?{_WRONG}\b(?!\s+(?:to|that)\b)|{_NOT_IT})"
    r"|\s*\b(?:is|are|was|would\s+be|seems)\s+(?:far\s+|much\s+|way\s+)?too\s+(?:many|much|few|little|large|small|big|high|low|long|short)\b"
    r"|[\s*_]*[-–—(:,]+\s*(?:(?:this|that|which)\s+is\s+)?(?:wrong|incorrect|not\s+(?:right|correct))\b"
    r"|\s*\b(?:(?:does\s+not|doesn['’]t|cannot|can['’]t)\s+(?:work|fit)|fails?|contradicts)\b"
    r"|\s*\bwould\s+(?:only\s+)?(?:be|work|have\s+been)\b[^.\n]*\bif\b"
    rf"|\s*\b(?:can|could|would)\s*(?:not|n['’]t)\s+be\b|\s*\?\s*(?:no|not|nope|never|wrong)\b"
    r"|\s*(?:是错|不对|不正确|では(?:ない|ありません)|じゃない|[가이]\s*아니))"
)
_WOULD_BE = re.compile(rf"(?i)\bwould\s+(?:only\s+)?(?:be|equal|have\s+been){_OPENING}")
_WERE = re.compile(r"(?i)[^.!?\n]*?\bif\b[^.!?\n]*\b(?:were|was|had)\b")
"""Around a value in another case: `It would be 6 if repetition were allowed`."""
_PART_BEFORE = re.compile(
    r"""(?i)(?:\b(?:twice|half|thrice|double|triple|negative|minus|plus|times|over|under|above|below|root|square|cube
        |not|cannot|never|least|most|up\ to|almost|nearly|near|close\ to|is\ one\ of\b[^.\n]*
        |(?:more|less|fewer|greater|larger|smaller)\ than|between\b[^.\n]*\band|dozen|except
        |\d\s*by|(?:divided|multiplied)\ by|per|sqrt|log|ln|sin|cos|tan|base|mod(?:ulo)?
        |step|case|part|problem|question|equation|example|page|chapter|section|figure|exercise|line)
      | n['’]t|(?:[\d)}]|\b[a-z])[^\S\n]*[-+/^]|[^\S\n][<>]|\d\s*\*(?!\*)|[≤≥≠√×]|\bout\ of
      |\d[kKM]?\W{0,3}(?:\b[^\W\d_]+\W{1,3})?\b(?:or|maybe|perhaps|possibly)|\b(?:either|[^\W\d_]+\s+or))
      (?:\s+(?:of|the|be|to|equal|a|an))*(?:\s+[a-z]\s*=)?[\s*_`"']*(?:\\?\$|[£€¥₹]|\\[(\[])?\s*\Z""",
    re.VERBOSE,
)
_PART_AFTER = re.compile(
    r"""(?i)[^\S\n]*[*_`"']*(?:\$|\\[)\]])?[^\S\n]*(?:[\^+/?×÷‰‱]|[-*]\s*\d|k\b|\b(?:squared|cubed|doubled|tripled|halved|factorial|dozen|score|gross|hundred|thousand
          |million|billion|trillion|lakh|crore|bn|halves|thirds|quarters|fifths|tenths|hundredths|minus|plus|below|above|over
          |(?:less|more|fewer)(?=\s+than)|reciprocal|negative|is\s+(?:not|wrong|incorrect|false)|isn['’]t
          |times\s+(?:\S*\d|as|more|the|larger|that|what)|(?:in\s+)?base\s+\d+|(?:out\s+of|to|through|vs\.?|versus)\s+\d+
          |if\b[^.\n]*\b(?:else|otherwise))\b
        | \\?%?[^\S\n]*\b(?:sure|certain|certainty|confident|confidence)\b)""",
    re.VERBOSE,
)
_WHOLE = re.compile(
    r"(?i)\d\s+(?:[^\W\d_]+\s+)?(?:out\s+)?of\s+(?:the|these|those|his|her|their|our|my|all)(?:\s+(?:original|first|total))?\s*\Z"
)
_ANOTHER_AFTER = re.compile(
    r"""(?i)[\s*_`"'$)\]}]*(?:,\s*[-$]*\d[\d.]*)*(?:
        [,;(]?\s*\(?and\s+[-$]*\d[\d.,]*[kKM]?(?!\s*[-+*/=^]|\w|\s+(?:is|are)\b)
      | \s*and\s+an?\s+(?:half|third|quarter)\b
      | [,;]\s+[-$]*\d+(?=\W*(?:[.!]\s|\n|\Z))
      | [,;(]\s*\(?(?:otherwise|else|alternatively|maybe|possibly|perhaps)\b[\s,]*[-$]*\d
      | [.,;(]?\s*\(?(?:[^\W\d_]{1,3}\s+|[^\W\d_]+\W{1,2}(?=or\s+[-$]*\d))?or\b[\s,]+
        (?!so\b|equivalent|more\s+precise|exact|approx|about|roughly|in\s|as\s|simply)\S)""",
    re.VERBOSE,
)
_NO_ANSWER = re.compile(
    r"(?i)\b(?:no\s+answer|unknown(?=\s*[.!,;]|\s*\Z)|no\s+idea|unable\s+to|(?:(?:could|can|do|did)(?:\s+not|n['’]t)|can['’]t)\s+"
    r"(?:finish|know|solve|determine|find|answer|say|tell)|cannot\s+(?:finish|solve|determine|find|answer|say|tell))\b"
)
_GIVES_UP = re.compile(
    r"(?i)(?:\A|[.!?\n])\W{0,8}(?:sorry\W{1,4})?I\s+(?:do\s+not|don['’]t|cannot|can['’]t)\s+(?:know|tell|say|solve|answer)"
    r"(?:\s+(?:this|that|it|the\s+answer))?\W*(?:[.!\n]|\Z)"
)
_ITEM = (
    r"(?!(?:so|thus|hence|therefore|then|finally|well|ok|okay|sure|indeed|is|are|was|were|as|which|since|because|not)\b)"
    r"[^\s,;:!?]+(?:[ ][^\s,;:!?]+)?"
)
_LIST = re.compile(rf"(?i)\W*{_ITEM}(?:,\s*{_ITEM}){{2,}}")
_DOUBT = re.compile(
    r"""(?i)\b(?:wait|hold\ on|h+m+|actually|correct(?:ion|ed)|scratch\ that|strike\ that|sorry|apolog\w+|w?oops|nope
      |no[,.:;!]|my\ (?:bad|mistake)|make\ (?:it|that)|I\ meant?|(?:edit|update)(?=:)
      |kidding|contradiction|correct\ (?:that|this|it|myself)
      |forgot(?:ten)?|missed|overlooked|no\ wait
      |on\ (?:(?:second|further|closer)\ )?(?:thoughts?|reflection|inspection|look)
      |second\ thoughts?|(?:instead|rather)(?!\ (?:of|than))
      |re-?\s?(?:check|consider|examin|think|calculat|comput|count|do|verif|read)\w*|revis\w+|chang\w+\ my
      |(?:double|triple)[- ]?check\w*|(?:let\ me|let['’]s)\ (?:\w+\ )?(?:check|verify|see)
      |(?:thinking|looking|think|look|try|check|checking)\ (?:\w+\ )?again
      |mistaken?|errors?|misread|misspoke|miscounted|miscalculated
      |(?:was|is|that['’]s)\ (?:wrong|incorrect|not\ (?:right|correct)))(?!\w)|不对""",
    re.VERBOSE,
)
"""A second thought about the text before it."""
_SUBJECT = (
    r"(?:(?P<pronoun>\b(?:that|this|it|which))|\bI|\b(?:the|my|our|this|that)\s+(?:\w+\s+){0,2}?(?:answer|result|value|solution|choice"
    r"|guess|claim|conclusion|reasoning|calculation|computation|count)|\bthe\s+(?:above|box(?:\s+above|ed\s+\w+)?)|\b(?:what|which)\s+I\s+(?:said|wrote|gave|got|boxed))"
)
_AT_END = r"(?=\W*(?:[.,;:!\n]|\Z|\b(?:as|because|since|after|but)\b))"
_ELSEWHERE = r"(?!\s+(?:for|in|if|when|of|with|to|only)\b)"
_REFUTED = rf"""(?:(?:also|clearly|obviously|actually|definitely|certainly|all|completely|totally|just|simply)\s+)*
    (?:an?\s+|the\s+)?(?:(?:wrong|incorrect|false|mistaken?|invalid|erroneous|untrue|nonsense)\b(?!\s+(?:to|that)\b)
      |impossible{_AT_END}|off\b(?:{_AT_END}|\s+by\b)
      |not\s+(?:quite\s+)?(?:right{_ELSEWHERE}|correct{_ELSEWHERE}|true{_ELSEWHERE}|it\b{_AT_END}|valid{_ELSEWHERE}|possible{_AT_END}|my\s+answer|what\s+(?:was|is)\s+(?:asked|wanted)
        |(?:the|an?)\s+(?:\w+\s+)?(?:answer|solution|option)))\b"""
_DENIES = re.compile(
    rf"""(?i){_SUBJECT}(?:['’][sm]|\s+(?:is|was|am|seems|looks|must\s+be|turns\s+out\s+to\s+be|has\s+to\s+be))\s+{_REFUTED}
      |{_SUBJECT.replace("<pronoun>", "<other>")}(?:\s+(?:is|was|does|can|could)(?:n['’]t|\s+not)|\s+cannot|\s+can['’]t)
       \s+(?:(?:be|look|seem|sound|feel)\s+)?
       (?:right\b{_ELSEWHERE}|correct\b{_ELSEWHERE}|true\b{_ELSEWHERE}|it\b{_AT_END}|so\b{_AT_END}|work{_AT_END}|possible{_AT_END}
         |(?:the|an?)\s+(?:\w+\s+)?(?:answer|solution)\b)
      |\b(?:do\s+not|don['’]t)\s+(?:think|believe)\s+(?:that['’]?s?|this|it['’]?s?)\s+(?:is\s+|was\s+)?(?:right|correct|true)\b
      |\b(?:do\s+not|don['’]t|I\s+no\s+longer)\s+(?:trust|believe|stand\s+by|think)\s+(?:that|this|it)\b
      |{_SUBJECT.replace("<pronoun>", "<again>")}\s+(?:contradicts|violates)\b
      |\bI\s+(?:take\s+(?:that|it|this)\s+back|retract|withdraw|mis(?:read|spoke|counted|calculated|took|understood|wrote))\b
      |\b(?:the|my|our|this|that)\s+(?:above|box\w*|answer|result|solution)\s+(?:contains|has)\s+an?\s+(?:\w+\s+)?(?:mistake|error)\b
      |\b(?:scratch|strike|forget|disregard|ignore)\s+(?:that|this|it|the\s+(?:above|previous|box\w*|last)|my\s+\w+|what\s+I)\b|\bnever\s?mind\b
      |\b(?:I|we)(?:\s+have|['’]ve)?\s+made\s+an?\s+(?:\w+\s+)?(?:mistake|error|slip|typo)\b|\bmy\s+(?:bad|mistake)\b|\bw?oops\b
      |\bthere\s*(?:is|was|['’]s)\s+an?\s+(?:\w+\s+)?(?:mistake|error)\s+(?:above|in\s+(?:my|the|that|this))\b""",
    re.VERBOSE,
)
_CONFIRMS = re.compile(
    r"""(?i)\b(?:that|this|it|which|answer|result|\d[\d.,/]*)\s*(?:['’]s|is|was|looks)\s+(?:indeed\s+|in\s+fact\s+|still\s+|also\s+)?
        (?:right|correct|true|fine|ok|confirmed|it)\b
      |(?:\A|[,:;=]\s*|\d\s+)(?:correct|confirmed|right|verified|consistent|ok(?:ay)?|good|✓)\W*\Z|\bchecks?\s+out\b|✓
      |\b(?:answer|result)\s+(?:stands|holds|remains|is\s+unchanged)\b|\bas\s+(?:expected|required|claimed|stated|before)\b""",
    re.VERBOSE,
)
_NEGATED = re.compile(
    r"(?i)\b(?:not|never|nobody|no\s+one|nothing|no(?![,.:;!])|hard(?:ly)?|neither|doubt|deny)\b|n['’]t\b"
)
_EARLIER = re.compile(
    r"(?i)\b(?:earlier|at\s+first|initially|originally|(?:first|previous|other)\s+(?:try|attempt|guess)|fixed|avoid)\b"
)
_ASIDE = re.compile(
    r"""(?i)\W*(?:(?:and|but|because|note(?:\s+that)?|also|however),?\s+)?(?:in\s+general|generally|more\s+generally|if|unless|suppos\w+|assum\w+|imagine|had|were|for|with|when(?:ever)?
      |in\s+(?:\w+\s+){0,2}case|in\s+contrast|e\.g|as\s+an?\s+\w+|similarly|likewise|otherwise|some(?:one|body)?|many|most|people
      |students|others|any(?:one|body)|(?:one|you)\s+(?:might|could|would|may)|an?\s+(?:common|naive|typical|frequent|tempting)|another
      |the\s+(?:naive|tempting|obvious|usual|wrong|common|other|previous|smaller|larger|next|most\s+common))\b
      (?![^\n]*\b(?:instead|correction|I\s+was\s+wrong|should\s+(?:be|have\s+been))\b)""",
    re.VERBOSE,
)
"""Opens a sentence about another case, or about the words of others."""
_IS_NOW = (
    r"\s*(?:['’]s|\b(?:is|was|should\s+(?:be|have\s+been)|must\s+be|has\s+to\s+be|becomes|equals|comes\s+to)\b|[=:])\s*:?\s*"
    r"(?:(?:actually|really|in\s+fact|indeed|just|only|simply|thus|therefore)\s+)?"
)
_VALUE = r"(?:yes|no|true|false)\b|[-−$\\]*\(?\$?[-−$\\]*(?:\d[^\s,;!]*|[A-J]\)?)(?:\s+[^\W\d_]+)?\W*(?:[.,;!\n]|\Z)"
"""A short answer to the end of its clause."""
_STATES = re.compile(
    rf"""(?i)(?:(?P<final>\b(?:final|true|correct|actual|right|real)\s+(?:answer|value|number|one|result))|\banswer)
        (?:\s+(?:to|for)\s+(?:this|the|your)\s+(?:question|problem|puzzle|exercise))?{_IS_NOW}
      |(?P<other>\A\W*not\s+\S+\s*,?\s+but\s+|\b(?:(?:typo|turns?\s+out\s+(?:that\s+)?it['’]s|should\s+read|I['’]d\s+now\s+say
         |(?:replace|change)\s+[-$]*\d\S*\s+(?:by|with|to|into)|correct\s+(?:that|this|it)\s+to|hold\s+on)[\s,.:;!—–-]*))
       (?={_VALUE})
      |\A[\s$*]*[.;,(]?\s*or\s+(?=[-$\d\\])
      |(?P<instead>\b)(?=-?\d[\d.,]*\s+instead\b(?!\s+of\b))""",
    re.VERBOSE,
)
_CORRECTS = re.compile(
    rf"""(?i)\b(?:it|that|this|result|value|number|total|count|sum|(?:right|correct|proper|true)\s+(?:one|choice|option|letter))
        {_IS_NOW}(?!(?:not|n['’]t)\b)
      |\b(?:I\s+mean(?:t)?(?:\s+to\s+(?:say|write))?|make\s+(?:it|that)|correction|corrected|actually|rather|sorry|oops|no|nope|(?:no\s+)?wait|edit|update|(?:just\s+)?kidding|correct\s+(?:that|this|it|myself)|instead
        |(?:on\s+)?(?:second|further)\s+thoughts?|my\s+(?:bad|mistake))[\s,.:;!—–-]*
        (?={_VALUE})
      |\bnot\s+\S+\s*,?\s+but\s+(?:rather\s+)?""",
    re.VERBOSE,
)
_WITH = re.compile(r"(?i)\b(?:with|for|if|when|say|take|let)\b[^.\n]*\d")
_ONLY_VALUE = re.compile(r"\W*-?[$£€]?(?:\d\S*|[A-J]|(?i:yes|no|true|false))\W*")
_ONLY_NO = re.compile(r"(?i)\W*(?:h+m+|wait|oh|well)\W+no\W*")
_POLAR_START = re.compile(r"(?i)\W*(?=(?:yes|no)\s*[,.;:!](?!\s*(?:really|indeed|correct|right|other|wait)\b))")
_EXCLAMATION = re.compile(r"(?<=\d)((?:\$|\\\))?[*_]{0,3})!(?=[*_\"')]*(?:\s*\Z|\s+[A-Z]|[^\S\n]*\n))")
_WORDS = re.compile(r"[^\W\d_]{2,}[^!?\n]*\Z")
_NONE = re.compile(
    r"(?i)\A\W*(?:none|nothing|nobody|no\s+one)\b"
    r"|\b(?:there\s+(?:is|are|were|was|will\s+be)|has|have|had)\s+(?:none|nothing|no\s+\w+)\b"
    r"|\bno\s+\w+\s+(?:is|are|was|were|will\s+be|remains?)\b(?!\s+\w+ing)"
)
_NEAR, _LONG = 300, 1000
"""Characters at the end of a text, and at the beginning of a sentence, in which remarks are looked for."""
_CONFIDENCE = re.compile(
    r"(?i)(?<=\w)[^\w\n]*[.\n(\[][^\w]*(?:my\s+|with\s+)?(?:confidence|certainty)(?:\s+(?:level|score))?\b[^\n]*\s*\Z"
    r"|(?<=\w)\W*[.\n(\[,;–—-]\W*(?:(?:and\s+)?I\s+am\s+|I['’]m\s+)?(?:about\s+)?\d+\s?%\s+(?:sure|certain|confiden\w+)\b[^\n]*\s*\Z"
)
_SENTENCE_END = re.compile(r"(?<=[.!?。])[\s*_)\"'$]+|\n+|(?<=\?)\s*")


class Remark(StrEnum):
    """A later word on an answer that a text has given."""

    DENIED = "denied"
    """Says that the answer is wrong."""
    CONFIRMED = "confirmed"
    """Says that the answer is right after all."""
    STATED = "stated"
    """States an answer again: `The answer is`."""
    CORRECTED = "corrected"
    """States another answer after a second thought: `Wait, it is`."""


def remarks(after: str) -> list[tuple[Remark, int]]:
    """The remarks about an answer in the text behind it, each with the place behind its words, in order.

    A sentence about another case, or about the words of others, is none.
    """
    found: list[tuple[Remark, int]] = []
    doubts = is_aside = False
    ends = [match.span() for match in _SENTENCE_END.finditer(after)]
    starts = [0, *(end for _, end in ends)]
    for start, end in zip(starts, [*(begin for begin, _ in ends), len(after)], strict=True):
        sentence, was_aside = after[start : min(end, start + _LONG)], is_aside
        is_question = sentence.rstrip().endswith("?")
        is_aside = is_question or (start > 0 and _ASIDE.match(sentence) is not None)
        doubt = _DOUBT.search(sentence)
        if is_aside:
            doubts |= is_question and doubt is not None
            continue
        here: list[tuple[int, Remark]] = []
        for match in _DENIES.finditer(sentence):
            before = sentence[max(0, match.start() - 200) : match.start()]
            # `11: that is too small`, `Could it be 13? That is wrong`
            is_other = (match["pronoun"] or match["other"] or match["again"]) and (
                re.search(r"\d", before) or was_aside
            )
            if not (is_other or _NEGATED.search(before) or _EARLIER.search(sentence)):
                here.append((match.end(), Remark.DENIED))
        here += [(match.end(), Remark.CONFIRMED) for match in _CONFIRMS.finditer(sentence)]
        first = 0 if doubts else len(sentence) if doubt is None else doubt.start()
        for match in _STATES.finditer(sentence):
            if not is_supposed(sentence[: match.end()]):
                is_another = match["final"] or match["other"] or match["instead"] is not None or match.end() > first
                here.append((match.end(), Remark.CORRECTED if is_another else Remark.STATED))
        for match in _CORRECTS.finditer(sentence, first):
            if not _WITH.search(sentence[max(0, match.start() - 200) : match.start()]):  # `with n = 2, it is 2`
                here.append((match.end(), Remark.CORRECTED))
        if doubts and _ONLY_VALUE.fullmatch(sentence):
            here.append((0, Remark.CORRECTED))
        if _ONLY_NO.fullmatch(sentence) and not was_aside:
            here.append((len(sentence), Remark.DENIED))
        if start > 0 and not was_aside and (polar := _POLAR_START.match(sentence)):
            here.append((polar.end(), Remark.CORRECTED))
        doubts |= doubt is not None
        found += [(remark, start + place) for place, remark in sorted(here)]
    return found


def is_whole(before: str) -> bool:
    """True if a number is the whole of which another was named: `5 of the 8`."""
    return _WHOLE.search(before[-60:]) is not None


def is_denied(before: str, after: str) -> bool:
    """True if the sentence around an answer, or the text right after it, rejects the answer."""
    if _WOULD_BE.search(before[-100:]) and _WERE.match(after[:200]):
        return True
    return bool(_DENIED_BEFORE.search(before[-200:]) or _DENIED_AFTER.match(after) or is_supposed(before))


def is_supposed(before: str) -> bool:
    """True if an answer is hypothetical or attributed to others: `If the answer is B`, `Many would choose B`."""
    return _SUPPOSED.search(before[-200:]) is not None


def is_part(before: str, after: str) -> bool:
    """True if a number is part of a larger expression in words, a label, or one of several: `double 7`, `7 or 8`."""
    return bool(_PART_BEFORE.search(before[-100:]) or _PART_AFTER.match(after) or _ANOTHER_AFTER.match(after))


def has_no_answer(sentence: str) -> bool:
    """True if a sentence says that there is no answer: `I could not finish`."""
    return _NO_ANSWER.search(sentence) is not None


def gives_up(text: str) -> bool:
    """True if a sentence of the text says no more than that its author knows no answer: `I do not know.`."""
    return _GIVES_UP.search(text) is not None


def is_list(sentence: str) -> bool:
    """True if a sentence is a list of short items, none of which is the answer: `yes, 0, New York`."""
    return len(sentence) <= 300 and _LIST.fullmatch(sentence) is not None


def calmed(text: str) -> str:
    """The text without exclamation marks between a number and the end of a sentence of words: `There are 42!`."""
    return _EXCLAMATION.sub(
        lambda mark: mark[1] if _WORDS.search(text[max(0, mark.start() - 100) : mark.start()]) else mark[0], text
    )


def without_confidence(text: str, question: str = "") -> str:
    """The text without a last remark on how sure it is, unless the question asks for that: `Confidence: 95%`."""
    if re.search(r"(?i)confiden|certain", question):
        return text
    return text[:-_NEAR] + _CONFIDENCE.sub("", text[-_NEAR:])


def says_none(text: str, question: str) -> bool:
    """True if a question of how many there are is answered with none: `There are no apples left`."""
    last = re.split(r"[.!?]\s+|\n", text.strip())[-1]
    is_count = re.search(r"(?i)\bhow\s+(?:many|much)\b", question) is not None
    return is_count and not re.search(r"\d|\\", last) and _NONE.search(last) is not None


def is_aside(sentence: str) -> bool:
    """True if a sentence is about another case, or about the words of others: `For 5 players it is 20`."""
    return _ASIDE.match(sentence) is not None or is_supposed(f"{sentence} ")


def takes_back(between: str) -> bool:
    """True if the text between two answers takes the first one back: `Wait`, `that is wrong`."""
    return _DOUBT.search(between) is not None
