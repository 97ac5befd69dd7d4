"""The program of a sandbox: a supervisor of the host's files or of an image's, which serves until the host is gone."""

from __future__ import annotations

import os
import signal
import socket

from .protocol import receive, send
from .supervisor import Supervisor
from .system import PR_SET_CHILD_SUBREAPER, drop_privileges, filter_calls, prctl


def main() -> None:
    """Serve requests until the host is gone."""
    channel = socket.socket(fileno=0)
    channel.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # process 1 does not get signals it has no handler for
    config = receive(channel)
    if config["life"] is not None:
        os.dup2(2, 1)  # bubblewrap alone is to hold the other end of that pipe
        os.set_inheritable(config["life"], False)
    if "image" in config:
        from .image import ImageSupervisor, enter_image

        enter_image(config)
        supervisor: Supervisor = ImageSupervisor(config, channel)
    else:
        drop_privileges(config["user"])
        if config["isolated"]:
            if os.getpid() != 1 or 0 in os.getresuid():
                raise RuntimeError(f"not isolated: process {os.getpid()}, users {os.getresuid()}")
            filter_calls(config["seccomp"])
        else:
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        supervisor = Supervisor(config, channel)
    send(channel, {"ready": config["token"]})
    try:
        while True:
            send(channel, supervisor.run(supervisor.next_request()))
    except ConnectionError:
        pass
    finally:
        supervisor.kill_others(None)
