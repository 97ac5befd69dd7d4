"""Strands Agents SDK model provider over the native SGLang API, with exact token trajectories."""

from __future__ import annotations
