# ruff: noqa: E501 - a row of spellings is one line
r"""Families of everyday answers in prose, for `benchmarks/grading_corpus.py`: sums with words, remarks, second thoughts, choices.

Every answer is complete as it is (`!`), for what is tested is where in a text the answer stands and whether it still holds.
"""

from __future__ import annotations

import random

from benchmarks.grading_cases import Case, family, forms

# fmt: off


@family
def sums(rng: random.Random) -> Case:
    """Small sums in words, the result last, beside, or after a turn."""
    a, b = rng.randint(12, 60), rng.randint(3, 11)
    name, thing = rng.choice(["Mia", "Tom", "Sara", "Ben"]), rng.choice(["apples", "stickers", "marbles", "books"])
    values = {"a": a, "b": b, "s": a + b, "d": a - b, "p": a * b, "n": name, "t": thing, "o": a - b + 1, "x": a + b + 1, "q": a * b + 1}
    if rng.random() < 0.5:
        right = r"""!@n had @a @t and gave away @b, so @n has @d left. | !@a - @b = @d | !@a − @b = @d @t.
            !@n starts with @a @t. After giving away @b, @n has @d. | !@n keeps @d @t, because @b of the @a are gone.
            !There were @a @t, but now only @d are left. | !That leaves @d @t. | !@n gave away @b, leaving @d. | !@n is left with @d @t!
            !@n has @d @t left (@a - @b). | !So the answer is @d @t. | !@a minus @b is @d. | !Giving @b away leaves @n with @d.
            !At first there are @a. Then @b go. That makes @d. | !@n now has @d of the @a @t. | !**@d** @t are left. | !@d
            !We subtract: @a - @b = @d. I hope this helps! | !@n has @d @t left. Let me know if you have questions."""
        wrong = r"""!@n had @a @t and gave away @b, so @n has @o left. | !@a - @b = @o | !That leaves @o @t. | !@n is left with @a @t.
            !There were @d @t, but now only @o are left. | !@n has more than @d @t left. | !@n has at most @d @t left. | !@n had @d @t.@n has @o.
            !@n does not have @d @t left. | !@n has @d or @o @t left. | !There are fewer than @d left. | !@n has @d times @b @t left.
            !I cannot say whether it is @d. | !@d - @b = @o | !@n needs @d more to have @s."""
        ask = f"{name} has {a} {thing} and gives away {b} of the {thing}. How many {thing} does {name} have left?"
        return Case(str(a - b), forms(right, **values), forms(wrong, **values), a - b, ask)
    right = r"""!@a + @b = @s | !@a and @b make @s. | !@n has @a + @b = @s @t. | !The total comes to @s @t. | !Altogether there are @s @t.
        !In total, @n has @s @t. | !@s in all. | !Adding @b to @a gives @s. | !@n has @s @t now, since @b were added. | !@a plus @b equals @s!
        !@a @t + @b @t = @s @t. | !@n had @a, got @b more, and now has @s @t. | !Answer: @s¶Confidence: 90% | !It is @s, not @x."""
    wrong = r"""!@a + @b = @x | !@n has @x @t. | !Adding @s to @b gives @x. | !It is not @s. | !It is @x, not @s. | !@n has @s less than @p @t.
        !Answer: @x¶Confidence: 90% | !@s would be too many. | !Either @s or @x. | !The total comes to @x @t. | !@a and @b make @p."""
    ask = f"{name} has {a} {thing} and gets {b} more {thing}. How many {thing} does {name} have in total?"
    both = [each.replace("¶", "\n") for each in forms(right, **values)], [each.replace("¶", "\n") for each in forms(wrong, **values)]
    return Case(str(a + b), *both, a + b, ask)


@family
def prices(rng: random.Random) -> Case:
    """Money, shares and times, in one spelling or in two that agree."""
    kind, sign = rng.randrange(3), rng.choice("$£€")
    if kind == 0:
        one, two = rng.randint(2, 40), rng.randint(2, 40)
        values = {"c": sign, "a": one, "b": two, "s": one + two, "o": one + two + 1}
        right = """!@c@a + @c@b = @c@s | !@c@a+@c@b=@c@s | !@c@a.50 + @c@b.50 = @c@s + @c1 - @c1 = @c@s | !The total is @c@s. | !They pay @c@s.00 in total.
            !It costs @c@a and @c@b, so @c@s altogether. | !Total: @c@s.00 | !Together that is @c@s! | !@c@a plus @c@b is @c@s. | !The bill comes to @c@s."""
        right = right.replace("!@c@a.50 + @c@b.50 = @c@s + @c1 - @c1 = @c@s | ", "")
        wrong = """!@c@a + @c@b = @c@o | !The total is @c@o. | !It costs @c@s and @c@b, so @c@o altogether. | !Total: @c@o.00 | !The total is not @c@s.
            !The total is @c@s or @c@o. | !The bill is over @c@s. | !@c@a+@c@b=@c@o"""
        return Case(str(one + two), forms(right, **values), forms(wrong, **values), one + two, "How much do they pay in total?")
    if kind == 1:
        top, bottom, percent, rest = rng.choice([(1, 2, 50, 25), (1, 4, 25, 75), (3, 4, 75, 25), (1, 5, 20, 80), (2, 5, 40, 60), (3, 5, 60, 40)])
        values = {"f": f"{top}/{bottom}", "p": percent, "q": rest, "d": str(percent / 100), "g": f"{bottom - top}/{bottom + 1}"}
        right = """!The probability is @f, or @p%. | !It is @f. | !The probability is @p% (@f). | !It is @f, that is, @d. | !The chance is @d, i.e. @f. | !That is @p%, or @f.
            !The probability is @f = @d. | !The probability is @d. | !The probability is @f (that is, @p%)."""
        wrong = """!The probability is @f, or @q%. | !The probability is @g. | !The chance is @f or @g. | !It is @q%. | !The probability is not @f. | !It is less than @f."""
        return Case(f"{top}/{bottom}", forms(right, **values), forms(wrong, **values), (top, bottom), "What is the probability?")
    hours = rng.randint(2, 9)
    values = {"h": hours, "m": hours * 60, "o": hours * 60 + 5, "k": hours + 1}
    right = "!It takes @m minutes, or @h hours. | !It takes @m minutes. | !@m minutes | !That is @h hours, so @m minutes. | !The trip lasts @m minutes (@h hours)."
    wrong = "!It takes @o minutes, or @h hours. | !It takes @k hours, so @o minutes. | !It takes @o minutes. | !The trip takes more than @m minutes."
    return Case(str(hours * 60), forms(right, **values), forms(wrong, **values), hours, "How many minutes does the trip take?")


@family
def afterwords(rng: random.Random) -> Case:
    """Boxes and stated answers with innocent words behind them, and with words that deny or replace them."""
    number = rng.randint(11, 97)
    said = rng.choice([rf"\boxed{{{number}}}", rf"The answer is \(\boxed{{{number}}}\)", f"The answer is {number}", f"Answer: {number}", rf"$\boxed{{{number}}}$"])
    values = {"s": said, "n": number, "o": number + rng.choice([-1, 1, 2, 10]), "k": rng.randint(3, 9)}
    values["z"] = said.replace(str(number), str(values["o"]))
    right = r"""!@s. It is not possible to do it in fewer. | !@s. For @k players the answer is @o. | !@s. A common mistake is to say @o. | !@s. Many people answer @o. | !@s.
        !@s. If there were @k more, it would be @o. | !@s. We checked this twice and found no mistake. | !@s. Let me verify: @n - @k + @k = @n. Correct. | !@s. Anything else would be wrong.
        !@s. Note that @o is not possible. | !@s. Hope that helps! | !@s. This is not a guess. | !@s. In the general case the answer is k(k+1). | !@s. This cannot be improved. | !@s. I am sure that this is not wrong.
        !@s.¶¶Wait, let me check that once more. Yes, it is @n. | !@s. That is the smallest one; the next is @o. | !@s. Compare this with @k. | !@s. Some would say @o, but that is incorrect. | !I said @o before, but that was wrong. @s.
        !@z. Wait, no, it is @n. | !@z. Sorry, I meant @n. | !@z. That is not right. The correct answer is @n. | !@z. I made a mistake: it should be @n. | !@z. Correction: @n. | !@z. Hmm, I forgot one. It is @n."""
    wrong = r"""!@s. Wait, no, it is @o. | !@s. Sorry, I meant @o. | !@s. That is not right. The correct answer is @o. | !@s. I made a mistake: it should be @o. | !@s. Correction: @o. | !@s. Hmm, I forgot one. It is @o.
        !@s. This is wrong. | !@s. I take that back. | !@s is what I got first, but that is wrong. | !@s. On second thought, @o. | !@s. That can't be right. | !@s. My answer is incorrect. | !@s. Actually, it is @o. | !@s. Scratch that. It is @o.
        !@z. | !@z. A common mistake is to say @n. | !@z. Many people answer @n. | !@z. For @k players the answer is @n. | !@z. If there were @k more, it would be @n. | !@s. Please ignore that, I misread the question."""
    both = [each.replace("¶", "\n") for each in forms(right, **values)], [each.replace("¶", "\n") for each in forms(wrong, **values)]
    return Case(str(number), *both, number, "How many are needed?")


@family
def options(rng: random.Random) -> Case:
    """Letters of options: chosen, left over, denied, taken back, and options that speak of others."""
    a, b, c, d = rng.sample("ABCD", k=4)
    values = {"a": a, "b": b, "c": c, "d": d}
    right = """!Answer: @a) @b and @c | !That leaves @a. | !@b, @c and @d are wrong. That leaves @a. | !It cannot be @b, @c or @d, which leaves @a. | !Only @a fits. | !I choose @a. | !I would go with @a. | !@a is correct.
        !By elimination, @a. | !The answer is @a. @b is wrong because it ignores friction. | !The answer is @b. Wait, no, it is @a. | !Answer: @b. Sorry, I meant @a. | !@b? No, @a. | !The correct option is (@a). | !Option @a | !(@a) | !@a. | !@a is the only one left.
        !Not @b but @a. | !The answer is @b. Correction: @a. | !@b is tempting, but the answer is @a. | !Many would pick @b, but @a is correct. | !@b looks right at first. However, the correct answer is @a. | !It must be @a. | !Answer: @a) Both @b and @d"""
    wrong = """!Answer: @b) @a and @c | !That leaves @b. | !@a, @c and @d are wrong. That leaves @b. | !Only @b fits. | !The answer is @a. Wait, no, it is @b. | !Answer: @a. Sorry, I meant @b. | !@a? No, @b. | !@a or @b | !Both @a and @b. | !Not @a but @b.
        !The answer is not @a. | !@a is wrong. | !The answer is @a. That is wrong. | !The answer is @a. Correction: @b. | !Everything but @a. | !Many would pick @a, but @b is correct. | !@a is tempting, but the answer is @b. | !The answer is @a. I take that back. | !@a, @b, @c, @d"""
    return Case(a, forms(right, **values), forms(wrong, **values), a, "Which option is correct?")


@family
def verdicts(rng: random.Random) -> Case:
    """Yes and no, names and words, said plainly, taken back, or said of something else."""
    if rng.random() < 0.6:
        gold, other = rng.sample(["yes", "no"], k=2)
        values = {"y": gold, "z": other, "u": gold.capitalize(), "v": other.capitalize()}
        right = """!@u. | !@u! | !@u, it is like that. | !The answer is @y. | !Answer: @u | !**@u** | !Is it so? @u. | !@v. Wait, actually @y. | !@v. Correction: @y. | !@v. Sorry, I meant @y. | !@v. That is wrong. @u. | !@u, because 91 = 7 · 13.
            !@u.¶¶We check each case, and it works out. | !Answer: @u, as shown above. | !@v.¶¶Hmm, let me check again.¶¶@u, it is so after all. | !The final answer is **@y**. | !@v, that was my first thought. The correct answer: @y."""
        wrong = """!@v. | !@v, it is like that. | !The answer is @z. | !@u. Wait, actually @z. | !@u. Correction: @z. | !@u. Sorry, I meant @z. | !@u. That is wrong. @v. | !Is it so? @v. | !@u.¶¶Hmm, let me check again.¶¶@v, it is so after all. | !@u or @z? | !Answer: @v
            !@u, that was my first thought. The correct answer: @z. | !The answer is not @y."""
        question = "Is 91 composite?"
    else:
        gold, other, third = rng.sample(["Alice", "Boris", "Chloe", "David", "Elena"], k=3)
        values = {"y": gold, "z": other, "w": third}
        right = """!@y is the oldest. | !The oldest is @y. | !@y. | !It is @y. | !The answer is @y. | !Answer: @y | !The answer is @y, not @z. | !The answer is @z. Wait, actually it is @y. | !It's @y. | !**@y** | !The oldest of the three is @y. | !Therefore, the oldest is @y."""
        wrong = """!@z is the oldest. | !The oldest is @z. | !@z. | !It is @z. | !The answer is @z. | !The answer is @z, not @y. | !The answer is @y. Wait, actually it is @z. | !It is not @y. | !@y or @z. | !The oldest is @w."""
        question = f"Who is the oldest of the three, {gold}, {other} or {third}?"
    both = [each.replace("¶", "\n") for each in forms(right, **values)], [each.replace("¶", "\n") for each in forms(wrong, **values)]
    return Case(gold, *both, gold, question)
