"""A small root with busybox and bash, built once, and tasks in Harbor's format on it."""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import os
import shutil
import subprocess
import sys
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
    if not (made / target).exists():
        (made / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, made / target)
    _copy_libraries(source, made)


def _copy_libraries(source: str, made: Path) -> None:
    listed = subprocess.run(["ldd", source], capture_output=True, text=True).stdout
    for word in listed.split():
        if word.startswith("/") and os.path.exists(word):
            place = made / word.lstrip("/")
            if not place.exists():
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
def root_with_python() -> str:
    """The root with this machine's Python, and pytest as its own; skips the test where it cannot be copied."""
    python = "/usr/bin/python3"
    if not Path(python).exists():
        pytest.skip(f"needs {python}")
    asked = "import sys, sysconfig; print(sys.executable, sysconfig.get_path('stdlib'), sysconfig.get_path('purelib'))"
    found = subprocess.run([python, "-Ic", asked], capture_output=True, text=True, check=True).stdout.split()
    made = Path(require_images()).with_name("root-python")
    shutil.copytree(root(), made, symlinks=True)
    _copy_program(os.path.realpath(python), made, "usr/bin/python3")
    unneeded = ("test", "__pycache__", "config-*", "idlelib", "ensurepip", "lib2to3", "tkinter", "sitecustomize.py")
    library = made / found[1].lstrip("/")
    shutil.copytree(found[1], library, symlinks=True, ignore=shutil.ignore_patterns(*unneeded))
    compiled = ("libgcc_s.so.1", "libstdc++.so.6", "librt.so.1", "libdl.so.2", "libpthread.so.0", "libutil.so.1")
    extra = [file for name in compiled for file in Path("/usr/lib").glob(f"*-linux-gnu/{name}")]
    for module in (*library.glob("lib-dynload/*.so"), *extra):
        _copy_program(str(module), made, str(module).removeprefix(str(made)).lstrip("/"))
    packages = made / found[2].lstrip("/")
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        for file in importlib.metadata.files(name) or ():
            if file.suffix != ".pyc" and ".." not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), packages / file)
    # It compiles its modules here, once, instead of in each sandbox.
    tried = ["chroot", made, python, "-m", "pytest", "--version"]
    if subprocess.run(tried, capture_output=True, env={"PATH": os.environ["PATH"]}).returncode != 0:
        pytest.skip(f"{python} does not run on a small root")
    return str(made)


@functools.cache
def root_for(*shown: str) -> str:
    """The root with the libraries of this machine that programs need which a sandbox on it shows."""
    made = Path(tempfile.mkdtemp(prefix="root-", dir=Path(require_images()).parent)) / "root"
    made.parent.chmod(0o755)
    shutil.copytree(root(), made, symlinks=True)
    for place in map(Path, shown):
        for file in place.rglob("*") if place.is_dir() else [place]:
            if file.is_file() and (".so" in file.name or os.access(file, os.X_OK)) and not file.is_symlink():
                with file.open("rb") as opened:
                    if opened.read(4) == b"\x7fELF":
                        _copy_libraries(str(file), made)
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


PODMAN_SETTINGS = """[containers]
default_ulimits = ["nofile=16384:16384", "nproc=30000:30000"]
[engine]
runtime = "runc"
"""
"""Settings with which podman runs as a root that may not raise its limits."""


@functools.cache
def podman_image() -> str:
    """Name of the root as an image of podman; skips the test where podman or podman-compose does not run."""
    os.environ["PATH"] += f":{os.path.dirname(sys.executable)}"  # where pip puts podman-compose
    for program in ("podman", "podman-compose"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    if "CONTAINERS_CONF" not in os.environ and shutil.which("runc"):
        settings = Path(root()).with_name("containers.conf")
        settings.write_text(PODMAN_SETTINGS)
        os.environ["CONTAINERS_CONF"] = str(settings)
    name = "localhost/strands-fixture:latest"
    done = subprocess.run(
        f"tar -C {root()} -c . | podman import -q - {name} && podman run --rm --network none {name} true",
        shell=True,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        pytest.skip(f"podman does not run here: {done.stderr.strip()[-300:]}")
    return name


TEST = """#!/bin/bash
if [ "$(cat /app/answer.txt 2>/dev/null)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
PYTEST = """#!/bin/bash
cd /app
python3 -m pytest -q -p no:cacheprovider /tests/check.py
echo $((1 - ($? != 0))) > /logs/verifier/reward.txt
"""
CHECK = "def test_answer():\n    assert open('/app/answer.txt').read() == '42\\n'\n"
SOLVE = "#!/bin/bash\necho 42 > /app/answer.txt\n"
TOML = """schema_version = "1.1"
[metadata]
difficulty = "easy"
[agent]
timeout_sec = {agent_seconds}
{agent}
[verifier]
timeout_sec = {verifier_seconds}
{verifier}
[environment]
docker_image = "{image}"
allow_internet = false
workdir = "{workdir}"
{environment}
{more}
"""


def make_task(
    folder: Path,
    name: str = "answer",
    *,
    image: str | None = None,
    test: str = TEST,
    solve: str = SOLVE,
    instruction: str = "Write 42 into /app/answer.txt.",
    workdir: str = "/app",
    agent_seconds: float = 60.0,
    verifier_seconds: float = 20.0,
    agent: str = "",
    verifier: str = "",
    environment: str = "",
    head: str = "",
    more: str = "",
    files: Mapping[str, str] | None = None,
) -> Path:
    """A folder with a task in Harbor's format."""
    task = folder / name
    tables = {"agent": agent, "verifier": verifier, "environment": environment, "more": more}
    seconds = {"agent_seconds": agent_seconds, "verifier_seconds": verifier_seconds}
    toml = TOML.format(image=image or root(), workdir=workdir, **seconds, **tables)
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
