"""Upstream's path for `AIMEEvaluator`."""

from .benchmarks.mathematics import AIMEEvaluator

__all__ = ["AIMEEvaluator"]
