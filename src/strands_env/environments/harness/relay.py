"""Runs in a sandbox without network, with the standard library alone: a way to the gateway, then the program.

`python -c SOURCE SOCKET PORT PROGRAM ARGUMENTS...`: a child process copies between the loopback port and the gateway's
socket file; this process becomes the program, so that its end is the program's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading


def _copy(source: socket.socket, sink: socket.socket) -> None:
    gone = socket.SHUT_WR
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:  # one side is not there any more: the other learns it now, not with its next bytes
        gone = socket.SHUT_RDWR
        with contextlib.suppress(OSError):
            source.shutdown(gone)
    with contextlib.suppress(OSError):
        sink.shutdown(gone)


def _serve(listener: socket.socket, path: str) -> None:
    while True:
        near, _ = listener.accept()
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(path)
        except OSError:
            near.close()
            continue
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=_copy, args=(source, sink), daemon=True).start()


def main() -> None:
    """Open the way, then become the program."""
    path, port, *command = sys.argv[1:]
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=128)
    if os.fork() == 0:
        os.setsid()  # signals for the program's group do not end its way to the gateway
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        _serve(listener, path)
    listener.close()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
