"""A small stand-in for tau2-bench: its interface as far as we use it, with one domain about a till."""
