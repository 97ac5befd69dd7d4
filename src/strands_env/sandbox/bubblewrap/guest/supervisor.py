"""The first process of a sandbox: starts code, watches its limits, kills the rest, and reports over a socket.

It runs before any foreign code does. Inside bubblewrap it is process 1 of its own process namespace: processes of the
sandbox cannot signal it, and all of them die with it. It is not dumpable, so they cannot open its descriptors or trace
it either, though they run as the same user.

The socket to the host (`process.py`) is descriptor 0. The first frame is the configuration, answered with
`{"ready": token}`; then one request and one answer at a time, and before an
answer the output that is to be streamed. Open files come and go over a second socket. Everything
ends when the first does, or when bubblewrap does: a pipe that only bubblewrap holds open shows it. (The kernel's signal
at the death of a parent does not reach a process of another user.)
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import math
import os
import select
import signal
import socket
import struct
import time
from functools import partial

from .files import do_and_exit, read_file, write_file
from .protocol import CHUNK, Capture, frame, receive, send_frame
from .system import (
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
    cpu_seconds,
    file_count,
    is_stopped,
    memory_bytes,
    other_processes,
    prctl,
    set_limit,
    signal_all,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from .disk import DiskWatch
    from .system import Processes

KILL_SECONDS = 3.0
REST_SECONDS = 3.0
TICK_SECONDS = 0.1
INTERRUPT_GRACE_SECONDS = 1.0
MAX_RESULT_BYTES = 4096


class Child:
    """A process started for code, with the read ends of its output."""

    def __init__(self, pid: int, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.status: int | None = None
        self.requests = -1
        self.results = -1

    def close(self) -> None:
        """Close all descriptors."""
        for descriptor in (self.stdout, self.stderr, self.requests, self.results):
            if descriptor >= 0:
                os.close(descriptor)


class Supervisor:
    """Runs one request at a time."""

    disk: DiskWatch | None = None
    """Measures the files, where no file system of a size bounds them."""

    def __init__(self, config: dict[str, Any], channel: socket.socket) -> None:
        self.config = config
        self.channel = channel
        self.life: int | None = config["life"]
        self.isolated: bool = config["isolated"]
        self.work: str = config["work"]
        self.descriptors = socket.socket(fileno=config["descriptors"])
        self.descriptors.set_inheritable(False)
        self.worker: Child | None = None
        self.reaped: dict[int, int] = {}
        self.unread: list[int] = []
        """Outputs of ended commands that processes they left behind may still write to."""
        self.wakeup, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def next_request(self) -> Any:
        """Wait for the next request, and let background processes write meanwhile."""
        while True:
            has_frame = False
            for descriptor in self.wait(self.unread, self.look_between_calls()):
                if descriptor == self.channel.fileno():
                    has_frame = True
                    continue
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
            if has_frame and (request := receive(self.channel))["kind"] != "cancelled":
                return request  # the other came after the end of its call

    def wait(self, outputs: Iterable[int], milliseconds: float | None) -> list[int]:
        """The outputs that can be read within this time, and the socket to the host where that has sent something.

        Raises:
            ConnectionResetError: The host or bubblewrap is gone.
        """
        poller = select.poll()
        for descriptor in (self.wakeup, *outputs):
            poller.register(descriptor, select.POLLIN)
        channel = self.channel.fileno()
        poller.register(channel, select.POLLIN | select.POLLRDHUP)
        if self.life is not None:
            poller.register(self.life, 0)
        ready = dict(poller.poll(milliseconds))
        if self.life in ready or ready.get(channel, select.POLLIN) != select.POLLIN:
            raise ConnectionResetError("the host is gone")
        return [descriptor for descriptor in ready if descriptor != self.wakeup]

    def look_between_calls(self) -> float | None:
        """Watch the processes between two calls; the milliseconds until it wants to be called again."""
        return None

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request, and answer how it ended."""
        started = time.monotonic()
        empty = {"head": "", "tail": "", "dropped": 0}
        answer: dict[str, Any] = {"exit": 0, "detail": None, "stdout": empty, "stderr": empty, "lost": False}
        try:
            answer |= self.do_at_once(request) or self._watch_process(request, started)
        except ConnectionError:  # the host is gone
            raise
        except OSError as error:
            answer |= {"outcome": "error", "exit": error.errno or errno.EIO, "detail": str(error)}
        return {**answer, "nonce": request["nonce"], "seconds": round(time.monotonic() - started, 4)}

    def do_at_once(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to a request that needs no process; None for any other."""
        if request["kind"] != "listen":
            return None
        with socket.create_server((request["host"], request["port"]), backlog=128) as server:
            socket.send_fds(self.descriptors, [request["nonce"].encode()], [server.fileno()])
        return {"outcome": "ok"}

    def _watch_process(self, request: dict[str, Any], started: float) -> dict[str, Any]:
        self.prepare()
        child, nonce = self._begin(request)
        had_worker = self.worker is not None
        watch = Watch(self, child, nonce, request, started)
        report = watch.follow()
        self.end_leftovers(child, report)
        watch.drain()
        self.channel.sendall(watch.unsent)
        if child is not self.worker:
            child.close()
        streams = {name: watch.captures[descriptor].answer() for descriptor, name in watch.names.items()}
        return {"exit": None, "lost": had_worker and self.worker is None, **report, **streams}

    def _begin(self, request: dict[str, Any]) -> tuple[Child, str | None]:
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
        stdin = self._receive_descriptor(request["nonce"]) if request["sends_file"] else None
        try:
            if request["kind"] == "exec":
                return self.spawn(self.command(request), cpu=request["cpu_seconds"], stdin=stdin), None
            work = partial(do_and_exit, self.file_work(request), request)
            return self.spawn(work, stdin=stdin, dumpable=False), None
        finally:
            if stdin is not None:
                os.close(stdin)

    def _receive_descriptor(self, nonce: str) -> int:
        """The descriptor that the host sent for this request."""
        while True:
            token, descriptors, _, _ = socket.recv_fds(self.descriptors, 64, 1)
            if token.decode() == nonce:
                return descriptors[0]
            for descriptor in descriptors:  # of a call that was taken back
                os.close(descriptor)

    def command(self, request: dict[str, Any]) -> Callable[[], None]:
        """The argument vector that turns a process for code into the command of a request."""
        line = request["command"]
        command = [*self.config["shell"], line] if isinstance(line, str) else line
        return partial(execute, command, request["cwd"], {**self.config["env"], **request["env"]})

    def file_work(self, request: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
        """The work of a request on files."""
        return read_file if request["kind"] == "read" else write_file

    def end_leftovers(self, child: Child, report: dict[str, Any]) -> None:
        """Kill the code's remaining processes, keep the interpreter if it is sound."""
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
        while not is_stopped(worker.pid) and time.monotonic() < deadline:
            self.reap()
            if worker.status is not None:
                return
            time.sleep(0.001)

    def _ended_children(self, worker: Child) -> list[int]:
        others = other_processes(self.isolated).items()
        return [pid for pid, fields in others if fields[0] == b"Z" and int(fields[1]) == worker.pid]

    def prepare(self) -> None:
        """Repair the work directory after earlier code."""
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
        start = partial(execute, self.config["worker"], None, self.config["env"])
        self.worker = self.spawn(start, channel=True)
        return self.worker

    # ---- processes ---------------------------------------------------------------------------------------------------

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
                self.become_code(inherited, cpu, dumpable)
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

    def become_code(self, inherited: list[int], cpu: float | None, dumpable: bool) -> None:
        """Turn a fork of the supervisor into a process for code: nothing of the supervisor stays open to it."""
        self.detach(inherited)
        os.chdir(self.work)
        os.umask(0o077)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # without isolation nothing else ends it with a killed supervisor
        if dumpable:  # only now: until the descriptors were closed, others could have taken them
            prctl(PR_SET_DUMPABLE, 1)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, self.config["nice"] + 5)
        limits = self.config["limits"]
        if cpu is not None:
            set_limit("RLIMIT_CPU", math.ceil(cpu) + 1)
        memory = limits["memory_bytes"]
        most = {"CORE": 0, "FSIZE": limits["file_bytes"], "NOFILE": limits["open_files"], "STACK": 8 << 20}
        most |= {"DATA": memory, "AS": 4 * memory + (1 << 30), "MEMLOCK": 64 << 10, "MSGQUEUE": 0}
        if self.isolated:  # elsewhere the user's other processes would count
            most["NPROC"] = limits["processes"] + 1
        for name, value in most.items():
            set_limit(f"RLIMIT_{name}", value)

    def detach(self, inherited: list[int]) -> None:
        """Keep these descriptors, as 0, 1, 2 and so on, and no others of the supervisor."""
        os.setsid()
        moved = [os.dup(descriptor) for descriptor in inherited]  # above the targets, as those are all in use
        for target, descriptor in enumerate(moved):
            os.dup2(descriptor, target, inheritable=True)
        os.closerange(len(moved), 4096)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
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
        if self.kill(lambda others: others.keys() - {keep}):
            return True
        if self.isolated:
            self._kill_all()  # at one stroke
        return False

    def kill(self, choose: Callable[[Processes], Iterable[int]]) -> bool:
        """Kill some of the other processes; True once none of them is alive."""
        deadline = time.monotonic() + KILL_SECONDS
        while time.monotonic() < deadline:  # each round may meet children born in the one before
            self.reap()
            others = other_processes(self.isolated)
            alive = [pid for pid in choose(others) if others[pid][0] not in (b"Z", b"X")]
            if not alive:
                return True
            for pid in alive:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)
        return False

    def _kill_all(self) -> bool:
        """Kill every process but this one; True once all are gone."""
        signal_all(signal.SIGKILL)
        deadline = time.monotonic() + KILL_SECONDS
        while time.monotonic() < deadline:  # all orphans are children of process 1
            self.reap()
            if not other_processes(self.isolated):
                return True
            time.sleep(0.001)
        return False


class Watch:
    """A running request, from its start to the report of its end."""

    def __init__(
        self, host: Supervisor, child: Child, nonce: str | None, request: dict[str, Any], started: float
    ) -> None:
        self.host = host
        self.child = child
        self.nonce = nonce
        self.limits: dict[str, Any] = host.config["limits"]
        self.request = request
        self.deadline = started + request["wall_seconds"]
        self.names = {child.stdout: "stdout", child.stderr: "stderr"}
        self.captures = {descriptor: Capture(request["output_bytes"]) for descriptor in self.names}
        self.open = {*self.captures, *([child.results] if child.results >= 0 else [])}
        self.result = bytearray()
        self.unsent = bytearray()
        self.cpu_before = cpu_seconds(other_processes(host.isolated))
        self.next_check = started + TICK_SECONDS
        self.is_cancelled = False
        host.reaped.clear()

    def follow(self) -> dict[str, Any]:
        """Wait until the code ends, or has to."""
        interrupted = False
        while True:
            self._read(min(TICK_SECONDS, max(0.0, self.deadline - time.monotonic())))
            self.host.reap()
            finished = self._find_end()
            if finished is not None:
                if interrupted:
                    finished |= {"outcome": "timeout"}
                return finished
            breach = self._breach()
            if breach is not None:
                return {"outcome": breach}
            if time.monotonic() < self.deadline:
                continue
            if self.nonce is None or interrupted:
                return {"outcome": "timeout"}
            interrupted = True  # a KeyboardInterrupt may save the interpreter's state
            self.deadline = time.monotonic() + INTERRUPT_GRACE_SECONDS
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child.pid, signal.SIGINT)

    def drain(self) -> None:
        """Empty the pipes; no writer is alive, or it is stopped."""
        for _ in range(64):
            if not self._read(0.0):
                return

    def _read(self, seconds: float) -> bool:
        """Read the output available within this time; True if there was some."""
        has_output = False
        for descriptor in self.host.wait(self.open, 1000 * seconds):
            if descriptor == self.host.channel.fileno():  # a frame during a call takes the call back
                receive(self.host.channel)
                self.is_cancelled = True
                continue
            try:
                data = os.read(descriptor, CHUNK)
            except BlockingIOError:
                continue
            if not data:
                self.open.discard(descriptor)  # it would stay readable forever
            elif descriptor == self.child.results:
                self.result += data[: MAX_RESULT_BYTES - len(self.result)]
            else:
                self.captures[descriptor].add(data)
                if self.request["streams"]:
                    piece = {"output": self.names[descriptor], "data": base64.b64encode(data).decode()}
                    self.unsent += frame({**piece, "nonce": self.request["nonce"]})
            has_output = has_output or bool(data)
        if self.unsent:
            with contextlib.suppress(BlockingIOError):  # a host that reads late must not hold up the limits
                del self.unsent[: self.host.channel.send(self.unsent, socket.MSG_DONTWAIT)]
        return has_output

    def _find_end(self) -> dict[str, Any] | None:
        if len(self.result) >= 4:  # only an interpreter has this channel
            size = struct.unpack(">I", self.result[:4])[0]
            if len(self.result) >= 4 + size:
                return self._worker_answer(bytes(self.result[4 : 4 + size]))
        status = self.child.status if self.child.status is not None else self.host.reaped.get(self.child.pid)
        if status is None:
            return None
        code = os.waitstatus_to_exitcode(status)
        if -code == signal.SIGXCPU:
            return {"outcome": "cpu_limit"}
        if self.nonce is not None:  # the interpreter is gone, however it went
            return {"outcome": "died", "exit": code}
        return {"outcome": "ok" if code == 0 else "error", "exit": code}

    def _worker_answer(self, data: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(data)
            if answer["nonce"] != self.nonce:
                raise ValueError(answer["nonce"])
            code = int(answer["exit"])
        except Exception:  # foreign code writes there what it likes, such as lists inside each other without end
            return {"outcome": "died", "detail": "the interpreter's answer was not its own"}
        return {"outcome": "ok" if code == 0 else "error", "exit": code, "sound": True}

    def _breach(self) -> str | None:
        if self.is_cancelled:
            return "cancelled"
        if sum(capture.total for capture in self.captures.values()) > self.request["flood_bytes"]:
            return "output_flood"
        if self.host.disk is not None and self.host.disk.look():
            return "too_many_files"
        now = time.monotonic()
        if now < self.next_check or now > self.deadline:  # thousands of processes take long to look at
            return None
        spent = time.process_time()
        others = other_processes(self.host.isolated)
        self.next_check = time.monotonic() + max(TICK_SECONDS, 4 * (time.process_time() - spent))
        if cpu_seconds(others) - self.cpu_before > self.request["cpu_seconds"]:
            return "cpu_limit"
        if memory_bytes(others, self.limits["memory_bytes"]) > self.limits["memory_bytes"]:
            return "out_of_memory"
        if file_count(self.host.config["file_systems"]) > self.limits["files"]:
            return "too_many_files"
        return None


def execute(command: list[str], cwd: str | None, variables: dict[str, str]) -> None:
    """Become a program."""
    if cwd is not None:
        os.chdir(cwd)
    os.execvpe(command[0], command, variables)
