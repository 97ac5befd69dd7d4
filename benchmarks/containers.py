"""The cost of a container: start, one command, clean-up; what kills leave behind.

    python -m benchmarks.containers [--image NAME_OR_FOLDER] [--passes 20] [--kills 500]

Measures `ImageSandbox` (bubblewrap on an unpacked image) and, where they are here, `podman` and `podman-compose` on the
same root, in milliseconds. CPU time is that of all processes, user and system; the supervisor's own counts when a
sandbox ends, so a command's cost is a difference of whole runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.shape import arguments, print_figures

from strands_env.sandbox.images import ImageSandbox, ImageStore
from strands_env.sandbox.images.layers import containers_folder

COMMANDS = 20


def cpu() -> float:
    """CPU seconds of this process and of all its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


async def cpu_of(work: Callable[[], Awaitable[Any]], count: int) -> float:
    """CPU seconds of a call on average."""
    before = cpu()
    for _ in range(count):
        await work()
    return (cpu() - before) / count


async def bubblewrap(image: str, count: int) -> dict[str, Any]:
    """One sandbox after the other."""
    parts: dict[str, list[float]] = {"start": [], "exec": [], "close": []}

    async def whole(commands: int) -> None:
        sandbox = ImageSandbox(image)
        calls = [("exec", lambda: sandbox.exec("echo x > /answer"))] * commands
        for part, call in [("start", sandbox.start), *calls, ("close", sandbox.close)]:
            at = time.perf_counter()
            await call()
            parts[part].append(time.perf_counter() - at)

    return await costs(whole, parts, count, COMMANDS)


async def costs(
    whole: Callable[[int], Awaitable[None]], parts: dict[str, list[float]], count: int, commands: int
) -> dict[str, Any]:
    """Seconds of the parts of a container's life, once it was warm; a command's CPU is a difference of whole runs."""
    await whole(1)
    for seconds in parts.values():
        seconds.clear()
    bare = await cpu_of(lambda: whole(0), count)
    busy = await cpu_of(lambda: whole(commands), count)
    return {
        "start_ms": median(parts["start"]),
        "start_and_close_cpu_ms": bare,
        "exec_ms": median(parts["exec"]),
        "exec_cpu_ms": (busy - bare) / commands,
        "close_ms": median(parts["close"]),
    }


def podman_image(image: str) -> str:
    """Import the root into podman; the image's name."""
    name = "localhost/strands-benchmark:latest"
    if "CONTAINERS_CONF" not in os.environ:  # without CAP_SYS_RESOURCE its defaults are refused
        settings = Path(tempfile.mkdtemp(), "containers.conf")
        runtime = '[engine]\nruntime="runc"\n' if shutil.which("runc") else ""
        limits = '[containers]\ndefault_ulimits=["nofile=16384:16384","nproc=30000:30000"]\n'
        settings.write_text(limits + runtime)
        os.environ["CONTAINERS_CONF"] = str(settings)
    packed = f"tar -C {ImageStore().find(image).root} -c . | podman import - {name}"
    run(["sh", "-c", packed])
    return name


def run(command: list[str]) -> None:
    """Run a command; its last words are the error."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} does not run here: {done.stderr.strip()[-300:]}")


async def by_commands(start: list[str], execute: list[str], close: list[str], count: int) -> dict[str, Any] | str:
    """The same with a program's commands: start a container, run a command in it, remove it."""
    parts: dict[str, list[float]] = {"start": [], "exec": [], "close": []}

    async def whole(commands: int) -> None:
        for part, command in [("start", start), *([("exec", execute)] * commands), ("close", close)]:
            at = time.perf_counter()
            run(command)
            parts[part].append(time.perf_counter() - at)

    try:
        return await costs(whole, parts, count, 5)
    except RuntimeError as error:
        return str(error)
    finally:
        subprocess.run(close, capture_output=True)


async def podman(image: str, count: int) -> dict[str, Any] | str:
    """podman's own commands."""
    if shutil.which("podman") is None:
        return "podman is not installed"
    name, container = podman_image(image), "strands-benchmark"
    return await by_commands(
        ["podman", "run", "-d", "--network", "none", "--name", container, name, "sleep", "1000"],
        ["podman", "exec", container, "sh", "-c", "echo x > /answer"],
        ["podman", "rm", "-f", "-t", "0", container],
        count,
    )


async def podman_compose(image: str, count: int) -> dict[str, Any] | str:
    """podman-compose, as Harbor's own backend runs it."""
    beside = [os.path.dirname(sys.executable), str(Path(__file__).parents[1] / ".venv-harbor" / "bin")]
    program = shutil.which("podman-compose", path=os.pathsep.join([os.environ["PATH"], *beside]))
    if program is None or shutil.which("podman") is None:
        return "podman-compose is not installed: pip install podman-compose"
    with tempfile.TemporaryDirectory(prefix="strands-benchmark-") as folder:
        file = Path(folder, "docker-compose.yaml")
        service = {"image": podman_image(image), "command": ["sleep", "1000"], "network_mode": "none"}
        file.write_text(json.dumps({"services": {"main": service}}))  # which is YAML
        base = [program, "-f", str(file)]
        execute = [*base, "exec", "-T", "main", "sh", "-c", "echo x > /answer"]
        return await by_commands([*base, "up", "-d"], execute, [*base, "down", "-t", "0"], count)


KILLED = """
import asyncio, sys
from strands_env.sandbox.images import ImageSandbox
async def work():
    sandboxes = [ImageSandbox(sys.argv[1]) for _ in range(10)]
    await asyncio.gather(*[one.start() for one in sandboxes])
    print("started", flush=True)
    await asyncio.gather(*[one.exec("while true; do (sleep 1234 &); sleep 0.01; done") for one in sandboxes])
asyncio.run(work())
"""


def kills(image: str, count: int) -> dict[str, Any]:
    """Processes with ten busy sandboxes each, killed at moments that drift; then what the next process leaves."""
    root = ImageStore().find(image).root
    for number in range(max(1, count // 10)):
        process = subprocess.Popen([sys.executable, "-c", KILLED, root], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        if number % 2:  # while they run; else while they start
            process.stdout.readline()
        time.sleep(0.02 * (number % 40))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    time.sleep(2)
    code = "from strands_env.sandbox.images.layers import remove_orphans; print(remove_orphans())"
    removed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    alive = subprocess.run(["pgrep", "-fc", "sleep 1234"], capture_output=True, text=True).stdout
    mounts = Path("/proc/self/mountinfo").read_text().count(str(containers_folder()))
    left = [path.name for path in containers_folder().iterdir()]
    return {
        "sandboxes_killed": max(1, count // 10) * 10,
        "folders_removed_by_the_next_process": int(removed),
        "folders_left": len(left),
        "processes_left": int(alive or 0),
        "mounts_left": mounts,
    }


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All arms, one after the other."""
    image = args.image
    if image is None:
        from tests.container_support import root

        image = root()
    arms = {
        "bubblewrap": await bubblewrap(image, args.passes),
        "podman": await podman(image, max(2, args.passes // 4)),
        "podman-compose": await podman_compose(image, max(2, args.passes // 8)),
    }
    found: dict[str, Any] = {"arms": []}
    for arm, figures in arms.items():
        if isinstance(figures, str):
            print(f"{arm} is left out: {figures}", file=sys.stderr)
        else:
            found["arms"].append({"arm": arm} | {name: round(1000 * value, 2) for name, value in figures.items()})
    if args.kills:
        found["kills"] = [kills(image, args.kills)]
    return found


def main() -> None:
    """Print the figures."""
    parser = arguments(__doc__, passes=20)
    parser.add_argument("--image", help="image, or folder of an unpacked root (default: a small one made here)")
    parser.add_argument("--kills", type=int, default=0)
    args = parser.parse_args()
    if args.quick:
        args.passes = 2
    print_figures("containers", **asyncio.run(measure(args)))


if __name__ == "__main__":
    main()
