"""The files a public project has: the lock fits pyproject.toml, the forms and workflows can be read."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = (ROOT / "uv.lock").read_text(encoding="utf-8")


def requirements() -> Iterator[Requirement]:
    for text in (
        *PROJECT["dependencies"],
        *(line for extra in PROJECT["optional-dependencies"].values() for line in extra),
    ):
        requirement = Requirement(text)
        if requirement.name != PROJECT["name"]:
            yield requirement


def test_the_lock_has_a_fitting_version_of_everything_that_is_asked_for() -> None:
    versions: dict[str, list[str]] = {}
    for package in tomllib.loads(LOCK)["package"]:
        versions.setdefault(package["name"], []).append(package.get("version", ""))
    wrong = [
        f"{requirement}: {versions.get(canonicalize_name(requirement.name))}"
        for requirement in requirements()
        if not any(
            requirement.specifier.contains(found) for found in versions.get(canonicalize_name(requirement.name), [])
        )
    ]
    assert not wrong, "run: uv lock"


def test_the_lock_names_the_public_index_alone() -> None:
    assert set(re.findall(r'https?://[^/"]+', LOCK)) == {"https://pypi.org", "https://files.pythonhosted.org"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="the scripts need bash")
def test_the_scripts_take_the_versions_of_the_lock() -> None:
    python = f'python() {{ "{sys.executable}" "$@"; }}'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f'. "{ROOT}/scripts/_setup.sh"\n{python}\nconstraints'],
        capture_output=True,
        text=True,
        check=True,
    )
    constraints = [Requirement(line) for line in done.stdout.splitlines()]
    names = {canonicalize_name(constraint.name) for constraint in constraints}
    assert {canonicalize_name(requirement.name) for requirement in requirements()} <= names
    here = [one for one in constraints if one.marker is None or one.marker.evaluate()]
    assert len(here) == len({one.name for one in here}), "one version of each package on this machine"


def test_the_forms_and_workflows_can_be_read() -> None:
    files = [ROOT / "CITATION.cff", ROOT / ".pre-commit-config.yaml", *(ROOT / ".github").rglob("*.yml")]
    for path in files:
        assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict), path
    scripts = {name for path in files for name in re.findall(r"\bscripts/[a-z-]+\b", path.read_text(encoding="utf-8"))}
    assert scripts and not [name for name in scripts if not (ROOT / name).is_file()]


def test_the_form_of_commit_messages() -> None:
    (hooks,) = [repo["hooks"] for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]]
    pattern = next(hook["entry"] for hook in hooks if hook["id"] == "commit-message")
    fitting = ("feat(demo): rollouts at temperature 1", "fix!: a reply counts\n\nLong story.", "Merge branch 'x'")
    unfit = ("improve things", "feat:", "update\n\nfix: not in the first line")
    matches = [message for message in (*fitting, *unfit) if re.search(pattern, message, re.MULTILINE | re.DOTALL)]
    assert matches == list(fitting)


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["title"], citation["version"]) == (PROJECT["name"], PROJECT["version"])


def test_the_guide_for_agents_is_short_and_names_places_that_exist() -> None:
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    named = re.findall(r"`((?:strands_(?:sglang|env)|tests|docs)/[\w./]+)`", text)
    assert len(named) > 10
    missing = [path for path in named if not any((ROOT / folder / path).exists() for folder in ("", "src"))]
    assert not missing


def test_the_guide_names_every_extra_and_what_all_brings() -> None:
    extras = PROJECT["optional-dependencies"]
    rows = re.findall(
        r"^\| (`[\w`, -]+`) \| (.*) \|$", (ROOT / "docs/installation.md").read_text(encoding="utf-8"), re.M
    )
    table = {name: text for names, text in rows for name in re.findall(r"[\w-]+", names)}
    assert set(extras) <= set(table)
    brought = {name for line in extras["all"] for name in Requirement(line).extras}
    assert set(re.findall(r"`([\w-]+)`", table["all"])) == brought and len(brought) == 9
