"""A small root with busybox and bash, built once, and tasks in Harbor's format on it."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strands_env.sandbox import SandboxError
from strands_env.sandbox.images import ImageSandbox

FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nworker:x:1000:1000::/home/worker:/bin/bash\n",
    "etc/group": "root:x:0:\nworker:x:1000:\nhelpers:x:1001:worker\n",
    "etc/os-release": "ID=fixture\n",
}


@functools.cache
def root() -> str:
    """Folder of an unpacked image: busybox's programs, and bash with its libraries."""
    busybox, bash = shutil.which("busybox"), shutil.which("bash-static") or shutil.which("bash")
    if busybox is None or bash is None:
        pytest.skip("the fixture image needs busybox and bash (Debian: busybox-static, bash-static)")
    made = Path(tempfile.mkdtemp(prefix="fixture-image-")) / "root"
    for folder in ("bin", "etc", "root", "home/worker", "usr/bin", "var", "app"):
        (made / folder).mkdir(parents=True)
    (made / "tmp").mkdir(mode=0o1777)
    (made / "tmp").chmod(0o1777)
    os.chmod(made.parent, 0o755)
    for source, target in ((busybox, "bin/busybox"), (bash, "bin/bash")):
        _copy_program(source, made, target)
    for name in subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split():
        if not (made / "bin" / name).exists():
            (made / "bin" / name).symlink_to("busybox")
    (made / "usr/bin/env").symlink_to("../../bin/busybox")
    for path, text in FILES.items():
        (made / path).write_text(text)
    return str(made)


def _copy_program(source: str, made: Path, target: str) -> None:
    shutil.copy(source, made / target)
    listed = subprocess.run(["ldd", source], capture_output=True, text=True).stdout
    for word in listed.split():
        if word.startswith("/"):
            place = made / word.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(word, place)


@functools.cache
def root_with_tmux() -> str:
    """The root with tmux; skips the test where this machine has none."""
    tmux = shutil.which("tmux")
    if tmux is None:
        pytest.skip("needs tmux (Debian: tmux)")
    made = Path(require_images()).with_name("root-tmux")
    shutil.copytree(root(), made, symlinks=True)
    _copy_program(tmux, made, "usr/bin/tmux")
    for place in ("usr/share/terminfo", "lib/terminfo", "etc/terminfo"):
        for entry in ("s/screen", "x/xterm", "x/xterm-256color", "d/dumb", "l/linux", "t/tmux"):
            if (source := Path("/", place, entry)).is_file():
                (made / place / entry).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, made / place / entry)
    locales = Path("/usr/lib/locale/C.utf8")
    if locales.is_dir():
        shutil.copytree(locales, made / "usr/lib/locale/C.utf8")
    return str(made)


@functools.cache
def unavailable() -> str | None:
    """Why there are no sandboxes on images here, or None."""

    async def try_one() -> None:
        async with ImageSandbox(root()):
            pass

    try:
        with ThreadPoolExecutor(1) as pool:  # a test may run a loop already
            pool.submit(asyncio.run, try_one()).result()
    except SandboxError as error:
        return str(error)
    return None


def require_images() -> str:
    """The root; skips the test where there are no sandboxes on images."""
    made = root()
    if (reason := unavailable()) is not None:
        pytest.skip(f"no sandboxes on images here: {reason}")
    return made


TEST = """#!/bin/bash
if [ "$(cat /app/answer.txt 2>/dev/null)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
SOLVE = "#!/bin/bash\necho 42 > /app/answer.txt\n"
TOML = """schema_version = "1.1"
[metadata]
difficulty = "easy"
[agent]
timeout_sec = 60.0
{agent}
[verifier]
timeout_sec = 20.0
{verifier}
[environment]
docker_image = "{image}"
allow_internet = false
workdir = "/app"
{environment}
{more}
"""


def make_task(
    folder: Path,
    name: str = "answer",
    *,
    test: str = TEST,
    solve: str = SOLVE,
    instruction: str = "Write 42 into /app/answer.txt.",
    agent: str = "",
    verifier: str = "",
    environment: str = "",
    head: str = "",
    more: str = "",
    files: Mapping[str, str] | None = None,
) -> Path:
    """A folder with a task in Harbor's format."""
    task = folder / name
    toml = TOML.format(image=root(), agent=agent, verifier=verifier, environment=environment, more=more)
    written = {
        "task.toml": head + toml,
        "instruction.md": instruction,
        "tests/test.sh": test,
        "solution/solve.sh": solve,
        "environment/.keep": "",
        **(files or {}),
    }
    for path, text in written.items():
        (task / path).parent.mkdir(parents=True, exist_ok=True)
        (task / path).write_text(text)
    return task
