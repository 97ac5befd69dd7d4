"""`examples/aime_eval.py`, with a scripted model."""

from __future__ import annotations

import runpy
import sys

import pytest

from strands_env.core import backends
from strands_env.testing import ScriptedModel
from tests.conftest import ROOT


async def example(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["aime_eval.py", *arguments])
    monkeypatch.setattr(
        backends, "model_factory_from_args", lambda *args, **options: lambda: ScriptedModel(["It is 5."])
    )
    return await runpy.run_path(str(ROOT / "examples" / "aime_eval.py"))["main"]()


async def test_the_demo_is_scored(monkeypatch, tmp_path, capsys):
    pytest.importorskip("math_verify")
    assert await example(monkeypatch, "--backend", "openai", "--demo", "--output", str(tmp_path)) == 0
    assert "scored                       12\n" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--n-samples-per-prompt", "--max-concurrency", "--max-new-tokens", "--limit"])
@pytest.mark.parametrize("value", ["0", "-1", "many"])
async def test_a_number_out_of_range_is_told(option, value, monkeypatch, capsys):
    with pytest.raises(SystemExit) as caught:
        await example(monkeypatch, "--demo", f"{option}={value}")
    assert caught.value.code == 2
    assert f"argument {option}: expected a whole number of at least 1, got {value!r}" in capsys.readouterr().err


async def test_without_math_verify_its_extra_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(SystemExit) as caught:
        await example(monkeypatch, "--demo", "--output", str(tmp_path))
    assert caught.value.code == 2
    assert "[math]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
