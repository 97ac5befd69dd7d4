"""Verifies answers in a separate process, which may be killed at any moment.

Run as a script by `math_reward`. Requests and answers are lines of JSON. The first
line of output says that a first verification has been done, which imports and builds more than all later ones.

Symbolic arithmetic cannot be interrupted from inside (`9^{9^{9^9}}` is one call into C), so the limit is the kernel's:
a signal without a handler ends the process. It counts CPU time: on a busy machine, seconds pass without any.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # last: files beside this package shadow nothing

from strands_env.rewards.mathematics.answers import verify

MEMORY_LIMIT_BYTES = 2 * 1024**3
START_CPU_SECONDS = 120.0
PR_SET_PDEATHSIG = 1


def _limit_cpu_time(seconds: float) -> None:
    """End this process after so much CPU time from now; 0 for no limit."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)


def main() -> None:
    """Serve requests until the input ends."""
    logging.disable(logging.CRITICAL)
    sys.set_int_max_str_digits(0)
    if sys.platform == "linux":  # elsewhere this ends at its limit, or with its input
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _limit_cpu_time(START_CPU_SECONDS)
    verify("3/7", r"\boxed{\frac{6}{14}}")
    with contextlib.suppress(ImportError, ValueError, OSError):  # without it, the CPU time bounds what is allocated
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    _limit_cpu_time(0.0)
    output = sys.stdout
    output.write("ready\n")
    output.flush()
    for line in sys.stdin:
        request = json.loads(line)
        _limit_cpu_time(request["seconds"])
        try:
            answer = verify(request["gold"], request["answer"], request.get("question", ""))
        except (RecursionError, MemoryError) as error:
            answer = {"reason": "too_complex", "error": type(error).__name__}
        except Exception as error:
            answer = {"reason": "verifier_error", "error": f"{type(error).__name__}: {error}"[:1000]}
        _limit_cpu_time(0.0)
        output.write(json.dumps(answer) + "\n")
        output.flush()


if __name__ == "__main__":
    main()
