# ruff: noqa: E501 - a row of spellings is one line
r"""Formulas that are equal and formulas that only look so, for `benchmarks/grading_corpus.py` and the property suite.

`FORMULAS` has families of formulas of letters: an expected one, forms that equal it, and changed ones that agree with it
in part of the plane, at even numbers, for positive letters, or nearly. The families of the corpus below draw from them,
and add what stands around a formula: the box, the names, the parts, the rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from benchmarks.grading_cases import Case, distinct, family, forms

# fmt: off

FORMULAS: dict[str, Callable[[random.Random], Case]] = {}
QUESTIONS = {
    "antiderivatives": "Find the indefinite integral.",
    "solutions": "Solve the differential equation.",
}


def _formulas(name: str, gold: str, right: str, wrong: str, question: str = "?") -> None:
    r"""Register a family; `@a`, `@b` are different numbers, `@c` is their sum, `@p` their product, `@x`, `@y` letters."""

    def make(rng: random.Random) -> Case:
        low, high = sorted(distinct(rng, 2, 2, 60))
        x, y = rng.sample("xyztuv", k=2) if "@y" in gold + right else (rng.choice("xyztuv"), "")
        values: dict[str, object] = {"a": low, "b": high, "c": low + high, "d": high - low, "p": low * high, "s": low**2, "e": low + 1}
        values |= {"x": x, "y": y, "t": 2 * low, "n": rng.choice("nm"), "k": rng.choice("kj"), "h": rng.randint(2, 5), "q": low * high + 1}
        texts = [forms(each, **values) for each in (gold, right, wrong)]
        return Case(texts[0][0], texts[1], texts[2], "formula", forms(question, **values)[0])

    FORMULAS[name] = make


_formulas("polynomials", r"(@x+@a)(@x-@b)", r"@x^2-@d@x-@p | (@x-@b)(@x+@a) | @x(@x-@d)-@p", r"@x^2+@d@x-@p | @x^2-@d@x+@p | @x^2-@d@x-@q | (@x+@a)(@x+@b)")
_formulas("fractions_of_letters", r"\frac{1}{@x+@a}-\frac{1}{@x+@b}", r"\frac{@d}{(@x+@a)(@x+@b)} | \frac{@d}{@x^2+@c@x+@p}", r"\frac{-@d}{(@x+@a)(@x+@b)} | \frac{@d}{@x^2+@c@x-@p} | \frac{@c}{(@x+@a)(@x+@b)}")
_formulas("absolute_values", r"|@x-@a|", r"|@a-@x| | \max(@x-@a,@a-@x) | \sqrt{(@x-@a)^2}", r"@x-@a | @a-@x | |@x+@a| | |@x|-@a | |@x-@e|")
_formulas("two_absolute_values", r"|@x-@a|+|@x-@b|", r"|@b-@x|+|@a-@x| | |@x-@b|+\sqrt{(@x-@a)^2}", r"|2@x-@c| | @d | @c-2@x | |@x-@a|+@b-@x | 2@x-@c")
_formulas("roots_of_squares", r"\sqrt{@x^2-@t@x+@s}", r"|@x-@a| | \sqrt{(@a-@x)^2} | |@a-@x|", r"@x-@a | @a-@x | |@x+@a| | @x+@a")
_formulas("maxima", r"\max(@x,@a)", r"\frac{@x+@a+|@x-@a|}{2} | @a+\max(@x-@a,0) | \max(@a,@x)", r"@a | @x | \min(@x,@a) | \frac{@x+@a-|@x-@a|}{2} | @x+@a")
_formulas("minima", r"\min(@x,@a)", r"\frac{@x+@a-|@x-@a|}{2} | @x+@a-\max(@x,@a) | -\max(-@x,-@a)", r"@a | @x | \max(@x,@a) | \min(@x,@e)")
_formulas("floors", r"\lfloor \frac{@n}{2} \rfloor", r"\frac{2@n-1+(-1)^@n}{4} | \lceil \frac{@n-1}{2} \rceil | \frac @n2-\frac{1-(-1)^@n}{4}", r"\frac @n2 | \frac{@n-1}{2} | \lceil \frac @n2 \rceil | \frac{2@n+1+(-1)^@n}{4}")
_formulas("alternating_signs", r"@a(-1)^{@n+1}", r"-@a(-1)^@n | @a\cos((@n+1)\pi) | -@a\cos(@n\pi) | @a(-1)^{@n-1}", r"@a(-1)^@n | @a | -@a | @a(-1)^{2@n+1}")
_formulas("binomials", r"\binom{@n}{@k}", r"\frac{@n!}{@k!(@n-@k)!} | \binom{@n}{@n-@k} | \binom{@n-1}{@k-1}+\binom{@n-1}{@k}", r"\binom{@n}{@k+1} | \frac{@n!}{(@n-@k)!} | (-1)^{@n-@k}\binom{@n}{@k} | \binom{@n+1}{@k} | (-1)^@k\binom{@n}{@k}")
_formulas("alternating_binomials", r"(-1)^{@n-@k}\binom{@n}{@k}", r"(-1)^{@n+@k}\binom{@n}{@n-@k} | \frac{(-1)^{@n-@k}@n!}{@k!(@n-@k)!}", r"\binom{@n}{@k} | -\binom{@n}{@k} | (-1)^@k\binom{@n}{@k} | (-1)^@n\binom{@n}{@k}")
_formulas("factorials", r"\frac{(@n+2)!}{@n!}", r"(@n+1)(@n+2) | @n^2+3@n+2 | 2\binom{@n+2}{2}", r"@n(@n+1) | (@n+2)! | @n^2+3@n+1 | \binom{@n+2}{2}")
_formulas("squares_of_sines", r"\sin^2(@h@x)", r"1-\cos^2(@h@x) | \frac{1-\cos(2\cdot@h@x)}{2} | (1-\cos(@h@x))(1+\cos(@h@x))", r"\frac{1+\cos(2\cdot@h@x)}{2} | \cos^2(@h@x) | 1-\cos(@h@x) | \sin(@h@x)")
_formulas("sums_of_angles", r"\cos(@x+@y)", r"\cos @x\cos @y-\sin @x\sin @y | \cos(-@x-@y)", r"\cos @x\cos @y+\sin @x\sin @y | \cos(@x-@y) | \cos @x+\cos @y | \sin(@x+@y)")
_formulas("exponentials", r"2^{@h@x+3}", r"8\cdot 2^{@h@x} | 8(2^@x)^@h | 2^3\cdot 2^{@h@x}", r"6\cdot 2^{@h@x} | 2^{@h@x}+8 | 8\cdot 2^@x | 2^{@h@x+2}")
_formulas("logarithms", r"\ln\frac{@x-@a}{@x-@b}", r"\ln(@x-@a)-\ln(@x-@b) | -\ln\frac{@x-@b}{@x-@a}", r"\ln(@x-@b)-\ln(@x-@a) | \frac{\ln(@x-@a)}{\ln(@x-@b)} | \ln(@x-@a)+\ln(@x-@b)")
_formulas("logarithms_of_squares", r"\ln((@x-@a)^2)", r"2\ln|@x-@a| | \ln(@x^2-@t@x+@s) | 2\ln|@a-@x|", r"\ln|@x-@a| | 2\ln|@x+@a| | (\ln|@x-@a|)^2 | 2|\ln|@x-@a||")
_formulas("products_of_roots", r"\sqrt{@x-@a}\sqrt{@x-@b}", r"\sqrt{(@x-@b)(@x-@a)} | \sqrt{@x^2-@c@x+@p}", r"\sqrt{@x^2-@c@x-@p} | @x-@c | \sqrt{@x-@a}+\sqrt{@x-@b} | (@x-@a)(@x-@b)")
_formulas("cube_roots", r"\sqrt[3]{@a-@x}", r"-\sqrt[3]{@x-@a} | (@a-@x)^{1/3} | -(@x-@a)^{1/3}", r"\sqrt[3]{@x-@a} | \sqrt{@a-@x} | \sqrt[3]{@a}-\sqrt[3]{@x} | \sqrt[3]{@a+@x}")
_formulas("geometric_sums", r"\frac{@a^{@n+1}-1}{@a-1}", r"\frac{1-@a^{@n+1}}{1-@a} | \frac{@a\cdot @a^@n-1}{@a-1}", r"\frac{@a^@n-1}{@a-1} | \frac{@a^{@n+1}}{@a-1} | \frac{1-@a^{@n+1}}{@a-1}")
_formulas("reciprocals", r"\frac{1}{@x}+\frac{@a}{@y}", r"\frac{@y+@a@x}{@x@y} | \frac{@a@x+@y}{@y@x}", r"\frac{@x+@a@y}{@x@y} | \frac{@e}{@x+@y} | \frac{@y-@a@x}{@x@y}")
_formulas("stated_ranges", r"@x-@a", r"|@x-@a| | \sqrt{(@x-@a)^2} | \max(@x,@a)-@a", r"@a-@x | |@x|+@a | 0 | \min(@x,@a)-@a", r"Simplify, where $@x > @b$.")
_formulas("antiderivatives", r"\frac{@x^3}{3}+@a@x+C", r"\frac{@x^3}{3}+@a@x+K | C+@a@x+\frac13@x^3 | @a@x+\frac{@x^3}{3}-@b+C", r"\frac{@x^3}{3}+@a@x | @x^3+@a@x+C | \frac{@x^3}{3}+@b@x+C | \frac{@x^3}{3}+C", QUESTIONS["antiderivatives"])
_formulas("solutions", r"C_1e^{@a@x}+C_2e^{-@b@x}", r"Ae^{@a@x}+Be^{-@b@x} | C_1e^{-@b@x}+C_2e^{@a@x} | c_1e^{@a@x}+c_2e^{-@b@x}", r"C_1e^{@a@x}+C_2e^{@b@x} | Ae^{@a@x} | e^{@a@x}+e^{-@b@x} | C_1e^{-@a@x}+C_2e^{-@b@x}", QUESTIONS["solutions"])
_formulas("counters", r"@n+@k-1", r"@k+@n-1 | -1+@n+@k", r"@n+@k | @n-1 | @n+@k+1 | @n+@k-@a")
_formulas("periods", r"\frac{\pi}{@a}+2@n\pi, @n\in\mathbb{Z}", r"\frac{\pi}{@a}+2l\pi, l\in\mathbb{Z} | \frac{\pi}{@a}-2@n\pi | \frac{\pi}{@a}+2K\pi,\ K\in\mathbb{Z}", r"\frac{\pi}{@a}+@n\pi, @n\in\mathbb{Z} | -\frac{\pi}{@a}+2@n\pi | \frac{\pi}{@a} | \frac{\pi}{@b}+2@n\pi, @n\in\mathbb{Z}")


def _drawn(*names: str) -> Callable[[random.Random], Case]:
    return lambda rng: FORMULAS[rng.choice(names)](rng)


for _name, _of in (
    ("cases_of_formulas", "absolute_values two_absolute_values roots_of_squares maxima minima floors stated_ranges"),
    ("counting_formulas", "alternating_signs binomials alternating_binomials factorials geometric_sums counters"),
    ("functions_of_letters", "polynomials fractions_of_letters squares_of_sines sums_of_angles exponentials reciprocals cube_roots"),
    ("domains", "logarithms logarithms_of_squares products_of_roots stated_ranges"),
    ("families_of_solutions", "antiderivatives solutions periods"),
):
    _make = _drawn(*_of.split())
    _make.__name__ = _name
    family(_make)


@family
def boxes_in_formulas(rng: random.Random) -> Case:
    """A box with more than its contents around it."""
    a, b = distinct(rng, 2, 2, 40)
    values = {"a": a, "b": b, "c": a + b, "p": a * b, "t": 2 * a, "s": a * a}
    gold, right, wrong = rng.choice([
        ("@a", r"!$\boxed{@a}$ | !So $x = \boxed{@a}$. | !$@b\times\boxed{@a} = @p$ | !$@b + \boxed{@a} = @c$ | !$\boxed{@a}^2 = @s$ | !So it is \boxed{@a}! | !$x = @c - @b = \boxed{@a}$",
         r"!$2\boxed{@a}$ | !$\boxed{@a}!$ | !$\pm\boxed{@a}$ | !$x > \boxed{@a}$ | !$\boxed{@a}^2$ | !$\boxed{@a}x$ | !$\sqrt{\boxed{@a}}$ | !$\frac{\boxed{@a}}{@b}$ | !Twice \boxed{@a}. | !$x \ne \boxed{@a}$ | !$\boxed{@a}+@b$ | !$-\boxed{@a}$"),
        (r"@a\pi", r"!$\boxed{@a}\pi$ | !The area is \boxed{@a}\pi. | !$A = \boxed{@a\pi}$ | !$A = \boxed{@a}\pi$", r"!$\boxed{@a}$ | !$\boxed{@b}\pi$ | !$2\boxed{@a}\pi$ | !$\boxed{@a}\pi^2$"),
        ("@t", r"!$2\cdot\boxed{@a}$ | !Twice \boxed{@a}. | !$x=2\boxed{@a}$", r"!$\boxed{@a}$ | !$3\cdot\boxed{@a}$ | !$1+\boxed{@a}$"),
        ("x > @a", r"!$x > \boxed{@a}$ | !$\boxed{x > @a}$ | !$\boxed{@a} < x$", r"!$x < \boxed{@a}$ | !$\boxed{@a}$ | !$x \ge \boxed{@a}$ | !$x > \boxed{@b}$"),
        ("(@a, @b)", r"!$(\boxed{@a}, \boxed{@b})$ | !$\boxed{(@a,@b)}$", r"!$(\boxed{@b}, \boxed{@a})$ | !$(\boxed{@a}, \boxed{@c})$ | !$\boxed{@a}$"),
    ])
    wrongs = [text for text in forms(wrong, **values) if text != r"!$\boxed{2}!$"]  # for 2! is 2
    return Case(forms(gold, **values)[0], forms(right, **values), wrongs, (gold, a, b))


@family
def names_of_boxes(rng: random.Random) -> Case:
    """Several values, each by its name."""
    a, b = distinct(rng, 2, 2, 60)
    x, y = rng.choice(["ab", "xy", "mn", "pq"])
    values = {"a": a, "b": b, "x": x, "y": y}
    if rng.random() < 0.3:
        right = r"!The width is $\boxed{@a}$ and the length is $\boxed{@b}$. | \text{length } @b, \text{width } @a"
        wrong = r"!The width is $\boxed{@b}$ and the length is $\boxed{@a}$. | \text{width } @b, \text{length } @a | @b, @a"
        return Case(f"width {a}, length {b}", forms(right, **values), forms(wrong, **values), ("width", a, b))
    right = r"!$@x=\boxed{@a}$ and $@y=\boxed{@b}$ | !$@y=\boxed{@b}$, $@x=\boxed{@a}$ | @x = @a, @y = @b | !@x is \boxed{@a} and @y is \boxed{@b} | @a, @b"
    wrong = r"!$@x=\boxed{@b}$ and $@y=\boxed{@a}$ | !$@y=\boxed{@a}$, $@x=\boxed{@b}$ | @y = @a, @x = @b | !@x is \boxed{@b} and @y is \boxed{@a} | @b, @a | @a"
    return Case(f"{x}={a}, {y}={b}", forms(right, **values), forms(wrong, **values), (x, a, b))


@family
def parts_and_rows(rng: random.Random) -> Case:
    """Parts of an answer with labels, and rows of matrices and cases with space between them."""
    a, b = distinct(rng, 2, 2, 60)
    space = rng.choice([r"\\[4pt]", r"\\[0.5em]", r"\\ [2mm]", r"\\*", r"\cr ", r"\\[-1ex]"])
    values = {"a": a, "b": b, "s": space, "l": "\n"}
    gold, right, wrong = rng.choice([
        ("(a) @a (b) @b", r"!(a) $\boxed{@a}$@l(b) $\boxed{@b}$ | (a) @a (b) @b | (a)\ @a,\ (b)\ @b | !(a) We add: \boxed{@a}.@l@l(b) Then \boxed{@b}. | \text{(a) } @a \quad \text{(b) } @b",
         r"!(a) $\boxed{@b}$@l(b) $\boxed{@a}$ | (a) @b (b) @a | !(a) $\boxed{@a}$ | @a"),
        ("@a, @b", r"!(a) $\boxed{@a}$@l(b) $\boxed{@b}$ | (a) @a (b) @b | !Part (a): \boxed{@a}@lPart (b): \boxed{@b} | !1. \boxed{@a}@l2. \boxed{@b}", r"!(a) $\boxed{@a}$@l(b) $\boxed{@a}$ | (a) @a | @b"),
        (r"\begin{pmatrix} @a \\ @b \end{pmatrix}", r"\begin{pmatrix} @a @s @b \end{pmatrix} | \begin{bmatrix} @a @s @b \end{bmatrix}", r"\begin{pmatrix} @b @s @a \end{pmatrix} | \begin{pmatrix} @a @s @b @s @a \end{pmatrix}"),
        (r"\begin{pmatrix} @a @s @b \end{pmatrix}", r"\begin{pmatrix} @a \\ @b \end{pmatrix} | (@a, @b)", r"\begin{pmatrix} @b \\ @a \end{pmatrix} | (@b, @a) | @a"),
        (r"f(x)=\begin{cases} @a & x>0 \\ @b & x\le 0 \end{cases}", r"\begin{cases} @a & x>0 @s @b & x\le 0 \end{cases}", r"\begin{cases} @b & x>0 @s @a & x\le 0 \end{cases} | @a"),
    ])
    return Case(forms(gold, **values)[0], forms(right, **values), forms(wrong, **values), (gold, a, b))


@family
def logic_sets_units(rng: random.Random) -> Case:
    """Formulas of logic, probabilities of events, images of whole numbers, derived units, bases and years."""
    a, b = distinct(rng, 2, 3, 60)
    p, q = rng.sample("pqr", k=2)
    values = {"a": a, "b": b, "c": a + b, "p": p, "q": q, "n": rng.choice("nmk"), "y": 1700 + a, "z": 1700 + b, "d": f"{a:b}"}
    gold, right, wrong, question = rng.choice([
        (r"@p \wedge @q", r"@q \land @p | \neg(\neg @p \vee \neg @q) | @p ∧ @q", r"@p \vee @q | @p \wedge \neg @q | @p", "?"),
        (r"@p \to @q", r"\neg @p \vee @q | @p \rightarrow @q | \neg @q \to \neg @p", r"@q \to @p | @p \wedge @q | @p \vee \neg @q", "?"),
        (r"P(A\cap B)", r"P(B \cap A) | P(A, B)", r"P(A\cup B) | P(A|B) | P(A)P(B) | P(A\cap B^c)", "?"),
        (r"\{@an : n\in\mathbb{Z}\}", r"\{@ak \mid k\in\mathbb Z\} | \{-@an : n \in \mathbb{Z}\} | \{@a(n+1) : n \in \mathbb{Z}\}", r"\{@bn : n\in\mathbb{Z}\} | \{@an+1 : n\in\mathbb{Z}\} | \{@an : n\in\mathbb{N}\}", "?"),
        (r"@a \text{ J}", r"@a \text{ N m} | @a\ \text{N}\cdot\text{m} | @a \text{ kg m}^2/\text{s}^2 | @a N m", r"@b \text{ N m} | @a \text{ N} | @a \text{ W} | @a \text{ N/m}", "?"),
        (r"@a \text{ W}", r"@a \text{ J/s} | @a \text{ V A}", r"@a \text{ J} | @a \text{ J s} | @b \text{ J/s}", "?"),
        (r"@a\hat{\imath}+@b\hat{\jmath}", r"@a\mathbf{i}+@b\mathbf{j} | \langle @a, @b \rangle | @b\hat\jmath + @a\hat\imath | @a\hat{i}+@b\hat{j}", r"@b\hat{\imath}+@a\hat{\jmath} | @a\hat\imath - @b\hat\jmath | \langle @b, @a \rangle", "?"),
        ("@a", "@d_2 | @d_{2} | @a", "@d | 1@d_2 | @d_3", "What is the number?"),
        ("@y", r"\text{July 4, @y} | !It was signed on July 4, @y. | @y | 4 \text{ July } @y", r"\text{July 4, @z} | !It was on July 4, @z. | 4 | @z", "In which year was it signed?"),
    ])
    return Case(forms(gold, **values)[0], forms(right, **values), forms(wrong, **values), (gold, a, b, p, q), question)
