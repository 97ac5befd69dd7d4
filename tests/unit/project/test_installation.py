"""Installation: the command that adds an extra needs nothing but the installed copy."""

from __future__ import annotations

import shlex
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec

import pytest

from strands_sglang.hints import DISTRIBUTION, install_command
from tests.conftest import ROOT


@pytest.mark.skipif(find_spec("pip") is None, reason="an environment of uv")
def test_pip_takes_the_installed_copy_for_an_extra() -> None:
    metadata.version(DISTRIBUTION)
    words = shlex.split(install_command("local"))
    assert words[:2] == ["pip", "install"]
    options = ["--dry-run", "--no-index", "--no-deps"]
    command = [sys.executable, "-m", "pip", "install", *options, *words[2:]]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert f"Requirement already satisfied: {words[2]}" in result.stdout, result.stderr
