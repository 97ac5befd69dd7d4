"""`strands-env doctor`: check this machine and suggest fixes."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from enum import StrEnum
from importlib import import_module, metadata
from typing import NamedTuple

from strands_env.commands.terminal import one_line, say, show
from strands_sglang.cache import cache_folder
from strands_sglang.command_line import Exit

FREE_BYTES = 2 * 2**30
"""Free space below which models and images are likely not to fit."""
OPEN_FILES = 4096
"""Open files that a thousand rollouts at a time may need."""
_PYTHONS = ((3, 11), (3, 14))
_OWN_EXTRAS = frozenset({"test", "dev", "docs", "trainers", "all"})
"""Extras for work on this project, and the sum of the others."""


class State(StrEnum):
    """State of a part of this machine."""

    OK = "ok"
    """Works."""
    MISSING = "missing"
    """Absent, and needed only for what it enables."""
    BROKEN = "broken"
    """Present but broken, or absent and required."""


class Finding(NamedTuple):
    """Finding about a part, and the next step; None if there is none."""

    state: State
    found: str
    advice: str | None = None


def run(args: argparse.Namespace) -> int:
    """Look at everything, and print it part by part as it is found."""
    findings = []
    for part, finding in examine(servers=args.server, tokenizer=args.tokenizer):
        findings.append({"part": part, **finding._asdict()})
        if not args.json:
            say(f"{finding.state:8}{part:11}{one_line(finding.found)}")
            if finding.advice is not None:
                say(f"{'':19}-> {one_line(finding.advice)}")
    ok = all(finding["state"] is not State.BROKEN for finding in findings)
    if args.json:
        show({"ok": ok, "findings": findings}, (), as_json=True)
    return Exit.OK if ok else Exit.FAILED


def examine(*, servers: list[str], tokenizer: str | None) -> Iterator[tuple[str, Finding]]:
    """Everything, part by part. A part whose examination raises is broken, and the next one is examined."""
    parts: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("python", _python),
        ("package", _package),
        ("extras", _extras),
        ("machine", _machine),
        ("sandbox", _sandbox),
        ("images", _images),
        ("model", _model),
        *(("server", lambda url=url: _server(url, tokenizer)) for url in servers),
    ]
    for part, examined in parts:
        try:
            yield from ((part, finding) for finding in examined())
        except Exception as error:  # one broken part must not hide the rest
            yield part, Finding(State.BROKEN, f"{type(error).__name__}: {error}")


def _python() -> Iterator[Finding]:
    found = f"{platform.python_implementation()} {platform.python_version()} on {platform.platform(terse=True)}"
    low, high = _PYTHONS
    if low <= sys.version_info[:2] <= high:
        yield Finding(State.OK, found)
    else:
        yield Finding(State.BROKEN, found, f"take Python {low[0]}.{low[1]} to {high[0]}.{high[1]}")


def _package() -> Iterator[Finding]:
    from strands_sglang.hints import DISTRIBUTION

    found = f"{DISTRIBUTION} {metadata.version(DISTRIBUTION)}, strands-agents {metadata.version('strands-agents')}"
    both = [name for name in ("strands-sglang", "strands-env") if _version(name) is not None]
    if both:
        advice = f"pip uninstall {' '.join(both)}, then install {DISTRIBUTION} again: they overwrite each other's files"
        yield Finding(State.BROKEN, f"{found}, beside {', '.join(both)}", advice)
    else:
        yield Finding(State.OK, found)


def _extras() -> Iterator[Finding]:
    from strands_sglang.hints import DISTRIBUTION, install_command

    wanted: dict[str, list[str]] = {}
    for extra, name in _requirements(DISTRIBUTION):
        if extra not in _OWN_EXTRAS:
            wanted.setdefault(extra, []).append(name)
    installed = {name for names in wanted.values() for name in names if _version(name) is not None}
    broken = _import_errors(installed)
    complete = [
        extra for extra, names in wanted.items() if installed.issuperset(names) and broken.keys().isdisjoint(names)
    ]
    yield Finding(State.OK, ", ".join(complete) or "none")
    for extra, names in wanted.items():
        if lacking := [name for name in names if name not in installed]:
            are = "is" if len(lacking) == 1 else "are"
            found = f"{extra}: {', '.join(lacking)} {are} not installed"
            yield Finding(State.MISSING, found, install_command(extra))
    for name, error in broken.items():
        extras = ", ".join(extra for extra, names in wanted.items() if name in names)
        advice = f"pip install --force-reinstall {name}"
        yield Finding(State.BROKEN, f"{extras}: {name} cannot be imported: {error}", advice)


def _requirements(distribution: str) -> Iterator[tuple[str, str]]:
    """The extras of an installed distribution, each with the distributions that it needs on this system."""
    for text in metadata.requires(distribution) or ():
        match = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?.*extra == ['\"]([\w-]+)['\"]", text)
        if match and ("linux" not in text or sys.platform == "linux"):
            name, inner, extra = match.groups()
            yield extra, name
            # `name[inner]`: the packages of that extra are needed, too.
            if inner and _version(name) is not None:
                yield from ((extra, each) for of, each in _requirements(name) if of in inner.split(","))


def _import_errors(distributions: Collection[str]) -> dict[str, str]:
    """Distributions that are installed and cannot be imported, each with the error."""
    modules: dict[str, str] = {}
    for module, names in metadata.packages_distributions().items():
        for name in (re.sub(r"[-_.]+", "-", name).lower() for name in names):
            # Of several modules the one named as the distribution, where there is one.
            if not module.startswith("_") and name in distributions and modules.get(name) != name.replace("-", "_"):
                modules[name] = module
    errors = {}
    for name, module in modules.items():
        try:
            import_module(module)
        except (Exception, SystemExit) as error:  # broken packages raise anything at import, some exit
            errors[name] = f"{type(error).__name__}: {error}"
    return errors


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _machine() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cache = cache_folder()
    place = next(folder for folder in (cache, *cache.parents) if folder.exists())  # nothing is made by looking
    free = shutil.disk_usage(place).free
    found = f"{cores} cores, {free / 2**30:.1f} GiB free for models and images in {cache}"
    if not os.access(place, os.W_OK):
        advice = "name a folder that can be written in STRANDS_ROLLOUT_CACHE"
        yield Finding(State.BROKEN, f"{place} cannot be written", advice)
    elif free < FREE_BYTES:
        yield Finding(State.MISSING, found, "make room, or name another folder in STRANDS_ROLLOUT_CACHE")
    else:
        yield Finding(State.OK, found)
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < OPEN_FILES:
        highest = hard if 0 <= hard < OPEN_FILES else OPEN_FILES
        found = f"{soft} open files: too few for more than some hundred rollouts at a time"
        yield Finding(State.MISSING, found, f"ulimit -n {highest}")


def _sandbox() -> Iterator[Finding]:
    from strands_env.sandbox import BubblewrapSandbox, SandboxError

    async def echo() -> str:
        async with BubblewrapSandbox() as sandbox:  # only a command that ran shows that namespaces are allowed
            return (await sandbox.exec(["echo", "inside"])).stdout.strip()

    try:
        output = asyncio.run(echo())
    except SandboxError as error:
        yield Finding(State.MISSING, "code cannot run in a sandbox", str(error))
        return
    if output == "inside":
        yield Finding(State.OK, "bubblewrap starts, runs a command and ends")
    else:
        yield Finding(State.BROKEN, f"a command in it printed {output!r} instead of 'inside'")


def _images() -> Iterator[Finding]:
    from strands_env.sandbox.bubblewrap.command import find_bubblewrap
    from strands_env.sandbox.contract import SandboxError
    from strands_env.sandbox.images.store import ImageStore

    try:
        find_bubblewrap(overlays=True)
    except SandboxError as error:
        yield Finding(State.MISSING, "container images cannot be run", str(error))
        return
    names = [image.name for image in ImageStore().list()]
    listed = f"; here: {', '.join(names[:5])}" if names else "; none is here yet"
    yield Finding(State.OK, f"container images run over bubblewrap{listed}")


def _model() -> Iterator[Finding]:
    from strands_sglang.backends.engine.loader import default_model_cached

    if default_model_cached():
        yield Finding(State.OK, "smollm2, the embedded engine's default, is here")
    else:
        yield Finding(State.MISSING, "smollm2 was not fetched yet", "strands-env demo fetches it (93 MB)")


def _server(url: str, tokenizer: str | None) -> Iterator[Finding]:
    """Sample one token at temperature 0.7, as training would."""
    from strands_sglang.backends import BackendInfo, GenerateRequest, token_array
    from strands_sglang.backends.clients import connect
    from strands_sglang.exceptions import StrandsSGLangError

    try:
        client, loaded, name = connect(url, tokenizer, max_retries=2, retry_delay=0.2)

        async def sample() -> BackendInfo:
            async with client:
                prompt = token_array(loaded.encode("Hello", add_special_tokens=False))
                params = {"max_new_tokens": 1, "temperature": 0.7}
                await client.ask(GenerateRequest(prompt=prompt, sampling_params=params))
                return await client.info()

        room = asyncio.run(sample()).context_length or "unknown"
    except (OSError, ValueError, StrandsSGLangError) as error:
        yield Finding(State.BROKEN, f"{url}: {error}", "start it, or correct the address; --tokenizer names another")
    else:
        yield Finding(State.OK, f"{url} sampled a token with its log-probability; tokenizer {name}, context {room}")
