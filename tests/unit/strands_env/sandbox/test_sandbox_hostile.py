"""Code that wants out, or everything: each attempt ends as a result within its limits, with nothing left behind.

Every test runs against this machine's own way of isolation; those of the last part against every way root can force.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import strands

from strands_env.sandbox import BubblewrapSandbox, Outcome
from strands_env.sandbox.bubblewrap import cgroup
from strands_env.sandbox.bubblewrap.command import Mode
from strands_env.sandbox.bubblewrap.seccomp import seccomp_program
from tests.unit.sandbox_support import LIMITS, MIB, assert_nothing_left, leftovers, requires_isolation, system_python

pytestmark = requires_isolation


@pytest.fixture
async def sandbox() -> AsyncIterator[BubblewrapSandbox]:
    before = leftovers()
    sandbox = BubblewrapSandbox(limits=LIMITS)
    yield sandbox
    assert (await sandbox.run_python("40 + 2")).stdout == "42\n"  # whatever happened, the next call works
    await sandbox.close()
    await assert_nothing_left(before)


# ---- too much of everything ----------------------------------------------------------------------------------------


async def test_fork_bomb_of_the_shell(sandbox: BubblewrapSandbox) -> None:
    await sandbox.run_python("x = 1")
    await sandbox.exec(":(){ :|:& };:", timeout=1)
    result = await sandbox.exec("bomb() { bomb | bomb & wait; }; bomb", timeout=3)
    assert "Resource temporarily unavailable" in result.stderr
    assert (await sandbox.run_python("x")).stdout == "1\n"


async def test_fork_bomb_of_python(sandbox: BubblewrapSandbox) -> None:
    code = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError: pass"
    others = set(psutil.Process().children(recursive=True))  # what an earlier test of this process left running
    task = asyncio.create_task(sandbox.run_python(code, timeout=3))
    most = 0
    while not task.done():
        most = max(most, len(set(psutil.Process().children(recursive=True)) - others))
        await asyncio.sleep(0.02)
    assert (await task).outcome in (Outcome.TIMEOUT, Outcome.OUT_OF_MEMORY)
    assert 10 < most <= LIMITS.processes + 4


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import threading\nfor _ in range(1000): threading.Thread(target=time.sleep, args=(60,)).start()",
         "can't start new thread"),
        ("data = bytearray(1 << 30)", "MemoryError"),
        ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f() + len(repr([f]))\nf()", ""),
        ("import os; os.kill(os.getpid(), 19)", ""),
    ],
    ids=["threads", "memory", "recursion", "stop"],
)  # fmt: skip
async def test_code_that_meets_a_limit_of_its_process(sandbox: BubblewrapSandbox, code: str, said: str) -> None:
    await sandbox.run_python("import time; x = 1")
    result = await sandbox.run_python(code, timeout=2)
    assert result.is_error and said in result.stderr
    if said == "MemoryError":
        assert (await sandbox.run_python("x")).stdout == "1\n"


BOMBS = {
    "shared": (
        "import mmap\n"
        "maps = [mmap.mmap(-1, 1 << 28) for _ in range(3)]\n"
        "for m in maps:\n"
        "    for i in range(0, 1 << 28, 4096): m[i] = 1"
    ),
    "many": (
        "import subprocess, sys, time\n"
        "held = 'import time; a = bytearray(100 << 20); time.sleep(60)'\n"
        "for _ in range(20): subprocess.Popen([sys.executable, '-c', held])\n"
        "time.sleep(60)"
    ),
}
"""Memory that no limit of a single process sees."""
no_group = pytest.mark.skipif(cgroup._parents() is None, reason="this process may make no control group")


@pytest.mark.parametrize("code", BOMBS.values(), ids=BOMBS)
@pytest.mark.parametrize("grouped", [False, pytest.param(True, marks=no_group)], ids=["watched", "grouped"])
async def test_memory_bomb(code: str, grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's control group bounds it, and the supervisor's own watch where there is none."""
    if not grouped:
        monkeypatch.setattr("strands_env.sandbox.bubblewrap.process.make_control_group", lambda *_: None)
    async with BubblewrapSandbox(limits=LIMITS) as sandbox:
        task, peak = asyncio.create_task(sandbox.run_python(code)), 0
        while not task.done():
            children = psutil.Process().children(recursive=True)
            with contextlib.suppress(psutil.Error):  # one has just ended
                peak = max(peak, sum(child.memory_info().rss for child in children))
            await asyncio.sleep(0.02)
        result = await task
        assert result.outcome is Outcome.OUT_OF_MEMORY and "more than 192 MiB of memory" in result.note
        assert peak < (600 if grouped else 1500) * MIB
        assert (await sandbox.run_python("1")).stdout == "1\n"


@pytest.mark.skipif(seccomp_program() is None, reason="no filter of system calls for this machine type")
async def test_memory_of_no_process_is_unavailable(sandbox: BubblewrapSandbox) -> None:
    """Its calls are absent: files without a name, and all that System V keeps."""
    code = (
        "import ctypes\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "for name, args in [('memfd_create', (b'x', 0)), ('shmget', (0, ctypes.c_size_t(1 << 20), 0o1600)),\n"
        "                   ('semget', (0, 100, 0o1600)), ('msgget', (0, 0o1600))]:\n"
        "    print(getattr(libc, name)(*args), ctypes.get_errno())"
    )
    assert (await sandbox.run_python(code)).stdout == "-1 38\n" * 4


async def test_shared_memory_of_python_is_counted(sandbox: BubblewrapSandbox) -> None:
    """It lies in `/dev/shm`, a file system of bounded size."""
    code = (
        "import os\n"
        "from multiprocessing.shared_memory import SharedMemory\n"
        "blocks = []\n"
        "def take(size):\n"
        "    blocks.append(SharedMemory(create=True, size=size))\n"
        "    os.posix_fallocate(blocks[-1]._fd, 0, size)\n"
        "    blocks[-1].buf[size - 1] = 7\n"
        "take(4 << 20)\n"
        "print(blocks[0].buf[(4 << 20) - 1])\n"
        "try: take(14 << 20)\n"
        "except OSError as error: print(error.strerror)\n"
        "for block in blocks: block.close(); block.unlink()"
    )
    assert (await sandbox.run_python(code)).stdout == "7\nNo space left on device\n"


async def test_endless_output(sandbox: BubblewrapSandbox) -> None:
    before = psutil.Process().memory_info().rss
    result = await sandbox.exec("yes")
    assert result.outcome is Outcome.OUTPUT_FLOOD
    assert len(result.stdout) < 2 * LIMITS.output_bytes
    assert result.dropped_bytes > LIMITS.flood_bytes - 2 * LIMITS.output_bytes
    both = await sandbox.run_python("import sys\nwhile True: print('o' * 1000), print('e' * 1000, file=sys.stderr)")
    assert (both.outcome, "o" in both.stdout, "e" in both.stderr) == (Outcome.OUTPUT_FLOOD, True, True)
    assert psutil.Process().memory_info().rss - before < 50 * MIB


async def test_cpu_time_of_all_processes() -> None:
    small = BubblewrapSandbox(limits=replace(LIMITS, cpu_seconds=0.5))
    result = await small.exec("for i in 1 2 3; do (while :; do :; done) & done; wait")
    assert result.outcome is Outcome.CPU_LIMIT
    await small.close()


async def test_disk_is_bounded(sandbox: BubblewrapSandbox) -> None:
    result = await sandbox.exec(
        "for i in $(seq 9); do head -c 9M /dev/zero > f$i || true; done; du -sm . | cut -f1; rm f*"
    )
    assert "No space left on device" in result.stderr
    assert int(result.stdout) <= 32
    large = await sandbox.exec("head -c 1G /dev/zero > large; rm -f large")
    assert "File too large" in large.stderr


async def test_many_files(sandbox: BubblewrapSandbox) -> None:
    result = await sandbox.run_python("for i in range(10**6): open(f'f{i}', 'w').close()")
    assert result.outcome is Outcome.TOO_MANY_FILES
    assert (await sandbox.exec("ls | wc -l")).stdout == "0\n"


async def test_code_that_never_returns(sandbox: BubblewrapSandbox) -> None:
    code = (
        "import signal, time\n"
        "x = 5\n"
        "for s in range(1, 32):\n"
        "    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except OSError: pass\n"
        "while True: time.sleep(1)"
    )
    result = await sandbox.run_python(code, timeout=0.5)
    assert result.outcome is Outcome.TIMEOUT and "variables are lost" in result.note
    assert "NameError" in (await sandbox.run_python("x")).stderr
    assert (await sandbox.exec("trap '' TERM INT HUP; while :; do sleep 1; done", timeout=0.5)).is_error


# ---- the way out ---------------------------------------------------------------------------------------------------


async def test_sockets_of_this_machine_are_out_of_reach(sandbox: BubblewrapSandbox) -> None:
    name = f"\0strands-env-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(name)
        abstract.listen()
        addresses = [server.getsockname(), name, ("1.1.1.1", 53)]
        code = (
            "import socket\n"
            f"for address in {addresses!r}:\n"
            "    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET\n"
            "    try: socket.socket(family).connect(address); print('connected')\n"
            "    except OSError as error: print(error.errno)"
        )
        refused, unreachable = f"{errno.ECONNREFUSED}\n", f"{errno.ENETUNREACH}\n"
        assert (await sandbox.run_python(code)).stdout == refused + refused + unreachable


async def test_private_files_of_this_machine_are_not_there(sandbox: BubblewrapSandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    for path in (secret, __file__, "/etc/shadow", "/etc/passwd", "/var", "/home", "/sys"):
        assert (await sandbox.exec(f"cat {path} || ls {path}")).outcome is Outcome.ERROR
    commands = [
        f"ln -s {secret} link && cat link",
        f"ln -s / root && cat root{secret}",
        f"cat /proc/1/root{secret}; cat /proc/self/root{secret}; cat /proc/1/cwd{secret}",
        f"cd /proc/self/fd && for f in *; do cat $f{secret} $f/../..{secret}; done",
    ]
    for command in commands:
        assert "s3cret" not in (await sandbox.exec(command, timeout=3)).stdout


ATTEMPTS = {
    "sockets of vsock, kernel crypto, packets and netlink": (
        "import socket\n"
        "for family in (40, 38, 17, 16):\n"
        "    kind = socket.SOCK_STREAM if family == 40 else socket.SOCK_RAW\n"
        "    try: socket.socket(family, kind); print(family)\n"
        "    except OSError: pass"
    ),
    "writing outside": (
        f"for path in ({__file__!r}, '/usr/x', '/etc/x', '/x', '/dev/x', '/.sandbox/guest/worker.py',\n"
        "             '/proc/sys/kernel/hostname'):\n"
        "    try: open(path, 'a').write('x'); print(path)\n"
        "    except OSError: pass"
    ),
    "processes of this machine": "import os\nif len(list(filter(str.isdigit, os.listdir('/proc')))) > 9: print('many')",
    "signals to the supervisor": (
        "import os\nfor s in range(1, 65):\n    try: os.kill(1, s)\n    except (OSError, ValueError): pass"
    ),
    "opening the supervisor": (
        "import os\n"
        "for name in ('fd', 'mem', 'environ', 'root', 'cwd', 'maps'):\n"
        "    try:\n"
        "        path = f'/proc/1/{name}'\n"
        "        print(os.listdir(path) if name in ('fd', 'root', 'cwd') else open(path, 'rb').read(10))\n"
        "    except OSError as error: pass"
    ),
}
"""Python that prints what it has got hold of."""


@pytest.mark.parametrize("code", ATTEMPTS.values(), ids=ATTEMPTS)
async def test_attempts_to_get_out_get_nothing(sandbox: BubblewrapSandbox, code: str) -> None:
    result = await sandbox.run_python(f"{code}\nprint('tried')")
    assert (result.outcome, result.stdout) == (Outcome.OK, "tried\n")


async def test_no_privileges(sandbox: BubblewrapSandbox) -> None:
    status = (await sandbox.exec("grep -E '^(Cap|NoNewPrivs|Uid)' /proc/self/status")).stdout
    values = dict(line.split(":\t") for line in status.splitlines())
    sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    assert {name: values[name].strip("0") for name in sets} == dict.fromkeys(sets, "")
    assert values["NoNewPrivs"] == "1"
    assert "0" not in values["Uid"].split("\t")


@pytest.mark.parametrize(
    "command",
    [
        "unshare --user --map-root-user id",
        "unshare --mount true",
        "mount -t tmpfs none /tmp",
        "chroot / true",
        "mknod device c 1 1",
        "chown 0 .",
        "python3 -c 'import os; os.setuid(0)'",
        "nice -n -20 true",
    ],
)
async def test_privileged_calls_are_denied(sandbox: BubblewrapSandbox, command: str) -> None:
    result = await sandbox.exec(
        f"({command}) 2>&1 | grep -iE 'not permitted|denied|cannot|invalid|PermissionError|only root|must be super'"
    )
    assert result.outcome is Outcome.OK, result


# ---- the machinery -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(seccomp_program() is None, reason="no filter of system calls for this machine type")
async def test_supervisor_cannot_be_limited_or_slowed(sandbox: BubblewrapSandbox) -> None:
    names = ("NPROC", "NOFILE", "FSIZE", "AS", "DATA", "CPU", "STACK")
    code = (
        "import os, resource\n"
        f"for name in {names!r}:\n"
        "    try: resource.prlimit(1, getattr(resource, 'RLIMIT_' + name), (0, 0)); print('set', name)\n"
        "    except OSError: pass\n"
        "tunings = [\n"
        "    lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)),\n"
        "    lambda: os.sched_setaffinity(1, {0}),\n"
        "    lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),\n"
        "    lambda: os.setpriority(os.PRIO_USER, 0, 19),\n"
        "]\n"
        "for number, tune in enumerate(tunings):\n"
        "    try: tune(); print('tuned', number)\n"
        "    except OSError: pass\n"
        "resource.prlimit(os.getpid(), resource.RLIMIT_CORE, (0, 0)); os.nice(1)"
    )
    result = await sandbox.run_python(code)
    assert (result.outcome, result.stdout.split()) == (Outcome.OK, [str(os.nice(0) + 6)]), result
    assert (await sandbox.exec("echo on")).stdout == "on\n"


@pytest.mark.parametrize("waits", [True, False])
async def test_children_nobody_waits_for_do_not_use_up_the_processes(sandbox: BubblewrapSandbox, waits: bool) -> None:
    child = "time.sleep(60)" if waits else "os._exit(0)"
    code = f"import os, time\nfor _ in range(10):\n    if os.fork() == 0:\n        {child}\nx = 'kept'"
    for _ in range(8):
        assert (await sandbox.run_python(code)).outcome is Outcome.OK
        assert (await sandbox.exec("true | true | true; echo on")).stdout == "on\n"
    assert (await sandbox.run_python("x")).stdout == "'kept'\n"


async def test_exit_codes_of_few_children_are_kept(sandbox: BubblewrapSandbox) -> None:
    await sandbox.run_python(
        "import subprocess\np = subprocess.Popen(['sh', '-c', 'exit 3'])\nimport time; time.sleep(0.3)"
    )
    assert (await sandbox.run_python("p.wait()")).stdout == "3\n"


async def test_killing_everything(sandbox: BubblewrapSandbox) -> None:
    await sandbox.run_python("open('file', 'w').write('kept'); x = 1")
    result = await sandbox.exec("kill -9 -1")
    assert result.is_error or result.outcome is Outcome.OK
    assert "variables are lost" in result.note
    assert (await sandbox.exec("cat file")).stdout == "kept"


@pytest.mark.parametrize(
    "code",
    [
        "import os; os._exit(0)",
        "import os; os.kill(os.getpid(), 9)",
        "import ctypes; ctypes.string_at(0)",
        "import os; os.abort()",
    ],
)
async def test_killing_the_interpreter(sandbox: BubblewrapSandbox, code: str) -> None:
    result = await sandbox.run_python(code)
    assert result.outcome is Outcome.DIED
    assert "the Python interpreter ended" in result.note
    assert "variables are lost" in result.note


@pytest.mark.parametrize(
    "code",
    [
        "import os\nfor fd in range(256):\n    try: os.close(fd)\n    except OSError: pass",
        "import os; os.closerange(3, 4096)",
        "import sys; sys.stdout.close(); sys.stderr.close(); sys.stdin.close()",
        "import os; os.close(1); os.close(2); os.close(0)",
        "import sys; sys.stdout = None; sys.stderr = None; del sys.stdin",
        "import builtins; del builtins.print, builtins.repr, builtins.len",
        "import sys; sys.modules.clear()",
        "import json; json.loads = json.dumps = None",
        "import os; os.write = os.read = None",
        "import threading, os; threading.Thread(target=lambda: os._exit(0)).start()",
        "import signal; signal.signal = None",
        "import os; os.fork()",
    ],
)
async def test_sabotage_costs_the_interpreter_at_most(sandbox: BubblewrapSandbox, code: str) -> None:
    await sandbox.run_python(code, timeout=1)
    await sandbox.run_python("1", timeout=1)
    if (await sandbox.run_python("40 + 2", timeout=1)).stdout != "42\n":
        await sandbox.run_python("import os; os._exit(1)", timeout=1)


async def test_markers_on_the_output_are_output(sandbox: BubblewrapSandbox) -> None:
    code = r"""
import struct, json, sys, os
body = json.dumps({"id": 1, "nonce": "0" * 32, "outcome": "ok", "exit": 0, "ready": "x"}).encode()
for fd in (1, 2): os.write(fd, struct.pack(">I", len(body)) + body)
sys.exit(9)
"""
    result = await sandbox.run_python(code)
    assert (result.outcome, result.exit_code) == (Outcome.ERROR, 9)
    assert '"outcome": "ok"' in result.stdout


@pytest.mark.parametrize("body", ['{"nonce": "0", "exit": 0}', "[" * 4000, "null"], ids=["claim", "deep", "null"])
async def test_result_channel_needs_the_nonce(sandbox: BubblewrapSandbox, body: str) -> None:
    """Code that finds the worker's descriptors can end its own call, not claim what it does not know."""
    code = rf"""
import os, struct, time
body = {body!r}.encode()
for fd in range(3, 256):
    try: os.write(fd, struct.pack(">I", len(body)) + body)
    except OSError: pass
time.sleep(60)
"""
    result = await sandbox.run_python(code, timeout=3)
    assert result.outcome is Outcome.DIED
    assert "not its own" in result.note


async def test_shell_has_no_channel_at_all(sandbox: BubblewrapSandbox) -> None:
    await sandbox.run_python("x = 1")
    result = await sandbox.exec("ls /proc/self/fd | wc -l; ls -l /proc/self/fd | grep -c socket")
    assert result.stdout.split() == ["4", "0"]  # the standard three, and the listing's own


async def test_work_directory_cannot_be_taken_away(sandbox: BubblewrapSandbox) -> None:
    await sandbox.exec("rm -rf /workspace; rmdir /workspace; mv /workspace /tmp/x; chmod 000 /workspace; chmod 000 .")
    assert (await sandbox.exec("pwd; echo ok > file; cat file")).stdout == "/workspace\nok\n"


async def test_closed_output_does_not_hang(sandbox: BubblewrapSandbox) -> None:
    result = await sandbox.exec("exec 1>&- 2>&-; sleep 0.2; exit 4")
    assert result.exit_code == 4


# ---- every way of isolation ----------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0 or system_python() is None, reason="needs root and a system-wide Python 3.11")
async def test_isolation_of_an_ordinary_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Root that gives itself up before bubblewrap starts has the same user namespace an ordinary user has."""
    monkeypatch.setattr("strands_env.sandbox.bubblewrap.command.choose_mode", lambda: Mode.DROPPED)
    before = leftovers()
    async with BubblewrapSandbox(limits=LIMITS, python=system_python()) as sandbox:
        assert (await sandbox.exec("id -u; pwd")).stdout == "1000\n/workspace\n"
        await sandbox.run_python("x = 1")
        assert (await sandbox.run_python("x")).stdout == "1\n"
        bomb = await sandbox.exec("bomb() { bomb | bomb & wait; }; bomb", timeout=3)
        assert "Resource temporarily unavailable" in bomb.stderr
        assert (await sandbox.exec("unshare --user true")).is_error
        assert (await sandbox.exec("echo x > /usr/x; echo x > /dev/x; echo x > /x; echo x > /etc/x")).is_error
        assert "Cap" not in (await sandbox.exec("grep -E '^Cap(Eff|Prm).*[1-9a-f]' /proc/self/status")).stdout
        assert (await sandbox.exec("ls /proc/1/fd || kill -9 1; sleep 0.1; echo still here")).stdout == "still here\n"
    await assert_nothing_left(before)


USED = """
import asyncio
from strands_env.sandbox import BubblewrapSandbox, SandboxUnavailableError, judge
async def main():
    try:
        async with BubblewrapSandbox() as sandbox:
            print((await sandbox.exec("id -u")).stdout.strip())
            print((await judge(sandbox, "assert solution.one() == 1", files={"solution.py": "one = lambda: 1"})).passed)
    except SandboxUnavailableError as error: print(error)
asyncio.run(main())
"""
COPIED = """
import os, stat, tempfile
from strands_env.sandbox.images.layers import copy_upper, hide_obstacles
with tempfile.TemporaryDirectory() as folder:
    os.mkdir(f"{folder}/a")
    open(f"{folder}/a/file", "w").close()
    os.chmod(f"{folder}/a/file", 0)
    os.chmod(f"{folder}/a", 0)
    try: copy_upper(f"{folder}/a", f"{folder}/b")
    finally: os.chmod(f"{folder}/a", 0o700)
    os.chmod(f"{folder}/b", 0o700)
    for name in ("root", "upper", "layer/opt", "layer/closed"): os.makedirs(f"{folder}/{name}")
    names = ("opt/one", "opt/two", "closed/one")
    for name in names: open(f"{folder}/layer/{name}", "w").close()
    for name, mode in (("opt", 0o555), ("closed", 0), ("", 0)): os.chmod(f"{folder}/layer/{name}", mode)
    shown = {f"/{name}/tool": folder for name in names}
    hide_obstacles(f"{folder}/upper", [f"{folder}/layer"], f"{folder}/root", shown)
    hidden = [stat.S_ISCHR(os.lstat(f"{folder}/upper/{name}").st_mode) for name in names]
    print(oct(os.stat(f"{folder}/b/file").st_mode), hidden, oct(os.stat(f"{folder}/upper/opt").st_mode))
    for name in ("upper", "layer"): os.chmod(f"{folder}/{name}/opt", 0o700)
"""
USER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def used_by(*command: str, code: str = USED) -> str:
    """Output of an ordinary user's process that uses a sandbox and was started by root."""
    python = system_python()
    packages = Path(strands.__file__).parents[1]
    readable = all(os.stat(folder).st_mode & 1 for folder in (*packages.parents, packages, *Path(__file__).parents))
    same = python is not None and f"python3.{sys.version_info[1]}" in os.path.realpath(python)
    if os.geteuid() != 0 or not readable or not same or not all(map(shutil.which, ("setpriv", "unshare"))):
        pytest.skip("needs root, setpriv, unshare, and a system-wide Python of this version that may read the packages")
    paths = os.pathsep.join((str(Path("src").resolve()), str(packages)))
    done = subprocess.run(
        [*command, python, "-c", code],
        env={"PYTHONPATH": paths, "PATH": os.environ["PATH"]},
        cwd="/",
        capture_output=True,
        text=True,
    )
    return done.stdout or done.stderr


@pytest.mark.parametrize("container", [[], ["unshare", "--user", "--map-root-user"]], ids=["none", "as its root"])
def test_ordinary_user(container: list[str]) -> None:
    assert used_by(*USER, *container) == "1000\nTrue\n"


def test_permissions_of_what_an_ordinary_users_sandbox_wrote_are_no_obstacle() -> None:
    """To its copy between two steps of a task, or to the next sandbox over it."""
    assert used_by(*USER, code=COPIED) == "0o100000 [True, True, True] 0o40555\n"


def test_masked_proc_is_named_as_what_is_missing() -> None:
    """The view of a container without --privileged."""
    said = used_by("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc/irq; exec "$@"', "sh", *USER)
    assert "systempaths=unconfined" in said


def test_missing_user_namespaces_are_named() -> None:
    none = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    said = used_by(*USER, "unshare", "--user", "--map-root-user", "sh", "-c", none, "sh")
    assert "user.max_user_namespaces" in said
