"""The filter of system calls, read as the kernel reads it, for machines other than this one too."""

from __future__ import annotations

import struct

import pytest

from strands_env.sandbox.bubblewrap.seccomp import seccomp_program

ALLOW, EPERM, ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Numbers of the kernel's tables, asm/unistd_64.h and asm-generic/unistd.h, with the filter's answer.
CALLS = [
    ("memfd_create", 319, 279, ENOSYS),
    ("memfd_secret", 447, 447, ENOSYS),
    ("shmget", 29, 194, ENOSYS),
    ("shmat", 30, 196, ENOSYS),
    ("shmctl", 31, 195, ENOSYS),
    ("shmdt", 67, 197, ENOSYS),
    ("semget", 64, 190, ENOSYS),
    ("semop", 65, 193, ENOSYS),
    ("semctl", 66, 191, ENOSYS),
    ("semtimedop", 220, 192, ENOSYS),
    ("msgget", 68, 186, ENOSYS),
    ("msgsnd", 69, 189, ENOSYS),
    ("msgrcv", 70, 188, ENOSYS),
    ("msgctl", 71, 187, ENOSYS),
    ("io_setup", 206, 0, ENOSYS),
    ("ptrace", 101, 117, EPERM),
    ("personality", 135, 92, EPERM),
    ("modify_ldt", 154, None, EPERM),
    ("read", 0, 63, ALLOW),
    ("write", 1, 64, ALLOW),
    ("mmap", 9, 222, ALLOW),
    ("kill", 62, 129, ALLOW),
    ("fcntl", 72, 25, ALLOW),
    ("futex", 202, 98, ALLOW),
    ("openat", 257, 56, ALLOW),
]


def verdict(machine: str, number: int) -> int:
    """The filter's answer to a call without arguments."""
    program = seccomp_program(machine)
    assert program is not None
    data = struct.pack("<iIQ6Q", number, AUDIT[machine], 0, *[0] * 6)
    instructions = list(struct.iter_unpack("<HBBI", program))
    value = at = 0
    while True:
        code, then, otherwise, operand = instructions[at]
        at += 1
        if code == 0x06:
            return operand
        if code == 0x20:
            value = struct.unpack_from("<I", data, operand)[0]
        else:
            holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
            at += then if holds else otherwise


@pytest.mark.parametrize("machine", AUDIT)
def test_what_escapes_the_watch_is_absent_and_what_is_dangerous_denied(machine: str) -> None:
    for name, *numbers, answer in CALLS:
        number = dict(zip(AUDIT, numbers, strict=True))[machine]
        assert number is None or verdict(machine, number) == answer, name


def test_unknown_machine_has_no_filter() -> None:
    assert seccomp_program("riscv64") is None
