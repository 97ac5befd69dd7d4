"""Environments, evaluation and training for Strands agents, on exact token trajectories of `strands_sglang`."""

from __future__ import annotations
