r"""Text of an answer (LaTeX, Unicode, plain) to tokens in one spelling.

Nothing is dropped here except marks without meaning (spaces, sizes, delimiters of mathematics): a reader that has
consumed all tokens has read the whole text.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any, NamedTuple

from .vocabulary import FUNCTIONS, OPERATORS, PROSE, UNITS, is_bare_unit, pairs, words


class Unreadable(Exception):
    """The text is not one whose whole meaning we know."""


class Undefined(Exception):
    """The text is read, and denotes nothing, or a number that is too large to compute."""


def require(condition: object, why: str, kind: type[Exception] = Unreadable) -> None:
    """Read on only where this holds; otherwise the text is unreadable, or undefined."""
    if not condition:
        raise kind(why)


class Token(NamedTuple):
    """A token: `kind` is number, letter, word, command or mark."""

    kind: str
    value: str
    spaced: bool
    """White space stands in front."""


FORMULA = (
    r"(?<!\\)\$\$(?P<display>.+?)\$\$|(?<!\\)\$(?P<inline>(?:\\.|[^$\\])+)\$"
    r"|\\\((?P<round>.+?)\\\)|\\\[(?P<square>.+?)\\\]"
)
"""A formula among words, by its delimiters; dots match line breaks."""
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ", "0123456789+-ni")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋ₙ", "0123456789+-n")
_SYMBOLS = {
    **dict.fromkeys("−–—‐‑", "-"),
    **dict.fromkeys("′’", "'"),
    **dict.fromkeys("″”", '"'),
    **dict.fromkeys("\u200b\ufeff∴", ""),
    **pairs(
        r"× \times · \cdot ⋅ \cdot ∙ \cdot * \cdot ÷ \div ∕ / ∞ \infty ≤ \le ⩽ \le ≥ \ge ⩾ \ge ≠ \ne ≈ \approx "
        r"≡ \equiv ± \pm ∓ \mp ∪ \cup ∩ \cap ∖ \setminus ∈ \in ∉ \notin ∅ \emptyset ° \degree º \degree ∠ \angle "
        r"△ \triangle → \to ⟨ \langle 〈 \langle ⟩ \rangle 〉 \rangle … \ldots ⋯ \ldots € \euro £ \pounds ¥ \yen "
        r"₹ \rupee 或 \text{or} 且 \text{and} 和 \text{and} 与 \text{and} 。 . 、 ,"
    ),
}
_COMMANDS = {
    **pairs(
        r"dfrac \frac tfrac \frac cfrac \frac sfrac \frac nicefrac \frac dbinom \binom tbinom \binom leq \le "
        r"leqslant \le leqq \le geq \ge geqslant \ge geqq \ge neq \ne vert | lvert | rvert | Vert \norm lVert \norm "
        r"rVert \norm lbrace \{ rbrace \} lbrack [ rbrack ] dots \ldots cdots \ldots dotsc \ldots dotsb \ldots "
        r"hdots \ldots degrees \degree varnothing \emptyset empty \emptyset null \emptyset backslash \setminus "
        r"colon : top T R \mathbbR reals \mathbbR textdollar \dollar"
    ),
    **dict.fromkeys(
        words(
            "left right middle big Big bigg Bigg bigl bigr bigm Bigl Bigr Bigm biggl biggr Biggl Biggr displaystyle "
            "textstyle limits nolimits strut bf rm it tt sf sc em tiny scriptsize footnotesize small normalsize large "
            "Large LARGE huge Huge therefore hline hfill smallskip medskip bigskip"
        ),
        " ",
    ),
}
"""Commands that are another spelling of one, or have no meaning."""
_MARKS = {
    **dict.fromkeys(words(r"\! \/ `"), ""),
    **dict.fromkeys(words(r"\( \) \[ \]"), " "),
    **pairs(r"\% % \$ \dollar \| \norm <= \le =< \le >= \ge != \ne -> \to := = == ="),
}
_MARK = re.compile(rf"(?<!\\)(?:{'|'.join(map(re.escape, _MARKS))})")
_IN_TEXT = r"\\(?:text|mathrm|textrm)\s*\{\s*"
_TH = "(?:st|nd|rd|th)"
_AFTER_NUMBER = r"(\d(?:\s|~|\\[ ,;:])*|\d\}(?:\s|~|\\[ ,;:])+)"
_REWRITES: list[tuple[re.Pattern[str], Any]] = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r"√\s*(\d+(?:\.\d+)?|[a-z])", r"\\sqrt{\1}"),
        (r"∛\s*(\d+(?:\.\d+)?|[a-z])", r"\\sqrt[3]{\1}"),
        (r"√", r"\\sqrt "),
        (r"(?<!\\)\\(?:left|right)\s*\.", " "),
        (r"\\(?:(?:hspace|vspace|phantom|label|tag|noalign)\*?|color|(?:text|f?)color(?:box)?)\s*\{[^{}]*\}", " "),
        (r"\\underline\s*(?=\{)", " "),
        (r"\\not\s*=", r"\\ne "),
        (r"\\not\s*\\(equiv|in)(?![A-Za-z])", lambda found: r"\nequiv " if found[1] == "equiv" else r"\notin "),
        (r"(?<!\.)\.\.\.(?!\.)", r"\\ldots "),
        # Lines of equations, of which one may go on with `=`.
        (r"\\(?:begin|end)\s*\{(?:align|equation|gather|split|aligned|gathered)\*?\}", lambda _: r"\lines "),
        (
            r"\\lines (.*)\\lines ",
            lambda lines: re.sub(r"\\\\", ", ", re.sub(r"\\\\\s*=", "=", lines[1].replace("&", ""))),
        ),
        # Repeated digits: `0.1\overline{6}`, `0.\dot{1}4\dot{2}`, `0.333...` are 0.1(6), 0.(142), 0.(3).
        (r"(\d\.\d*)\s*\\(?:overline|bar)\s*(?:\{\s*(\d+)\s*\}|(\d+))", r"\1(\2\3)"),
        (
            r"(\d\.\d*)\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?",
            lambda found: f"{found[1]}({''.join(part or '' for part in found.groups()[1:])})",
        ),
        (r"(\d\.\d*?)(?:(\d)\2{2,}|(\d{2,}?)\3+)\s*\\(?:ldots|dots|cdots)", r"\1(\2\3)"),
        (r"\^\s*(?:\\(?:circ|degree)(?![A-Za-z])|\{\s*\\(?:circ|degree)\s*\})", r"\\degree "),
        (r"\^\s*(?:\\prime(?![A-Za-z])|\{\s*\\prime\s*\})", "'"),
        (r"\\(?:mathop|operatorname)\*?\s*\{\s*([A-Za-z]+)\s*\}", r"\\\1 "),
        (rf"{_IN_TEXT}({'|'.join(OPERATORS)})\s*\}}(?=\s*(?:\(|\\begin|\\left|[A-Z]\b))", r"\\\1 "),
        (r"\\(?:mathrm|text|textrm|mathit|rm)\s*\{\s*([eid])\s*\}", r" \1 "),
        (r"\\mathbb\s*\{?([RZNQC])\}?", r"\\mathbb\1 "),
        (r"\\mathbb(?![RZNQC] )\s*", " "),
        (r"(?i)(?<=[\s\d{])([ap])\s?\.\s?m\b(?:\s?\.)?", r"\1m"),
        (
            rf"(?<=\d)(?:\s*\^?\s*\{{?\s*{_IN_TEXT}{_TH}\s*\}}\s*\}}?|\s*\^\s*\{{\s*{_TH}\s*\}}|(?:\s*\^)?{_TH}\b)",
            r"\\ordinal ",
        ),
        (r"\{:\}", ":"),
        (rf"(?<=\d)\s*{_IN_TEXT}[eE](-?)\s*\}}\s*(?=-?\d)", r"e\1"),
        (r"(?<=\d)\s+(?:in|out\s+of)\s+(?=\d)", "/"),
        (r"(?<=\d)\s*h\s*(?=\d+\s*min)", r" \\text{h} "),
        (r"\bRs\.?\s*(?=\d)", r"\\rupee "),
        # `k in Z`, as it stands, in brackets or in words; what holds for all values says nothing.
        (r"(\\in\s*)\\(?:mathbf|bf|bm|mathrm|boldsymbol)\s*\{?([RZNQC])\}?", r"\1\\mathbb\2 "),
        (r",?(?:\s|\\[ ,;:])*\(\s*(?:where\s+)?\$?\s*([a-z]\s*\\in[^()]*)\)\s*$", r", \1"),
        (
            r",?\s*(?:\\text\s*\{\s*)?\b(?:where|for|with)\s+(?:(?:all|any|every|each|some|an?)\s+)*(?:"
            r"\$?([a-z])\$?\s+is\s+(?:an?|any)\s+integer|integers?\s+\$?([a-z])\b\$?)\s*\}?[.\s]*$",
            r", \1\2 \\in \\mathbbZ",
        ),
        (
            r",?\s*(?:\\text\s*\{\s*)?\bfor\s+(?:all|any|every)\s+(?:real\s+)?(?:\w+\s+)?\}?\s*\$?[a-zA-Z]\b\$?"
            r"\}?[.\s]*$",
            "",
        ),
        (
            r"(?<!\d)(\d[\dA-Za-z]*)\s*(?:\\text\s*\{)?\s*(?:\\?\s)*\(?\s*(?:in\s+)?base[\s~-]*(\d+|[a-z]+)\s*\)?\s*\}?",
            r"\1_{\2}",
        ),
        (r"(?i)(?<=\d)\s*(am|pm)\b", r" \\text{\1} "),
        (
            r"(?<![A-Za-z\\])(?!P\s*\(\s*[A-Z]\s*,\s*[A-Z]\s*\))([A-Z])\s*(?=\([^()=]*,[^()=]*\)\s*(?:$|[,;.)\]}]|and\b|\\(?:text|\})))",
            r"\1 = ",
        ),  # `P(1, 2)`
        (r"(?:\bdegrees?|\\degree)\s+(C|F)(?:elsius|ahrenheit)\b", r"\\degree \1"),
        (r"(?<![\w.])0x([\dA-Fa-f]{2,})\b", r"\1_{16}"),
        (r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", r"\\times "),
        (r"(?<![A-Za-z\\])(sq|cu)\.?\s+(?=[a-z])", lambda power: "square " if power[1] == "sq" else "cubic "),
        (
            rf"(?<![A-Za-z\\])([A-Za-z])\$?\s*(?:{_IN_TEXT})?\s*(?:(?:is|are|must\s+be)\s+)?(?:(?:(greater|more|larger)|less"
            rf"|smaller)\s+than(\s+or\s+equal\s+to)?|(at\s+(?:(least)|most)))\b\s*\}}?",
            lambda found: rf"{found[1]} \{'lg'[bool(found[2] or found[5])]}{'te'[bool(found[3] or found[4])]} ",
        ),
        # Micrometres and kiloohms, whose letters are Greek.
        (
            rf"{_AFTER_NUMBER}(?:{_IN_TEXT})?\\mu\s*\}}?\s*(?:{_IN_TEXT})?([mgslLAVWFHCNT])\}}?(?![A-Za-z])",
            r"\1\\text{ u\2}",
        ),
        (rf"{_AFTER_NUMBER}(?:{_IN_TEXT})?([kMG]?)\s*\}}?\s*\\Omega\s*\}}?(?=\s*(?:[,.;}}]|$))", r"\1\\text{ \2ohm}"),
    )
]
ROWS = re.compile(
    r"\\\\\s*\*?\s*\[\s*[-+]?[\d.,]+\s*\\?[a-z]{2,}\s*\]|\\\\\s*\*|\\(?:cr(?:cr)?|tabularnewline)(?![A-Za-z])"
)
_GROUPS = re.compile(
    r"(?<![\d.,^_])(?<![\d.,^_]\{)(?:"
    r"(?P<decimal>\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:(?:[ \u202f'~]|\\,)\d{3})+,(?:\d\d?|\d{4,}))(?![.,]?\d)"  # 1.234,56
    r"|\d{1,3}(?:\.\d{3}){2,}(?![.,]?\d)"
    r"|\d{1,2}(?:,\d{2})+,\d{3}(?!\d|,\d)"  # 12,34,567
    r"|\d{1,3}(?:(\{,\}|,|\\,|\\;|\\:|\\ |[ \u202f'~])\d{3})(?:\2\d{3})*(?!\d|,\d|\s*/\s*\d))"
)
_CENTS = re.compile(
    r"(?:(?<=\\euro )|(?<=\\pounds )|(?<=\\dollar ))(\d+),(\d\d)(?!,?\d)|(?<!\d)(\d+),(\d\d)(?=\s*(?:\\euro|EUR))"
)
_LEXEME = re.compile(
    r"""(?P<space>\s+|\\[,;:>\ ]|\\q?quad(?![A-Za-z])|~|\\newline)
      |(?P<number>\d+\.\d*\(\d+\)|(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,4}(?![\d.A-Za-z^]))?)
      |(?P<command>\\[A-Za-z]+)
      |(?P<escaped>\\.)
      |(?P<letters>[A-Za-z]+)
      |(?P<foreign>[^\W\d_]+)
      |(?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
_NAMES = frozenset(FUNCTIONS) | frozenset(
    [
        "gcd",
        "lcm",
        "max",
        "min",
        "det",
        "pi",
        "infty",
        "infinity",
        "oo",
        "theta",
        "alpha",
        "beta",
        "gamma",
        "lambda",
        "mod",
        "cup",
        "cap",
    ]
)
_SPELLINGS = {"infinity": "infty", "oo": "infty", "asin": "arcsin", "acos": "arccos", "atan": "arctan"}
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal|sc|up|md)?|mathrm|mathbf|mathit|mathsf|mathtt|mathcal|mathscr|mathfrak|boldsymbol|bm|mbox|hbox|emph|pmb|bold)\s*(?=\{)"
)


def closing(text: str, start: int) -> int:
    """Index of the brace that closes the one before `start`."""
    depth = 1
    for match in re.compile(r"(?<!\\)(?:\\\\)*+([{}])").finditer(text, start):
        depth += 1 if match[1] == "{" else -1
        if not depth:
            return match.start(1)
    raise Unreadable("braces do not match")


def normalise(text: str) -> str:
    """The text with one spelling for each notation."""
    text = re.sub(r"(\s{8})\s+", r"\1", text)  # some expressions below take the square of a run of spaces
    if r"\begin" in text:  # rows, with space between them or not
        text = ROWS.sub(r"\\\\ ", text)
    text = re.sub(r"(?<=[\w)])\*\*(?=[\w(-])", "^", text).replace("**", "")
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ]+", lambda run: "^{" + run[0].translate(_SUPERSCRIPTS) + "}", text)
    text = re.sub(r"[₀₁₂₃₄₅₆₇₈₉₊₋ₙ]+", lambda run: "_{" + run[0].translate(_SUBSCRIPTS) + "}", text)
    text = re.sub("[①-⑨](?:[\\s,、和]*[①-⑨])*", _statements, text)
    pieces = []
    for char in text:
        if unicodedata.decomposition(char).startswith("<fraction>"):
            top, bottom = unicodedata.normalize("NFKC", char).split("⁄")
            pieces.append(rf"\frac{{{top}}}{{{bottom}}}" if bottom else char)
        else:
            new = _SYMBOLS[char] if char in _SYMBOLS else char if char.isascii() else _letter(char)
            pieces.append(f"{new} " if re.match(r"\\.", new) else new)
    text = "".join(pieces)
    text = _MARK.sub(lambda mark: f"{_MARKS[mark[0]]} " if _MARKS[mark[0]][:1] == "\\" else _MARKS[mark[0]], text)
    for pattern, rewrite in _REWRITES:
        text = pattern.sub(rewrite, text)
    text = re.sub(r"\\([A-Za-z]+)", lambda command: _COMMANDS.get(command[1], command[0]), text)
    if text.count("$") % 2:  # a single sign is money
        text = re.sub(r"\$(?=\s*[\d.])", r"\\dollar ", text, count=1)
    text = _CENTS.sub(lambda cents: ".".join(filter(None, cents.groups())), text)
    text = re.sub(r"(?:\\\\\s*)+$", "", text.replace("$", " ").strip()).strip()
    while (stop := re.fullmatch(r"(.*[^\\.\s])\s*[.,;:!]*(?<!\\)[.,;:]", text, re.DOTALL)) is not None:
        text = stop[1]
    while (emphasis := re.fullmatch(r"([_*])([^_*]+)\1", text)) is not None:
        text = emphasis[2].strip()
    while text.startswith("{") and text.endswith("}") and text.count("{") == text.count("}"):
        if closing(text, 1) != len(text) - 1:
            break
        text = text[1:-1].strip()
    return text


def _statements(run: re.Match[str]) -> str:
    """`①③`, the numbers of statements, as a list of words."""
    letters = [chr(ord(char) - ord("①") + ord("a")) for char in run[0] if "①" <= char <= "⑨"]
    return ", ".join(rf"\text{{circled{letter}}}" for letter in letters)


def _letter(char: str) -> str:
    r"""A letter of any alphabet or font as TeX writes it: `α` is `\alpha`, `ℝ` a set."""
    if unicodedata.name(char, "").startswith("DOUBLE-STRUCK CAPITAL"):
        return rf"\mathbb{{{unicodedata.normalize('NFKC', char)}}}"
    char = unicodedata.normalize("NFKC", char)
    greek = re.fullmatch("GREEK (SMALL|CAPITAL) LETTER ([A-Z]+)", unicodedata.name(char, "") if len(char) == 1 else "")
    if greek is None:
        return char
    return f"\\{greek[2].lower() if greek[1] == 'SMALL' else greek[2].capitalize()}"


def _join_groups(text: str, commas: bool) -> str:
    """Digits in groups to one number; groups with commas only where `commas`, and outside brackets."""

    def join(group: re.Match[str]) -> str:
        if "," in group[0] and (group[2] or ",") == ",":
            before = text[: group.start()]
            depth = sum(before.count(mark) for mark in "([") - sum(before.count(mark) for mark in ")]")
            if not commas or depth > 0 or before.count("\\{") > before.count("\\}"):
                return group[0]
        whole, _, part = group[0].rpartition(",") if group["decimal"] else (group[0], "", "")
        return re.sub(r"\D", "", whole) + (f".{part}" if part else "")

    return _GROUPS.sub(join, text)


def lex(text: str, *, commas: bool = True) -> list[Token]:
    """Tokens of a text from `normalise`."""
    tokens: list[Token] = []
    _lex(_join_groups(text, commas), tokens, in_text=False)
    return _words(tokens)


def _lex(text: str, tokens: list[Token], *, in_text: bool) -> None:
    position, spaced = 0, False
    while position < len(text):
        if command := _TEXT.match(text, position):
            end = closing(text, command.end() + 1)
            inner = text[command.end() + 1 : end]
            is_vector = re.match(r"\\(?:mathbf|boldsymbol|bm|bold)", command[0]) and re.fullmatch(r"\s*[a-z]\s*", inner)
            if is_vector:
                tokens.append(Token("symbol", f"vec {inner.strip()}", spaced))
            else:
                _lex(re.sub(r"(?:(?<=\w)|^)\.\s*$", "", inner).replace("\\", " \\"), tokens, in_text=True)
            position, spaced = end + 1, inner[-1:].isspace()
            continue
        lexeme = _LEXEME.match(text, position)
        assert lexeme is not None
        kind, value, position = str(lexeme.lastgroup), lexeme[0], lexeme.end()
        if kind == "space":
            spaced = True
            continue
        if kind == "letters":
            tokens.append(Token("word" if in_text else "letters", value, spaced))
        elif kind == "foreign":
            tokens.append(Token("word", value, spaced))
        else:
            tokens.append(Token("mark" if kind == "escaped" else kind, value, spaced))
        spaced = False


def _words(tokens: list[Token]) -> list[Token]:
    """Runs of letters told apart: names of functions, units, words, products of letters."""
    result: list[Token] = []
    index = 0
    while index < len(tokens):
        if tokens[index].kind not in ("letters", "word"):
            result.append(tokens[index])
            index += 1
            continue
        end = index
        while end < len(tokens) and tokens[end].kind in ("letters", "word"):
            end += 1
        run = tokens[index:end]
        after_number = bool(result) and (result[-1].kind == "number" or result[-1].value in (")", "}", "/"))
        is_divisor = len(result) > 1 and result[-1].value == "/" and result[-2].kind == "word"
        following = [token.value for token in tokens[end : end + 2]]
        is_divisor |= bool(
            after_number and run[0].spaced and following[:1] == ["/"] and following[1:] and following[1] in UNITS
        )
        is_term = len(run) == 1 and len(run[0].value) == 2  # `u + at`
        is_term = is_term and bool({"+", "-"} & {*following[:1], *(token.value for token in result[-1:])})
        is_label = following[:1] == [":"] and re.fullmatch("[A-Z][a-z]{2,}", run[-1].value) is not None  # `Bob: 5`
        is_prose = is_label or (not is_term and any(_is_word(token) for token in run))
        for token in run:
            name, is_word = token.value, token.kind == "word"
            is_unit = (after_number and is_bare_unit(name)) or (is_divisor and name in UNITS)
            is_joint = name.lower() in ("and", "or") and (is_word or len(run) == 1 or not is_prose or after_number)
            is_name = name in _NAMES or name.lower() in ("infinity", "pi")
            if name == "mod" or is_joint:
                result.append(Token("mark", name.lower(), True))
            elif is_name and not is_word and not (after_number and name in UNITS):
                name = _SPELLINGS.get(name.lower() if len(name) > 2 else name, name)
                result.append(Token("command", "\\" + name, token.spaced))
            elif is_word or is_prose or is_unit:
                result.append(Token("word", name, token.spaced))
            else:
                result.extend(Token("letter", letter, token.spaced and not place) for place, letter in enumerate(name))
        index = end
    return result


def _is_word(token: Token) -> bool:
    name = token.value
    if token.kind == "word" or name in _NAMES or name.lower() in ("and", "or", "infinity", "pi"):
        return False
    return name.lower() in PROSE or (len(name) > 3 and not name.isupper())
