"""Mathematical texts read whole or not at all, and compared; imports SymPy, and math-verify's parser for integrals.

`answers` says what an answer says and whether it is right, `boxes` what its boxes say; `texts` what a text may denote,
and what a question adds; `comparing` whether two readings denote the same, and `values` whether two formulas do.
"""
