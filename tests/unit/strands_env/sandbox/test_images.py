"""Sandboxes on container images: the contract, what lives on and what does not, archives, the store."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from strands_env.commands.cli import main
from strands_env.core import TerminationReason
from strands_env.sandbox import (
    BubblewrapSandbox,
    ExecResult,
    Outcome,
    Sandbox,
    SandboxLimits,
    SandboxLostError,
    SandboxUnavailableError,
    disk,
)
from strands_env.sandbox.bubblewrap import cgroup
from strands_env.sandbox.bubblewrap.guest import disk as guest_disk
from strands_env.sandbox.bubblewrap.guest.system import remove_tree
from strands_env.sandbox.folders import make_owned_folder, remove_owned_folder
from strands_env.sandbox.images import (
    ImageSandbox,
    ImageSourceError,
    ImageStore,
    Snapshot,
    archive,
    import_image,
    layouts,
)
from strands_env.sandbox.images.layers import containers_folder, make_folder
from strands_env.sandbox.images.sources import built_name
from strands_env.testing import SandboxContract
from tests.container_support import require_images, root, root_with_python
from tests.unit.sandbox_support import assert_nothing_left, leftovers


class TestImageSandbox(SandboxContract):
    def make_sandbox(self) -> Sandbox:
        return ImageSandbox(require_images(), workdir="/app")


@pytest.fixture
async def sandbox() -> AsyncIterator[ImageSandbox]:
    made = ImageSandbox(require_images(), workdir="/app")
    before = leftovers()
    async with made:
        yield made
    await assert_nothing_left(before)
    assert not list(containers_folder().glob(f"{os.getpid()}-*"))


async def text_of(sandbox: ImageSandbox, command: str, **options: Any) -> str:
    return (await sandbox.exec(command, **options)).to_text()


async def test_background_processes_live_on_and_their_output_does_not_stop_them(sandbox: ImageSandbox) -> None:
    started = await sandbox.exec("(while true; do seq 1 2000; echo x >> /tmp/rounds; done) & echo started")
    assert "started" in started.stdout
    first = len(await text_of(sandbox, "sleep 0.3; cat /tmp/rounds"))
    assert len(await text_of(sandbox, "sleep 0.3; cat /tmp/rounds")) > first
    await sandbox.kill_all()
    assert "seq" not in await text_of(sandbox, "ps")


async def test_a_command_that_is_cancelled_or_slow_ends_alone(sandbox: ImageSandbox) -> None:
    await sandbox.exec("sleep 123 > /dev/null 2>&1 & echo x > kept")
    slow = await sandbox.exec("sleep 77 & sleep 66", timeout=0.3)
    assert slow.outcome is Outcome.TIMEOUT
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await sandbox.exec("setsid sleep 55; sleep 44")
    seen = await text_of(sandbox, "ps; cat kept")
    assert "sleep 123" in seen and seen.endswith("x")
    assert not any(f"sleep {seconds}" in seen for seconds in (77, 66, 55, 44))


async def test_root_inside_has_no_power_over_the_machine(sandbox: ImageSandbox) -> None:
    tries = {
        "echo x > /proc/sys/kernel/hostname": "Read-only",
        "mount -t tmpfs none /mnt": "permission denied",
        "umount /proc/sys": "not permitted",
        "mknod /tmp/disk b 254 0": "not permitted",
        "unshare -m true": "not permitted",
        "chroot / /bin/cat /proc/1/environ": "denied",
        "cat /proc/1/maps": "denied",
        "kill -9 1; sleep 0.1; echo alive": "alive",
        "ls /.sandbox": "No such file",
        "ls -A /work /root": "No such file",
        "head -c 1 /proc/kcore | wc -c": "0",
        "echo 900 > /proc/$$/oom_score_adj; cat /proc/$$/oom_score_adj": "900",
    }
    for command, said in tries.items():
        assert said.lower() in (await text_of(sandbox, command)).lower(), command
    kept = int((await text_of(sandbox, "grep CapBnd /proc/self/status")).split()[-1], 16)
    assert [number for number in range(64) if kept >> number & 1] == [0, 1, 3, 4, 5, 6, 7, 10, 13, 18]
    # Nobody can offer the supervisor to the kernel to kill.
    before = await text_of(sandbox, "cat /proc/1/oom_score_adj")
    for name in ("oom_score_adj", "task/1/oom_score_adj", "oom_adj"):
        assert (await sandbox.exec(f"echo {before} > /proc/1/{name}")).is_error, name
    assert (await sandbox.exec("echo 900 > /proc/1/oom_score_adj; cat /proc/1/oom_score_adj")).stdout.strip() == before


def identity_of_devices() -> dict[str, tuple[int, ...]]:
    found = {name: os.stat(f"/dev/{name}") for name in ("null", "zero", "full", "random", "urandom", "tty")}
    return {name: (one.st_mode, one.st_uid, one.st_gid, one.st_ctime_ns) for name, one in found.items()}


async def test_the_device_nodes_of_this_machine_cannot_be_changed(sandbox: ImageSandbox) -> None:
    before = identity_of_devices()
    for name, (mode, uid, gid, _) in before.items():  # only to what they are: a failing test breaks no machine
        change = f"chmod {mode & 0o7777:o} /dev/{name}; chown {uid}:{gid} /dev/{name}; rm /dev/{name}"
        assert (await sandbox.exec(change)).stderr.count("Read-only") == 2, name
    mode = before["null"][0] & 0o7777  # of the node that hides secrets
    hidden = f"for name in kcore keys timer_list kallsyms kmsg; do chmod {mode:o} /proc/$name && echo changed; done"
    assert (await sandbox.exec(hidden)).stdout == ""
    assert identity_of_devices() == before
    used = "echo x > /dev/null && head -c 2 /dev/zero | wc -c; head -c 2 /dev/urandom | wc -c; echo x > /dev/full"
    done = await sandbox.exec(used)
    assert done.stdout.split() == ["2", "2"] and "No space left" in done.stderr


async def test_users_are_those_of_the_image(sandbox: ImageSandbox) -> None:
    assert await text_of(sandbox, "id -un; id -Gn; echo $HOME", user="worker") == "worker\nworker helpers\n/home/worker"
    assert "Permission denied" in await text_of(sandbox, "touch /etc/x", user="worker")
    unknown = await sandbox.exec("true", user="nobody-here")
    assert (unknown.outcome, unknown.note) == (Outcome.REFUSED, "the image has no user 'nobody-here'")
    await sandbox.exec("echo a > /etc/mine; chmod 640 /etc/mine; chown worker /etc/mine")
    await sandbox.write_file("/etc/mine", "b")
    assert await text_of(sandbox, "stat -c '%U %a' /etc/mine; cat /etc/mine") == "worker 640\nb"


async def test_a_socket_inside_is_served_from_outside(sandbox: ImageSandbox) -> None:
    listener = await sandbox.listen(8080)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nhello")
        writer.close()

    async with await asyncio.start_server(answer, sock=listener):
        assert await text_of(sandbox, "wget -qO- http://localhost:8080/") == "hello"
        with pytest.raises(OSError, match="in use"):
            await sandbox.listen(8080)


async def test_folders_go_in_and_out(sandbox: ImageSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "in/deep/run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "in/deep/run.sh").chmod(0o755)
    await sandbox.write_folder(tmp_path / "in", "/tests")
    assert await text_of(sandbox, "/tests/deep/run.sh; stat -c %U /tests/deep/run.sh") == "ran\nroot"
    (tmp_path / "secret").write_text("mine")
    links = "ln -s /etc/passwd file; ln -s ../.. a/b/top; ln -s top/../secret a/b/out; ln -s ../../../secret a/b/far"
    await sandbox.exec(f"cd /tests; mkdir -p a/b; {links}; ln -s b a/in; mkfifo pipe; echo x > a/file")
    # A lookup of names would load the libraries that the image's settings name.
    await sandbox.exec("mkfifo /etc/nsswitch.conf; (echo > /etc/nsswitch.conf; touch /tmp/asked) &")
    await sandbox.read_folder("/tests", tmp_path / "out")
    assert not Path(f"{sandbox._upper}/tmp/asked").exists()  # a shell to look with would ask, too
    found = {str(place.relative_to(tmp_path / "out")) for place in (tmp_path / "out").rglob("*")}
    assert found == {"deep", "deep/run.sh", "a", "a/b", "a/b/top", "a/in", "a/file"}  # no link leaves the copy
    assert (tmp_path / "out/a/file").read_text() == "x\n" and (tmp_path / "out/a/in").is_symlink()
    monkeypatch.setattr("strands_env.sandbox.images.image_sandbox.MAX_FOLDER_BYTES", 50_000)
    with pytest.raises(OSError, match="large"):
        await sandbox.read_folder("/bin", tmp_path / "more")


async def test_folders_of_any_depth_are_copied_out_as_far_as_paths_lead(sandbox: ImageSandbox, tmp_path: Path) -> None:
    deep = "for i in 1 2; do mkdir -p $(printf 'd/%.0s' {1..1900}); cd $(printf 'd/%.0s' {1..1900}); done"
    assert not (await sandbox.exec(f"touch file; {deep}", timeout=120)).is_error
    await sandbox.read_folder("/app", tmp_path / "out")  # takes minutes where each file costs the square of its depth
    assert (tmp_path / "out/file").exists() and (tmp_path / "out" / "/".join("d" * 1700)).is_dir()
    remove_tree(str(tmp_path / "out"))  # pytest cannot


async def test_a_snapshot_is_as_deep_as_paths_lead(sandbox: ImageSandbox, tmp_path: Path) -> None:
    """Between two steps of a task its container is copied, and code must not hinder that."""
    path = "/".join(["d" * 200] * 15)
    assert not (await sandbox.exec(f"touch file; for i in 1 2; do mkdir -p {path}; cd {path}; done")).is_error
    place = Path((await sandbox.snapshot(tmp_path / "taken")).layers[-1], "app")
    assert (place / "file").exists() and (place / path).is_dir()
    remove_tree(str(place))  # pytest cannot


async def test_a_snapshot_is_a_start_for_others_and_changes_no_more(sandbox: ImageSandbox, tmp_path: Path) -> None:
    await sandbox.exec("echo one > file; rm /bin/vi; mkdir -p /etc/new; echo 1 > /etc/new/a")
    taken = await sandbox.snapshot(tmp_path / "first")
    await sandbox.exec("echo two > file; rm -r /etc/new; mkdir /etc/new")
    second = await sandbox.snapshot(tmp_path / "second")
    for number in range(2):  # each branch has its own files
        async with ImageSandbox(root(), workdir="/app", snapshot=Snapshot.load(taken.path)) as branch:
            assert await text_of(branch, "cat file; ls /etc/new; ls /bin/vi") == (
                "one\na\n[stderr]\nls: /bin/vi: No such file or directory"
            )
            await branch.exec(f"echo {number} > file; rm /etc/new/a")
            deeper = await branch.snapshot(tmp_path / f"deeper-{number}")
            async with ImageSandbox(root(), workdir="/app", snapshot=deeper) as leaf:
                assert await text_of(leaf, "cat file; ls /etc/new") == str(number)
    async with ImageSandbox(root(), workdir="/app", snapshot=second) as later:
        assert await text_of(later, "cat file; ls /etc/new") == "two"


def test_a_snapshot_that_is_not_there_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no snapshot of a sandbox"):
        Snapshot.load(tmp_path)


@pytest.mark.parametrize("name", ["passwd", "group"])
async def test_no_file_of_the_image_holds_up_the_supervisor(sandbox: ImageSandbox, name: str) -> None:
    """A sandbox that is lost in the middle of an episode leaves it unscored."""
    await sandbox.exec(f"rm -f /etc/{name}; mkfifo /etc/{name}")
    await sandbox.exec("true", timeout=0.5)  # a shell may wait for it
    await sandbox.write_file("/app/note", "x")
    assert await sandbox.read_file("/app/note") == b"x"


OBSTACLES = {
    "files": "touch /.sandbox; mv /sys /kernel; touch /sys; mv /opt/given /opt/taken; touch /opt/given",
    "links": "ln -s /tmp /.sandbox; mv /sys /kernel; ln -s /nowhere /sys; mv /opt/given /opt/taken; ln -s / /opt/given",
    "inside": "mkdir -p /.sandbox/$(printf 'd/%.0s' {1..1100}); ln -s /tmp /.sandbox/usr",
}
"""What a hostile agent may leave where the next sandbox over its files shows files of this machine."""


@pytest.mark.parametrize("obstacles", OBSTACLES.values(), ids=OBSTACLES)
async def test_a_lost_sandbox_starts_again_with_its_files_whatever_they_are(obstacles: str, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("given")
    binds = {"/opt/given/deep/tool": str(tmp_path / "tool")}
    async with ImageSandbox(require_images(), workdir="/app", binds=binds) as first:
        done = await first.exec(f"chmod 700 /opt; echo kept > kept; {obstacles}")
        assert not done.is_error, done
        folder = await first.release_layer()
        async with first.sibling(layers=[f"{folder}/upper"]) as again:
            assert await text_of(again, "cat kept /opt/given/deep/tool; stat -c %a /opt") == "kept\ngiven700"
            assert "No such file" in await text_of(again, "ls /.sandbox")
        remove_owned_folder(os.path.dirname(folder))


async def test_folders_deeper_than_calls_may_go_are_removed(sandbox: ImageSandbox) -> None:
    deep = "mkdir -p {0}; cd {0}; mkdir -p $(printf 'd/%.0s' {{1..1900}})"
    for place in ("/tests", "/left"):
        assert not (await sandbox.exec(deep.format(place))).is_error
    await sandbox.reset_folders(["/tests"])
    assert (await sandbox.exec("ls -a /tests")).stdout.split() == [".", ".."]
    await sandbox.close()
    assert list(containers_folder().glob(f"{os.getpid()}-*")) == []


@pytest.fixture(params=["own", "watched"])
async def small_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ImageSandbox]:
    """A sandbox that may write 64 MiB: in a file system of its own, and watched by its supervisor."""
    if request.param == "watched":
        monkeypatch.setattr(disk, "_mount_new", mock_refusal)
    limits = SandboxLimits(disk_bytes=64 << 20, file_bytes=32 << 20, wall_seconds=60)
    async with ImageSandbox(require_images(), limits=limits) as sandbox:
        if request.param == "own":
            if not os.path.ismount(os.path.dirname(sandbox.layer)):
                pytest.skip("needs root, mke2fs and loop devices")
            found = os.statvfs(sandbox.layer)
            assert 64 << 20 <= found.f_bavail * found.f_frsize < 66 << 20
        yield sandbox
    assert not [line for line in Path("/proc/mounts").read_text().splitlines() if f"/{os.getpid()}-" in line]


def mock_refusal(*_: object) -> None:
    raise OSError("not permitted")


def is_bounded(result: ExecResult) -> bool:
    """The kernel has refused to write, or the supervisor has ended what wrote."""
    return result.outcome is Outcome.TOO_MANY_FILES or "No space left" in result.stdout


WRITERS = {
    "named": "for n in $(seq 40); do dd if=/dev/zero of=/$n bs=1M count=8 || exit; sleep 0.05; done",
    "unlinked": "for n in $(seq 40); do exec {f}>/x; rm /x; dd if=/dev/zero bs=1M count=8 >&$f || exit; "
    "sleep 0.05; done",
    # Deeper than functions may call themselves, and than a path may be long.
    "deep": f"for at in $(printf 'd/%.0s' {{1..1100}}) {'/'.join(['d' * 200] * 15)}; do mkdir -p $at; cd $at; done; "
    "for n in $(seq 40); do dd if=/dev/zero of=$n bs=1M count=8 || exit; sleep 0.05; done",
}


@pytest.mark.parametrize("writer", WRITERS)
async def test_what_a_command_writes_is_limited_and_files_stay(small_disk: ImageSandbox, writer: str) -> None:
    assert not (await small_disk.exec("echo kept > /kept")).is_error
    alone = await small_disk.exec("dd if=/dev/zero of=/a bs=1M count=40")
    assert alone.is_error and (await small_disk.exec("stat -c %s /a; rm /a")).stdout == f"{32 << 20}\n"
    result = await small_disk.exec(f"{{ {WRITERS[writer]}; sleep 5; }} 2>&1")
    assert is_bounded(result), result
    assert "64 MiB" in result.note or "No space left" in result.stdout
    assert (await small_disk.exec("cat /kept; rm -rf /[0-9]* /d")).stdout == "kept\n"
    assert not (await small_disk.exec("dd if=/dev/zero of=/b bs=1M count=30; sleep 1.5")).is_error


@pytest.mark.parametrize("writer", ["named", "unlinked"])
async def test_what_runs_between_two_commands_is_limited_too(small_disk: ImageSandbox, writer: str) -> None:
    """Whatever room a neighbour gives back meanwhile."""
    with tempfile.NamedTemporaryFile(dir=containers_folder()) as neighbour:
        os.posix_fallocate(neighbour.fileno(), 0, 512 << 20)
        assert not (await small_disk.exec(f"{{ {WRITERS[writer]}; }} > /dev/shm/log 2>&1 & true")).is_error
        await asyncio.sleep(0.7)
    while not is_bounded(await small_disk.exec("cat /dev/shm/log")):
        await asyncio.sleep(0.5)
    assert not (await small_disk.exec("true")).is_error  # it is said once


def test_folders_that_are_moved_under_every_look_hide_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, moved = guest_disk.each_folder, [True] * 4 + [False] + [True] * 5

    def walk(root: int) -> Iterator[Any]:
        yield from real(root)
        if moved.pop(0):
            raise OSError("a folder was moved while it was walked")

    monkeypatch.setattr(guest_disk, "each_folder", walk)
    monkeypatch.setattr(guest_disk, "_SLICE_SECONDS", 60.0)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    watch, found = guest_disk.DiskWatch(descriptor, 1 << 30), []
    while moved:
        watch.next_look = 0.0
        found.append(watch.look())
    assert found == [False] * 9 + [True]
    os.close(descriptor)


def test_what_is_removed_while_it_is_measured_is_not_counted_beside_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, rounds = guest_disk.each_folder, []

    def walk(root: int) -> Iterator[Any]:
        if not rounds:
            (tmp_path / "old").write_bytes(bytes(3 << 20))
        rounds.append(list(real(root)))
        yield from real(root)
        if len(rounds) == 1:
            (tmp_path / "old").unlink()
            (tmp_path / "new").mkdir()
            (tmp_path / "new" / "file").write_bytes(bytes(3 << 20))
            yield from real(root)

    monkeypatch.setattr(guest_disk, "each_folder", walk)
    monkeypatch.setattr(guest_disk, "_SLICE_SECONDS", 60.0)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    watch = guest_disk.DiskWatch(descriptor, 4 << 20)
    for _ in range(3):
        watch.next_look = 0.0
        assert not watch.look()
    (tmp_path / "more").write_bytes(bytes(3 << 20))
    found = []
    for _ in range(2):
        watch.next_look = 0.0
        found.append(watch.look())
    assert found == [False, True]
    os.close(descriptor)


def test_a_file_of_several_names_is_measured_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(1 << 20))
    for number in range(5):
        os.link(tmp_path / "a", tmp_path / str(number))
    descriptor = os.open(tmp_path, os.O_RDONLY)
    watch = guest_disk.DiskWatch(descriptor, 2 << 20)
    watch.next_look = 0.0
    assert not watch.look()
    os.close(descriptor)


async def test_a_sandbox_that_ends_in_the_middle_is_never_replaced_by_an_empty_one() -> None:
    sandbox = ImageSandbox(require_images(), workdir="/app")
    await sandbox.exec("echo work > file")
    waiting = asyncio.create_task(sandbox.exec("sleep 50"))
    assert sandbox._process is not None
    first = next(iter(psutil.Process(sandbox._process._process.pid).children()))
    first.kill()  # as the kernel does where memory is short
    with pytest.raises(SandboxLostError, match="unexpectedly") as lost:
        await waiting
    # Whether the pipe closed or broke: never a lost connection to the model.
    assert TerminationReason.from_error(lost.value) is TerminationReason.TOOL_ERROR
    for call in (sandbox.exec("cat file"), sandbox.read_file("/app/file"), sandbox.reset_folders(["/logs"])):
        with pytest.raises(SandboxLostError, match="earlier"):
            await call
    await sandbox.close()
    assert (await sandbox.exec("ls")).stdout == ""  # closed and used again, it starts afresh
    await sandbox.close()


SYSTEM_V = """import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
for _ in range(20):
    ctypes.memset(libc.shmat(libc.shmget(0, ctypes.c_size_t(8 << 20), 0o1600), None, 0), 1, 8 << 20)"""
MESSAGES = """import ctypes
libc = ctypes.CDLL(None)
for _ in range(500):
    queue = libc.msgget(0, 0o1600)
    while libc.msgsnd(queue, b"12345678", 0, 0o4000) == 0: pass"""
SEMAPHORES = "import ctypes\nfor _ in range(500): ctypes.CDLL(None).semget(0, 32000, 0o1600)"
LASTING = {
    "shared": "dd if=/dev/zero of=/dev/shm/a bs=1M count=300",
    "devices": "dd if=/dev/zero of=/dev/a bs=1M count=300",
    "empty-files": ["python3", "-c", "import os\nfor n in range(300000): os.mknod(f'/dev/shm/{n}')"],
    "system-v": ["python3", "-c", SYSTEM_V],
    "messages": ["python3", "-c", MESSAGES],
    "semaphores": ["python3", "-c", SEMAPHORES],
}
"""Memory that no process holds."""


@pytest.mark.skipif(cgroup._parents() is None, reason="this process may make no control group")
@pytest.mark.parametrize("command", LASTING.values(), ids=LASTING)
async def test_memory_that_outlives_its_process_ends_no_sandbox(command: str | list[str]) -> None:
    """Code could take its episode out of training so."""
    image = root() if isinstance(command, str) else root_with_python()
    async with ImageSandbox(image, limits=SandboxLimits(memory_bytes=64 << 20, wall_seconds=30)) as sandbox:
        for _ in range(2):
            await sandbox.exec(command)
        await sandbox.write_file("/file", b"x" * 5_000_000)
        assert len(await sandbox.read_file("/file")) == 5_000_000
        assert (await text_of(sandbox, "for n in 1 2 3; do sleep 0.1 & done; wait; echo fine")) == "fine"


TAKES_ALL = """import ctypes, itertools, os, sys, time
libc = ctypes.CDLL(None)
def take(make): return len(list(itertools.takewhile(lambda result: result >= 0, map(make, range(999)))))
queues = take(lambda number: libc.mq_open(b"/%d" % number, 0o102, 0o600, None))
with open("/taken.part", "w") as file: print(queues, take(lambda _: libc.inotify_init()), file=file)
os.rename("/taken.part", "/taken")
time.sleep(600)"""
"""Every POSIX message queue and every inotify instance that a user may have."""


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's sandboxes share that user's limits")
@pytest.mark.parametrize("user", ["root", "worker"])
async def test_what_a_user_may_have_is_counted_for_each_sandbox(user: str) -> None:
    image = root_with_python()
    async with ImageSandbox(image) as hostile, ImageSandbox(image) as honest:
        taken = []
        for sandbox in (hostile, honest):
            await sandbox.exec("chmod 777 /")
            await sandbox.write_file("/take.py", TAKES_ALL)
            await sandbox.exec("python3 /take.py > /dev/null 2>&1 &", user=user)
            taken.append(await text_of(sandbox, "until [ -e /taken ]; do sleep 0.05; done; cat /taken", timeout=20))
            assert await text_of(sandbox, "echo yes | nc -l -p 80 & sleep 0.2; nc 127.0.0.1 80 < /dev/null") == "yes"
        assert taken[0] == taken[1] and "0" not in taken[0].split()


async def test_memory_and_processes_are_limited() -> None:
    require_images()
    limits = SandboxLimits(memory_bytes=64 << 20, processes=40, wall_seconds=20)
    async with ImageSandbox(root(), limits=limits) as sandbox:
        hungry: ExecResult = await sandbox.exec("printf -v x '%100000000s' y; echo ${#x}")
        assert hungry.is_error and "100000000" not in hungry.stdout
        bomb = await sandbox.exec("for i in $(seq 200); do sleep 5 & done; ps | grep -c 'sleep 5'")
        assert bomb.is_error or int(bomb.stdout.split()[-1]) < 60
        await sandbox.kill_all()
        assert not (await sandbox.exec("true")).is_error


KILLED = """
import asyncio, sys
from strands_env.sandbox import BubblewrapSandbox
from strands_env.sandbox.images import ImageSandbox
async def work():
    sandboxes = [eval(sys.argv[1]) for _ in range(3)]
    await asyncio.gather(*[one.start() for one in sandboxes])
    print("started", flush=True)
    await asyncio.gather(*[one.exec("sleep 1000") for one in sandboxes])
asyncio.run(work())
"""


@pytest.mark.parametrize("kind", [BubblewrapSandbox, ImageSandbox])
def test_sandboxes_die_with_their_process_and_what_they_leave_is_removed_at_once(kind: type[Sandbox]) -> None:
    image = repr(require_images()) if kind is ImageSandbox else ""
    command = [sys.executable, "-c", KILLED, f"{kind.__name__}({image})"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    while len(family := psutil.Process(process.pid).children(recursive=True)) < 9:  # bubblewrap, supervisor, command
        time.sleep(0.05)
    assert len(list(containers_folder().glob(f"{process.pid}-*"))) == (3 if image else 0)
    groups = list((cgroup._parents() or {"": Path("/nowhere")}).values())
    process.send_signal(signal.SIGKILL)  # and not waited for: a dead process that is still listed is dead all the same
    while (
        any(place for parent in groups for place in parent.glob(f"strands-env-{process.pid}-*"))
        or [*containers_folder().glob(f"{process.pid}-*")]
        or f"/{process.pid}-" in Path("/proc/self/mounts").read_text()
    ):
        time.sleep(0.05)
    process.wait()
    psutil.wait_procs(family)  # the kernel ends a sandbox with the process that started it


# ---- archives and the store ------------------------------------------------------------------------------------------


def layer(entries: Mapping[str, str | bytes | None], links: Mapping[str, str] | None = None) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
        for name, content in entries.items():
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(member)
            else:
                body = content.encode() if isinstance(content, str) else content
                member.size, member.mode = len(body), 0o644
                tar.addfile(member, io.BytesIO(body))
    return data.getvalue()


def write_archive(place: Path, content: bytes) -> Path:
    place.write_bytes(content)
    return place


def packed_root() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(require_images(), arcname=".")
    return packed.getvalue()


def saved_image(path: Path, layers: list[bytes], *digests: str) -> Path:
    """An archive as `docker save` writes it, which may name the digests of its layers unpacked."""
    settings = {"Env": ["A=1", "PATH=/bin"], "WorkingDir": "/srv", "User": "worker"}
    config = {"config": settings, "rootfs": {"diff_ids": [f"sha256:{digest}" for digest in digests]}}
    names = [f"{number}.tar" for number in range(len(layers))]
    manifest = [{"Config": "c.json", "RepoTags": ["x:1"], "Layers": names}]
    texts = {"manifest.json": json.dumps(manifest), "c.json": json.dumps(config)}
    return write_archive(path, layer({**texts, **dict(zip(names, layers, strict=True))}))


def test_layers_are_applied_with_their_deletions(tmp_path: Path) -> None:
    below = layer({"a/": None, "a/one": "1", "a/two": "2", "b/": None, "b/old": "x", "c": "c"}, {"link": "a"})
    above = layer({"a/.wh.one": "", "b/new": "y", "b/.wh..wh..opq": "", "link/three": "3", ".wh.c": ""})
    digests = [hashlib.sha256(one).hexdigest() for one in (below, above)]
    archive = saved_image(tmp_path / "image.tar", [gzip.compress(below), above], *digests)
    image = import_image(str(archive), ImageStore(tmp_path / "store"), name="team/app:1")
    assert sorted(str(p.relative_to(image.root)) for p in Path(image.root).rglob("*")) == [
        "a", "a/three", "a/two", "b", "b/new", "link",
    ]  # fmt: skip
    assert (image.name, image.workdir, image.user) == ("docker.io/team/app:1", "/srv", "worker")
    assert image.environment == {"A": "1", "PATH": "/bin"}
    assert ImageStore(tmp_path / "store").find("team/app:1") == image


@pytest.mark.parametrize("marks_first", [True, False])
@pytest.mark.parametrize("mark", ["a/.wh..wh..opq", ".wh.a"])
def test_marks_hide_lower_layers_alone_wherever_they_stand(tmp_path: Path, mark: str, marks_first: bool) -> None:
    below = layer({"a/": None, "a/in/": None, "a/in/old": "x", "a/old": "x"})
    made: dict[str, str | bytes | None] = {"a/": None, "a/in/": None, "a/in/new": "y", "a/new": "y"}
    above = layer({mark: "", **made} if marks_first else {**made, mark: ""})
    archive = saved_image(tmp_path / "image.tar", [below, above])
    image = import_image(str(archive), ImageStore(tmp_path / "store"), name="x")
    found = sorted(str(place.relative_to(image.root)) for place in Path(image.root).rglob("*"))
    assert found == ["a", "a/in", "a/in/new", "a/new"]


def saved_images(path: Path, names: list[list[str]]) -> Path:
    """An archive of `docker save` with an image for each list of names, whose only file is the first one's number."""
    files: dict[str, str | bytes | None] = {"c.json": "{}"}
    files |= {f"{number}.tar": layer({str(number): ""}) for number in range(len(names))}
    manifest = [{"Config": "c.json", "RepoTags": tags, "Layers": [f"{n}.tar"]} for n, tags in enumerate(names)]
    return write_archive(path, layer({**files, "manifest.json": json.dumps(manifest)}))


@pytest.mark.parametrize(
    ("names", "asked", "found"),
    [
        ([["repo/myapp:1"], ["app:1"]], "app:1", "1"),
        ([["app:1"], ["repo/myapp:1"]], "app:1", "0"),
        ([["repo/app:1"], ["docker.io/library/app:1"]], "app:1", "1"),
        ([["repo/app:1"], ["localhost/app:1"]], "app:1", "1"),
        ([["repo/app:1"], ["app:latest"]], "app", "1"),
        ([["team/base:10"], ["team/other:0"]], "0", "1"),
        ([["a/python:3.13-slim"], ["a/python:slim"]], "slim", "1"),
        ([["a:1", "b:2"]], None, "0"),
        ([["a:1", "b:2"]], "b:2", "0"),
        ([["app:1"], ["app:2"]], "3", "there is no image '3' in it, but ['app:1', 'app:2']"),
        ([["repo/app:1"]], "app:1", "there is no image 'app:1' in it, but ['repo/app:1']"),
        ([["app:1"], ["other:1"]], None, "several images, ['app:1', 'other:1']"),
        ([["app:1"], ["other:1"]], "1", "several images, ['app:1', 'other:1']"),
    ],
)
def test_an_image_of_several_is_taken_by_its_exact_name(
    tmp_path: Path, names: list[list[str]], asked: str | None, found: str
) -> None:
    file = saved_images(tmp_path / "images.tar", names)
    if not found.isdigit():
        assert found in refusal_of(file, tmp_path, asked)
        return
    source = f"docker-archive:{file}" + (f":{asked}" if asked else "")
    image = import_image(source, ImageStore(tmp_path / "store"), name="x")
    assert os.listdir(image.root) == [found]


def oci_index(place: Path, entries: list[dict[str, Any]]) -> Path:
    """A layout with a manifest for each entry; the only file of an image is the entry's number."""
    blobs = place / "blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(content: bytes) -> str:
        name = hashlib.sha256(content).hexdigest()
        (blobs / name).write_bytes(content)
        return f"sha256:{name}"

    listed = []
    for number, given in enumerate(entries):
        entry = dict(given)
        config = blob(json.dumps(entry.pop("in_config", {})).encode())
        kind, types = entry.pop("config", "application/vnd.oci.image.config.v1+json"), entry.pop("layer", "x.tar")
        layers = [{"digest": blob(layer({str(number): ""})), "mediaType": types}]
        manifest = {"config": {"mediaType": kind, "digest": config}, "layers": layers}
        listed.append({"digest": blob(json.dumps(manifest).encode()), **entry})
    (place / "index.json").write_text(json.dumps({"manifests": listed}))
    return place


HERE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


def on(architecture: str = HERE, variant: str = "", **more: Any) -> dict[str, Any]:
    platform = {"os": "linux", "architecture": architecture, **({"variant": variant} if variant else {})}
    return {"platform": platform, **more}


def called(name: str) -> dict[str, Any]:
    return {"annotations": {"org.opencontainers.image.ref.name": name}}


SBOM = {"config": "application/vnd.oci.empty.v1+json", "layer": "application/spdx+json"}
PROVENANCE = {"platform": {"os": "unknown", "architecture": "unknown"}, "layer": "application/vnd.in-toto+json"}
SIGNATURE = {"layer": "application/vnd.dev.cosign.simplesigning.v1+json"}


@pytest.mark.parametrize(
    ("entries", "asked", "found"),
    [
        ([on("s390x"), on()], None, "1"),
        (
            [on(variant="v4"), on(variant="v3"), on()] if HERE == "amd64" else [on()],
            None,
            "2" if HERE == "amd64" else "0",
        ),
        ([on(variant="v9"), on(variant="v8")] if HERE == "arm64" else [on("arm64", "v8"), on()], None, "1"),
        ([SBOM, on()], None, "1"),
        ([SBOM, {}], None, "1"),
        ([PROVENANCE, on()], None, "1"),
        ([SIGNATURE, {}], None, "1"),
        ([{"in_config": {"architecture": "s390x", "os": "linux"}}, {}], None, "1"),
        ([on("s390x", **called("app:1")), on(**called("app:1"))], "app:1", "1"),
        ([called("myapp:1"), called("app:1")], "app:1", "1"),
        ([called("app:1"), called("other:1")], None, "several images, ['app:1', 'other:1']"),
        ([called("app:1")], "2", "there is no image '2' in it, but ['app:1']"),
        ([{}, {}], None, "not clear which of its images"),
        ([on("s390x"), on("ppc64le")], None, f"no version for linux/{HERE}, but ['linux/ppc64le', 'linux/s390x']"),
        ([SBOM], None, f"no version for linux/{HERE}"),
    ],
)
def test_the_image_for_this_machine_is_taken(
    tmp_path: Path, entries: list[dict[str, Any]], asked: str | None, found: str
) -> None:
    layout = oci_index(tmp_path / "layout", entries)
    if not found.isdigit():
        assert found in refusal_of(layout, tmp_path, asked)
        return
    image = import_image(f"oci:{layout}" + (f":{asked}" if asked else ""), ImageStore(tmp_path / "store"), name="x")
    assert os.listdir(image.root) == [found]


@pytest.mark.parametrize(
    ("entries", "links"),
    [
        ({"../escaped": "x"}, {}),
        ({"out/escaped": "x"}, {"out": "/{outside}"}),
        ({"out/escaped": "x"}, {"out": "../../../../../../../../../../{outside}"}),
        ({"a/b/escaped": "x"}, {"a": "/", "b": "/{outside}"}),
    ],
)
def test_no_layer_writes_outside_its_root(tmp_path: Path, entries: dict[str, str], links: dict[str, str]) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    given = {name: target.replace("{outside}", str(outside).lstrip("/")) for name, target in links.items()}
    archive = saved_image(tmp_path / "image.tar", [layer({}, given), layer(entries)])
    import_image(str(archive), ImageStore(tmp_path / "store"), name="hostile")
    assert list(outside.iterdir()) == [] and not (tmp_path / "escaped").exists()
    assert list((tmp_path / "store").glob("escaped")) == []


async def test_an_image_in_use_is_removed_when_its_last_sandbox_ends(tmp_path: Path) -> None:
    (tmp_path / "root.tar").write_bytes(packed_root())
    store, first = ImageStore(tmp_path / "store"), tmp_path / "root.tar"
    image = import_image(str(first), store, name="app")
    old, removed = ImageSandbox(image), ImageSandbox(image)
    async with old, removed:
        newer = import_image(str(first), store, name="app")
        async with ImageSandbox(newer) as new:
            store.remove("app")
            for sandbox in (old, removed, new):
                assert await text_of(sandbox, "cat /etc/os-release") == "ID=fixture"
        assert not Path(newer.root).exists() and Path(image.root).is_dir()
        await old.close()
        assert Path(image.root).is_dir()
    assert list((tmp_path / "store").iterdir()) == []
    with pytest.raises(SandboxUnavailableError, match="has been removed"):
        await ImageSandbox(image).start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's program")
def test_a_set_uid_program_of_an_image_is_out_of_reach_for_other_users(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "root.tar", "w") as tar:
        member = tarfile.TarInfo("bin/su")
        member.mode = 0o4755
        tar.addfile(member)
    with tempfile.TemporaryDirectory() as store:  # pytest's own folder is closed
        os.chmod(store, 0o755)
        image = import_image(str(tmp_path / "root.tar"), ImageStore(store), name="app")
        assert Path(image.root, "bin/su").stat().st_mode & 0o7777 == 0o4755
        other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "test", "-x"]
        assert subprocess.run([*other, store]).returncode == 0
        assert subprocess.run([*other, f"{image.root}/bin/su"]).returncode != 0
        container = make_folder()
        disk.make_disk(container, 1 << 20)
        assert subprocess.run([*other, f"{container}/files"]).returncode != 0
        remove_owned_folder(container)


def test_folders_that_are_being_removed_are_not_taken_for_orphans(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sandboxes end while others start, and look for orphans in the same folder."""

    def use(_: int) -> None:
        folder = Path(make_owned_folder(tmp_path, ""))
        for number in range(30):
            (folder / f"{number}/inner").mkdir(parents=True)
        remove_owned_folder(str(folder))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, range(200)))
    assert list(tmp_path.iterdir()) == [] and caplog.text == ""


def oci_layout(folder: Path, layers: list[bytes], **config: Any) -> Path:
    """A layout as skopeo writes it."""
    (folder / "blobs/sha256").mkdir(parents=True)

    def blob(data: bytes | dict[str, Any]) -> dict[str, Any]:
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        digest = hashlib.sha256(body).hexdigest()
        (folder / "blobs/sha256" / digest).write_bytes(body)
        return {"digest": f"sha256:{digest}", "size": len(body)}

    manifest = {"config": blob({"config": config}), "layers": [blob(one) for one in layers]}
    (folder / "index.json").write_text(json.dumps({"manifests": [blob(manifest)]}))
    return folder


def refusal_of(source: Path, tmp_path: Path, asked: str | None = None) -> str:
    """The one sentence about an image that is refused, and the proof that nothing of it stays."""
    with pytest.raises(ImageSourceError) as refused:
        given = str(source) if asked is None else f"oci:{source}:{asked}"
        import_image(given, ImageStore(tmp_path / "store"), name="x")
    assert list((tmp_path / "store").iterdir()) == []
    assert len(str(refused.value).splitlines()) == 1
    return str(refused.value)


def sparse_layer(size: int) -> bytes:
    """An archive of a few bytes with a file of holes, as GNU tar writes it."""
    member = tarfile.TarInfo("holes")
    sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(size)}
    member.pax_headers = {**sparse, "GNU.sparse.name": "holes"}
    body = f"1\n{size}\n0\n".encode().ljust(512, b"\0")
    member.size = len(body)
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member, io.BytesIO(body))
    return data.getvalue()


def test_an_image_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_SMALL_BYTES", 1 << 20)
    bomb = gzip.compress(layer({"zeros": bytes(64 << 20)}), 9)
    assert "the unpacked layer has" in refusal_of(oci_layout(tmp_path / "bomb", [bomb]), tmp_path)
    monkeypatch.setattr(archive, "MAX_IMAGE_BYTES", 1000)
    two = [layer({"a": "1" * 600}), layer({"b": "2" * 600})]
    assert "bytes, at most 1000 are read" in refusal_of(oci_layout(tmp_path / "two", two), tmp_path)


def with_headers(*headers: tuple[bytes, bytes]) -> bytes:
    """An archive of one file whose headers are these: a type, and its content."""
    data = b""
    for kind, body in headers:
        member = tarfile.TarInfo("header")
        member.type, member.size = kind, len(body)
        data += member.tobuf(tarfile.USTAR_FORMAT) + body + bytes(-len(body) % 512)
    return data + layer({"a": "1"})


def record(name: str, size: int) -> bytes:
    text = f" {name}={'x' * size}\n"
    length = len(text) + next(n for n in range(1, 20) if len(str(len(text) + n)) == n)
    return f"{length}{text}".encode()


LONG_HEADERS = {
    "attributes": with_headers((tarfile.XHDTYPE, record("comment", 100 << 20))),
    "a name": with_headers((tarfile.GNUTYPE_LONGNAME, b"n" * (100 << 20))),
    "many headers": with_headers(*[(tarfile.XHDTYPE, record("comment", 10))] * 2000),
    "shared headers": with_headers(*[(tarfile.XGLTYPE, record(f"k{n}", 5000)) for n in range(100)]),
}


@pytest.mark.parametrize("name", LONG_HEADERS)
@pytest.mark.parametrize("make", [write_archive, lambda place, data: oci_layout(place, [data])], ids=["root", "layer"])
def test_headers_of_an_archive_are_bounded(name: str, make: Callable[[Path, bytes], Path], tmp_path: Path) -> None:
    assert "header" in refusal_of(make(tmp_path / "source", LONG_HEADERS[name]), tmp_path)


def test_the_number_of_entries_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_ENTRIES", 4)
    two = [layer({"a": "", "b": "", "c": ""}), layer({"d": "", "e": ""})]
    assert "5 entries, at most 4 are read" in refusal_of(oci_layout(tmp_path / "two", two), tmp_path)


def test_folders_of_any_depth_are_unpacked(tmp_path: Path) -> None:
    deep = "/".join(["d"] * 1500)
    archive = write_archive(tmp_path / "root.tar", layer({f"{deep}/file": "x"}))
    image = import_image(str(archive), ImageStore(tmp_path / "store"), name="x")
    assert Path(image.root, deep, "file").read_text() == "x"
    remove_tree(image.root)


def test_names_that_are_spelt_alike_on_disk_are_two_images(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "store")
    for name in ("a/b_c:1", "a_b/c:1"):
        import_image(str(write_archive(tmp_path / "root.tar", layer({name.replace("/", "-"): ""}))), store, name=name)
    assert [os.listdir(store.find(name).root) for name in ("a_b/c:1", "a/b_c:1")] == [["a_b-c:1"], ["a-b_c:1"]]
    store.remove("a/b_c:1")
    assert [image.name for image in store.list()] == ["docker.io/a_b/c:1"] and store.find("a_b/c:1").name


def test_a_damaged_blob_is_refused(tmp_path: Path) -> None:
    layout = oci_layout(tmp_path / "image", [layer({"a": "1"})])
    for blob in list((layout / "blobs/sha256").iterdir()):
        body = blob.read_bytes()
        blob.write_bytes(body + b" ")
        assert "is damaged: its content has the digest sha256:" in refusal_of(layout, tmp_path)
        blob.write_bytes(body)
    import_image(str(layout), ImageStore(tmp_path / "store"), name="x")


def test_an_index_inside_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "_check_digest", lambda *_: None)  # no file can name its own digest, yet a link can
    layout = tmp_path / "image"
    (layout / "blobs/sha256").mkdir(parents=True)
    (layout / "index.json").write_text(json.dumps({"manifests": [{"digest": "sha256:aa"}]}))
    (layout / "blobs/sha256/aa").symlink_to("../../index.json")
    assert "4 indexes inside each other" in refusal_of(layout, tmp_path)


def write_files(place: Path, files: Mapping[str, str]) -> Path:
    place.mkdir()
    for name, text in files.items():
        (place / name).write_text(text)
    return place


def naming_a_layer(place: Path, name: str) -> Path:
    """A folder as of `docker save` unpacked, whose layer has this name; what is not its own lies beside it."""
    (place.parent / "secret").write_bytes(layer({"a": "mine"}))
    manifest = [{"Config": "c.json", "Layers": [name.replace("{here}", str(place.parent))]}]
    made = write_files(place, {"c.json": "{}", "manifest.json": json.dumps(manifest)})
    (made / "link").symlink_to("../secret")
    return made


OWN_FILE = "must be a file inside its own folder"
REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "holes": (lambda place: oci_layout(place, [sparse_layer(1 << 50)]), f"{1 << 50} bytes"),
    "a negative size": (lambda place: oci_layout(place, [sparse_layer(-(1 << 50))]), f"{-(1 << 50)} bytes"),
    "holes in a plain archive": (lambda place: write_archive(place, sparse_layer(1 << 50)), f"{1 << 50} bytes"),
    "another digest": (lambda place: saved_image(place, [layer({"a": "1"})], "0" * 64), "is damaged"),
    "deep JSON": (lambda place: write_files(place, {"index.json": "[" * 100_000}), "too deeply"),
    "an index that is a list": (lambda place: write_files(place, {"index.json": "[]"}), "cannot be unpacked"),
    "no index": (lambda place: write_files(place, {"file": ""}), "not an OCI layout"),
    "no bytes": (lambda place: write_archive(place, b""), "no tar archive"),
    "text": (lambda place: write_archive(place, b"junk" * 300), "no tar archive"),
    "no files": (lambda place: write_archive(place, bytes(2048)), "no files"),
    "a cut archive": (
        lambda place: write_archive(place, saved_image(place, [layer({"a": "1" * 100_000})]).read_bytes()[:50_000]),
        "unexpected end of data",
    ),
    "a cut layer": (
        lambda place: oci_layout(place, [gzip.compress(layer({"a": os.urandom(100_000)}))[:50_000]]),
        "cannot be unpacked",
    ),
    "a file above": (lambda place: naming_a_layer(place, "../secret"), OWN_FILE),
    "a file anywhere": (lambda place: naming_a_layer(place, "{here}/secret"), OWN_FILE),
    "a file behind a link": (lambda place: naming_a_layer(place, "link"), OWN_FILE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_image_or_a_damaged_one_is_refused(name: str, tmp_path: Path) -> None:
    make, said = REFUSED[name]
    assert said in refusal_of(make(tmp_path / "source"), tmp_path)


async def test_settings_of_an_image_are_read_as_docker_reads_them(tmp_path: Path) -> None:
    settings = {"Env": ["=x", "A=1", "B", "C=", "D=="], "WorkingDir": "app"}
    layout = oci_layout(tmp_path / "image", [packed_root()], **settings)
    image = import_image(str(layout), ImageStore(tmp_path / "store"), name="x")
    assert image.environment == {"A": "1", "C": "", "D": "="}
    async with ImageSandbox(image) as sandbox:
        assert (await sandbox.exec("pwd; echo $A$D")).stdout == "/app\n1=\n"
        for user in ("4294967295", "0:4294967295", "99999999999", "\u0661"):
            refused = await sandbox.exec("id -u", user=user)
            assert refused.outcome is Outcome.REFUSED, refused


def test_the_command_takes_in_lists_and_removes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("STRANDS_ROLLOUT_CACHE", str(tmp_path / "cache"))
    archive = saved_image(tmp_path / "image.tar", [layer({"a": "1"})])
    assert main(["images", "import", str(archive), "--name", "app"]) == 0
    assert main(["images", "list"]) == 0
    assert "docker.io/library/app:latest" in capsys.readouterr().out
    assert main(["images", "remove", "app"]) == 0
    assert main(["images", "remove", "app"]) == 1
    assert "strands-env images pull app" in capsys.readouterr().err
    with pytest.raises(SandboxUnavailableError, match="images import"):
        ImageSandbox("app")


def test_a_folder_without_a_dockerfile_is_named_with_what_to_give(tmp_path, capsys):
    for folder in (tmp_path, tmp_path / "missing"):
        assert main(["images", "build", str(folder)]) == 1
        assert f"found no Dockerfile in {str(folder)!r}: give the folder of a task" in capsys.readouterr().err


def test_every_dockerfile_of_a_task_is_built_under_a_name_by_its_content(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("STRANDS_ROLLOUT_CACHE", str(tmp_path / "cache"))
    archive = saved_image(tmp_path / "image.tar", [layer({"a": "1"})])
    podman = tmp_path / "bin/podman"
    podman.parent.mkdir()
    podman.write_text(f'#!/bin/sh\n[ "$1" != save ] || cp {archive} "$3"\n')
    podman.chmod(0o755)
    monkeypatch.setenv("PATH", str(podman.parent), prepend=os.pathsep)
    parts = [tmp_path / task / part for task in ("one/Dup", "two/dup") for part in ("environment", "tests")]
    for number, part in enumerate(parts):
        part.mkdir(parents=True)
        (part / "Dockerfile").write_text(f"FROM scratch\n# {number}\n")
    for task in ("one/Dup", "two/dup"):
        assert main(["images", "build", str(tmp_path / task)]) == 0
    names = [built_name(part) for part in parts]
    assert {image.name for image in ImageStore().list()} == set(names) and len(set(names)) == 4
    assert all(name.startswith("harbor.local/dup:") for name in names)
    (parts[0] / "Dockerfile").write_text("FROM scratch\n")
    assert built_name(parts[0]) not in names
