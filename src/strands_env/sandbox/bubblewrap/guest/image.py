"""The first process of a sandbox whose files are those of a container image.

It is the supervisor with other habits: code may be any user of the image, root included; background processes of
a command live on for the next; a cancelled call is ended alone, and the sandbox goes on. Folders travel as archives
through open files of the host, and a listening socket inside can be handed out.

The interpreter it runs on is the host's, shown below one folder and hidden again before any foreign code runs. All it
needs is therefore imported here.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import os
import re
import signal
import socket
import stat
import struct
import tarfile
import time
import warnings

from .disk import DiskWatch
from .files import reset_folders
from .supervisor import Child, Supervisor, execute
from .system import (
    LIBC,
    PAGE,
    PR_CAPBSET_DROP,
    PR_SET_DUMPABLE,
    capset,
    check,
    close_off,
    descendants,
    each_folder,
    filter_calls,
    other_processes,
    prctl,
    remove_tree,
    set_limit,
    signal_all,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .system import Processes

_MNT_DETACH = 2
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC = 1 | 2 | 4 | 8, 32, 4096, 16384  # the first: without devices and programs
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_READ_ONLY = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/asound", "/proc/1")
"""Settings of the whole machine: root here is root there, as far as their files are concerned. And those of the
supervisor, such as how soon the kernel kills it for lack of memory."""
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "console")
"""The machine's own device nodes, as bubblewrap shows them."""
_MASKED = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/kallsyms", "/proc/kmsg")
_CLONE_NEWUSER, _CLONE_NEWNET, _SYS_ADMIN = 0x10000000, 0x40000000, 21
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LATE = (warnings,)
"""Modules that the standard library imports when it first needs them, which is too late in here."""
_PATH_BYTES = 3500
"""Longest path that another machine can be expected to open."""
_SHELLS = (("/bin/bash",), ("/usr/bin/bash",), ("/bin/sh",), ("/usr/bin/sh",), ("/bin/busybox", "sh"))


class UnknownUserError(Exception):
    """The image has no such user."""


class ImageSupervisor(Supervisor):
    """Runs one request at a time, in the root of an image."""

    def __init__(self, config: dict[str, Any], channel: socket.socket) -> None:
        super().__init__(config, channel)
        self.image: dict[str, Any] = config["image"]
        watched = config["watched"]
        self.disk = None if watched is None else DiskWatch(watched, config["limits"]["disk_bytes"])
        self.was_stopped = False
        """A process between two commands wrote too much and was ended; the next command reports it."""

    def look_between_calls(self) -> float | None:
        """Measure the files, and end all processes where they are too many; the milliseconds until the next look."""
        if self.disk is None:
            return None
        if self.disk.look() and other_processes(True):
            self._kill_all()
            self.was_stopped = True
        return 1000 * max(0.0, self.disk.next_look - time.monotonic())

    def prepare(self) -> None:
        """Nothing: the work directory is the image's."""
        if self.disk is not None:
            self.disk.spare_cleaning()

    def do_at_once(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to a request that needs no process; None for any other."""
        match request["kind"]:
            case "exec" if self.was_stopped:
                self.was_stopped = False
                return {"outcome": "too_many_files", "exit": None}
            case "exec" | "read" | "write":
                name = self.image["user"] if request["user"] is None else request["user"]
                try:
                    request["user"] = find_user(name)
                    if not self.image["is_root"] and request["user"]["uid"] != 0:
                        raise UnknownUserError(f"an image that an ordinary user runs has one user, root, got {name!r}")
                except UnknownUserError as error:
                    return {"outcome": "refused", "exit": None, "detail": str(error)}
                return None
            case "kill":
                if not any(self._kill_all() for _ in range(10)):
                    raise OSError(errno.EBUSY, "processes do not end")
                self.was_stopped = False
            case "freeze" | "thaw":
                signal_all(signal.SIGSTOP if request["kind"] == "freeze" else signal.SIGCONT)
            case _:
                return super().do_at_once(request)
        return {"outcome": "ok"}

    def command(self, request: dict[str, Any]) -> Callable[[], None]:
        """The argument vector that turns a process for code into the command of a request."""
        line, user = request["command"], request["user"]
        shell = next((shell for shell in _SHELLS if os.path.exists(shell[0])), _SHELLS[2])
        command = [*shell, "-c", line] if isinstance(line, str) else line
        variables = {"PATH": _PATH, "HOME": user["home"], **self.image["env"], **request["env"]}

        def start() -> None:
            become_user(user)
            prctl(PR_SET_DUMPABLE, 1)
            execute(command, request["cwd"] or self.work, variables)

        return start

    def file_work(self, request: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
        """The work of a request on files: on folders as root, on a file as a user."""
        folders = {"pack": pack, "unpack": unpack, "reset": reset_folders}
        if request["kind"] in folders:
            return folders[request["kind"]]
        work = super().file_work(request)

        def work_as_user(request: dict[str, Any]) -> None:
            become_user(request["user"])
            work(request)

        return work_as_user

    def become_code(self, inherited: list[int], cpu: float | None, dumpable: bool) -> None:
        """Turn a fork of the supervisor into a process for code."""
        self.detach(inherited)
        with contextlib.suppress(OSError):  # code may have put anything in its place
            os.chdir(self.work)
        os.setpriority(os.PRIO_PROCESS, 0, self.config["nice"])
        limits = self.config["limits"]
        most = {"CORE": 0, "NOFILE": limits["open_files"], "FSIZE": limits["file_bytes"]}
        if not self.image["is_root"]:  # root's processes are counted by the control group alone
            most["NPROC"] = limits["processes"]
        for name, value in most.items():
            set_limit(f"RLIMIT_{name}", value)

    def end_leftovers(self, child: Child, report: dict[str, Any]) -> None:
        """End the processes of a call that had to be ended; leave others running, and keep their output flowing."""
        if report["outcome"] == "too_many_files":  # whoever writes, and all that holds a file without a name open
            self._kill_all()
        elif report["outcome"] not in ("ok", "error"):
            self._kill_session(child.pid)
        self.reap()
        for name in ("stdout", "stderr"):
            descriptor = os.dup(getattr(child, name))
            os.set_blocking(descriptor, False)
            self.unread.append(descriptor)

    def _kill_session(self, leader: int) -> None:
        """Kill a command with its session and its descendants, also those in other sessions."""

        def choose(others: Processes) -> set[int]:
            session = [pid for pid, fields in others.items() if pid == leader or int(fields[3]) == leader]
            return {*session, *descendants(others, session)}

        # All stop at once, those that just start another included: however many there are, none is born meanwhile, and
        # none takes the processor from this one.
        signal_all(signal.SIGSTOP)
        self.kill(choose)
        signal_all(signal.SIGCONT)


# ---- entering the image ----------------------------------------------------------------------------------------------


def enter_image(config: dict[str, Any]) -> None:
    """Hide the host's files, give up the privilege to mount, and complete the files of every container's root."""
    image = config["image"]
    if os.getpid() != 1:
        raise RuntimeError(f"not isolated: process {os.getpid()}")
    for folder in image["hidden"]:
        check(LIBC.umount2(folder.encode(), _MNT_DETACH), "cannot be hidden", folder)
    with contextlib.suppress(OSError):
        remove_tree(image["programs"])
    os.umask(0o022)
    _write_if_empty("/etc/hosts", f"127.0.0.1 localhost {image['hostname']}\n::1 localhost\n")
    if image["resolv_conf"]:
        _write_if_empty("/etc/resolv.conf", image["resolv_conf"])
    with contextlib.suppress(OSError):
        os.makedirs(config["work"], exist_ok=True)
    _bound_lasting_memory(config["limits"]["memory_bytes"])
    _protect_settings()
    if image["owner"] is not None:
        with contextlib.suppress(OSError):  # none may be made here: limits are those of the machine's users
            _enter_user_namespace(image["owner"])
    for number in set(range(64)) - set(image["capabilities"]):
        with contextlib.suppress(OSError):  # the kernel knows fewer
            prctl(PR_CAPBSET_DROP, number)
    # The supervisor alone keeps the power to look into all processes, for files open and unlinked: its children
    # start programs, which get no more than the bounding set.
    capset([*image["capabilities"], *image["watching"]])
    close_off()
    filter_calls(config["seccomp"])


def _enter_user_namespace(owner: int) -> None:
    """Enter a user namespace with the same users, so that the kernel counts what these may have for this sandbox alone.

    Message queues, pending signals and inotify instances belong to a user *of a namespace*, and to the owner of that
    namespace outside, which is a user that nobody else is. After the last mount: its root may not mount here.
    """
    parent, child = socket.socketpair()
    maker = os.fork()
    if maker == 0:
        try:
            parent.close()
            os.seteuid(owner)
            capset([_SYS_ADMIN])
            check(LIBC.unshare(_CLONE_NEWUSER), "no user namespace")
            socket.send_fds(child, [b"made"], [os.open("/proc/self/ns/user", os.O_RDONLY)])
            child.recv(1)  # until it has its users
        finally:
            os._exit(0)
    try:
        child.close()
        _, namespaces, _, _ = socket.recv_fds(parent, 4, 1)
        if not namespaces:
            raise OSError(errno.EPERM, "no user namespace can be made")
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/self/{name}") as file:
                ranges = [line.split() for line in file]
            with open(f"/proc/{maker}/{name}", "w") as file:
                file.write("".join(f"{first} {first} {count}\n" for first, _, count in ranges))
        check(LIBC.setns(namespaces[0], _CLONE_NEWUSER), "the user namespace cannot be entered")
        os.close(namespaces[0])
    finally:
        parent.close()
        os.waitpid(maker, 0)
    # A network of this namespace's own: its root may listen on every port there, and use raw sockets.
    check(LIBC.unshare(_CLONE_NEWNET), "no network namespace")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))


def _bound_lasting_memory(most: int) -> None:
    """Bound the memory that outlives processes: files in memory, and objects of System V.

    Otherwise code could fill all of it. The kernel, with no other process left to end, would end the supervisor, and
    the episode with it: a way for code to have no reward instead of a bad one.
    """
    # An inode takes about 1 KiB, so many empty files are as good as a large one.
    sizes = {"/dev": "size=1m,nr_inodes=1k,mode=0755", "/dev/shm": f"size={most // 2},nr_inodes={most // 8192}"}
    for path, options in sizes.items():
        flags = _MS_REMOUNT | _MS_NOSUID | _MS_NODEV
        check(LIBC.mount(None, path.encode(), None, flags, options.encode()), "cannot be given a size", path)
    # A queue may hold 16,384 messages without a byte, of 64 bytes in the kernel.
    for name, value in (("shmall", f"{most // 8 // PAGE}"), ("msgmni", "16"), ("sem", "1000 32000 500 256")):
        # An older kernel lets only root of the machine set them.
        with contextlib.suppress(OSError), open(f"/proc/sys/kernel/{name}", "w") as file:
            file.write(value)


def _protect_settings() -> None:
    """Make the machine's settings read-only and hide its secrets, as container runtimes do."""
    for path in _READ_ONLY:
        if os.path.exists(path):
            check(LIBC.mount(path.encode(), path.encode(), None, _MS_BIND | _MS_REC, None), "cannot be bound", path)
            _remount(path, _MS_RDONLY)
    for name in _DEVICES:
        # A device on a read-only mount is read and written as ever; only its mode, owner and times cannot change,
        # which are those of the machine's own node.
        if os.path.ismount(f"/dev/{name}"):
            _remount(f"/dev/{name}", 1 | _MS_NOSUID | _MS_NOEXEC)
    for path in _MASKED:
        if os.path.exists(path):
            check(LIBC.mount(b"/dev/null", path.encode(), None, _MS_BIND, None), "cannot be hidden", path)


def _remount(path: str, flags: int) -> None:
    check(LIBC.mount(None, path.encode(), None, _MS_BIND | _MS_REMOUNT | flags, None), "cannot be made read-only", path)


def _write_if_empty(path: str, text: str) -> None:
    with contextlib.suppress(OSError):
        if not os.path.lexists(path) or (os.path.isfile(path) and os.path.getsize(path) == 0):
            with open(path, "w") as file:
                file.write(text)


# ---- users -----------------------------------------------------------------------------------------------------------


def find_user(name: str | int) -> dict[str, Any]:
    """Ids, home and groups of a user of the image: a name, a number, or `user:group`."""
    user, _, group = str(name).partition(":")
    users, groups = _table("/etc/passwd", 7), _table("/etc/group", 4)
    entry = next((line for line in users if user in (line[0], line[2])), None)
    if entry is None and not _is_id(user):
        raise UnknownUserError(f"the image has no user {user!r}")
    uid = int(entry[2]) if entry else int(user)
    gid = int(entry[3]) if entry and _is_id(entry[3]) else 0
    if group:
        group_entry = next((line for line in groups if group in (line[0], line[2])), None)
        if group_entry is None and not _is_id(group):
            raise UnknownUserError(f"the image has no group {group!r}")
        gid = int(group_entry[2]) if group_entry else int(group)
    more = [int(line[2]) for line in groups if entry and entry[0] in line[3].split(",")]
    return {"uid": uid, "gid": gid, "groups": more, "home": entry[5] if entry else "/"}


def _is_id(text: str) -> bool:
    """A number that names a user or a group; -1 as Linux writes it would change none, and leave root in place."""
    return text.isascii() and text.isdigit() and int(text) < 0xFFFFFFFF


def _table(path: str, columns: int) -> list[list[str]]:
    text = b""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):  # code may have put a pipe there, which never ends
                text = os.read(descriptor, 1 << 20)
        finally:
            os.close(descriptor)
    lines = [line.split(":") for line in text.decode(errors="replace").splitlines()]
    return [line for line in lines if len(line) == columns and _is_id(line[2])]


def become_user(user: dict[str, Any]) -> None:
    """Give up this process's user for one of the image."""
    if user["uid"] == 0 and user["gid"] == 0:
        return
    os.setgroups(user["groups"])
    os.setresgid(user["gid"], user["gid"], user["gid"])
    os.setresuid(user["uid"], user["uid"], user["uid"])


# ---- folders as archives, in the open file at descriptor 0 -----------------------------------------------------------


def unpack(request: dict[str, Any]) -> None:
    """Extract the archive at descriptor 0 into a folder."""
    os.makedirs(request["path"], exist_ok=True)
    with os.fdopen(0, "rb", closefd=False) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        tar.extraction_filter = staticmethod(lambda member, path: member)
        tar.extractall(request["path"], numeric_owner=True)


def pack(request: dict[str, Any]) -> None:
    """Write a folder into the open file at descriptor 0.

    Devices, pipes and sockets are left out, and files deeper than a path can be long.
    """
    bytes_left = request["max_bytes"]
    # As GNU tar reads `--exclude`: from any part of a path on, and `*` stands for slashes too. What lies in a folder
    # that is left out is left out by the pattern's second form.
    forms = [f"{pattern}{inner}" for pattern in request["exclude"] for inner in ("", "/*")]
    excluded = [re.compile(fnmatch.translate(form)) for form in forms]
    with os.fdopen(0, "wb", closefd=False) as file, tarfile.open(fileobj=file, mode="w") as tar:
        if not stat.S_ISDIR(os.stat(request["path"]).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a folder")
        for folder in each_folder(request["path"]):
            if len(folder.names) > _PATH_BYTES // 2:
                continue  # no path leads there; joining the names would cost the square of the depth
            for entry in sorted(folder.entries, key=lambda entry: entry.name):
                names = [".", *folder.names, entry.name]
                path = "/".join(names[1:])
                if len(os.fsencode(path)) > _PATH_BYTES:
                    continue
                if any(one.match("/".join(names[start:])) for one in excluded for start in range(len(names))):
                    continue
                with contextlib.suppress(FileNotFoundError):  # its owner was faster
                    bytes_left -= _pack_entry(tar, path, entry, folder.descriptor, bytes_left)


def _pack_entry(tar: tarfile.TarFile, path: str, entry: os.DirEntry[str], folder: int, bytes_left: int) -> int:
    """Add a file, folder or link, and return the bytes that it took of those that are left."""
    # Not by `gettarinfo`: it asks for the names of owners, for which the C library loads libraries of the image.
    member, status = tarfile.TarInfo(path), entry.stat(follow_symlinks=False)
    member.mode, member.mtime = stat.S_IMODE(status.st_mode), status.st_mtime
    member.uid, member.gid = status.st_uid, status.st_gid
    with contextlib.ExitStack() as opened:
        file = None
        if stat.S_ISREG(status.st_mode):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            file = opened.enter_context(open(os.open(entry.name, flags, dir_fd=folder), "rb"))
            member.size = os.fstat(file.fileno()).st_size
        elif stat.S_ISDIR(status.st_mode):
            member.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(status.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(entry.name, dir_fd=folder)
        else:
            return 0
        size = max(member.size, 512)
        if size > bytes_left:
            raise OSError(errno.EFBIG, "too large")
        tar.addfile(member, file)
    return size
