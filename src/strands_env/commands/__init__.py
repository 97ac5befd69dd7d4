"""Subcommands of `strands-env`, one a module, imported only when it runs."""

from __future__ import annotations
