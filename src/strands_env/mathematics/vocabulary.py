"""Words that mathematics is written with: functions, symbols, units and what they are worth, prose."""

from __future__ import annotations

from sympy import Expr, Rational, pi


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


FUNCTIONS = words(
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh arsinh arcosh artanh asin "
    "acos atan ln log lg exp sqrt gcd lcm max min floor ceil binom"
)
SYMBOLS = words(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau "
    "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar nabla "
    "partial Re Im arg deg dim ker det tr rank Pr Var Cov sgn sign Aut Gal ord imath jmath"
)
"""Commands that are symbols, or names of functions that nothing more is known of."""
NAMING = words("angle triangle overline vec hat bar tilde overrightarrow widehat widetilde odot square")
"""Commands that make a name of the letters behind them."""
NUMBER_WORDS = words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)
PROSE = words(
    "the is are was of at to no yes not by per an all any for if we it its so only but one two six ten odd even each"
)
"""Short words that are no product of letters."""
NOT_NOUNS = words(
    "is are was not isn no nor or and but if when where than less more greater least most wrong right incorrect "
    "correct maybe otherwise false true for any all each between either neither none except answer we it i cannot "
    "unknown"
)
"""What behind a number is no unit: `5 is wrong`."""
FILLERS = words(
    "at the answer final is are a an so about approximately approx around exactly equal equals to value has have of"
)
"""What in front of an answer says nothing: `the answer is 5`."""
QUANTITIES = words(
    "ans answers result results solution total sum difference product quotient ratio probability number count value "
    "area volume perimeter circumference length width height depth radius diameter side distance speed velocity time "
    "rate cost price profit amount age mass weight force angle slope mean median mode average variance minimum "
    "maximum remainder domain range"
)
"""Names that an answer may have in front of its value: `Area = 5`."""
COUNTED = words(
    "unit units time times way ways people person persons child children man men woman women boy boys girl girls "
    "student students teacher teachers point points step steps side sides edge edges vertex vertices face faces "
    "solution solutions root roots digit digits number numbers integer integers pair pairs triple triples element "
    "elements set sets subset subsets triangle triangles square squares rectangle rectangles book books ball balls "
    "coin coins card cards marble marbles apple apples orange oranges cat cats dog dogs bird birds car cars page pages "
    "box boxes bag bags game games month months quart quarts cup cups item items am pm"
)
"""Nouns that may stand behind a number without being in the question."""
MULTIPLIERS = words(
    "dozen score gross lakh crore hundred thousand million billion trillion bn mn mil half halve halves third thirds "
    "quarter quarters fourth fifth sixth seventh eighth ninth tenth hundredth thousandth percent double twice triple "
    "squared square cubed cube factorial reciprocal negative minus plus times ppm ppb below above zero pi inverse root "
    "power log one two three four five six seven eight nine ten off short over under"
)
"""Words that change the value of the number in front."""
RELATIONS = dict(
    zip(
        words(
            r"= < > \le \ge \lt \gt \ne \approx \sim \simeq \cong \equiv \nequiv \in \notin \to \rightarrow "
            r"\mapsto \implies \Rightarrow \iff \Leftrightarrow \subset \subseteq \perp \parallel \propto"
        ),
        words(
            r"= < > <= >= < > != approx ~ approx cong equiv nequiv in notin to to to implies implies iff iff "
            r"subset subseteq perp parallel propto"
        ),
        strict=True,
    )
)
_TABLE = """
m 1 length m metre metres meter meters
km 1000 length km kilometer kilometers kilometre kilometres kms
cm 1/100 length cm centimeter centimeters centimetre centimetres cms
mm 1/1000 length mm millimeter millimeters millimetre millimetres
nm 1/1000000000 length nm nanometer nanometers
in 127/5000 length in inch inches
ft 381/1250 length ft foot feet
yd 1143/1250 length yd yard yards
mi 201168/125 length mi mile miles
s 1 time s sec secs second seconds
ms 1/1000 time ms millisecond milliseconds
min 60 time min mins minute minutes
h 3600 time h hr hrs hour hours
day 86400 time day days
week 604800 time week weeks
year 31557600 time year years yr yrs
g 1 mass g gram grams gm
kg 1000 mass kg kilogram kilograms kgs
mg 1/1000 mass mg milligram milligrams
t 1000000 mass tonne tonnes
lb 45359237/100000 mass lb lbs pound pounds
oz 45359237/1600000 mass oz ounce ounces
L 1/1000 length3 L l liter liters litre litres
mL 1/1000000 length3 mL ml milliliter milliliters millilitre millilitres
gal 473176473/125000000000 length3 gal gallon gallons
dollar 1 dollar dollar dollars USD usd
cent 1/100 dollar cent cents
euro 1 euro euro euros EUR
sterling 1 sterling sterling GBP
yen 1 yen yen JPY
yuan 1 yuan yuan RMB CNY
rupee 1 rupee rupee rupees Rs INR
N 1 force N newton newtons
J 1 energy J joule joules
kJ 1000 energy kJ kilojoule kilojoules
W 1 power W watt watts
kW 1000 power kW kilowatt kilowatts
V 1 voltage V volt volts
A 1 current ampere amperes amp amps
ohm 1 resistance ohm ohms
Pa 1 pressure Pa pascal pascals
Hz 1 frequency Hz hertz
mol 1 amount mol mole moles
K 1 temperature K kelvin
percent 1/100 - percent pct percentage
radian 1 - radian radians rad rads
"""
UNITS: dict[str, tuple[Expr, dict[str, int]]] = {}
"""For every name of a unit: what it is worth in the unit of its dimension, and this dimension."""
for _line in _TABLE.strip().split("\n"):
    _symbol, _worth, _dimension, *_names = _line.split()
    _base = {} if _dimension == "-" else {_dimension.rstrip("3"): 3 if _dimension.endswith("3") else 1}
    UNITS |= dict.fromkeys(_names, (Rational(_worth), _base))
UNITS |= dict.fromkeys(("degree", "degrees", "deg"), (pi / 180, {}))
UNITS["mph"] = Rational(201168, 125 * 3600), {"length": 1, "time": -1}
UNITS |= dict.fromkeys(("kmh", "kmph", "kph"), (Rational(1000, 3600), {"length": 1, "time": -1}))
