"""The scripts: they parse, they can be started, and they refuse a machine that they cannot serve."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

SCRIPTS = [
    path
    for path in (*sorted((ROOT / "scripts").iterdir()), ROOT / ".ci" / "run")
    if path.is_file() and path.suffix != ".py"
]
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the scripts need bash")


def run(*command: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_parses_and_can_be_started(script: Path) -> None:
    assert run("bash", "-n", script).stderr == ""
    if not script.name.startswith("_"):
        assert os.access(script, os.X_OK)
        assert script.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash\n")


def executable(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_an_unfit_interpreter_is_refused_with_a_reason(tmp_path: Path) -> None:
    old, venv = executable(tmp_path / "old-python", "exit 1"), tmp_path / "venv"
    result = run(ROOT / "scripts" / "test", STRANDS_ROLLOUT_VENV=str(venv), STRANDS_ROLLOUT_PYTHON=str(old))
    assert result.returncode == 2
    assert "no Python 3.11 or newer" in result.stderr and str(old) in result.stderr
    assert not venv.exists()


def test_the_sglang_server_is_refused_on_another_system(tmp_path: Path) -> None:
    executable(tmp_path / "uname", "[ $1 = -s ] && echo Darwin || echo arm64")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    places = {"SGLANG_CPU_HOME": str(tmp_path / "home"), "SGLANG_CPU_VENV": ""}
    result = run(ROOT / "scripts" / "sglang-cpu", "install", PATH=path, **places)
    assert result.returncode == 2
    assert "needs Linux-x86_64, this is Darwin-arm64" in result.stderr
    assert not (tmp_path / "home").exists()
    result = run(ROOT / "scripts" / "sglang-cpu", "url", SGLANG_CPU_HOME=str(tmp_path))
    assert (result.returncode, result.stdout) == (1, "")


def sourced(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs lines of bash behind `scripts/_setup.sh`."""
    return run("bash", "-euo", "pipefail", "-c", f'. "{ROOT}/scripts/_setup.sh"\n{script}', **env)


def test_uv_installs_from_where_pip_was_told_to(tmp_path: Path) -> None:
    executable(
        tmp_path / "uv", 'echo "$@|$UV_DEFAULT_INDEX|$UV_INDEX|$UV_INDEX_STRATEGY|$UV_FIND_LINKS|$SSL_CERT_FILE"'
    )
    settings = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PIP_INDEX_URL": "https://a/simple",
        "PIP_EXTRA_INDEX_URL": "https://b/simple https://c/simple",
        "PIP_FIND_LINKS": "/wheels /more",
        "PIP_CERT": "/ca.crt",
    }
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_STRATEGY", "UV_FIND_LINKS", "SSL_CERT_FILE"):
        settings[name] = ""
    result = sourced("install_packages python3 --no-deps 'thing==1'", **settings)
    assert result.stdout.strip().split("|") == [
        "pip install --quiet --python python3 --no-deps thing==1",
        "https://a/simple",
        "https://b/simple https://c/simple",
        "unsafe-best-match",
        "/wheels,/more",
        "/ca.crt",
    ]


def test_pip_installs_where_uv_cannot_be_had(tmp_path: Path) -> None:
    python = executable(tmp_path / "python3", 'case "$*" in *"-m uv"*|*" uv") exit 1 ;; *) echo "$@" ;; esac')
    install = f'ROOT="{tmp_path}"; PATH=/usr/bin:/bin\ninstall_packages {python} --no-deps "thing==1"'
    result = sourced(install, UV_FIND_LINKS="")
    assert result.returncode == 0, result.stderr
    assert "-m pip install --quiet" in result.stdout and result.stdout.strip().endswith("--no-deps thing==1")
    assert "installing uv ... failed" in result.stderr


def test_a_phase_says_what_failed_and_ends_the_script() -> None:
    result = sourced('phase "counting" false\necho unreachable')
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "counting ... failed\n"
