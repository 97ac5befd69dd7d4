"""Installation: the command that adds an extra fits how the package was installed."""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from pathlib import Path

import pytest

from strands_sglang import exceptions
from tests.conftest import ROOT


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Installs a copy, as far as its metadata goes; takes the record of where it came from."""

    def install(direct_url: object = None) -> None:
        folder = tmp_path / "strands_rollout-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            "Metadata-Version: 2.4\nName: strands-rollout\nVersion: 1.0\nRequires-Dist: numpy\n"
            "Requires-Dist: torch<3,>=2.5; extra == 'local'\nRequires-Dist: gguf; extra == 'local'\n"
            "Requires-Dist: ray; extra == 'ray'\n"
        )
        if direct_url is not None:
            (folder / "direct_url.json").write_text(json.dumps(direct_url))
        monkeypatch.setattr(exceptions, "_CHECKOUT", tmp_path)
        monkeypatch.setattr(metadata, "distribution", lambda name: metadata.Distribution.at(folder))

    return install


def requirement(command: str) -> list[str]:
    """The arguments after `pip install`."""
    words = shlex.split(command)
    return words[words.index("install") + 1 :]


def test_a_checkout_is_named_by_its_folder() -> None:
    assert requirement(exceptions.install_command("local")) == ["-e", f"{ROOT}[local]"]


def test_a_wheel_is_named_by_its_address(installed, tmp_path) -> None:
    wheel = tmp_path / "a b.whl"
    wheel.touch()
    installed({"url": wheel.as_uri(), "archive_info": {}})
    assert requirement(exceptions.install_command("ray")) == [f"strands-rollout[ray] @ {wheel.as_uri()}"]


def test_a_repository_is_named_with_its_commit(installed) -> None:
    url = "https://example.com/rollout.git"
    installed({"url": url, "vcs_info": {"vcs": "git", "commit_id": "abc"}, "subdirectory": "python"})
    expected = f"strands-rollout[local] @ git+{url}@abc#subdirectory=python"
    assert requirement(exceptions.install_command("local")) == [expected]


@pytest.mark.parametrize("direct_url", [None, {"url": "file:///no/such/file.whl", "archive_info": {}}])
def test_without_an_address_the_packages_are_named(installed, direct_url) -> None:
    installed(direct_url)
    assert requirement(exceptions.install_command("local")) == ["torch<3,>=2.5", "gguf"]
