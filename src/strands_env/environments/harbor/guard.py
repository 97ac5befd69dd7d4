"""Between the agent and the tests: what it left that could forge a reward is taken away.

Its processes are dead before the tests run, `/tests` and `/logs/verifier` are new and empty, whatever was in their
place, and the programs that run the tests are the image's own. A task whose verifier has a container of its own needs
none of it.
"""

from __future__ import annotations

import logging
import shlex
from typing import Any

from .backend import BubblewrapEnvironment

logger = logging.getLogger(__name__)

_EMPTY = ("/tests", "/logs/verifier")


async def guard(environment: Any, *, keep_processes: bool, restore_programs: bool) -> list[str]:
    """Prepare a container for the tests. Returns the programs that had to be restored."""
    if isinstance(environment, BubblewrapEnvironment):
        sandbox = environment.sandbox
        if not keep_processes:
            await sandbox.kill_all()
        await sandbox.reset_folders(_EMPTY, mode=0o777)
        restored = await sandbox.restore_programs() if restore_programs else []
        if restored:
            logger.warning("programs=<%s> | the agent had changed programs that run the tests", restored)
        return restored
    folders = " ".join(map(shlex.quote, _EMPTY))
    real = "; ".join(f"[ -L {path} ] && rm -f {path}" for path in ("/logs", *_EMPTY))
    command = f"{real}; rm -rf {folders}; mkdir -p {folders}; chmod 777 {folders}"
    if not keep_processes:  # the kernel spares process 1 and the caller
        await environment.exec("kill -9 -1; true", user="root")
    await environment.exec(command, user="root")
    return []
