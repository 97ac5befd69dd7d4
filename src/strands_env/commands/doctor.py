"""`strands-env doctor`: what is fit on this machine, and what to do about the rest."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from strands_env.commands.terminal import one_line, paint, paints, safe, say
from strands_sglang.cache import cache_folder
from strands_sglang.command_line import Exit

SKEW_S = 2.0
"""Seconds that clocks may differ: more than what a question takes."""
FREE_BYTES = 2 * 2**30
"""Free space below which models and images are likely not to fit."""
OPEN_FILES = 4096
"""Open files that a thousand rollouts at a time may need."""
_PYTHONS = ((3, 11), (3, 14))
_OWN_EXTRAS = frozenset({"test", "dev", "docs", "trainers", "all"})
"""Extras for work on this project, and the sum of the others."""


class State(StrEnum):
    """State of a part of this machine."""

    FIT = "fit"
    """It works."""
    MISSING = "missing"
    """It is not there, which matters only to those who need it."""
    BROKEN = "broken"
    """It is there and does not work, or nothing works without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFinding:
    """The finding about one part.

    Attributes:
        advice: The next step; None if there is none.
    """

    part: str
    state: State
    found: str
    advice: str | None = None


def run(args: argparse.Namespace) -> int:
    """Look at everything, and print it part by part as it is found."""
    findings = []
    colour = paints(sys.stdout)
    for finding in examine(servers=args.server, tokenizer=args.tokenizer):
        findings.append(finding)
        if not args.json:
            for line in _lines(finding, colour=colour):
                say(line, painted=colour)
    broken = [finding.part for finding in findings if finding.state is State.BROKEN]
    if args.json:
        say(json.dumps({"fit": not broken, "findings": [asdict(finding) for finding in findings]}))
    return Exit.FAILED if broken else Exit.OK


def _lines(finding: PartFinding, *, colour: bool) -> list[str]:
    hue = {State.FIT: "green", State.BROKEN: "red"}.get(finding.state)
    state = f"{finding.state.value:8}"
    lines = [f"{paint(state, hue, colour) if hue else state}{finding.part:11}{safe(one_line(finding.found))}"]
    if finding.advice is not None:
        lines.append(f"{'':19}-> {safe(one_line(finding.advice))}")
    return lines


def examine(*, servers: list[str], tokenizer: str | None) -> Iterator[PartFinding]:
    """Everything, part by part. A part whose examination raises is broken, and the next one is examined."""
    parts: list[tuple[str, Callable[[], Iterator[PartFinding]]]] = [
        ("python", _python),
        ("package", _package),
        ("extras", _extras),
        ("machine", _machine),
        ("sandbox", _sandbox),
        ("containers", _containers),
        ("clocks", _clocks),
        ("model", _model),
        *(("server", lambda url=url: _server(url)) for url in servers),
    ]
    if tokenizer is not None:
        parts.append(("template", lambda: _template(tokenizer)))
    for part, examined in parts:
        try:
            yield from examined()
        except Exception as error:
            yield PartFinding(part=part, state=State.BROKEN, found=f"{type(error).__name__}: {error}")


def _python() -> Iterator[PartFinding]:
    found = f"{platform.python_implementation()} {platform.python_version()} on {platform.platform(terse=True)}"
    low, high = _PYTHONS
    if low <= sys.version_info[:2] <= high:
        yield PartFinding(part="python", state=State.FIT, found=found)
    else:
        advice = f"take Python {low[0]}.{low[1]} to {high[0]}.{high[1]}"
        yield PartFinding(part="python", state=State.BROKEN, found=found, advice=advice)


def _package() -> Iterator[PartFinding]:
    from strands_sglang.exceptions import DISTRIBUTION  # loads the SDK, after the first line

    found = f"{DISTRIBUTION} {metadata.version(DISTRIBUTION)}, strands-agents {metadata.version('strands-agents')}"
    both = [name for name in ("strands-sglang", "strands-env") if _version(name) is not None]
    if both:
        advice = f"pip uninstall {' '.join(both)}, then install {DISTRIBUTION} again: they overwrite each other's files"
        yield PartFinding(part="package", state=State.BROKEN, found=f"{found}, beside {', '.join(both)}", advice=advice)
    else:
        yield PartFinding(part="package", state=State.FIT, found=found)


def _extras() -> Iterator[PartFinding]:
    from strands_sglang.exceptions import DISTRIBUTION, install_command

    wanted: dict[str, list[str]] = {}
    for extra, name in _requirements(DISTRIBUTION):
        if extra not in _OWN_EXTRAS:
            wanted.setdefault(extra, []).append(name)
    installed = {name for names in wanted.values() for name in names if _version(name) is not None}
    broken = _import_errors(installed)
    fit = [extra for extra, names in wanted.items() if installed.issuperset(names) and broken.keys().isdisjoint(names)]
    yield PartFinding(part="extras", state=State.FIT, found=", ".join(fit) or "none")
    for extra, names in wanted.items():
        if lacking := [name for name in names if name not in installed]:
            found = f"{extra}: without {', '.join(lacking)}"
            yield PartFinding(part="extras", state=State.MISSING, found=found, advice=install_command(extra))
    for name, error in broken.items():
        extras = ", ".join(extra for extra, names in wanted.items() if name in names)
        advice = f"pip install --force-reinstall {name}"
        found = f"{extras}: {name} cannot be imported: {error}"
        yield PartFinding(part="extras", state=State.BROKEN, found=found, advice=advice)


def _requirements(distribution: str) -> Iterator[tuple[str, str]]:
    """The extras of an installed distribution, each with the distributions that it needs on this system."""
    for text in metadata.requires(distribution) or ():
        match = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?.*extra == ['\"]([\w-]+)['\"]", text)
        if match and ("linux" not in text or sys.platform == "linux"):
            name, inner, extra = match.groups()
            yield extra, name
            if inner and _version(name) is not None:
                yield from ((extra, each) for of, each in _requirements(name) if of in inner.split(","))


def _import_errors(distributions: Collection[str]) -> dict[str, str]:
    """Distributions that are installed and cannot be imported; in another process, since a library may crash."""
    modules: dict[str, str] = {}
    for module, names in metadata.packages_distributions().items():
        for name in names:
            name = re.sub(r"[-_.]+", "-", name).lower()
            if not module.startswith("_") and name in distributions and modules.get(name) != name.replace("-", "_"):
                modules[name] = module
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    try: importlib.import_module(name); said = ''\n"
        "    except BaseException as error: said = ' '.join(f'{type(error).__name__}: {error}'.split())\n"
        "    print('imported', name, said, flush=True)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, *modules.values()], capture_output=True, text=True, env=environment, check=False
    )
    said = dict(re.findall(r"^imported (\S+) (.*)$", done.stdout, re.MULTILINE))
    crashed = f"Python ended with status {done.returncode}"
    errors = {name: said.get(module, crashed) for name, module in modules.items()}
    return {name: error for name, error in errors.items() if error}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _machine() -> Iterator[PartFinding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cache = cache_folder()
    place = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    found = f"{cores} cores, {free / 2**30:.1f} GiB free for models and images in {cache}"
    if not os.access(place, os.W_OK):
        advice = "name a folder that can be written in STRANDS_ROLLOUT_CACHE"
        yield PartFinding(part="machine", state=State.BROKEN, found=f"{place} cannot be written", advice=advice)
    elif free < FREE_BYTES:
        advice = "make room, or name another folder in STRANDS_ROLLOUT_CACHE"
        yield PartFinding(part="machine", state=State.MISSING, found=found, advice=advice)
    else:
        yield PartFinding(part="machine", state=State.FIT, found=found)
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < OPEN_FILES:
        highest = hard if 0 <= hard < OPEN_FILES else OPEN_FILES
        found = f"{soft} open files: too few for more than some hundred rollouts at a time"
        yield PartFinding(part="machine", state=State.MISSING, found=found, advice=f"ulimit -n {highest}")


def _sandbox() -> Iterator[PartFinding]:
    from strands_env.sandbox import BubblewrapSandbox, SandboxError

    async def echo() -> str:
        async with BubblewrapSandbox() as sandbox:
            return (await sandbox.exec(["echo", "inside"])).stdout.strip()

    try:
        said = asyncio.run(echo())
    except SandboxError as error:
        yield PartFinding(part="sandbox", state=State.MISSING, found="no code can be run apart", advice=str(error))
        return
    if said == "inside":
        yield PartFinding(part="sandbox", state=State.FIT, found="bubblewrap starts, runs a command and ends")
    else:
        yield PartFinding(
            part="sandbox", state=State.BROKEN, found=f"a command in it printed {said!r} instead of 'inside'"
        )


def _containers() -> Iterator[PartFinding]:
    from strands_env.sandbox.bubblewrap.command import find_bubblewrap_with_overlays
    from strands_env.sandbox.contract import SandboxError
    from strands_env.sandbox.images.store import ImageStore

    try:
        find_bubblewrap_with_overlays()
    except SandboxError as error:
        yield PartFinding(part="images", state=State.MISSING, found="container images cannot be run", advice=str(error))
    else:
        names = [image.name for image in ImageStore().list()]
        listed = f"; here: {', '.join(names[:5])}" if names else "; none is here yet"
        found = f"container images run over bubblewrap{listed}"
        yield PartFinding(part="images", state=State.FIT, found=found)
    for program in ("docker", "podman"):
        if shutil.which(program) is not None:
            done = subprocess.run([program, "info"], capture_output=True, text=True, timeout=20, check=False)
            if done.returncode == 0:
                yield PartFinding(part="containers", state=State.FIT, found=f"{program} answers")
            else:
                last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
                advice = f"start its service, or do without it: {last[0]}"
                yield PartFinding(
                    part="containers", state=State.MISSING, found=f"{program} does not answer", advice=advice
                )


def _clocks() -> Iterator[PartFinding]:
    with tempfile.TemporaryDirectory(dir=Path.cwd() if os.access(Path.cwd(), os.W_OK) else None) as folder:
        file = Path(folder) / "clock"
        before = time.time()
        file.touch()
        skew = file.stat().st_mtime - before
    if abs(skew) > SKEW_S:
        advice = "set both clocks by NTP: leases and resumed runs compare times of files"
        found = f"the file system of this folder is {skew:+.1f} s off this machine's clock"
        yield PartFinding(part="clocks", state=State.BROKEN, found=found, advice=advice)
    else:
        yield PartFinding(part="clocks", state=State.FIT, found="this machine and the file system of this folder agree")


def _model() -> Iterator[PartFinding]:
    from strands_sglang.backends.engine.loader import default_model_cached

    if default_model_cached():
        yield PartFinding(part="model", state=State.FIT, found="smollm2, the embedded engine's default, is here")
    else:
        advice = "strands-env demo fetches it (93 MB)"
        yield PartFinding(part="model", state=State.MISSING, found="smollm2 was not fetched yet", advice=advice)


def _server(url: str) -> Iterator[PartFinding]:
    address = url.removeprefix("vllm+").rstrip("/")
    path = "/v1/models" if url.startswith("vllm+") else "/get_model_info"
    try:
        sent = time.time()
        with urllib.request.urlopen(f"{address}{path}", timeout=10.0) as answer:
            got = time.time()
            date, info = answer.headers.get("Date"), json.load(answer)
    except (OSError, ValueError) as error:
        kind = "vLLM" if url.startswith("vllm+") else "SGLang"
        advice = f"start it, or correct the address: a {kind} server answers at {path}"
        yield PartFinding(part="server", state=State.BROKEN, found=f"{url}: {error}", advice=advice)
        return
    models = [entry.get("id") for entry in info.get("data", ())] or [info.get("model_path")]
    found = f"{url} answers in {(got - sent) * 1000:.0f} ms: {', '.join(map(str, models))}"
    yield PartFinding(part="server", state=State.FIT, found=found)
    if date is not None:
        skew = parsedate_to_datetime(date).timestamp() - (sent + got) / 2
        if abs(skew) > SKEW_S + 1.0:  # the header has whole seconds
            advice = "set both clocks by NTP, or times in logs and results cannot be compared"
            found = f"{url} is {skew:+.0f} s off this machine's clock"
            yield PartFinding(part="clocks", state=State.MISSING, found=found, advice=advice)


def _template(name: str) -> Iterator[PartFinding]:
    from strands_sglang.commands.doctor.source import SourceError, load_source
    from strands_sglang.exceptions import TemplateError
    from strands_sglang.template import DeltaRenderer, TemplateVerdict, probe_tools

    advice = f"strands-sglang doctor {name} says which steps, and what to do"
    try:
        source = load_source(name)
        report = DeltaRenderer(source.template, tools=probe_tools([]), stop_tokens=source.stop_tokens).report
    except (SourceError, TemplateError) as error:
        yield PartFinding(part="template", state=State.BROKEN, found=str(error), advice=advice)
        return
    exact = report.verdict in (TemplateVerdict.EXACT, TemplateVerdict.EXACT_FULL)
    state = State.FIT if exact else State.BROKEN if report.verdict is TemplateVerdict.UNSUPPORTED else State.MISSING
    yield PartFinding(
        part="template", state=state, found=f"{name}: {report.verdict.value}", advice=None if exact else advice
    )
