"""Mathematical texts read whole or not at all, and compared; imports SymPy, and math-verify's parser for integrals.

`answers` finds an answer in a text and grades it, `boxes` reads its boxes, `texts` gives the readings of a text,
with the facts a question adds; `comparing` decides the equality of two readings, and `values` that of two formulas.
"""
