"""`strands-env doctor`: what works on this machine, and how to fix what does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from strands_env.commands import doctor
from strands_env.commands.cli import main as command_line
from strands_env.sandbox import SandboxUnavailableError
from tests.servers import FaultyServer


def one(state: doctor.State, findings: list[doctor.Finding]) -> doctor.Finding:
    (found,) = [finding for finding in findings if finding.state == state]
    return found


def test_every_part_is_looked_at_and_the_answer_can_be_read_by_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    status = command_line(["doctor", "--json"])
    shown = json.loads(capsys.readouterr().out)
    parts = {finding["part"] for finding in shown["findings"]}
    assert {"python", "package", "extras", "machine", "sandbox", "images", "model"} <= parts
    assert shown["ok"] == (status == 0) == all(finding["state"] != "broken" for finding in shown["findings"])


async def test_a_server_samples_one_token_as_for_training() -> None:
    async def examine(**options: Any) -> doctor.Finding:
        async with FaultyServer(protocol="vllm", **options) as server:
            (finding,) = await asyncio.to_thread(lambda: list(doctor._server(f"vllm+{server.url}", "tiny")))
        return finding

    good = await examine()
    assert good.state is doctor.State.OK and "tokenizer tiny, context 4096" in good.found
    raw = await examine(raw_logprobs=True)
    assert raw.state is doctor.State.BROKEN and "--logprobs-mode processed_logprobs" in raw.found


@pytest.mark.parametrize(("address", "kind"), [("http://127.0.0.1:1", "SGLang"), ("vllm+http://127.0.0.1:1", "vLLM")])
def test_a_server_that_does_not_answer_is_broken(address: str, kind: str) -> None:
    (finding,) = doctor._server(address, None)
    assert finding.state is doctor.State.BROKEN and kind in finding.found


def test_extras_are_whole_broken_or_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, code in {"fine": "", "lame": "import no_such_library"}.items():
        (tmp_path / f"{name}.py").write_text(code)
        info = tmp_path / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (info / "RECORD").write_text(f"{name}.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    needed = ["fine>=1; extra == 'a'", "lame; extra == 'b'", "fine; extra == 'b'", "gone[x]>=1 ; extra == 'c'", "core"]
    monkeypatch.setattr(metadata, "requires", lambda _: needed)
    findings = list(doctor._extras())
    assert one(doctor.State.OK, findings).found == "a"
    missing = one(doctor.State.MISSING, findings)
    assert missing.found == "c: gone is not installed" and "[c]" in (missing.advice or "")
    broken = one(doctor.State.BROKEN, findings)
    assert broken.found.startswith("b: lame cannot be imported: ModuleNotFoundError: No module named 'no_such_library'")


def test_upstream_beside_this_package_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "0.6.2" if name == "strands-sglang" else None)
    (finding,) = doctor._package()
    assert finding.state is doctor.State.BROKEN and "pip uninstall strands-sglang" in (finding.advice or "")


def test_without_a_sandbox_the_reason_is_the_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **options: object) -> None:
        raise SandboxUnavailableError("bubblewrap is missing: install it")

    monkeypatch.setattr("strands_env.sandbox.BubblewrapSandbox.__init__", refuse)
    (finding,) = doctor._sandbox()
    assert (finding.state, finding.advice) == (doctor.State.MISSING, "bubblewrap is missing: install it")


def test_a_part_that_raises_does_not_end_the_examination(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[doctor.Finding]:
        raise OSError("no such device")

    monkeypatch.setattr(doctor, "_machine", broken)
    monkeypatch.setattr(doctor, "_images", lambda: iter(()))
    findings = list(doctor.examine(servers=[], tokenizer=None))
    assert ("machine", doctor.Finding(doctor.State.BROKEN, "OSError: no such device")) in findings
    assert findings[-1][0] == "model"
