"""`MathRewardFunction`: mathematical equality with the ground truth (extra `math`).

Verification runs in a few worker processes: symbolic arithmetic may hang or explode, and only the end of its process
stops it.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strands_env.core.threads import DaemonThreads
from strands_env.core.types import Action, RewardFunction, RewardResult, StepResult
from strands_sglang.exceptions import check_positive, install_command

from .golds import GroundTruthError, only_gold

logger = logging.getLogger(__name__)

START_SECONDS = 600.0
"""Wall-clock seconds in which a worker must start."""
STALL_SECONDS, STALL_FACTOR = 120.0, 30.0
"""Wall-clock limit of a verification: seconds, and a multiple of its CPU time."""
_SCRIPT = Path(__file__).with_name("math_worker.py")
_SIGPROF = 27
"""The signal that ends a worker whose CPU time is used up; on Windows the signal module lacks the name."""


@dataclass(kw_only=True, eq=False)
class MathRewardFunction(RewardFunction):
    r"""1.0 where the answer denotes the same as the ground truth, 0.0 where not, None where that is not certain.

    Both are read whole or not at all. The last `\boxed{...}` of the final response counts, with the formula that it
    is a part of; without one, the text behind "the answer is", or its last formula or number. Several boxes count
    together only where the ground truth is a set or list. Numbers are compared exactly; decimals of six digits or
    more also equal those they round (see `strands_env.rewards.mathematics.values`). Verification runs in shared worker
    processes with a limit on CPU time and memory, so an answer that explodes cannot hang, leak or kill anything; it
    is wrong, with reason `timeout`.

    `info` has `matched`, `ground_truth`, `gold_parsed`, `answer_parsed`, `decided` (by `proof`, `sample` or equal
    `text`) and, where nothing was compared, `reason`.
    Wrong: `no_final_response`, `answer_parse_failed` (no answer in it), `answer_unreadable`, `prompt_repeated`, and
    `timeout`, `too_complex`, `worker_died`, `verifier_error` of an answer that breaks the verifier. Not scored:
    `invalid_ground_truth`, `gold_parse_failed`, `undecided` (equal or not, depending on what was asked), and
    `cannot_verify` where the verifier fails on a harmless answer to the same ground truth too, or gets no CPU time;
    `error` has the failure.

    Args:
        timeout: Seconds of CPU time for one verification.
        bad_ground_truth: Reward where the task has no usable ground truth; None abstains.

    Raises:
        ImportError: math-verify is not installed.
        ValueError: `timeout` is not positive.
    """

    timeout: float = 5.0
    correct: float = 1.0
    incorrect: float = 0.0
    bad_ground_truth: float | None = None

    def __post_init__(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ImportError(f"MathRewardFunction needs math-verify: {install_command('math')}")
        check_positive("seconds", timeout=self.timeout)

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Compare the final response with `action.task_context.ground_truth` (text or a number)."""
        truth = action.task_context.ground_truth
        answer = step_result.observation.final_response
        info: dict[str, Any] = {"matched": False, "ground_truth": truth}
        try:
            gold = only_gold(truth)
        except GroundTruthError as error:
            info |= {"reason": "invalid_ground_truth", "error": str(error)}
            return RewardResult(reward=self.bad_ground_truth, info=info)
        fields = {"gold": gold, "answer": answer or "", "question": action.text}
        verdict = await _WORKERS.request(fields, self.timeout)
        if verdict.get("reason") in _FAILURES:
            # A harmless answer to the same ground truth shows whether it is the answer's fault.
            control = await _WORKERS.request({"gold": gold, "answer": r"\boxed{7}"}, self.timeout)
            if control.get("reason") in (*_FAILURES, "cannot_verify"):
                why = control.get("error") or f"a harmless answer fails too, with {control['reason']}"
                verdict = {"reason": "cannot_verify", "error": why}
        info |= verdict
        if answer is None and info.get("reason") not in ("gold_parse_failed", "cannot_verify"):
            info["reason"] = "no_final_response"
        if info.get("reason") in ("cannot_verify", "undecided", "gold_parse_failed"):
            is_gold = info["reason"] == "gold_parse_failed"
            return RewardResult(reward=self.bad_ground_truth if is_gold else None, info=info)
        return RewardResult(reward=self.correct if info["matched"] else self.incorrect, info=info)


_FAILURES = ("timeout", "too_complex", "worker_died", "verifier_error")
"""Reasons of a verification that did not finish."""


def close_math_workers() -> None:
    """End the shared worker processes now instead of with the interpreter; the next verification starts new ones."""
    _WORKERS.close()


class WorkerDiedError(RuntimeError):
    """A worker ended in the middle of a request (memory limit, a signal from outside)."""


class _Verifier:
    """A process and its pipes. Used by one thread at a time."""

    def __init__(self) -> None:
        self._timed_out = self.is_killed = False
        self.owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_SCRIPT)],  # -P: modules beside the script do not shadow the library's
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        if self._read(START_SECONDS) != "ready\n":
            self.kill()
            raise WorkerDiedError(f"the worker does not start; run `python {_SCRIPT}` to see why")

    def request(self, fields: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The verdict; where the time is used up, or there was none for very long, its reason: the worker is gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({**fields, "seconds": seconds}) + "\n")
            self._process.stdin.flush()
            line = self._read(STALL_SECONDS + STALL_FACTOR * seconds)
        except (OSError, ValueError) as error:  # ValueError: the pool was closed meanwhile
            self.kill()
            raise WorkerDiedError(f"worker died before the request: {error}") from error
        if not line.endswith("\n"):
            code = self.kill()
            if code == -_SIGPROF:
                return {"reason": "timeout"}
            if self._timed_out:
                stalled = f"no answer within {STALL_SECONDS + STALL_FACTOR * seconds:g} s"
                return {"reason": "cannot_verify", "error": stalled}
            raise WorkerDiedError(f"worker died with code {code}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _read(self, seconds: float) -> str:
        """The next line; a part of it, if the process ends or is killed for taking too long."""
        assert self._process.stdout is not None

        def time_out() -> None:
            self._timed_out = True
            self._process.kill()

        timer = threading.Timer(seconds, time_out)
        timer.daemon = True
        timer.start()
        try:
            return self._process.stdout.readline()
        finally:
            timer.cancel()

    def kill(self) -> int:
        """End the process, wait for it, close its pipes; its exit code."""
        self.is_killed = True
        self._process.kill()
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # unwritten data has no reader left
                pipe.close()  # type: ignore[union-attr]
        return code


class VerifierPool:
    """A few threads, each with a process that runs `math_worker.py`, from its first request to the interpreter's end.

    Plain subprocesses with pipes: no fork of a process full of threads and CUDA, no second import of the user's script.
    """

    def __init__(self, size: int) -> None:
        self.threads = DaemonThreads(size)
        self.workers: set[_Verifier] = set()
        self._of_thread = threading.local()
        self._closings = 0
        atexit.register(self.close)

    async def request(self, fields: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request to a free worker, for at most this many seconds of CPU time.

        A worker that dies is replaced and the request repeated once; if that one dies too, the reason is `worker_died`.
        """
        return await self.threads.run(self._request, fields, seconds)

    def _request(self, fields: dict[str, Any], seconds: float, *, is_repeat: bool = False) -> dict[str, Any]:
        closings, worker = self._closings, getattr(self._of_thread, "worker", None)
        try:
            if worker is None or worker.is_killed:
                self.workers.discard(worker)
                worker = self._of_thread.worker = _Verifier()
                self.workers.add(worker)
                if closings != self._closings:
                    raise WorkerDiedError("the workers were closed while this one started")
            return worker.request(fields, seconds)
        except BaseException as error:
            if worker is not None:
                worker.kill()  # its late answer belongs to no later request
            if not isinstance(error, WorkerDiedError):
                raise
            if is_repeat or closings != self._closings:
                return {"reason": "worker_died", "error": str(error)}
            logger.debug("error=<%s> | worker died, repeating the request", error)
        return self._request(fields, seconds, is_repeat=True)

    def close(self) -> None:
        """Kill all workers; requests under way fail. A later request starts new ones."""
        self._closings += 1
        for worker in list(self.workers):
            if worker.owner == os.getpid():  # after a fork: the workers are the parent's
                worker.kill()
            self.workers.discard(worker)


_CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
_WORKERS = VerifierPool(size=max(1, _CPUS // 2))
"""Shared by all reward functions of the process: half of the CPUs it may use, the others are the rollouts'."""
