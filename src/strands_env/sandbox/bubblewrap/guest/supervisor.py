"""The first process of a sandbox: starts code, watches its limits, kills what is left, and reports over a socket.

It runs before any foreign code does. Inside bubblewrap it is process 1 of its own process namespace: processes of the
sandbox cannot signal it, and all of them die with it. It is not dumpable, so they cannot open its descriptors or trace
it either, though they run as the same user.

The socket to the host (`process.py`) is descriptor 0. The first frame is the configuration, answered with
`{"ready": token}`; then one request and one answer at a time. Everything ends when the socket does, or when bubblewrap
does: a pipe that only bubblewrap holds open shows it. (The kernel's signal at the death of a parent does not reach a
process of another user.)
"""

from __future__ import annotations

import base64
import contextlib
import errno
import math
import os
import select
import signal
import socket
import stat
import time
from collections.abc import Callable
from functools import partial

from .protocol import CHUNK, receive, send_frame, write_all
from .system import LINUX, PR_SET_DUMPABLE, PR_SET_PDEATHSIG, is_stopped, other_processes, prctl, set_limit
from .watch import Child, Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Never

KILL_SECONDS = 3.0
REST_SECONDS = 3.0


class Supervisor:
    """Runs one request at a time."""

    def __init__(self, config: dict[str, Any], channel: socket.socket) -> None:
        self.config = config
        self.channel = channel
        self.life: int | None = config["life"]
        self.isolated: bool = config["isolated"]
        self.work: str = config["work"]
        self.worker: Child | None = None
        self.reaped: dict[int, int] = {}
        self.unread: list[int] = []
        """Outputs of ended commands that processes they left behind may still write to."""
        self.wakeup, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK) if LINUX else os.pipe()
        os.set_blocking(self.wakeup, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def next_request(self) -> Any:
        """Wait for the next request, and let background processes write meanwhile; None when the host is gone."""
        while True:
            poller = select.poll()
            for descriptor in (self.channel.fileno(), self.wakeup, *self.unread):
                poller.register(descriptor, select.POLLIN)
            if self.life is not None:
                poller.register(self.life, 0)
            ready = dict(poller.poll(self.look_between_calls()))
            if self.life in ready:
                return None
            for descriptor in [one for one in self.unread if one in ready]:
                try:
                    is_over = not os.read(descriptor, CHUNK)
                except BlockingIOError:
                    continue
                except OSError:
                    is_over = True
                if is_over:
                    os.close(descriptor)
                    self.unread.remove(descriptor)
            self.reap()
            if self.channel.fileno() in ready:
                request = receive(self.channel)
                if request is None or request["kind"] != "cancelled":  # one that came after the end of its call
                    return request

    def look_between_calls(self) -> float | None:
        """Watch what runs between two calls; the milliseconds until it wants to be called again."""
        return None

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run code and answer how it ended."""
        started = time.monotonic()
        self.prepare()
        had_worker = self.worker is not None
        child, nonce = self.begin(request)
        had_worker = had_worker or self.worker is not None
        watch = Watch(self, child, request, started)
        report = watch.follow(nonce)
        self.settle(child, report)
        lost = had_worker and self.worker is None
        watch.drain()
        if child is not self.worker:
            child.close()
        return {
            **identity(request),
            "outcome": report["outcome"],
            "exit": report.get("exit"),
            "detail": report.get("detail"),
            "stdout": watch.captures[child.stdout].answer(),
            "stderr": watch.captures[child.stderr].answer(),
            "seconds": round(time.monotonic() - started, 4),
            "lost": lost,
        }

    def writes_too_much(self) -> bool:
        """The files take more room than they may: never, in file systems of a size."""
        return False

    def begin(self, request: dict[str, Any]) -> tuple[Child, str | None]:
        """Start the process of a request; for the interpreter, also the number its answer has to bear."""
        if request["kind"] == "python":
            child = self._ready_worker()
            # The answer is only believed with the nonce of this call. The code runs in the worker's process and may
            # claim success there, as any program may exit with 0, also for later calls of the same interpreter; it
            # cannot lift a limit.
            nonce = os.urandom(16).hex()
            # The exit codes of a few are kept, for code that waits for them in a later call.
            ended = self._ended_children(child)
            ended = ended if len(ended) > self.config["limits"]["processes"] // 4 else []
            send_frame(child.requests, {"nonce": nonce, "code": request["code"], "ended": ended})
            return child, nonce
        if request["kind"] == "exec":
            return self._spawn_command(request), None
        return self.spawn(partial(do_and_exit, access_file, request), dumpable=False), None

    def settle(self, child: Child, report: dict[str, Any]) -> None:
        """Kill what the code left running, keep the interpreter if it is sound."""
        keep = self.worker
        if keep is not None and (keep.status is not None or (child is keep and not report.get("sound"))):
            keep = None
        if keep is not None:
            self._stop(keep)  # its threads rest between calls
            if keep.status is not None:
                keep = None
        if not self.kill_others(None if keep is None else keep.pid):
            keep = None
        if keep is not None and len(self._ended_children(keep)) > self.config["limits"]["processes"] // 2:
            keep = None  # they count as processes, and only the interpreter can collect them
            self.kill_others(None)
        if self.worker is not None and keep is None:
            if self.worker is not child:
                self.worker.close()
            self.worker = None

    def _stop(self, worker: Child) -> None:
        """Stop the interpreter and wait until it rests, or is seen to have ended (a kill takes a moment)."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGSTOP)
        deadline = time.monotonic() + REST_SECONDS
        while LINUX and not is_stopped(worker.pid) and time.monotonic() < deadline:
            self.reap()
            if worker.status is not None:
                return
            time.sleep(0.001)

    def _ended_children(self, worker: Child) -> list[int]:
        others = other_processes(self.isolated).items()
        return [pid for pid, fields in others if fields[0] == b"Z" and int(fields[1]) == worker.pid]

    def prepare(self) -> None:
        """Repair what earlier code has done to the work directory."""
        with contextlib.suppress(OSError):
            os.makedirs(self.work, exist_ok=True)
            os.chmod(self.work, 0o700)

    # ---- the interpreter that keeps its state ------------------------------------------------------------------------

    def _ready_worker(self) -> Child:
        self.reap()
        if self.worker is not None and self.worker.status is None:
            os.kill(self.worker.pid, signal.SIGCONT)
            return self.worker
        if self.worker is not None:
            self.worker.close()
        self.worker = self.spawn(self._program(self.config["worker"]), channel=True)
        return self.worker

    # ---- processes ---------------------------------------------------------------------------------------------------

    def _program(
        self, command: list[str], cwd: str | None = None, env: dict[str, str] | None = None
    ) -> Callable[[], None]:

        def start() -> None:
            if cwd is not None:
                os.chdir(cwd)
            os.execvpe(command[0], command, {**self.config["env"], **(env or {})})

        return start

    def _spawn_command(self, request: dict[str, Any]) -> Child:
        command = request["command"]
        if isinstance(command, str):
            command = [*self.config["shell"], command]
        stdin: int | None = None
        try:
            if request["stdin"]:
                stdin = _unnamed_file(base64.b64decode(request["stdin"]))
        except OSError as error:  # earlier code has filled the file system
            command = [*self.config["shell"], f"echo 'sandbox: no room for standard input: {error}' >&2; exit 127"]
        try:
            start = self._program(command, request["cwd"], request["env"])
            return self.spawn(start, cpu=request["cpu_seconds"], stdin=stdin)
        finally:
            if stdin is not None:
                os.close(stdin)

    def spawn(
        self,
        start: Callable[[], None],
        *,
        channel: bool = False,
        cpu: float | None = None,
        stdin: int | None = None,
        dumpable: bool = True,
    ) -> Child:
        """Start a process for code, with its output captured; with `channel`, also with the pipes of an interpreter."""
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        inherited = [os.open(os.devnull, os.O_RDWR) if stdin is None else os.dup(stdin), out_write, err_write]
        child = Child(-1, out_read, err_read)
        if channel:
            request_read, child.requests = os.pipe()
            child.results, result_write = os.pipe()
            inherited += [request_read, result_write]
        child.pid = os.fork()
        if child.pid == 0:
            try:
                self.become(inherited, cpu, dumpable)
                start()
            except BaseException as error:
                with contextlib.suppress(OSError):
                    os.write(2, f"sandbox: cannot start: {error}\n".encode())
            finally:
                os._exit(127)
        for descriptor in inherited:
            os.close(descriptor)
        for descriptor in (child.stdout, child.stderr, child.results):
            if descriptor >= 0:
                os.set_blocking(descriptor, False)
        return child

    def become(self, inherited: list[int], cpu: float | None, dumpable: bool) -> None:
        """Turn a fork of the supervisor into a process for code: nothing of the supervisor stays open to it."""
        self.detach(inherited)
        os.chdir(self.work)
        os.umask(0o077)
        if LINUX:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # without isolation nothing else ends it with a killed supervisor
            if dumpable:  # only now: until the descriptors were closed, others could have taken them
                prctl(PR_SET_DUMPABLE, 1)
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, self.config["nice"] + 5)
        limits = self.config["limits"]
        set_limit("RLIMIT_CORE", 0)
        set_limit("RLIMIT_FSIZE", limits["file_bytes"])
        set_limit("RLIMIT_NOFILE", limits["open_files"])
        set_limit("RLIMIT_STACK", 8 << 20)
        if cpu is not None:
            set_limit("RLIMIT_CPU", math.ceil(cpu) + 1)
        if LINUX:
            set_limit("RLIMIT_DATA", limits["memory_bytes"])
            set_limit("RLIMIT_AS", 4 * limits["memory_bytes"] + (1 << 30))
            set_limit("RLIMIT_MEMLOCK", 64 << 10)
            set_limit("RLIMIT_MSGQUEUE", 0)
        if self.isolated:  # elsewhere the user's other processes would count
            set_limit("RLIMIT_NPROC", limits["processes"] + 1)

    def detach(self, inherited: list[int]) -> None:
        """Keep these descriptors, as 0, 1, 2 and so on, and nothing else of the supervisor."""
        os.setsid()
        moved = [os.dup(descriptor) for descriptor in inherited]  # above the targets, as those are all in use
        for target, descriptor in enumerate(moved):
            os.dup2(descriptor, target, inheritable=True)
        os.closerange(len(moved), 4096)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        if LINUX:
            with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")  # the kernel kills code first, not the supervisor

    def reap(self) -> None:
        """Collect children that ended, adopted ones included."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wakeup, 4096):
                pass
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if self.worker is not None and pid == self.worker.pid:
                    self.worker.status = status
                self.reaped[pid] = status

    def kill_others(self, keep: int | None) -> bool:
        """Kill every process but this one and `keep`; True if `keep` could be kept."""
        if self.isolated and keep is None:
            self._kill_all()
            return True
        deadline = time.monotonic() + KILL_SECONDS
        while time.monotonic() < deadline:  # each round may meet children born in the one before
            self.reap()
            others = other_processes(self.isolated).items()
            alive = [pid for pid, fields in others if pid != keep and fields[0] not in (b"Z", b"X")]
            if not LINUX:
                alive = [child.pid for child in (self.worker,) if child and child.pid != keep and child.status is None]
            if not alive:
                return True
            for pid in alive:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)
        if self.isolated:
            self._kill_all()  # at one stroke
        return False

    def _kill_all(self) -> bool:
        """Kill every process but this one; True once all are gone."""
        assert os.getpid() == 1, "kill(-1) outside a process namespace would kill everything of the user"
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        deadline = time.monotonic() + KILL_SECONDS
        while time.monotonic() < deadline:  # all orphans are children of process 1
            self.reap()
            if not other_processes(self.isolated):
                return True
            time.sleep(0.001)
        return False


def identity(request: dict[str, Any]) -> dict[str, Any]:
    """The part of an answer that says which request it is for."""
    return {"id": request["id"], "nonce": request["nonce"]}


def do_and_exit(work: Callable[[dict[str, Any]], None], request: dict[str, Any]) -> Never:
    """Do the work of a request and end this process; the exit code is the number of the error."""
    code = errno.EIO
    try:
        work(request)
        code = 0
    except OSError as error:
        code = error.errno or errno.EIO
    except MemoryError:
        code = errno.ENOMEM
    finally:
        os._exit(code)


def access_file(request: dict[str, Any]) -> None:
    """Read or write a part of a file, as a process for code."""
    if request["kind"] == "read":
        _read_part(request["path"], request["offset"], request["size"])
    else:
        _write_part(request["path"], base64.b64decode(request["data"]), append=request["append"])


def open_regular(path: str) -> int:
    """Open a file to read, and nothing else: a pipe or a device might never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "a folder")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


def create_file(path: str) -> int:
    """Open a new file to write, in place of whatever earlier code has put there; folders stay."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            raise IsADirectoryError(errno.EISDIR, "a folder")
        os.unlink(path)
    return os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o666)


def _read_part(path: str, offset: int, size: int) -> None:
    descriptor = open_regular(path)
    os.lseek(descriptor, offset, os.SEEK_SET)
    while size > 0 and (part := os.read(descriptor, min(size, CHUNK))):
        size -= len(part)
        write_all(1, part)


def _write_part(path: str, data: bytes, *, append: bool) -> None:
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_APPEND
    write_all(os.open(path, flags) if append else create_file(path), data)


def _unnamed_file(data: bytes) -> int:
    """An open file with these bytes, at its beginning, that no folder lists."""
    import tempfile  # most sandboxes never need it, and it is slow to import

    with tempfile.TemporaryFile(dir="/tmp", buffering=0) as file:
        write_all(file.fileno(), data)
        file.seek(0)
        return os.dup(file.fileno())
