"""Runs in the sandbox, with the standard library alone: a way to the gateway, then the command.

The sandbox has no network but loopback, so the gateway is reached through a socket file that is shown in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from typing import Any


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    finally:
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket, path: str) -> None:
    while True:
        near, _ = listener.accept()
        far = socket.socket(socket.AF_UNIX)
        far.connect(path)
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=_copy, args=(source, sink), daemon=True).start()


def _tail(data: bytes) -> str:
    return data[-20_000:].decode("utf-8", "replace")


def launch(job: dict[str, Any]) -> None:
    """Write files, open the way to the gateway, run the command, and print how it ended as JSON.

    Args:
        job: `command`, `environment`, `files`, `home` (what stands for the home directory in these), `socket` (path of
            the gateway's socket file, or None), `port`.
    """
    if job["socket"] is not None:
        listener = socket.create_server(("127.0.0.1", job["port"]), backlog=128)
        threading.Thread(target=_serve, args=(listener, job["socket"]), daemon=True).start()
    home = os.environ["HOME"]

    def here(text: str) -> str:
        return text.replace(job["home"], home)

    for name, text in job["files"].items():
        path = os.path.join(home, here(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(here(text))
    try:
        done = subprocess.run(
            [here(part) for part in job["command"]],
            env={**os.environ, **{name: here(value) for name, value in job["environment"].items()}},
            cwd=home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        end = {"exit": done.returncode, "stdout": _tail(done.stdout), "stderr": _tail(done.stderr)}
    except OSError as error:
        end = {"exit": 127, "stdout": "", "stderr": str(error)}
    sys.stdout.write(json.dumps(end) + "\n")
