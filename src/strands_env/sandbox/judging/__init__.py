"""Hidden tests that the code they judge can neither read nor forge."""

from .judge import Verdict, judge

__all__ = ["Verdict", "judge"]
