"""Judging hostile code: it can neither read the hidden tests, nor forge, stop or outlive their verdict."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator

import pytest

from strands_env.sandbox import BubblewrapSandbox, SandboxUnavailableError, judge
from strands_env.sandbox.bubblewrap.command import Mode
from tests.unit.sandbox_support import (
    LIMITS,
    FolderSandbox,
    assert_nothing_left,
    leftovers,
    requires_isolation,
    system_python,
)

pytestmark = requires_isolation

SECRET = "s3cret" + "-of-the-checks"
CHECKS = f"expected = {SECRET!r}\nassert solution.answer() == expected"


@pytest.fixture
async def sandbox() -> AsyncIterator[BubblewrapSandbox]:
    before = leftovers()
    async with BubblewrapSandbox(limits=LIMITS) as sandbox:
        yield sandbox
    await assert_nothing_left(before)


async def passes(sandbox: BubblewrapSandbox, code: str, checks: str = CHECKS, timeout: float = 20.0) -> bool:
    return (await judge(sandbox, checks, files={"solution.py": code}, timeout=timeout)).passed


async def test_verdict_tells_right_from_wrong_and_why(sandbox: BubblewrapSandbox) -> None:
    code = "import sys\ndef add(a, b): return a + b\nif __name__ == '__main__': print(int(input()) * 2)"
    checks = "assert solution.add(2, 2) == 4\nprint(solution.run(stdin='21').stdout + solution.run('cat left').stdout)"
    await sandbox.exec("echo by the episode > left")
    good = await judge(sandbox, checks, files={"solution.py": code})
    assert (good.passed, good.note, good.output, good.runs) == (True, "", "42\nby the episode\n\n", 3)
    bad = await judge(sandbox, "assert solution.add(2, 2) == 5, 'two and two'")
    assert not bad.passed
    assert "AssertionError: two and two" in bad.note


async def test_values_keep_their_types(sandbox: BubblewrapSandbox) -> None:
    checks = (
        "values = [1, -2.5, True, None, 'é\\0', b'\\xff', (1, [2]), {1: (2,)}, {3}, frozenset({4}), 10**40]\n"
        "assert solution.same(values) == values\n"
        "assert [type(v) for v in solution.same(values)] == [type(v) for v in values]"
    )
    assert await passes(sandbox, "def same(x): return x", checks)


async def test_any_sandbox_can_be_judged(sandbox: BubblewrapSandbox) -> None:
    """The contract is enough: the checks need a lasting interpreter, the judged code does not."""
    checks = "assert solution.add(2, 2) == 4\nassert solution.run('cat note').stdout == 'x' * 50_000"
    async with FolderSandbox(output_bytes=1000) as folder:
        await folder.write_file("note", "x" * 50_000)
        files = {"solution.py": "def add(a, b): return a + b"}
        verdict = await judge(folder, checks, files=files, judging=sandbox)
        assert (verdict.passed, verdict.runs) == (True, 2), verdict.note
        with pytest.raises(ValueError, match="give one for them"):
            await judge(folder, checks)


async def test_checks_that_are_not_python_are_no_verdict(sandbox: BubblewrapSandbox) -> None:
    with pytest.raises(ValueError, match="not Python"):
        await judge(sandbox, "assert (")
    with pytest.raises(ValueError, match="below the work directory"):
        await judge(sandbox, "pass", files={"../x": ""})


READ = """
import os, glob
def answer():
    found = []
    for path in glob.glob("/proc/[0-9]*/*") + glob.glob("/proc/[0-9]*/task/*/*") + glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if path.endswith("/mem"):
                pid = path.split("/")[2]
                for line in open(f"/proc/{pid}/maps"):
                    start, end = (int(part, 16) for part in line.split()[0].split("-"))
                    with open(path, "rb", buffering=0) as memory:
                        memory.seek(start)
                        found.append(memory.read(min(end - start, 1 << 24)))
            else:
                with open(path, "rb") as file:
                    os.set_blocking(file.fileno(), False)
                    found.append(file.read(1 << 16) or b"")
        except (OSError, ValueError, OverflowError): pass
    for folder in ("/tmp", "/workspace", "/dev/shm", "/.sandbox"):
        for base, _, names in os.walk(folder):
            for name in names:
                try: found.append(open(os.path.join(base, name), "rb").read())
                except OSError: pass
    needle = bytes(reversed(b"skcehc-eht-fo-"))
    for data in found:
        at = data.find(needle)
        if at >= 6 and data[at - 6 : at] == bytes(reversed(b"terc3s")): return "s3cret" + needle.decode()
    return "not found"
"""


async def test_hidden_tests_cannot_be_read(sandbox: BubblewrapSandbox) -> None:
    assert not await passes(sandbox, READ)
    assert await passes(sandbox, READ, "assert solution.answer() == 'not found'")


FORGERIES = {
    "exit": "import os\ndef answer(): os._exit(0)",
    "exit on import": "import sys\nsys.exit(0)",
    "equal to everything": "class Any(str):\n    __eq__ = lambda s, o: True\n    __ne__ = lambda s, o: False\n"
    "def answer(): return Any('x')",
    "no plain data": "class Any:\n    __eq__ = lambda s, o: True\ndef answer(): return Any()",
    "an end of its own": "import json, os\n"
    "def answer():\n    for fd in range(256):\n"
    "        try: os.write(fd, b'\\n' + json.dumps({'end': None}).encode() + b'\\n')\n        except OSError: pass",
    "pickle": "import pickle, os\nclass Evil:\n    def __reduce__(self): return (os._exit, (0,))\n"
    "def answer():\n    os.write(1, pickle.dumps(Evil()))\n    return pickle.dumps(Evil())",
    "marker with a pickle": "import sys, pickle, gc, os\n"
    "def answer():\n"
    "    marker = sys._getframe(1).f_locals['request']['marker']\n"
    '    os.write(1, (\'\\n\' + marker + \'{"returned": {"pickle": "gASV"}}\\n\').encode())\n'
    "    os._exit(0)",
    "deep answer": "import sys, os\n"
    "def answer():\n"
    "    marker = sys._getframe(1).f_locals['request']['marker']\n"
    "    os.write(1, ('\\n' + marker + '[' * 200_000 + '\\n').encode())\n"
    "    os._exit(0)",
    "flood": "def answer():\n    while True: print('x' * 10_000)",
    "kill": "import os\ndef answer():\n    os.kill(-1, 9)",
    "stop": "import os\n"
    "def answer():\n"
    "    for pid in range(1, 50):\n"
    "        for number in (19, 9):\n"
    "            if pid != os.getpid():\n"
    "                try: os.kill(pid, number)\n                except OSError: pass\n"
    "    os.kill(os.getppid(), 19); return 'x'",
    "trace": "import ctypes, os\n"
    "def answer():\n"
    "    libc = ctypes.CDLL(None)\n"
    "    return str([pid for pid in range(1, 50) if pid != os.getpid() and libc.ptrace(16, pid, 0, 0) == 0])",
    "rewrite the judge": "import os\n"
    "def answer():\n"
    "    for folder in ('/.sandbox', '/workspace', '/tmp', '/dev/shm', '/etc', '/run'):\n"
    "        for base, _, names in os.walk(folder):\n"
    "            for name in names:\n"
    "                try: open(os.path.join(base, name), 'w').write('raise SystemExit(0)')\n"
    "                except OSError: pass\n"
    "    open('/workspace/checks.py', 'w').write('raise SystemExit(0)')\n"
    "    return 'x'",
}


@pytest.mark.parametrize("code", FORGERIES.values(), ids=FORGERIES)
async def test_hostile_solution_does_not_pass(sandbox: BubblewrapSandbox, code: str) -> None:
    """Checks that call twice: what a first call planted meets the second."""
    checks = f"try: solution.answer()\nexcept SolutionError: pass\n{CHECKS}"
    assert not await passes(sandbox, code, checks)


async def test_what_hostile_code_left_does_not_hurt_the_next_verdict(sandbox: BubblewrapSandbox) -> None:
    await sandbox.run_python("import threading\nx = 1")
    await sandbox.exec("mkdir -p solution.py json.py; (setsid sleep 1000 &)")
    assert not await passes(sandbox, FORGERIES["rewrite the judge"])
    assert await passes(sandbox, f"def answer(): return {SECRET!r}")


async def test_solution_that_hangs_fails_in_time(sandbox: BubblewrapSandbox) -> None:
    verdict = await judge(sandbox, "solution.run('sleep 100')\nwhile True: solution.run('true')", files={}, timeout=1.0)
    assert not verdict.passed
    assert "longer than 1 s" in verdict.note


async def test_answer_that_breaks_the_checks_fails(sandbox: BubblewrapSandbox) -> None:
    """The answer makes the judge's own comparison explode: wrong, and neither lost nor unscored."""
    checks = "import re\nassert re.fullmatch('(a+)+b', solution.answer())"
    verdict = await judge(sandbox, checks, files={"solution.py": "def answer(): return 'a' * 40"}, timeout=2.0)
    assert not verdict.passed


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has users to give")
async def test_judge_and_judged_are_different_users(sandbox: BubblewrapSandbox) -> None:
    checks = "import os\nprint(os.getuid(), solution.run('id -u').stdout, 'file' in os.listdir('/workspace'))"
    await sandbox.exec("touch file")
    inside, outside, seen = (await judge(sandbox, checks)).output.split()
    assert inside != outside
    assert seen == "False"


@pytest.mark.skipif(os.geteuid() != 0 or system_python() is None, reason="needs root and a system-wide Python 3.11")
async def test_judging_in_user_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_env.sandbox.bubblewrap.command.choose_mode", lambda: Mode.DROPPED)
    async with BubblewrapSandbox(limits=LIMITS, python=system_python()) as sandbox:
        assert not await passes(sandbox, READ)
        assert not await passes(sandbox, FORGERIES["stop"])
        assert await passes(sandbox, f"def answer(): return {SECRET!r}")


async def test_a_machine_without_room_blames_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async with BubblewrapSandbox(limits=LIMITS) as sandbox:
        monkeypatch.setattr("strands_env.sandbox.bubblewrap.supervised.os.memfd_create", refuse)
        with pytest.raises(SandboxUnavailableError, match="no room for a file on its way"):
            await judge(sandbox, "assert solution.one() == 1", files={"solution.py": "one = lambda: 1"})
