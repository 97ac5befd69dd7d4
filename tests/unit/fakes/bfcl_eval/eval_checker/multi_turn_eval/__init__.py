"""A small stand-in for bfcl-eval: its interface as far as several turns use it, with one simulator."""
