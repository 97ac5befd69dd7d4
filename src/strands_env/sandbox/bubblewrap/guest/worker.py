"""The Python interpreter of a sandbox: runs cells one after the other in one namespace.

This file is a program; it runs inside the sandbox, started by the supervisor, and shares its process with
foreign code. Requests come on descriptor 3 and answers go to descriptor 4, as frames of a 4-byte length and JSON.
"""

import ast
import contextlib
import fcntl
import io
import json
import linecache
import os
import signal
import struct
import sys
import traceback
import types

FIRST_PRIVATE_DESCRIPTOR = 100


def private(descriptor: int) -> int:
    """The descriptor out of the way of code that counts from 3, and not inherited."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_PRIVATE_DESCRIPTOR)
    os.close(descriptor)
    return moved


class Interpreter:
    """Namespace and streams of the cells."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.requests, self.answers = private(3), private(4)
        self.saved = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, FIRST_PRIVATE_DESCRIPTOR) for number in range(3)]
        self.streams: list[io.TextIOWrapper] = []
        self.cells = 0
        self.module = types.ModuleType("__main__")
        self.module.__dict__["__builtins__"] = __builtins__
        sys.modules["__main__"] = self.module
        sys.argv = [""]
        sys.path[0] = ""  # the work directory, not the folder of this file

    def serve(self) -> None:
        """Run cells until the host is gone."""
        while True:
            header = self._read(4)
            request = json.loads(self._read(struct.unpack(">I", header)[0]))
            for child in request["ended"]:  # of earlier calls, which nobody waited for
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child, os.WNOHANG)
            try:
                self._restore_streams()
                exit_code = self._run(request["code"])
            except BaseException:  # the code broke this interpreter; a new one takes over
                os._exit(70)
            if os.getpid() != self.process:
                os._exit(exit_code)  # a fork of the cell
            for stream in (sys.stdout, sys.stderr, *self.streams):
                with contextlib.suppress(BaseException):
                    stream.flush()
            body = json.dumps({"nonce": request["nonce"], "exit": exit_code}).encode()
            data = struct.pack(">I", len(body)) + body
            while data:
                data = data[os.write(self.answers, data) :]

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = os.read(self.requests, count - len(data))
            if not part:
                os._exit(0)
            data += part
        return data

    def _restore_streams(self) -> None:
        for number, saved in enumerate(self.saved):
            os.dup2(saved, number)
        if not self.streams or any(stream.closed for stream in self.streams):
            self.streams = [
                io.TextIOWrapper(io.FileIO(number, mode, closefd=False), encoding="utf-8", errors="backslashreplace")
                for number, mode in ((0, "rb"), (1, "wb"), (2, "wb"))
            ]
        sys.stdin, sys.stdout, sys.stderr = self.streams
        vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def _run(self, code: str) -> int:
        self.cells += 1
        name = f"<cell {self.cells}>"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        namespace = self.module.__dict__
        try:
            tree = ast.parse(code, name)
            last = None
            if tree.body and isinstance(tree.body[-1], ast.Expr):  # its value is shown, as a notebook does
                last = ast.Expression(tree.body[-1].value)
                del tree.body[-1]
            exec(compile(tree, name, "exec"), namespace)
            if last is not None:
                value = eval(compile(last, name, "eval"), namespace)
                if value is not None:
                    sys.stdout.write(f"{value!r}\n")
        except SystemExit as error:
            if error.code is None or isinstance(error.code, int):
                return (error.code or 0) & 0xFF
            sys.stderr.write(f"{error.code}\n")
            return 1
        except BaseException as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename == __file__:  # frames of ours
                trace = trace.tb_next
            text = "".join(traceback.format_exception(type(error), error, trace, limit=-20))
            (self.streams[2] if sys.stderr is None else sys.stderr).write(text)
            return 1
        finally:
            if os.getpid() == self.process:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt must not meet us between cells
        return 0


if __name__ == "__main__":
    Interpreter().serve()
