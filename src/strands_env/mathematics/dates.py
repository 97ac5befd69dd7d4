"""Dates in the ways in which they are written with the name of the month, and `2021-03-15`."""

from __future__ import annotations

import re

from .nodes import Node
from .vocabulary import words

_MONTHS = words("jan feb mar apr may jun jul aug sep oct nov dec")
_NAME = r"(?P<month>(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*)\.?"
_FORMS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?:the\s+)?(?P<day>\d{{1,2}})\s*(?:of\s+)?{_NAME}(?:\s*,?\s*(?P<year>\d{{4}}))?",
        rf"{_NAME}\s*(?P<day>\d{{1,2}})(?:\s*,?\s*(?P<year>\d{{4}}))?",
        r"(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})",
    )
]
_AS_TEXT = re.compile(r"\d+(?:-\d+){2,}|\d{1,2}/\d{1,2}/\d{4}|\d{3,4}-\d{4}")
"""`2021-05-05`, `3/4/2020`, `1914-1918`, `555-1234`: text, not arithmetic."""
_LOOKS = re.compile(r"\\ordinal|\\(?:text|mathrm|textrm)(?=\s*\{)|[{}]|\\(?=[ ,;])|\\[,;]")


def date(text: str) -> Node | None:
    """Year, month and day of a normalised text; None where it is no date."""
    plain = " ".join(_LOOKS.sub(" ", text).split())
    found = next((match for form in _FORMS if (match := form.fullmatch(plain))), None)
    if found is None:
        return Node("word", (plain,)) if _AS_TEXT.fullmatch(plain) else None
    month = found["month"].lower()
    number = int(month) if month.isdigit() else _MONTHS.index(month[:3]) + 1
    return Node("date", (int(found["year"] or 0), number, int(found["day"])))
