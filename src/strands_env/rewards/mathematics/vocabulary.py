"""Words that mathematics is written with: functions, symbols, units with their values, prose."""

from __future__ import annotations

import functools
import re

from sympy import Expr, Rational, pi

from strands_env.rewards.numerals import NUMBER_WORDS as NUMBER_WORDS
from strands_env.rewards.numerals import SCALES


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


def pairs(text: str) -> dict[str, str]:
    """A table of words, each followed by its replacement."""
    each = text.split()
    return dict(zip(each[::2], each[1::2], strict=True))


FUNCTIONS = words(
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh arsinh arcosh artanh asin "
    "acos atan ln log lg exp sqrt floor ceil binom"
)
SYMBOLS = words(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau "
    "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar nabla "
    "partial Pr Aut Gal ord imath jmath"
)
"""Commands that are symbols, or names of functions that nothing more is known of."""
OPERATORS = words("gcd lcm max min Re Im arg deg dim ker det tr rank Var Cov sgn sign")
"""Functions of several numbers, of matrices and the like, in front of brackets or a letter: `\\det A`."""
NAMING = words("angle triangle overline vec hat bar tilde overrightarrow widehat widetilde odot square")
"""Commands that make a name of the letters behind them."""
MULTIPLES = {"hundred": 100} | {name: value for name, value in SCALES.items() if len(name) > 3}
FACTORS = MULTIPLES | {"dozen": 12, "gross": 144, "bn": 10**9, "mn": 10**6}
"""Words behind a number that multiply it."""
_FIRST = words("first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth")
ORDINALS = {word: value for value, word in enumerate(_FIRST, 1)} | {"twentieth": 20, "thirtieth": 30, "hundredth": 100}
PARTS = {name + plural: value for name, value in ORDINALS.items() if value > 2 for plural in ("", "s")}
PARTS |= {"half": 2, "halves": 2, "quarter": 4, "quarters": 4, "tenths": 10, "hundredths": 100, "thousandths": 1000}
"""Behind a number in words, the parts of a whole that it counts: `two thirds`."""
ARTICLES = re.compile(r"(?i)^(?:an?|the)\s+")
PROSE = words(
    "the is are was of at to no yes not by per an all any for if we it its so only but one two six ten odd even each"
)
"""Short words that are no product of letters."""
NOT_NOUNS = words(
    "is are was not isn no nor or and but if when where than less more greater least most wrong right incorrect "
    "correct maybe otherwise false true for any all each between either neither none except answer we it i cannot "
    "unknown"
)
"""Words behind a number that are not units: `5 is wrong`."""
FILLERS = words(
    "at the answer final is are a an so about approximately approx around exactly equal equals to value has have of"
)
"""Words in front of an answer that say nothing: `the answer is 5`."""
QUANTITIES = words(
    "ans answers result results solution total sum difference product quotient ratio probability number count value "
    "area volume perimeter circumference length width height depth radius diameter side distance speed velocity time "
    "rate cost price profit amount age mass weight force angle slope mean median mode average variance minimum "
    "maximum max min remainder domain range year"
)
"""Names that an answer may have in front of its value: `Area = 5`."""
COUNTED = words(
    "unit time way people person child children man men woman women boy girl student teacher point step side edge "
    "vertex vertices face solution root digit number integer pair triple element set subset triangle square rectangle "
    "book ball coin card marble apple orange cat dog bird car page term box boxes bag game month quart cup item "
    "个 種 种 只 隻 条 次 人 名 位 本 件 张 块 支 枚 组 对 岁 题 根 颗 辆 项 方法 元素"
)
"""Nouns that may stand behind a number without being in the question."""
MULTIPLIERS = words(
    "dozen score gross lakh crore hundred thousand million billion trillion bn mn mil half halve third quarter fourth "
    "fifth sixth seventh eighth ninth tenth hundredth thousandth percent double twice triple squared square cubed cube "
    "factorial reciprocal negative minus plus times ppm ppb below above zero pi inverse root power log one two three "
    "four five six seven eight nine ten off short over under"
)
"""Words that change the value of the number in front."""
RELATIONS = pairs(
    r"= = < < > > \le <= \ge >= \lt < \gt > \ne != \approx approx \sim ~ \simeq approx \cong cong \equiv equiv "
    r"\nequiv nequiv \in in \notin notin \to to \rightarrow to \mapsto to \implies implies \Rightarrow implies "
    r"\iff iff \Leftrightarrow iff \subset subset \subseteq subseteq \perp perp \parallel parallel \propto propto"
)
_TABLE = """
m 1 length si m metre metres meter meters 米
g 1 mass si g gram grams gm 克
s 1 time si s sec secs second seconds 秒
L 1/1000 length3 si L l liter liters litre litres 升
N 1000 mass,length,time-2 si N newton newtons
J 1000 mass,length2,time-2 si J joule joules
W 1000 mass,length2,time-3 si W watt watts
V 1000 mass,length2,time-3,current-1 si V volt volts
A 1 current si A ampere amperes amp amps
C 1 current,time si C coulomb coulombs
F 1/1000 mass-1,length-2,time4,current2 si F farad farads
T 1000 mass,time-2,current-1 si T tesla teslas
ohm 1000 mass,length2,time-3,current-2 si ohm ohms Omega Ω
Pa 1000 mass,length-1,time-2 si Pa pascal pascals
Hz 1 time-1 si Hz hertz
eV 1 electronvolt si eV electronvolt electronvolts
mol 1 amount si mol mole moles
byte 1 data si byte bytes
K 1 temperature - K kelvin kelvins
in 127/5000 length - in inch inches
ft 381/1250 length - ft foot feet
yd 1143/1250 length - yd yard yards
mi 201168/125 length - mi mile miles
公里 1000 length - 公里 kms
kg 1000 mass - 公斤 kgs
min 60 time - min mins minute minutes 分钟
h 3600 time - h hr hrs hour hours 小时
day 86400 time - day days 天
week 604800 time - week weeks
year 31557600 time - year years yr yrs 年
t 1000000 mass - tonne tonnes
lb 45359237/100000 mass - lb lbs pound pounds
oz 45359237/1600000 mass - oz ounce ounces
gal 473176473/125000000000 length3 - gal gallon gallons
cc 1/1000000 length3 - cc
dollar 1 dollar - dollar dollars USD usd
cent 1/100 dollar - cent cents
euro 1 euro - euro euros EUR
sterling 1 sterling - sterling GBP
pence 1/100 sterling - pence penny
yen 1 yen - yen JPY
角 1/10 yuan - 角 毛
yuan 1 yuan - yuan RMB CNY 元
rupee 1 rupee - rupee rupees Rs INR
percent 1/100 - - percent pct percentage
radian 1 - - radian radians rad rads
"""
_PREFIXES = (
    *(("G giga", 10**9), ("M mega", 10**6), ("k kilo 千", 10**3), ("c centi 厘", Rational(1, 100))),
    *(("m milli 毫", Rational(1, 10**3)), ("μ u micro", Rational(1, 10**6)), ("n nano", Rational(1, 10**9))),
    ("p pico", Rational(1, 10**12)),
)
UNITS: dict[str, tuple[Expr, dict[str, int]]] = {}
"""For every name of a unit: its value in the unit of its dimension, and this dimension."""
for _line in _TABLE.strip().split("\n"):
    _symbol, _worth, _dimension, _system, *_names = _line.split()
    _base = {name: int(power or 1) for name, power in re.findall("([a-z]+)(-?[0-9]*)", _dimension)}
    UNITS |= dict.fromkeys(_names, (Rational(_worth), _base))
    for _forms, _factor in _PREFIXES if _system == "si" else ():
        for _form in _forms.split():  # symbols go with symbols, words with words
            _fits = [
                name for name in _names if (len(_form) > 2) == (len(name) > 3) and _form.isascii() == name.isascii()
            ]
            UNITS |= {
                f"{_form}{name}": (Rational(_worth) * _factor, _base) for name in _fits if f"{_form}{name}" != "pm"
            }
UNITS |= dict.fromkeys(("degree", "degrees", "deg", "度"), (pi / 180, {}))
_ENERGY = UNITS["J"][1]
UNITS |= {"Nm": (Rational(1000), _ENERGY)} | dict.fromkeys(("kWh", "kwh"), (Rational(3600 * 10**6), _ENERGY))
UNITS |= {"Wh": (Rational(3600 * 10**3), _ENERGY), "MWh": (Rational(3600 * 10**9), _ENERGY)}
UNITS["arcminute"], UNITS["arcsecond"] = (pi / 10800, {}), (pi / 648000, {})
UNITS["mph"] = Rational(201168, 125 * 3600), {"length": 1, "time": -1}
UNITS |= dict.fromkeys(("kmh", "kmph", "kph"), (Rational(1000, 3600), {"length": 1, "time": -1}))
TEMPERATURES = {
    "degreeC": (Rational(1), Rational(27315, 100)),
    "degreeF": (Rational(5, 9), Rational(45967, 100)),
    "K": (Rational(1), Rational(0)),
}
"""The value of a degree, and the number of them at which the scale begins."""


@functools.cache
def canonical(name: str) -> str:
    """A single name for all spellings of a unit; a noun without its plural."""
    if name in UNITS:
        return next(other for other, worth in UNITS.items() if worth == UNITS[name])
    return name.lower().removesuffix("s") or name


def is_bare_unit(name: str) -> bool:
    """True if letters after a number are a unit without being marked as text: `5cm`, but not `3kT`."""
    is_product = re.fullmatch("(?!mL)[pnmcMuG][A-Z]|k[TCFA]|[pnucGMk][sl]|[pnucGM]g|[uGM]m|cc", name)
    return name in UNITS and len(name) > 1 and not is_product
