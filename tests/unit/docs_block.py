"""A block of the documentation, run in a process that has loaded what nearly all blocks load."""

from __future__ import annotations

import ast
import asyncio
import inspect
import multiprocessing
import os
import sys
from pathlib import Path

AWAITING = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
PROCESSES = multiprocessing.get_context("forkserver")
# The heavy ones last; one that is not installed is left out.
PRELOAD = ["strands", "strands_env.core", "strands_env.eval", "strands_sglang.model", __name__, "torch"]
PRELOAD += ["strands_sglang.backends.engine.engine"]  # with the parts of transformers that `import transformers` defers
PROCESSES.set_forkserver_preload(PRELOAD)


def run(code: str, name: str, folder: str) -> None:
    """Run code in a folder, with its output in the files `stdout` and `stderr` beside it."""
    os.chdir(folder)
    for descriptor, stream in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"../{stream}", os.O_CREAT | os.O_WRONLY), descriptor)
    result = eval(compile(code, name, "exec", flags=AWAITING), {"__name__": "__main__"})
    if inspect.iscoroutine(result):
        asyncio.run(result)
    sys.stdout.flush()


def run_block(code: str, name: str, scratch: Path, timeout: float = 150.0) -> tuple[int | None, str, str]:
    """Exit status (None after the timeout) and both outputs of code in a fresh process, in an empty folder."""
    folder = scratch / "empty"
    folder.mkdir()
    process = PROCESSES.Process(target=run, args=(code, name, str(folder)))
    process.start()
    process.join(timeout)
    process.kill()
    return process.exitcode, *((scratch / stream).read_text(encoding="utf-8") for stream in ("stdout", "stderr"))
