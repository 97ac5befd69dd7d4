"""Verifies answers in a process of its own, which may be killed at any moment.

Run as a script by `math_reward`; imports nothing of this package. Requests and answers are lines of JSON. The first
line of output says that a first verification has been done, which imports and builds more than all later ones.

Symbolic arithmetic cannot be interrupted from inside (`9^{9^{9^9}}` is one call into C), so the limit is the kernel's:
a signal without a handler ends the process. It counts CPU time: on a busy machine, seconds pass without any.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import re
import signal
import sys
from decimal import Decimal
from typing import Any

MEMORY_LIMIT_BYTES = 2 * 1024**3
START_CPU_SECONDS = 120.0
PR_SET_PDEATHSIG = 1

_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}\s+[A-Za-z]{2,}")
_EXPONENT = re.compile(r"\s*[-+]?\d+(?:\.\d*)?[eE][-+]?\d{1,3}\s*")
_AMOUNT = re.compile(r"\s*[-+]?[\d.,/]*\d\s+(?!(?:sin|cos|tan|log|exp|sqrt)\b)[A-Za-z]{3,}[A-Za-z\s]*\.?\s*")


def plain(text: str) -> str:
    """A number in exponent form (`1e-05`) in digits, because `e` is a constant to the parser; other text unchanged."""
    return format(Decimal(text.strip()), "f") if _EXPONENT.fullmatch(text) else text


def find_boxes(text: str) -> list[tuple[int, int]]:
    r"""Beginning and end of the contents of every complete `\boxed{...}`, by their beginnings."""
    starts = {opening.end() for opening in re.finditer(r"\\f?boxed\s*+\{", text)}
    spans: list[tuple[int, int]] = []
    pending: list[int] = []
    for brace in re.finditer(r"(?<!\\)[{}]", text):
        if brace[0] == "{":
            pending.append(brace.end())
        elif pending and (start := pending.pop()) in starts:
            spans.append((start, brace.start()))
    return sorted(spans)


def verify(gold: str, answer: str) -> dict[str, Any]:
    """Compare an answer with the expected one mathematically.

    The last boxed expression counts; several boxes together count only where a set is expected, so boxing many guesses
    gains nothing. Without a box the last number or formula of the text counts.
    """
    from math_verify import parse
    from math_verify import verify as equal

    def read(text: str) -> list[Any]:
        result: list[Any] = parse(text, parsing_timeout=None)
        return result

    gold = plain(gold)
    is_text = "$" in gold or "\\boxed" in gold or _PROSE.search(gold) or _AMOUNT.fullmatch(gold)
    expected = read(gold if is_text else f"${gold}$") or read(gold)
    if not expected:
        return {"reason": "gold_parse_failed"}
    boxes = [(start, end) for start, end in find_boxes(answer) if re.compile(r"\s*+\S").match(answer, start, end)]
    candidates = [f"$\\boxed{{{plain(answer[slice(*boxes[-1])])}}}$"] if boxes else [answer]
    if len(boxes) > 1:
        candidates.append(answer)
    found = [item for item in map(read, candidates) if item]
    if not found:
        return {"reason": "answer_parse_failed", "gold_parsed": [str(item) for item in expected]}
    return {
        "matched": any(equal(expected, item, timeout_seconds=None) for item in found),
        "gold_parsed": [str(item) for item in expected],
        "answer_parsed": [str(item) for item in found[0]],
    }


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
            answer = verify(request["gold"], request["answer"])
        except (RecursionError, MemoryError) as error:
            answer = {"reason": "too_complex", "error": type(error).__name__}
        except Exception as error:
            answer = {"reason": "verifier_error", "error": f"{type(error).__name__}: {error}"[:1000]}
        _limit_cpu_time(0.0)
        output.write(json.dumps(answer) + "\n")
        output.flush()


if __name__ == "__main__":
    main()
