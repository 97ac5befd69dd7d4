"""The filter of system calls, read as the kernel reads it, for machines other than this one too."""

from __future__ import annotations

import struct

import pytest

from strands_env.sandbox.bubblewrap.seccomp import seccomp_program

ALLOW, EPERM, ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Numbers of the kernel's tables: asm/unistd_64.h and asm-generic/unistd.h.
ABSENT = {
    "x86_64": {
        "memfd_create": 319,
        "memfd_secret": 447,
        "shmget": 29,
        "shmat": 30,
        "shmctl": 31,
        "shmdt": 67,
        "semget": 64,
        "semop": 65,
        "semctl": 66,
        "semtimedop": 220,
        "msgget": 68,
        "msgsnd": 69,
        "msgrcv": 70,
        "msgctl": 71,
        "io_setup": 206,
    },
    "aarch64": {
        "memfd_create": 279,
        "memfd_secret": 447,
        "shmget": 194,
        "shmctl": 195,
        "shmat": 196,
        "shmdt": 197,
        "semget": 190,
        "semctl": 191,
        "semtimedop": 192,
        "semop": 193,
        "msgget": 186,
        "msgctl": 187,
        "msgrcv": 188,
        "msgsnd": 189,
        "io_setup": 0,
    },
}
ORDINARY = {
    "x86_64": {"read": 0, "write": 1, "mmap": 9, "kill": 62, "fcntl": 72, "futex": 202, "openat": 257},
    "aarch64": {"read": 63, "write": 64, "mmap": 222, "kill": 129, "fcntl": 25, "futex": 98, "openat": 56},
}


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
def test_what_escapes_the_watch_is_absent(machine: str) -> None:
    answers = {name: verdict(machine, number) for name, number in ABSENT[machine].items()}
    assert answers == dict.fromkeys(answers, ENOSYS)


@pytest.mark.parametrize("machine", AUDIT)
def test_ordinary_calls_are_allowed(machine: str) -> None:
    answers = {name: verdict(machine, number) for name, number in ORDINARY[machine].items()}
    assert answers == dict.fromkeys(answers, ALLOW)


@pytest.mark.parametrize(
    ("machine", "number"),
    [("x86_64", 101), ("aarch64", 117), ("x86_64", 135), ("aarch64", 92), ("x86_64", 154)],
    ids=["ptrace", "ptrace-arm", "personality", "personality-arm", "modify_ldt"],
)
def test_dangerous_call_is_denied(machine: str, number: int) -> None:
    assert verdict(machine, number) == EPERM


def test_unknown_machine_has_no_filter() -> None:
    assert seccomp_program("riscv64") is None
