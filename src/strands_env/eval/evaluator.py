"""Upstream's path for `Evaluator` and `EvalSample`."""

from .run.evaluator import Evaluator
from .sample import EvalSample

__all__ = ["EvalSample", "Evaluator"]
