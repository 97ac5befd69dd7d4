# ruff: noqa: E501 - a row of spellings is one line
r"""Pairs of an expected answer and a model's answer, each with the verdict of a careful human marker.

Made from a seed, family by family. A case knows its value: its right answers are spellings of that value that models
write, its wrong ones have another digit, sign, exponent, element, order, unit, base or half, or are another case's.
What markers may disagree on is left out: an unreduced fraction, 0.5 for 50 %, a missing unit of measure, 21:30 for 9:30 p.m.,
a factored polynomial, a rounded decimal.

Spellings are written as lines of `text | text`, in which `@a` stands for a value; `!` begins an answer that is complete
as it is, and the others are put in a box or a sentence.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations

from benchmarks.grading_cases import (
    FAMILIES,
    SUBSCRIPT,
    SUPERSCRIPT,
    WIDE,
    Case,
    distinct,
    family,
    forms,
    frac,
    fraction,
    listed,
    other_digit,
    polynomial,
)

PER_FAMILY = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One answer to one row of data; `right` is the marker's verdict."""

    family: str
    gold: str
    answer: str
    right: bool
    question: str = "?"


BOXED = (
    r"\boxed{%s}",
    r"The answer is $\boxed{%s}$.",
    r"\[ \boxed{%s} \]",
    "We go step by step: first 2, then 3 and 5, so 30 in all.\n\n$$\\boxed{%s}$$",
    r"**Final answer:** \(\boxed{%s}\)",
    r"So the result is \boxed{%s}. I checked it twice.",
    r"所以答案是 $\boxed{%s}$。",
    r"\boxed{ %s }",
    r"\boxed{%s.}",
    r"\boxed{$%s$}",
    r"\fbox{%s}",
)
PLAIN = ("The answer is $%s$.", "**Answer:** $%s$", "Therefore, the final answer is $%s$.", "答案是$%s$。", "$%s$")
CHANGED_MIND = r"My first try gave \boxed{%s}, which is not right. Corrected: \boxed{%s}"
NO_ANSWER = (
    "",
    " ",
    r"\boxed{}",
    "I do not know.",
    r"\boxed{?}",
    r"\boxed{\text{unknown}}",
    "No idea, sorry.",
    "...",
    r"\boxed{0}",
    "1",
)
NEVER = ("-7654321", r"\frac{7654321}{11}", "x_{7654321}", r"\text{any number}")  # answers of no case


def corpus(seed: int = 0, per_family: int = PER_FAMILY) -> list[Pair]:
    """The pairs, as many of each family and those written by hand; the same for the same seed."""
    pairs: list[Pair] = []
    for name, make in FAMILIES.items():
        pairs += _pairs(name, make, random.Random(f"{seed} {name}"), per_family)
    pairs += _degenerate(random.Random(f"{seed} degenerate"), per_family)
    for name, gold, right, wrong in BY_HAND:
        pairs += [Pair(family=name, gold=gold, answer=each, right=True) for each in forms(right)]
        pairs += [Pair(family=name, gold=gold, answer=each, right=False) for each in forms(wrong)]
    return pairs


def _pairs(name: str, make: Callable[[random.Random], Case], rng: random.Random, count: int) -> Iterator[Pair]:
    seen: set[tuple[str, str]] = set()
    last: Case | None = None
    while len(seen) < count:
        case = make(rng)
        assert not {case.gold, *case.right} & set(case.wrong), (case.gold, {case.gold, *case.right} & set(case.wrong))
        right = rng.sample([case.gold, *case.right], k=min(3, 1 + len(case.right)))
        wrong = rng.sample(list(case.wrong), k=min(3, len(case.wrong)))
        if last is not None and last.value != case.value and rng.random() < 0.3:
            wrong.append(last.gold)
        last = case
        for text, is_right in [*((text, True) for text in right), *((text, False) for text in wrong)]:
            answer = _written(text, rng, wrong if is_right else right)
            if (case.gold, answer) not in seen and len(seen) < count:
                seen.add((case.gold, answer))
                yield Pair(family=name, gold=case.gold, answer=answer, right=is_right, question=case.question)


def _written(text: str, rng: random.Random, others: Sequence[str]) -> str:
    """An answer in the form a model gives it: complete, in a box, in a sentence, or after one that it takes back."""
    if text.startswith("!"):
        return text[1:].lstrip()
    others = [each for each in others if not each.startswith("!")]
    if others and rng.random() < 0.06:
        return CHANGED_MIND % (rng.choice(others), text)
    carrier = rng.choice(PLAIN if rng.random() < 0.2 else BOXED)
    if "$" in text and "$%s$" in carrier:
        carrier = BOXED[0]
    return carrier % text


def _degenerate(rng: random.Random, count: int) -> Iterator[Pair]:
    """Answers that answer nothing or everything, to expected answers of all families."""
    for _ in range(count):
        cases = [rng.choice(list(FAMILIES.values()))(rng) for _ in range(8)]
        gold, never = cases[0].gold, rng.choice(NEVER)
        everything = ", ".join(case.gold.strip("$") for case in rng.sample(cases, k=8))
        guesses = " ".join(rf"\boxed{{{text}}}" for text in [*(case.gold for case in cases), NEVER[0]])
        hedged = rf"\boxed{{{gold} \text{{ or }} {never}}}"
        kinds = (
            rng.choice(NO_ANSWER),
            rf"\boxed{{{everything}}}",
            guesses,
            hedged,
            rf"\boxed{{{never}}}",
            "\\boxed{" * 40,
        )
        yield Pair(family="degenerate", gold=gold, answer=rng.choice(kinds), right=False)


# fmt: off
# ---- families --------------------------------------------------------------------------------------------------------


@family
def integers(rng: random.Random) -> Case:
    """Whole numbers: small ones, grouped ones, powers, and those that floats do not tell apart."""
    kind = rng.randrange(5)
    if kind == 0:
        number = rng.randint(2**53, 10 ** rng.randint(17, 45)) * 10 + rng.randint(1, 8)
        comma, text = f"{number:,}", str(number)
        right = [text, comma, comma.replace(",", r"\,"), comma.replace(",", "{,}")]
        return Case(text, right, forms("@a | @b | @c | @t0 | -@t", a=number + 1, b=number - 1, c=text[:-1], t=text), number)
    if kind == 1:
        number = rng.randint(1_000, 9_999_999)
        text = str(number)
        right = [text, *(f"{number:,}".replace(",", each) for each in (",", r"\,", "{,}", r",\!", " ", "~"))]
        wrong = forms("@o | -@t | @h | @t0 | 9@t", o=other_digit(text, rng), t=text, h=text[:-3])
        return Case(rng.choice(right[:4]), right, wrong, number)
    if kind == 2:
        base, power = rng.choice([2, 3, 5, 7, 10]), rng.randint(15, 60)
        right = forms("@v | @b ^ {@p} | @b@s", v=base**power, b=base, p=power, s=str(power).translate(SUPERSCRIPT))
        wrong = forms("@b^{@q} | @c^{@p} | @v | @m | @b@p", b=base, c=base + 1, p=power, q=power + 1, v=base**power + 1,
                      m=base * power)
        return Case(f"{base}^{{{power}}}", right, wrong, base**power)
    number = rng.choice([-1, 1, 1]) * rng.randint(2, 999)
    values = {"n": number, "s": abs(number), "o": other_digit(str(number), rng), "m": -number, "p": number + 1, "q": number - 1}
    right = forms(
        r"""@n | @n.0 | @n.00 | x = @n | n=@n | = @n | \mathbf{@n} | \,@n\, | {@n} | \text{@n} | !@n | !@n. | !The answer is @n.
        !答案是@n。 | !Answer: @n | !#### @n | !**@n** | !Answer：@n | !The final answer is **@n**.""",
        **values,
    )
    if number > 0:
        right += [f"+{number}", str(number).translate(WIDE), *([f"!\\boxed{number}"] if number < 10 else [])]
    else:
        right += forms("−@s | !The answer is −@s. | !−@s", **values)
    wrong = forms(
        r"""@m | @p | @n0 | @o | @n, @p | @n.5 | @n \text{ or } @p | (@n)^2 | \frac{1}{@n} | @n\pi | @ni | !The answer is @o.
        !@q | x > @n | 10^{@n} | !答案是@o。 | !Answer: @m""",
        **values,
    )
    return Case(str(number), right, wrong, number)


@family
def fractions(rng: random.Random) -> Case:
    """Fractions, mixed numbers, and fractions of large powers."""
    if rng.random() < 0.15:
        power = rng.randint(40, 90)
        values = {"p": power, "q": power - 1, "r": power + 1, "v": 2**power, "w": 2**power + 1}
        right = forms(r"2^{-@p} | \frac{1}{@v} | 1/2^{@p} | \dfrac{1}{2^{@p}}", **values)
        wrong = forms(r"\frac{1}{2^{@q}} | 2^{-@r} | 0 | \frac{1}{@w} | 2^{@p}", **values)
        return Case(rf"\frac{{1}}{{2^{{{power}}}}}", right, wrong, power)
    value = fraction(rng)
    top, bottom = value.numerator, value.denominator
    right = forms(r"@t/@b | \frac{@t}{@b} | (@t)/(@b) | {@t \over @b} | !@t/@b | !The answer is @t/@b. | !答案是@t/@b。",
                  t=top, b=bottom)
    right += [frac(value, "dfrac"), frac(value, "tfrac"), frac(value, "cfrac"), f"x = {frac(value)}"]
    right += [rf"\displaystyle {frac(value)}"]
    if 0 < top < 10 and bottom < 10:
        right += [rf"\frac{top}{bottom}", rf"\frac {top} {bottom}"]
    right += {(1, 2): ["½"], (1, 4): ["¼"], (3, 4): ["¾"], (1, 3): ["⅓"], (2, 3): ["⅔"]}.get((top, bottom), [])
    golds = [frac(value), frac(value), right[0]]
    if 10**6 % bottom == 0:
        right += [f"{float(value)}", f"{float(value)}0"]
    whole, rest = divmod(top, bottom)
    values = {"f": frac(value), "g": frac(value + 1), "t": top, "b": bottom, "c": bottom + 1, "w": whole, "r": rest}
    wrong = forms(r"\frac{@t}{@c} | @t | @b | @f, @g | @g | @t@b | @f\% | -(@f) | !The answer is @t/@c.", **values)
    wrong += [frac(value + Fraction(1, bottom)), frac(1 / value)]
    if value > 1:
        right += forms(r"@w\frac{@r}{@b} | @w @r/@b | @w \frac{@r}{@b} | @w\dfrac{@r}{@b}", **values)
        golds += right[-4:-2]
        wrong += [frac(Fraction(whole + rest, bottom)), *forms(r"@w | \frac{@r}{@b}", **values), f"{whole + 1} {rest}/{bottom}"]
    return Case(rng.choice(golds), right, wrong, value)


@family
def decimals(rng: random.Random) -> Case:
    """Decimals: plain, small, with a power of ten, repeating."""
    digits, places, kind = rng.randint(101, 9999) * 10 + rng.randint(1, 8), rng.randint(1, 4), rng.randrange(4)
    if kind == 0:
        head, power = f"{rng.randint(1, 9)}.{rng.randint(1, 99):02d}", rng.choice([-1, 1]) * rng.randint(8, 34)
        values = {"h": head, "p": power, "q": power + 1, "r": power - 4, "m": -power, "o": other_digit(head, rng)}
        values["s"] = str(power).translate(SUPERSCRIPT)
        right = forms(r"@h\times10^{@p} | @h \cdot 10^{@p} | @he@p | @hE@p | @h × 10@s | @h\times 10^{@p}", **values)
        wrong = forms(r"@h\times 10^{@q} | @h \times 10^{@m} | @h | 10^{@p} | @o \times 10^{@p} | -@h \times 10^{@p} | 0"
                      r" | @h \times 10^{@r}", **values)
        return Case(rf"{head} \times 10^{{{power}}}", right, wrong, Fraction(head) * Fraction(10) ** power)
    if kind == 1:
        zeros, head = rng.randint(4, 9), str(digits)
        values = {"z": "0" * zeros, "y": "0" * (zeros - 1), "d": digits, "e": digits + 1, "h": head[0], "t": head[1:]}
        values |= {"p": zeros + 1, "q": zeros, "s": head[:-1]}
        right = forms(r".@z@d | 0.@z@d0 | @h.@t \times 10^{-@p} | @h.@te-@p | !The answer is 0.@z@d.", **values)
        wrong = forms(r"0.@z@e | 0.@y@d | -0.@z@d | 0 | 0.@z@s | @h.@t \times 10^{-@q} | .@z@e", **values)
        return Case(f"0.{'0' * zeros}{digits}", right, wrong, Fraction(f"0.{'0' * zeros}{digits}"))
    if kind == 2:
        block = rng.choice(["3", "6", "18", "27", "45", "72", "142857", "81", "123"])
        value = Fraction(int(block), 10 ** len(block) - 1)
        values = {"b": block, "o": other_digit(block, rng), "t": value.numerator, "d": value.denominator}
        values["c"] = other_digit(str(value.denominator), rng)
        right = forms(r"\frac{@t}{@d} | @t/@d | 0.\overline {@b} | 0.\overline{@b@b} | 0.@b\overline{@b}", **values)
        values["p"] = block[:5]  # six digits and more may round
        wrong = forms(r"0 | 0.@p | 0.\overline{@o} | 1.\overline{@b} | @b | 0.0\overline{@b} | \frac{@t}{@c}", **values)
        return Case(rf"0.\overline{{{block}}}", right, wrong, value)
    text, sign = f"{digits / 10**places:.{places}f}", rng.choice(["", "", "-"])
    values = {"s": sign, "t": text, "o": other_digit(text, rng), "w": text.partition(".")[0], "d": digits}
    values |= {"m": "" if sign else "-", "u": sign.replace("-", "−"), "l": f"{digits / 10 ** (places + 1):.{places + 1}f}"}
    right = forms("@s@t0 | @s@t00 | x = @s@t | !The answer is @s@t. | !@s@t | @u@t | !答案是@s@t。", **values)
    wrong = forms("@m@t | @s@o | @s@d | @s@t1 | @s1@t | @s@l | @s@w | @s@t, 2 | !The answer is @s@o.", **values)
    return Case(sign + text, right, wrong, Fraction(sign + text))


@family
def radicals(rng: random.Random) -> Case:
    """Roots and multiples of pi."""
    inside, outside, added = rng.choice([2, 3, 5, 6, 7, 10, 11, 13, 15]), rng.randint(2, 12), rng.randint(1, 20)
    values = {"i": inside, "j": inside + 1, "o": outside, "p": outside + 1, "a": added, "b": added + 1, "s": outside * inside}
    kind = rng.randrange(3)
    if kind == 0:
        right = forms(r"@o√@i | @o \sqrt{@i} | @o\sqrt {@i} | @o \cdot \sqrt{@i} | !The answer is @o√@i.", **values)
        right += [rf"{outside}\sqrt{inside}"] if inside < 10 else []
        wrong = forms(r"@p\sqrt{@i} | @o\sqrt{@j} | -@o\sqrt{@i} | \sqrt{@i} | @o | @o\sqrt[3]{@i} | @s | @o + \sqrt{@i} | @o@i",
                      **values)
        return Case(rf"{outside}\sqrt{{{inside}}}", right, wrong, (0, outside, inside))
    if kind == 1:
        right = forms(r"@o\sqrt{@i} + @a | @a+@o√@i | x = @a + @o\sqrt{@i}", **values)
        wrong = forms(r"@a - @o\sqrt{@i} | @b + @o\sqrt{@i} | @o\sqrt{@i} | @a | @a \pm @o\sqrt{@i} | @a@o\sqrt{@i}", **values)
        return Case(rf"{added} + {outside}\sqrt{{{inside}}}", right, wrong, (1, added, outside, inside))
    top, bottom = (value := abs(fraction(rng, 12))).numerator, value.denominator
    values = {"t": "" if top == 1 else top, "n": top, "b": bottom, "f": frac(value), "g": frac(value + 1)}
    right = forms(r"@f\pi | @t\pi/@b | @tπ/@b | \dfrac{@t\pi}{@b} | \frac{@n}{@b} \cdot \pi", **values)
    wrong = forms(r"@f | -\frac{@t\pi}{@b} | @g\pi | @f\pi^2 | 7\pi | @fe | \frac{@b}{@n}\pi", **values)
    return Case(forms(r"\frac{@t\pi}{@b}", **values)[0], right, wrong, (2, value))


@family
def complex_numbers(rng: random.Random) -> Case:
    """A real and an imaginary part."""
    real, imaginary, sign = rng.choice([-1, 1]) * rng.randint(1, 20), rng.randint(2, 20), rng.choice("+-")
    values = {"r": real, "i": imaginary, "j": imaginary + 1, "s": sign, "o": "-+"["+-".index(sign)], "m": -real, "q": real + 50}
    values |= {"a": abs(real), "h": "-" * (sign == "-"), "p": "+" if real > 0 else "-"}
    right = forms("@r@s@ii | @h@ii @p @a | z = @r @s @ii | @r @s @i i | @r @s i@i | !The answer is @r @s @ii.", **values)
    wrong = forms("@r @o @ii | @m @s @ii | @r @s @i | @ii | @r | @r @s @ji | @q @s @ii | !The answer is @r @o @ii.",
                  **values)
    return Case(forms("@r @s @ii", **values)[0], right, wrong, (real, sign, imaginary))


@family
def intervals(rng: random.Random) -> Case:
    """Intervals that are bounded, half-bounded, or two."""
    low, high = sorted(distinct(rng, 2))
    left, right_, kind = rng.choice("[("), rng.choice("])"), rng.randrange(4)
    values = {"l": left, "r": right_, "a": low, "b": high, "c": high + 1, "d": low - 1, "k": "[" if left == "(" else "("}
    values |= {"q": "]" if right_ == ")" else ")", "x": r"\le" if left == "[" else "<", "y": r"\le" if right_ == "]" else "<"}
    values |= {"u": str(low).replace("-", "−"), "v": str(high).replace("-", "−"), "e": high + 3}
    if kind < 2:
        right = forms(r"@l@a, @b@r | \left@l@a, @b\right@r | x \in @l@a,@b@r | @a @x x @y @b | @l@u,@v@r | !The answer is @l@a, @b@r.",
                      **values)
        wrong = forms(r"""@k@a,@b@r | @l@a,@b@q | @l@a,@c@r | @l@d,@b@r | @a | @b | @l@a,\infty) | (-\infty,@b@r | \{@a,@b\}
                      @l@a,@b@r \cup (@c,@e) | @l@b,@a@r | !The answer is @k@a, @b@r.""", **values)
        gold = r"x \in (@a,@b)" if left + right_ == "()" else "@l@a,@b@r"  # (1,2) alone may be a point
        return Case(forms(gold, **values)[0], right, wrong, (left, low, high, right_))
    if kind == 2:
        right = forms(r"(-\infty, @b@r | \left(-\infty,@b\right@r | (-∞,@b@r | x @y @b | x \in (-\infty,@b@r", **values)
        wrong = forms(r"(-\infty,@b@q | (-\infty,@c@r | (@a,@b@r | (@b,\infty) | x > @b | @b | (-\infty,\infty)", **values)
        return Case(forms(r"(-\infty,@b@r", **values)[0], right, wrong, (high, right_))
    right = forms(r"""(-\infty, @a)\cup(@b, \infty) | (-∞,@a) ∪ (@b,∞) | (@b,\infty) \cup (-\infty,@a)
                  \left(-\infty,@a\right)\cup\left(@b,\infty\right) | x \in (-\infty,@a) \cup (@b,\infty)""", **values)
    wrong = forms(r"""(-\infty,@a] \cup [@b,\infty) | (-\infty,@a) | (@b,\infty) | (@a,@b) | (-\infty,\infty)
                  (-\infty,@a) \cup (@c,\infty) | (-\infty,@a) \cap (@b,\infty) | (-\infty,@d) \cup (@b,\infty)""", **values)
    return Case(forms(r"(-\infty,@a) \cup (@b,\infty)", **values)[0], right, wrong, (low, high))


@family
def sets(rng: random.Random) -> Case:
    """Sets in any order, and the empty one."""
    if rng.random() < 0.1:
        right = forms(r"\emptyset | \varnothing | ∅ | \{\} | \{ \}")
        return Case(rng.choice(right[:2]), right, forms(r"\{0\} | 0 | \{\emptyset\} | \{1\} | \mathbb{R}"), frozenset())
    items = distinct(rng, rng.randint(2, 5))
    values = {"l": listed(items), "s": listed(rng.sample(items, k=len(items))), "n": listed(items).replace(" ", "")}
    values |= {"a": items[0], "z": items[-1], "f": listed(items[:-1]), "r": listed(items[1:]), "w": sum(items) + 500}
    values["u"] = listed(items).replace("-", "−")
    right = forms(r"\{@s\} | \left\{@l\right\} | @l | \{@n\} | S = \{@l\} | \{@u\} | \lbrace @l \rbrace", **values)
    right += ["!" + " and ".join(rf"\boxed{{{item}}}" for item in items)]
    wrong = forms(r"\{@f, 77\} | \{@l, 78\} | @z | 0 | \{79, @r\} | @w | \{@f\} | @a | \{@r\} | @r | \{0\}", **values)
    return Case(rf"\{{{listed(items)}\}}", right, wrong, frozenset(items))


@family
def lists(rng: random.Random) -> Case:
    """Solutions apart by commas, and sequences that go on."""
    if rng.random() < 0.4:
        start, step, count = rng.randint(1, 9), rng.randint(2, 9), rng.randint(12, 40)
        first = [start + step * place for place in range(3)]
        values = {"f": listed(first), "e": start + step * count, "n": start + step * (count + 1), "s": start}
        values |= {"g": listed([each + 1 for each in first]), "c": listed(first).replace(" ", "")}
        right = forms(r"@c,\ldots,@e | @f, \dots, @e | @f, ..., @e | @f, …, @e", **values)
        wrong = forms(r"@e | @f, \ldots, @n | @g, \ldots, @e | @f | @e, \ldots, @s | @s | @f, \ldots", **values)
        return Case(forms(r"@f, \ldots, @e", **values)[0], right, wrong, (start, step, count))
    items = distinct(rng, rng.randint(2, 4))
    values = {"l": listed(items), "n": listed(items).replace(" ", ""), "f": listed(items[:-1]), "r": listed(items[1:])}
    values |= {"z": items[-1], "a": items[0], "w": sum(items) + 500, "e": ", ".join(f"x = {item}" for item in items)}
    values |= {"u": listed(items).replace("-", "−"), "s": listed(items).replace(", ", r",\ ")}
    right = forms("@n | @u | x = @l | @s | @e | !The answer is @l.", **values)
    wrong = forms("@f, 71 | @f | @z | @l, 72 | 0 | 73, @r | @w | @r | 71, @f | !The answer is @f, 74.", **values)
    return Case(listed(items), right, [each for each in wrong if each != str(items)], frozenset(items))


@family
def tuples(rng: random.Random) -> Case:
    """Points and vectors, whose order counts."""
    size = rng.choice([2, 2, 3])
    items, names = distinct(rng, size), "xyz"[:size]
    values = {"l": listed(items), "n": listed(items).replace(" ", ""), "f": listed(items[:-1]), "r": listed(items[1:])}
    values |= {"t": listed(rng.choice([order for order in permutations(items) if list(order) != items])), "a": items[0]}
    values |= {"z": items[-1], "y": items[-1] + 1, "v": ", ".join(names), "s": listed(items).replace(", ", r",\, ")}
    values |= {"e": ", ".join(map("{} = {}".format, names, items)), "o": ", ".join(map("{} = {}".format, names, items[1:] + items))}
    if size == 3 and rng.random() < 0.4:
        right = forms(r"\left\langle @l \right\rangle | ⟨@l⟩ | \langle @n \rangle | \langle @s \rangle", **values)
        wrong = forms(r"\langle @t \rangle | \langle @f, @y \rangle | @z | 0 | \langle 71, @r \rangle | \langle @f \rangle", **values)
        return Case(forms(r"\langle @l \rangle", **values)[0], right, wrong, tuple(items))
    right = forms(r"(@n) | \left(@l\right) | (@v) = (@l) | （@l） | !The answer is (@l). | @e | \left( @s \right) | !答案是(@l)。", **values)
    wrong = forms("(@t) | (@f, @y) | (71, @r) | (@l, 0) | @a | @z | (@r) | (@l), (@f, @y) | @o | !The answer is (@t).", **values)
    return Case(f"({listed(items)})", right, wrong, tuple(items))


@family
def matrices(rng: random.Random) -> Case:
    """Matrices and column vectors."""
    width = rng.choice([1, 2, 2])
    rows = [distinct(rng, width, -9, 20) for _ in range(rng.choice([2, 2, 3]))]

    def matrix(rows: Sequence[Sequence[int]], kind: str = "pmatrix", end: str = r" \\ ", tab: str = " & ") -> str:
        return rf"\begin{{{kind}}} {end.join(tab.join(map(str, row)) for row in rows)} \end{{{kind}}}"

    changed = [*rows[:-1], [*rows[-1][:-1], rows[-1][-1] + rng.choice([1, -1, 40])]]
    first = [[rows[0][0] + 50, *rows[0][1:]], *rows[1:]]
    columns = [list(column) for column in zip(*rows, strict=True)]
    gold = matrix(rows)
    array = gold.replace("{pmatrix}", "{array}").replace("n{array}", "n{array}{%s}" % ("c" * width))
    right = [matrix(rows, "bmatrix"), matrix(rows, end=r"\\", tab="&"), "A = " + gold, gold.replace("-", "−"), matrix(rows, end="\\\\\n")]
    right += [rf"\left({array}\right)", gold.replace("pmatrix", "matrix").join([r"\left[", r"\right]"])]
    wrong = [matrix(changed), matrix(first), matrix(rows[:-1]), str(rows[-1][-1]), "0", matrix([*rows, rows[0]]), f"{gold}, {matrix(first)}"]
    wrong += [matrix(each) for each in (columns, rows[::-1]) if each != rows and width > 1]
    return Case(gold, right, wrong, str(rows))


@family
def polynomials(rng: random.Random) -> Case:
    """Polynomials, with and without the name of their function."""
    degree, name = rng.randint(2, 4), rng.choice(["", "", "f(x) = ", "P(x) = "])
    powers = ["", "x", "x^2", "x^3", "x^4"]
    terms = [(rng.choice([-1, 1, 1]) * rng.randint(1, 12), powers[power]) for power in range(degree, -1, -1)]
    gold, at = polynomial(terms), rng.randrange(degree + 1)
    factor, power = terms[at]
    raised = re.sub(r"\^(\d)", lambda found: found[1].translate(SUPERSCRIPT), gold)
    right = [gold, gold.replace(" ", ""), polynomial(terms[::-1]), polynomial(rng.sample(terms, k=len(terms))), raised, gold.replace("- ", "− ")]
    right += [name + re.sub(r"\^(\d)", r"^{\1}", gold), name + gold.replace("^", " ^ ")]
    others = [polynomial([*terms[:at], (each, power), *terms[at + 1 :]]) for each in (-factor, factor + 13, 10 * factor)]
    others += [polynomial([(terms[0][0], f"x^{degree + 1}"), *terms[1:]]), polynomial(terms[:-1]), polynomial(terms[1:])]
    wrong = [*others, str(terms[-1][0]), "0", "x", f"{gold} + C", f"{gold}, {others[0]}"]
    return Case(name + gold, right, [name + each if name and rng.random() < 0.3 else each for each in wrong], gold)


@family
def equations(rng: random.Random) -> Case:
    """Lines and circles."""
    first, second, third = (rng.choice([-1, 1]) * rng.randint(2, 15) for _ in range(3))
    if rng.random() < 0.5:
        side = polynomial([(first, "x"), (second, "")])
        values = {"s": side, "c": side.replace(" ", ""), "t": polynomial([(second, ""), (first, "x")]), "f": first, "g": second}
        values |= {"m": polynomial([(first, "x"), (-second, "")]), "n": polynomial([(-first, "x"), (second, "")])}
        values |= {"o": polynomial([(first, "x"), (second + 17, "")]), "y": side.replace("x", "y"), "u": side.replace("-", "−")}
        right = forms("y=@c | @s = y | y = @t | y = @u | !The line is $y = @s$. | y = @s", **values)
        wrong = forms("y = @m | y = @n | y = @o | x = @y | y > @s | @g | @f | y = @fx | !The line is $y = @m$.", **values)
        return Case(f"y = {side}", right, wrong, side)
    values = {"x": polynomial([(1, "x"), (-first, "")]), "y": polynomial([(1, "y"), (-second, "")]), "r": third**2, "s": third**2 + 1}
    values |= {"m": polynomial([(1, "x"), (first, "")]), "q": abs(third)}
    right = forms("(@x)^2+(@y)^2=@r | (@y)^2 + (@x)^2 = @r | (@x)^{2} + (@y)^{2} = @r | (@x)² + (@y)² = @r | @r = (@x)^2 + (@y)^2", **values)
    wrong = forms("""(@x)^2 + (@y)^2 = @s | (@x)^2 - (@y)^2 = @r | (@m)^2 + (@y)^2 = @r | @r | (@x)^2 + (@y)^2 | (@x)^2 = @r
                  (@x)^2 + (@y)^2 = @q | (@x)^2 + (@y)^2 < @r | (@x)^3 + (@y)^2 = @r""", **values)
    return Case(forms("(@x)^2 + (@y)^2 = @r", **values)[0], right, wrong, (first, second, abs(third)))


@family
def units(rng: random.Random) -> Case:
    """Numbers with a unit in the expected answer or only in the given one, and degrees."""
    number = rng.choice([str(rng.randint(2, 999)), f"{rng.randint(1, 99)}.{rng.randint(1, 9)}"])
    values: dict[str, object] = {"n": number, "o": other_digit(number, rng)}
    if rng.random() < 0.35:
        right = forms(r"@n^{\circ} | @n° | @n ^\circ | @n\text{ degrees} | !The angle is @n°. | !The angle is @n degrees.", **values)
        return Case(rf"{number}^\circ", right, forms(r"@o^\circ | -@n^\circ | 1@n^\circ | 0^\circ | @o | !The angle is @o°.", **values), number)
    unit, others = rng.choice([
        ("cm", "m km kg"), ("meters", "seconds kilometers"), ("hours", "days minutes"), ("kg", "g m"), ("m/s", "km/s m"), ("km", "cm m"),
        ("miles per hour", "miles feet"), ("cm^2", "cm^3 cm m^2"), ("square units", "meters degrees"),
    ])
    spelled = r"@n \text{ @u}@p | @n\,\text{@u}@p | @n\ \text{@u}@p | @n\text{ @u}@p | @n \mathrm{ @u}@p"
    name, _, power = unit.partition("^")
    right = forms(spelled, n=number, u=name, p=power and f"^{power}")
    right += ["!The answer is " + number + " " + unit.replace("^2", "²") + ".", rf"!\boxed{{{number}}} {unit}"]
    wrong = [*forms(r"@o \text{ @u} | -@n \text{ @u} | @o | 1@n\,\text{@u}", u=name, **values)]
    if power:
        wrong = forms(r"@o \text{ cm}^2 | -@n \text{ cm}^2 | @o | 1@n\,\text{cm}^2", **values)
    if rng.random() < 0.3:  # the question names the unit, the expected answer does not
        return Case(number, right, wrong, number)
    for other in others.split():
        name, _, power = other.partition("^")
        wrong += forms(spelled, n=number, u=name, p=power and f"^{power}")[:2]
    return Case(right[0], right, [*wrong, "0"], number)


@family
def money(rng: random.Random) -> Case:
    """Dollars, with and without cents."""
    dollars, cents = rng.randint(2, 60_000), rng.randint(1, 99)
    part = f".{cents:02d}" if rng.random() < 0.6 else ""
    text = f"{dollars}{part}"
    values = {"t": text, "c": f"{dollars:,}{part}", "b": f"{dollars:,}{part}".replace(",", "{,}"), "o": other_digit(text, rng)}
    values |= {"d": f"{dollars + 1}{part}", "x": f"{dollars * 10}{part}", "w": dollars if part else text[:-1] or 0}
    right = forms(r"""\$@c | @t | \$@t | @c | @t \text{ dollars} | \$ @t | \text{\$@t} | !The total is $@t. | !It costs @c dollars.
                  \$@b | !**$@c** | !The answer is \$@t. | !\boxed{$@t}""", **values)
    wrong = forms(r"""\$@o | @o | -\$@t | \$@w | !The total is $@o. | 0 | \$@x | €@t | @t \text{ cents} | \$@d | !It costs @o dollars.
                  \$@t, \$@d | \$@t\text{ or }\$@d""", **values)
    return Case(rng.choice(forms(r"\$@t | \$@c | @t \text{ dollars} | $@t", **values)), right, wrong, Fraction(text))


@family
def percent(rng: random.Random) -> Case:
    """Percentages."""
    number = rng.choice([str(rng.randint(2, 99)), f"{rng.randint(1, 99)}.{rng.randint(1, 9)}", f"{rng.randint(101, 300)}"])
    values = {"n": number, "o": other_digit(number, rng), "d": number.replace(".", "")}
    right = forms(r"@n% | @n \% | @n\text{ percent} | @n\,\% | !The answer is @n%. | !@n percent | x = @n\% | {@n}\%", **values)
    wrong = forms(r"@o\% | -@n\% | 1@n\% | 0.0@d\% | !The answer is @o%. | 0 | 0.1\% | @n\%, @o\% | @o | @n\% \text{ or } @o\%", **values)
    return Case(rf"{number}\%", right, wrong, number)


WORDS = (
    "Monday Tuesday Friday Sunday | red blue green yellow | even odd | Paris London Berlin Madrid | north south east west | "
    "ellipse parabola hyperbola circle | Alice Evelyn Briana Carla | increasing decreasing | "
    "isosceles scalene equilateral | convergent divergent | January June October"
)


@family
def text(rng: random.Random) -> Case:
    """Words."""
    words = rng.choice(WORDS.split(" | ")).split()
    word, *others = rng.sample(words, k=len(words))
    values = {"w": word, "o": others[0], "l": word.lower(), "c": word.capitalize(), "a": listed(words)}
    right = forms(r"""\text{@w} | @w | \textbf{@w} | \mathrm{@w} | \text{@w}. | \text{ @w } | \text{@l} | \text{@c} | \textit{@w}
                  !The answer is @w. | !@w | !**Answer: @w** | !答案是@w。""", **values)
    wrong = forms(r"""\text{@o} | @o | !The answer is @o. | \text{@w or @o} | \text{not @w} | 7 | 42 | \text{@a} | !@o
                  \text{neither @w nor @o}""", **values)
    return Case(rng.choice(right[:2]), right, wrong, word)


@family
def letters(rng: random.Random) -> Case:
    """Letters of choices, alone and with what they stand for."""
    letter, other = rng.sample("ABCDE", k=2)
    values = {"l": letter, "o": other, "n": rng.randint(11, 99), "m": rng.randint(100, 199)}
    if rng.random() < 0.3:
        both = forms(r"\textbf{(@l)}\ @n | \textbf{(@l)} @n | \text{(@l)}\ @n | \textbf{(@l) } @n", **values)
        if rng.random() < 0.5:
            return Case(str(values["n"]), both, forms(r"\textbf{(@l)}\ @m | \textbf{(@o)}\ @m | @m", **values), values["n"])
        return Case(forms(r"\text{(@l)}", **values)[0], [*both, letter], forms(r"\textbf{(@o)}\ @n | @o | @m", **values), letter)
    right = forms(r"""@l | (@l) | \text{@l} | \text{(@l)} | \textbf{(@l)} | \mathrm{@l} | \textbf{@l} | \mathbf{@l} | \text{@l.}
                  !The answer is (@l). | !Answer: @l | !The answer is @l. | !**@l** | !答案是@l。""", **values)
    wrong = forms(r"""@o | (@o) | \text{(@o)} | \textbf{(@o)} | !Answer: @o | !The answer is (@o). | @l, @o | \text{@l or @o}
                  A, B, C, D, E | 0""", **values)
    return Case(rng.choice(right[:5]), right, wrong, letter)


@family
def times(rng: random.Random) -> Case:
    """Times of day."""
    hour, minute, (half, other) = rng.randint(1, 11), rng.randint(12, 58), rng.sample(["a.m.", "p.m."], k=2)
    values = {"h": hour, "m": minute, "n": minute + 1, "g": hour + 1, "f": Fraction(hour, minute), "a": half, "b": other}
    values |= {"u": half.replace(".", "").upper(), "l": half.replace(".", ""), "v": other.replace(".", "").upper()}
    wrong = forms("@f | @h | @m | 0", **values)
    if rng.random() < 0.4:
        right = forms(r"\text{@h:@m} | !The answer is @h:@m. | !@h:@m | @h{:}@m | @h : @m | !答案是@h:@m。", **values)
        return Case(f"{hour}:{minute}", right, [*wrong, *forms("@h:@n | @g:@m | @m:@h | !The answer is @h:@n.", **values)], (hour, minute))
    right = forms(r"""@h:@m\text{ @a} | @h:@m \text{ @u} | \text{@h:@m @a} | @h:@m\text{ @l} | !The answer is @h:@m @a | @h:@m\,\text{@l}
                  !At @h:@m @u.""", **values)
    wrong += forms(r"@h:@m \text{ @b} | @h:@m \text{ @v} | @h:@n \text{ @a} | @g:@m \text{ @a} | !The answer is @h:@m @b | !At @h:@n @u.", **values)
    return Case(forms(r"@h:@m \text{ @a}", **values)[0], right, wrong, (hour, minute))


@family
def bases(rng: random.Random) -> Case:
    """Numbers in another base."""
    base = rng.randint(2, 9)
    digits = str(rng.randint(1, base - 1)) + "".join(str(rng.randrange(base)) for _ in range(rng.randint(3, 6)))
    other = rng.choice([each for each in range(max(2, max(map(int, digits)) + 1), 13) if each != base])
    values = {"d": digits, "b": base, "o": other, "c": digits[:-1] + str((int(digits[-1]) + 1) % base), "s": digits[:-1]}
    values |= {"u": str(base).translate(SUBSCRIPT), "w": ["0", "1", "two", "three", "four", "five", "six", "seven", "eight", "nine"][base], "k": base + 900}
    right = forms(r"""@d_@b | @d_{@b} | (@d)_@b | @d@u | @d_{\text{@w}} | @d \text{ (base @b)} | (@d)_{@b} | @d _ {@b}
                  !The answer is @d in base @b.""", **values)
    wrong = forms(r"""@d_{@o} | @c_@b | @d0_@b | -@d_@b | @s_@b | (@d)_{@o} | @b_{@d} | @k | 0 | !The answer is @c in base @b.
                  !The answer is @d in base @o.""", **values)
    return Case(rng.choice(right[:2]), right, wrong, int(digits, base))


@family
def modular(rng: random.Random) -> Case:
    """Congruences and remainders."""
    modulus = rng.randint(3, 40)
    rest, other = rng.sample(range(modulus), k=2)
    values = {"r": rest, "o": other, "m": modulus, "n": modulus + 1, "s": rest + modulus, "t": rest + 2}
    if rng.random() < 0.3:
        right = forms(r"@r \mod @m | @r \pmod{@m} | @r \bmod{@m} | @r \text{ mod } @m | @r \mod{@m}", **values)
        wrong = forms(r"@o \bmod @m | @m | @o \pmod{@m} | @o \text{ mod } @m | @o \mod @m", **values)
        return Case(rf"{rest} \bmod {modulus}", right, wrong, (rest, modulus))
    right = forms(r"""n\equiv @r\pmod{@m} | n \equiv @r \ (\text{mod } @m) | n ≡ @r (mod @m) | n \equiv @r \mod @m | n \equiv @r \bmod @m
                  n \equiv @r \;(\mathrm{mod}\; @m) | !The answer is n ≡ @r (mod @m). | n \equiv @r \pmod{@m}""", **values)
    wrong = forms(r"""n \equiv @o \pmod{@m} | n \equiv @r \pmod{@n} | @m | n = @s | n \equiv @o \mod @m | n \not\equiv @r \pmod{@m}
                  !The answer is n ≡ @o (mod @m). | @o | n ≡ @r (mod @n) | x \equiv 0 \pmod{@n}""", **values)
    gold = rf"n \equiv {rest} \pmod {modulus}" if modulus < 10 and rng.random() < 0.5 else right[-1]
    return Case(gold, right, wrong, (rest, modulus))


@family
def piecewise(rng: random.Random) -> Case:
    """Functions of two halves."""
    first, second = rng.sample(range(2, 15), k=2)
    name, edge = rng.choice(["f(x) = ", "f(x) = ", ""]), rng.randint(-9, 9)
    values = {"n": name, "u": f"{first}x", "l": polynomial([(second, "x"), (first, "")]), "e": edge, "f": edge + 1, "k": edge + 50}
    values |= {"o": polynomial([(second + 1, "x"), (first, "")]), "b": r"\begin{cases}", "d": r"\end{cases}"}
    gold, *right = forms(r"""@n@b @u & x > @e \\ @l & x \le @e @d
        @n@b @u & x > @e \\ @l & x \leq @e @d | @n@b@u&x>@e\\@l&x\le @e@d | @n@b @u, & x > @e \\ @l, & x \le @e @d
        @n@b @u & \text{if } x > @e \\ @l & \text{if } x \le @e @d | f(x) = @b @u & x > @e \\ @l & x \le @e @d
        @n@b @l & x \le @e \\ @u & x > @e @d""", **values)
    wrong = forms(r"""@n@b @u & x > @e @d | @n@b @l & x \le @e @d | @u | @l | 0 | @k | @n@b @u & x > @e \\ @o & x \le @e @d
        @n@b @u & x \le @e \\ @l & x > @e @d | @n@b @u & x > @f \\ @l & x \le @f @d | @n@b -@u & x > @e \\ @l & x \le @e @d
        f(x) = @u | @n@b @l & x > @e \\ @u & x \le @e @d""", **values)
    return Case(gold, right, wrong, (first, second, edge))


@family
def orders(rng: random.Random) -> Case:
    """Products whose order counts: of matrices, of vectors, and letters that are a word."""
    (a, b, c), factor = rng.sample("ABCMPQ", k=3), rng.randint(2, 9)
    values = {"a": a, "b": b, "c": c, "n": factor, "m": factor + 1, "x": a.lower(), "y": b.lower(), "z": c.lower()}
    gold, right, wrong = rng.choice([
        (r"@n@a@b^{-1}", r"@n @a @b^{-1} | (@n@a)@b^{-1} | @a(@n@b^{-1})", r"@n@b^{-1}@a | @m@a@b^{-1} | @n@a^{-1}@b | @n@a@b | @n@a@b^T"),
        (r"(@a@b)^{-1}", r"@b^{-1}@a^{-1} | \left(@a@b\right)^{-1}", r"@a^{-1}@b^{-1} | (@b@a)^{-1} | @a^{-1}@b | @b@a"),
        (r"@b^T@a^T", r"(@a@b)^T | (@a@b)^{T} | @b^{\top}@a^{\top}", r"@a^T@b^T | (@b@a)^T | @b@a | @b^{-1}@a^{-1}"),
        (r"@c = @a^{-1}@b", r"@a^{-1}@b | @c=@a^{-1} @b", r"@b@a^{-1} | @c = @b@a^{-1} | @c = @b^{-1}@a | @c = @a@b"),
        (r"@a@b - @b@a", r"-@b@a + @a@b | -(@b@a - @a@b)", r"0 | @b@a - @a@b | @a@b + @b@a | 2@a@b"),
        (r"@n\vec @x\times\vec @y", r"-@n\vec @y\times\vec @x | @n\,\vec{@x}\times\vec{@y} | \vec @x\times @n\vec @y",
         r"@n\vec @y\times\vec @x | @n\vec @x\cdot\vec @y | @m\vec @x\times\vec @y | 0 | \vec @z\times\vec @y"),
        (r"\vec @x\times(\vec @y + @n\vec @z)", r"\vec @x\times\vec @y + @n\vec @x\times\vec @z | \vec @x\times\vec @y - @n\vec @z\times\vec @x",
         r"(\vec @y + @n\vec @z)\times\vec @x | \vec @x\times\vec @y + @n\vec @z\times\vec @x | \vec @x\times\vec @y | \vec @x\cdot\vec @y"),
    ])
    if rng.random() < 0.25:
        word = rng.choice(["dog", "act", "tea", "cat", "pot", "nail", "rose"])
        other = rng.choice([each for order in permutations(word) if (each := "".join(order)) != word])
        return Case(word, [word, rf"\text{{{word}}}"], [other, rf"\text{{{other}}}", f"2 {word}", other.upper()], word)
    return Case(forms(gold, **values)[0], forms(right, **values), forms(wrong, **values), (gold, a, b, c, factor))


@family
def functions(rng: random.Random) -> Case:
    """Functions by the name of their variable, and by their value."""
    (name, other), (x, y, t) = rng.sample("fghp", k=2), rng.sample("xytsuv", k=3)
    factor, added = rng.randint(2, 12), rng.randint(1, 20)
    values = {"f": name, "g": other, "x": x, "y": y, "t": t, "n": factor, "m": factor + 1, "a": added}
    if rng.random() < 0.5:
        right = forms("@n@x+@a | @f(@t)=@n@t+@a | @f(@y) = @a+@n@y | @f(@x)=@a + @n@x", **values)
        wrong = forms("@f(@y)=@n@x+@a | @f(@x)=@n@y+@a | @g(@x)=@n@x+@a | @f(@x)=@m@x+@a | @f(@t)=@n+@a | @n | @a", **values)
        return Case(forms("@f(@x)=@n@x+@a", **values)[0], right, wrong, (name, factor, added))
    right = forms("@f(@y,@x)=@y-@n@x | @f(@x,@t)=@x-@n@t | @f(@x,@y)=-@n@y+@x", **values)
    wrong = forms("@f(@y,@x)=@x-@n@y | @f(@x,@y)=@y-@n@x | @f(@x,@t)=@x-@n@y | @g(@x,@y)=@x-@n@y | @f(@x,@y)=@x-@m@y | 0", **values)
    return Case(forms("@f(@x,@y)=@x-@n@y", **values)[0], right, wrong, (name, factor))


@family
def asked(rng: random.Random) -> Case:
    """What only the question says: a unit, a base, a rank."""
    number, kind = rng.randint(11, 99), rng.randrange(4)
    values = {"n": number, "o": number + 1, "k": number * 1000}
    if kind < 2:
        ask, others, long, short = rng.choice([
            ("How many metres is it?", "km cm", r"@n \text{ metres}", r"@k \text{ mm}"),
            ("What is its mass, in grams?", "kg mg", r"@n \text{ grams}", r"@k \text{ mg}"),
            ("How many seconds does it take?", "hours minutes", r"@n \text{ seconds}", r"@k \text{ ms}"),
            ("What is the area in square feet?", "ft m^2", r"@n \text{ square feet}", r"@n \text{ sq ft}"),
            ("What is its speed in miles per hour?", "km/h miles", r"@n \text{ mph}", r"@n \text{ miles per hour}"),
        ])
        right = ["@n", long, short, "!It is @n."]
        wrong = ["@o", *(rf"{name}@n \text{{{each}}}" for each in others.split() for name in ("", "x = "))]
        return Case(str(number), forms(" | ".join(right), **values), forms(" | ".join(wrong), **values), (ask, number), ask)
    if kind == 2:
        base = rng.randint(2, 8)
        digits, rest = "", number
        while rest:
            digits, rest = str(rest % base) + digits, rest // base
        values |= {"d": digits, "b": base, "c": base + 1}
        wrong = forms("@d_@c | @d0_@b | @d0 | -@d", **values)
        return Case(f"{digits}_{base}", forms("@d | @d_@b | @d_{@b}", **values), wrong, (base, number), f"Write it in base {base}.")
    place = rng.randint(4, 19)
    values |= {"p": place, "q": place + 1}
    if rng.random() < 0.5:
        ask, right, wrong = "How many are there?", "@p | !There are @p.", r"@pth | @p^{\text{th}} | @qth | @q"
    else:
        ask, right, wrong = "Which place did she take?", r"@p | @pth | @p^{\text{th}} | !She took the @pth place.", r"@qth | @q | @q^{\text{th}}"
    return Case(str(place), forms(right, **values), forms(wrong, **values), (ask, place), ask)


@family
def wording(rng: random.Random) -> Case:
    """Words for relations, units and emptiness; a letter as a times sign."""
    number, kind = rng.randint(3, 99), rng.randrange(5)
    values = {"n": number, "o": number + 1, "p": rng.randint(5, 30), "h": f"{rng.randint(1, 9)}.{rng.randint(11, 99)}"}
    if kind == 0:
        sign, said, turned = rng.choice([(">", "greater than", "less than"), (r"\le", "at most", "at least"), ("<", "smaller than", "larger than")])
        values |= {"s": sign, "w": said, "v": turned}
        right = forms(r"x \text{ is @w } @n | x is @w @n | !x is @w @n | !The answer is: x is @w @n. | x @s @n", **values)
        return Case(forms("x @s @n", **values)[0], right, forms(r"x \text{ is @v } @n | x is @w @o | !x is @v @n | @n", **values), (sign, number))
    if kind == 1:
        right = forms(r"@h x 10^@p | @h x 10^{@p} | @hx10^{@p} | @h X 10^{@p} | @he@p | @h*10^@p", **values)
        return Case(forms(r"@h \times 10^{@p}", **values)[0], right, forms(r"@h x 10^{-@p} | @h x 10 | @o x 10^{@p} | @h x^{@p} | @h", **values), str(values))
    if kind == 2:
        right = forms(r"@n sq ft | @n sq. ft. | @n \text{ sq ft} | @n \text{ square feet} | !@n sq ft", **values)
        return Case(forms(r"@n \text{ ft}^2", **values)[0], right, forms(r"@o sq ft | @n \text{ cu ft} | @n ft | @n \text{ sq m} | @o", **values), number)
    if kind == 3:
        right = forms(r"@n years old | @n \text{ years old} | @n | !She is @n years old. | @n \text{ years}", **values)
        return Case(forms(r"@n \text{ years}", **values)[0], right, forms(r"@o years old | @n days old | @o | -@n", **values), number)
    family_, others = rng.choice([
        (r"\text{none} | \emptyset | \text{no solution} | \text{There are no solutions} | \text{no real solutions}", r"0 | \{0\} | \text{one} | \mathbb{R}"),
        (r"\text{undefined} | \text{does not exist} | \text{DNE} | !The limit does not exist.", r"0 | \infty | 1 | \text{defined}"),
    ])
    return Case(family_.split(" | ")[0], forms(family_), [*forms(others), str(number)], family_)


BY_HAND = (
    ("integers", "4", r"\boxed4 | 4 | **4** | \boxed{4} (see \boxed{})", r"44 | -4 | 425 | \boxed{4!} | I had 4, but it is 5."),
    ("integers", "9007199254740993", r"\boxed{9007199254740993}", r"\boxed{9007199254740992} | \boxed{9007199254740994}"),
    ("integers", "1234567", r"\boxed{1\,234\,567} | \boxed{1 234 567}", r"\boxed{802} | \boxed{1 \cdot 234567}"),
    ("integers", "802", r"\boxed{802}", r"\boxed{1\,234\,567}"),
    ("integers", "357", r"\boxed{357}", r"\boxed{12 345}"),
    ("fractions", r"1 - \frac{1}{\mathrm{e}}", r"\boxed{1 - \frac{1}{e}} | \boxed{1-e^{-1}}", r"\boxed{1 + \frac{1}{e}} | \boxed{1}"),
    ("fractions", "11 5/6", r"\boxed{\frac{71}{6}} | \boxed{11\frac{5}{6}}", r"\boxed{8/3} | \boxed{16/6}"),
    ("fractions", "2", r"\boxed{2}", r"\boxed{3 1/2}"),
    ("decimals", r"12.\overline{3}", r"\boxed{\frac{37}{3}}", r"\boxed{12} | \boxed{12.3}"),
    ("decimals", r"0.\dot{3}", r"\boxed{\frac13}", r"\boxed{0}"),
    ("decimals", ".0000672", r"\boxed{6.72 \times 10^{-5}}", r"\boxed{.0000668}"),
    ("text", "infinitely many", r"\boxed{\text{infinitely many}}", r"\boxed{0} | \boxed{\text{many}}"),
    ("text", r"\infty", r"\boxed{∞} | \boxed{\infty} | \boxed{+\infty}", r"\boxed{-\infty} | \boxed{0} | \boxed{\text{undefined}}"),
    ("text", "yes", r"\boxed{\text{Yes}} | Yes. | \boxed{yes}", r"\boxed{\text{no}} | No. | \boxed{\text{yes and no}}"),
    ("equations", r"\begin{cases} x=1 \\ y=2 \end{cases}", r"\boxed{\begin{cases} x=1 \\ y=2 \end{cases}}", r"\boxed{2} | \boxed{1}"),
    ("text", r"\deg(f) = 2", r"\boxed{\deg(f) = 2}", r"\boxed{\dim(f) = 2} | \boxed{\deg(f) = 3}"),
    ("degenerate", "0", r"\boxed{0} | 0 | The answer is 0. | \boxed{0.0}", r"\boxed{} | \boxed{1} | \boxed{\emptyset} | \boxed{x}"),
    ("degenerate", "1", r"\boxed{1} | 1", r"\boxed{0} | \boxed{x} | \boxed{0, 1} | 1 or 2"),
)
"""Rows that no maker makes: family, expected answer, right answers, wrong answers."""

# More families, made with what stands above.
import benchmarks.grading_formulas  # noqa: E402
import benchmarks.grading_prose  # noqa: E402, F401
