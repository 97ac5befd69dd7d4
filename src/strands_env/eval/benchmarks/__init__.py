"""Benchmarks, one small file each. `strands_env.eval.registry` knows them by name and loads them when asked."""

from __future__ import annotations
