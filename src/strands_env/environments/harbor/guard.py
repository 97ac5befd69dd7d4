"""Between the agent and the tests: what it left that could forge a reward is taken away.

Its processes are dead before the tests run, `/tests` and `/logs/verifier` are new and empty, whatever was in their
place, the programs that run the tests are the image's own, and they have room: an agent must not be able to hide what
it did by leaving none. A task whose verifier has a container of its own needs
none of it.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Collection
from typing import Any

from .backend import BubblewrapEnvironment

logger = logging.getLogger(__name__)

_EMPTY = ("/tests", "/logs/verifier")
_EACH_PROCESS = """for place in /proc/[0-9]*; do
  fields=$(<"$place/stat") || continue
  set -- ${fields##*) }
  %s
done 2> /dev/null
"""
"""Bash: `%s` runs with the number of a process at the end of `$place` and its start, in clock ticks, in `${20}`."""


async def running_processes(environment: Any) -> frozenset[str]:
    """The processes of a container, each as its number and start; empty on `bubblewrap`, whose own are out of reach."""
    if isinstance(environment, BubblewrapEnvironment):
        return frozenset()
    listed = await environment.exec(_EACH_PROCESS % 'echo "${place#/proc/}-${20}"', user="root")
    return frozenset((listed.stdout or "").split())


async def guard(
    environment: Any, *, spared: Collection[str] | None, restore_programs: bool, user: str | int | None = None
) -> list[str]:
    """Prepare a container for the tests. Returns the programs that had to be restored.

    Args:
        spared: Processes that were there before the agent, of `running_processes`; None ends none at all.
        user: User that the tests run as.
    """
    if isinstance(environment, BubblewrapEnvironment):
        sandbox = environment.sandbox
        if spared is not None:
            await sandbox.kill_all()
            await sandbox.clear_memory()  # which the tests need
        await sandbox.spare_disk()
        await sandbox.reset_folders(_EMPTY, mode=0o777)
        restored = await sandbox.restore_programs(user=str(user or "root")) if restore_programs else []
        if restored:
            logger.warning("programs=<%s> | the agent had changed programs that run the tests", restored)
        return restored
    folders = " ".join(map(shlex.quote, _EMPTY))
    real = "; ".join(f"[ -L {path} ] && rm -f {path}" for path in ("/logs", *_EMPTY))
    command = f"{real}; rm -rf {folders}; mkdir -p {folders}; chmod 777 {folders}"
    if spared is not None:  # stopped first, all at once, so that none can start another; the caller itself is spared
        others = "|".join(sorted(spared)) or "none"
        kill = f'case "${{place#/proc/}}-${{20}}" in {others}|1-*|$$-*) ;; *) kill -9 "${{place#/proc/}}" ;; esac'
        await environment.exec(f"kill -STOP -1\n{_EACH_PROCESS % kill}kill -CONT -1; true", user="root")
    await environment.exec(command, user="root")
    return []
