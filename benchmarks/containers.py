"""The cost of a container: start, one command, tests, clean-up; many at once; what kills leave behind.

    python benchmarks/containers.py [--image NAME_OR_FOLDER] [--count 20] [--episodes 200 --at-once 16] [--kills 500]

Measures `ImageSandbox` (bubblewrap on an unpacked image) and, where they are here, `podman` and `podman-compose` on the
same root. CPU seconds are those of all processes, user and system; the supervisor's own count when a sandbox ends, so a
command's cost is a difference of whole runs. Writes `benchmarks/results/containers.json`.
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

sys.path.insert(0, str(Path(__file__).parents[1]))

from strands_env.sandbox.images import ImagePool, ImageSandbox, ImageStore
from strands_env.sandbox.images.layers import containers_folder

RESULTS = Path(__file__).with_name("results") / "containers.json"
TEST = "#!/bin/sh\nmkdir -p /logs/verifier\n[ -e /answer ] && echo 1 > /logs/verifier/reward.txt\n"
COMMANDS = 20


def cpu() -> float:
    """CPU seconds of this process and of all its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


async def timed(work: Callable[[], Awaitable[Any]], count: int) -> tuple[list[float], float]:
    """Wall seconds of each call, and CPU seconds of a call on average."""
    walls, before = [], cpu()
    for _ in range(count):
        started = time.perf_counter()
        await work()
        walls.append(time.perf_counter() - started)
    return walls, (cpu() - before) / count


async def bubblewrap(image: str, count: int) -> dict[str, Any]:
    """One sandbox after the other."""
    parts: dict[str, list[float]] = {"start": [], "exec": [], "tests": [], "close": []}

    async def whole(commands: int, tests: bool) -> None:
        sandbox = ImageSandbox(image)
        at = time.perf_counter()
        await sandbox.start()
        parts["start"].append(time.perf_counter() - at)
        for _ in range(commands):
            at = time.perf_counter()
            await sandbox.exec("echo x > /answer")
            parts["exec"].append(time.perf_counter() - at)
        if tests:
            at = time.perf_counter()
            await sandbox.kill_all()
            await sandbox.reset_folders(["/tests", "/logs/verifier"])
            await sandbox.restore_programs()
            await sandbox.write_folder(folder, "/tests")
            await sandbox.exec("sh /tests/test.sh")
            await sandbox.read_file("/logs/verifier/reward.txt")
            parts["tests"].append(time.perf_counter() - at)
        at = time.perf_counter()
        await sandbox.close()
        parts["close"].append(time.perf_counter() - at)

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test.sh").write_text(TEST)
        await whole(1, True)
        parts = {name: [] for name in parts}
        _, bare = await timed(lambda: whole(0, False), count)
        _, busy = await timed(lambda: whole(COMMANDS, False), count)
        _, graded = await timed(lambda: whole(1, True), count)
    one = (busy - bare) / COMMANDS
    return {
        "start_wall_s": median(parts["start"]),
        "start_and_close_cpu_s": bare,
        "exec_wall_s": median(parts["exec"]),
        "exec_cpu_s": one,
        "tests_wall_s": median(parts["tests"]),
        "tests_cpu_s": graded - bare - one,
        "close_wall_s": median(parts["close"]),
    }


async def pooled(image: str, count: int) -> dict[str, Any]:
    """A sandbox that a pool has ready."""
    pool, found, walls = ImagePool(spare=1), ImageStore().find(image), []
    for _ in range(count):
        at = time.perf_counter()
        sandbox = await pool.take(found)
        walls.append(time.perf_counter() - at)
        await asyncio.sleep(0.3)
        await sandbox.close()
    await pool.close()
    return {"take_wall_s": median(walls[1:])}


async def podman(image: str, count: int) -> dict[str, Any] | str:
    """The same with podman: run, exec, rm."""
    if shutil.which("podman") is None:
        return "podman is not installed"
    name = "localhost/strands-benchmark:latest"
    base = ["podman"]
    if "CONTAINERS_CONF" not in os.environ:  # without CAP_SYS_RESOURCE its defaults are refused
        settings = Path(tempfile.mkdtemp(), "containers.conf")
        runtime = '[engine]\nruntime="runc"\n' if shutil.which("runc") else ""
        limits = '[containers]\ndefault_ulimits=["nofile=16384:16384","nproc=30000:30000"]\n'
        settings.write_text(limits + runtime)
        os.environ["CONTAINERS_CONF"] = str(settings)
    packed = f"tar -C {ImageStore().find(image).root} -c . | podman import - {name}"
    done = subprocess.run(["sh", "-c", packed], capture_output=True, text=True)
    if done.returncode != 0:
        return f"podman import failed: {done.stderr.strip()[-300:]}"
    parts: dict[str, list[float]] = {"start": [], "exec": [], "close": []}

    def call(part: str, *arguments: str) -> None:
        at = time.perf_counter()
        done = subprocess.run([*base, *arguments], capture_output=True, text=True)
        parts[part].append(time.perf_counter() - at)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip()[-300:])

    async def whole(commands: int) -> None:
        call("start", "run", "-d", "--network", "none", "--name", "strands-benchmark", name, "sleep", "1000")
        for _ in range(commands):
            call("exec", "exec", "strands-benchmark", "sh", "-c", "echo x > /answer")
        call("close", "rm", "-f", "-t", "0", "strands-benchmark")

    try:
        await whole(1)
        parts = {part: [] for part in parts}
        _, bare = await timed(lambda: whole(0), max(2, count // 4))
        _, busy = await timed(lambda: whole(5), max(2, count // 4))
    except RuntimeError as error:
        return f"podman does not run here: {error}"
    finally:
        subprocess.run([*base, "rm", "-f", "strands-benchmark"], capture_output=True)
    return {
        "start_wall_s": median(parts["start"]),
        "start_and_close_cpu_s": bare,
        "exec_wall_s": median(parts["exec"]),
        "exec_cpu_s": (busy - bare) / 5,
        "close_wall_s": median(parts["close"]),
    }


async def many(image: str, episodes: int, at_once: int) -> dict[str, Any]:
    """Episodes at the same time: start, five commands, tests, clean-up."""
    slots, rewards = asyncio.Semaphore(at_once), []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test.sh").write_text(TEST)

        async def episode() -> None:
            async with slots, ImageSandbox(image) as sandbox:
                for _ in range(5):
                    await sandbox.exec("echo x > /answer")
                await sandbox.kill_all()
                await sandbox.reset_folders(["/tests", "/logs/verifier"])
                await sandbox.write_folder(folder, "/tests")
                await sandbox.exec("sh /tests/test.sh")
                rewards.append((await sandbox.read_file("/logs/verifier/reward.txt")).decode())

        at, before = time.perf_counter(), cpu()
        await asyncio.gather(*[episode() for _ in range(episodes)])
    return {
        "episodes": episodes,
        "at_once": at_once,
        "rewarded": sum(float(reward) for reward in rewards),
        "wall_s": time.perf_counter() - at,
        "cpu_s_an_episode": (cpu() - before) / episodes,
        "folders_left": len(list(containers_folder().glob(f"{os.getpid()}-*"))),
    }


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


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", help="image, or folder of an unpacked root (default: a small one made here)")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--kills", type=int, default=0)
    args = parser.parse_args()
    if args.image is None:
        from tests.container_support import root

        args.image = root()
    found: dict[str, Any] = {
        "bubblewrap": await bubblewrap(args.image, args.count),
        "bubblewrap, ready in a pool": await pooled(args.image, max(3, args.count // 2)),
        "podman": await podman(args.image, args.count),
        "podman-compose": "not measured: Harbor's own backend" if shutil.which("podman-compose") else "not installed",
    }
    if args.episodes:
        found["many"] = await many(args.image, args.episodes, args.at_once)
    if args.kills:
        found["kills"] = kills(args.image, args.kills)
    text = json.dumps(found, indent=1)
    RESULTS.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    asyncio.run(main())
