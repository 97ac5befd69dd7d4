r"""Formulas of chemistry: `H_2O`, `\text{Fe}^{3+}`, `\ce{2H2 + O2 -> 2H2O}`."""

from __future__ import annotations

import re

from .nodes import Node
from .vocabulary import words

_ELEMENTS = words(
    "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr "
    "Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir "
    "Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr"
)
_ATOM = rf"(?:{'|'.join(sorted(_ELEMENTS, key=len, reverse=True))})"
_GROUP = rf"(?:{_ATOM}\d*|[(\[](?:{_ATOM}\d*|\((?:{_ATOM}\d*)+\)\d*)+[)\]]\d*)"
_SPECIES = re.compile(rf"(?P<count>\d*)(?P<atoms>(?:{_GROUP})+)(?:\^?(?P<charge>[-+]\d*|(?<=\^)\d*[-+]))?")
_LOOKS = re.compile(r"\\(?:text|mathrm|textrm|ce)(?=\s*\{)|\\[,;:! ]|[\s{}_$]")


def formula(text: str) -> Node | None:
    r"""The substances of each side; None for what may as well be a product of variables.

    Without the command `\ce` it is one substance, with an index above 1, a charge, or symbols of two letters.
    """
    if re.fullmatch("[A-F]{2,}16", _LOOKS.sub("", text)):  # digits in base sixteen
        return None
    is_marked = re.match(r"\s*\\(?:ce|mathrm\s*\{\s*\\ce)\s*\{", text) is not None
    sides = []
    for side in re.split(r"\\to\b|\\rightarrow\b|=", text) if is_marked else [text]:
        substances = []
        for part in re.split(r"\s\+\s", side):
            species = _SPECIES.fullmatch(_LOOKS.sub("", part))
            if species is None:
                return None
            atoms = re.findall(r"[A-Z][a-z]?", species["atoms"])
            is_chemical = species["charge"] or re.search(r"[2-9]|1\d", species["atoms"])
            is_chemical = is_chemical or (len(atoms) > 1 and any(len(atom) > 1 for atom in atoms))
            if not is_marked and (not is_chemical or species["count"] or re.search(r"(?<!\d)1(?!\d)", part)):
                return None
            charge = species["charge"] or ""
            charge = charge[1:] + charge[0] if charge[1:].isdigit() else charge
            substances.append(f"{species['count']}{species['atoms']} {charge}".strip())
        sides.append(" + ".join(sorted(substances)))
    return Node("formula", (" = ".join(sides),))


def is_species(name: str) -> bool:
    """Whether a word is made of symbols of elements: `Fe`."""
    return _SPECIES.fullmatch(name) is not None
