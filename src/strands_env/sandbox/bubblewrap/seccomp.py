"""A filter of the system calls that namespaces leave open and code in a sandbox has no use for.

The program is classic BPF, as `seccomp(2)` takes it. It closes four gaps: new namespaces (a large attack surface of
the kernel), sockets of families that no network namespace confines (vsock reaches the hypervisor), calls such as
`ptrace` and `bpf`, and what escapes the watch over processes: memory that belongs to none (`memfd_create`, System V
shared memory, semaphores and queues) and the machine-wide number of asynchronous I/O contexts, which one sandbox could
take up alone. Only x86-64 and 64-bit ARM have a filter.
"""

from __future__ import annotations

import platform
import struct
from dataclasses import dataclass

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
_X32_CALLS = 0x40000000
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEW{USER,PID,NET,UTS,IPC,CGROUP} and CLONE_NEWNS."""
_FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6."""
_CONTAINER_FAMILIES = (*_FAMILIES, 16)
"""And AF_NETLINK, with which programs list addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    audit: int
    clone: int
    clone3: int
    socket: tuple[int, ...]
    denied: tuple[int, ...]
    tuning: tuple[int, ...]
    """Calls whose first argument is a process that they change: refused for process 1, the supervisor."""
    priority: tuple[tuple[int, int], ...]
    """The same with the process as second argument, if the first has this value; others change a whole group."""
    absent: tuple[int, ...]
    """As if the kernel had been built without them, so that programs take another way (files in `/dev/shm`)."""
    debugging: tuple[int, ...]
    """Calls among `denied` that programs of a container may make: on their own processes, and within their root."""


# denied: ptrace, process_vm_readv/writev, unshare, setns, mount, umount2, pivot_root, chroot, key calls, bpf,
# perf_event_open, userfaultfd, io_uring, modules, kexec, file handles, the new mount calls, syslog, swap, reboot, acct,
# quotactl, pidfd_getfd, kcmp, process_madvise, personality, modify_ldt (x86 only).
# tuning: prlimit64, sched_setparam, sched_setscheduler, sched_setaffinity, sched_setattr. priority: setpriority,
# ioprio_set.
# absent: memfd_create, memfd_secret, shmget, shmat, shmctl, shmdt, semget, semop, semctl, semtimedop, msgget, msgsnd,
# msgrcv, msgctl, io_setup.
_NEW_MOUNT_CALLS = (428, 429, 430, 431, 432, 433, 442)
_IO_URING = (425, 426, 427)
_MACHINES = {
    "x86_64": _Machine(
        audit=0xC000003E,
        clone=56,
        clone3=435,
        socket=(41, 53),
        denied=(
            *(101, 310, 311, 272, 308, 165, 166, 155, 161, 248, 249, 250, 321, 298, 323, 175, 313, 176, 246, 320),
            *(303, 304, 103, 167, 168, 169, 163, 179, 438, 312, 440, 135, 154),
            *_IO_URING,
            *_NEW_MOUNT_CALLS,
        ),
        tuning=(302, 142, 144, 203, 314),
        priority=((141, 0), (251, 1)),
        absent=(319, 447, 29, 30, 31, 67, 64, 65, 66, 220, 68, 69, 70, 71, 206),
        debugging=(101, 310, 311, 161, 312, 440, 135),
    ),
    "aarch64": _Machine(
        audit=0xC00000B7,
        clone=220,
        clone3=435,
        socket=(198, 199),
        denied=(
            *(117, 270, 271, 97, 268, 40, 39, 41, 51, 217, 218, 219, 280, 241, 282, 105, 273, 106, 104, 294),
            *(264, 265, 116, 224, 225, 142, 89, 60, 438, 272, 440, 92),
            *_IO_URING,
            *_NEW_MOUNT_CALLS,
        ),
        tuning=(261, 118, 119, 122, 274),
        priority=((140, 0), (30, 1)),
        absent=(279, 447, 194, 196, 195, 197, 190, 193, 191, 192, 186, 189, 188, 187, 0),
        debugging=(117, 270, 271, 51, 272, 440, 92),
    ),
}


def seccomp_program(machine: str | None = None, *, container: bool = False) -> bytes | None:
    """The filter for a machine type, this one's if none is given; None where none is known.

    Args:
        container: The filter of a whole system: with debuggers, shared memory and netlink. A control group is what
            bounds its memory.
    """
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    allow, deny = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | _EPERM)
    no_such_call, no_such_family = (_RETURN, 0, 0, _ERRNO | _ENOSYS), (_RETURN, 0, 0, _ERRNO | _EAFNOSUPPORT)
    number, first, second = ((_LOAD, 0, 0, offset) for offset in (_NUMBER, _FIRST_ARGUMENT, _SECOND_ARGUMENT))
    is_supervisor = (_JUMP_EQUAL, 0, 1, 1)
    allowed = _CONTAINER_FAMILIES if container else _FAMILIES
    families = [(_JUMP_EQUAL, len(allowed) - index, 0, family) for index, family in enumerate(allowed)]
    # By the number of a call: what follows, to its end.
    blocks: list[tuple[int, list[tuple[int, int, int, int]]]] = [
        (known.clone3, [no_such_call]),  # its flags are behind a pointer; libc falls back to clone
        (known.clone, [first, (_JUMP_SET, 0, 1, _NEW_NAMESPACES), deny, allow]),
        *((call, [first, *families, no_such_family, allow]) for call in known.socket),
        *((call, [first, is_supervisor, deny, allow]) for call in known.tuning),
        *(
            (call, [first, (_JUMP_EQUAL, 1, 0, one_process), deny, second, is_supervisor, deny, allow])
            for call, one_process in known.priority
        ),
        *((call, [deny]) for call in known.denied if not (container and call in known.debugging)),
        *((call, [no_such_call]) for call in (() if container else known.absent)),
    ]
    body = [(_LOAD, 0, 0, _ARCHITECTURE), (_JUMP_EQUAL, 1, 0, known.audit), no_such_call]
    body += [number, (_JUMP_AT_LEAST, 0, 1, _X32_CALLS), no_such_call]
    for call, block in blocks:
        body += [(_JUMP_EQUAL, 0, len(block), call), *block]
    body.append(allow)
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in body)
