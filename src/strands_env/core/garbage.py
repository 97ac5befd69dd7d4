"""Garbage collection in a process that carries many rollouts, and the law that makes it rare.

**The law**: large objects of a rollout (its agent, model, messages, tokens, and the frames of its errors) are freed by
reference counting when the rollout ends. It is megabytes in few objects, and the collector counts objects. So no
reference cycle may lead there: an error that was recorded forgets its frames (`forget_frames`), no frame of an error's
traceback holds the error or its task, a step forgets what it used (`Episode.active`), and a model does not hold itself.
`tests/unit/strands_env/core/test_env_memory.py` holds the law; places that keep it name this module. The SDK's registry
of tools is a cycle of its own, which leads to tools alone.

A collection walks objects to find cycles that nothing else refers to, and stops the event loop meanwhile. A rollout
that is alive has some hundreds of objects and hardly any garbage: when it ends, reference counting frees it. CPython
walks what survived a young collection again ten collections later, and everything, imports included, whenever survivors
are a quarter of it: with thousands of rollouts for seconds at a time.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["YOUNG_COLLECTIONS", "YOUNG_OBJECTS", "rare_collections", "tune_garbage_collection"]

YOUNG_OBJECTS = 1_000
"""New objects that start a young collection, which takes a millisecond or two."""
YOUNG_COLLECTIONS = 10_000
"""Young collections before survivors are walked again. Cyclic garbage among ten million objects waits until then; were
every one of them garbage, it would take about two gigabytes."""
_UNWALKED = 1_000
"""Young collections of all blocks of `rare_collections`, with survivors that nothing walked, before everything is."""
_unwalked = 0


def _raise_thresholds() -> None:
    now = gc.get_threshold()
    if now[0] > 0:  # 0: whoever runs the process wants no automatic collection
        gc.set_threshold(max(now[0], YOUNG_OBJECTS), max(now[1], YOUNG_COLLECTIONS))


@contextmanager
def rare_collections(*, is_tuned: bool = False) -> Iterator[None]:
    """Walk survivors rarely for a while; thresholds of `gc` that are higher already stay.

    What the block leaves behind counts as old: the thresholds of before would have all of it walked at once.

    `is_tuned`: as `tune_garbage_collection` does, and taken back at the end.
    """
    # To count what is frozen walks all of it: 30 ms for a million objects.
    before, is_frozen = gc.get_threshold(), is_tuned and gc.get_freeze_count() > 0
    if is_tuned:
        tune_garbage_collection()
    _raise_thresholds()
    try:
        yield
    finally:
        if is_tuned and not is_frozen:
            gc.unfreeze()
        if gc.get_threshold() != before:
            _make_old()
        gc.set_threshold(*before)


def _make_old() -> None:
    """Take all objects for old, without a walk; from time to time all are walked, for cyclic garbage among them."""
    global _unwalked
    _unwalked += gc.get_count()[1]
    if _unwalked >= _UNWALKED:
        gc.collect()
        _unwalked = 0
    elif gc.get_freeze_count() == 0:  # else what the caller froze would thaw
        gc.freeze()
        gc.unfreeze()


def tune_garbage_collection() -> None:
    """Let a process that only runs rollouts walk few objects, and rarely those of rollouts that are alive.

    What is alive now is never walked again (`gc.freeze`), and memory that is free now goes back to the system. Call it
    once, behind the imports and the loading of tokenizers. The library never does so in your process; workers of
    `ProcessExecutor`, actors of `RayExecutor` and `strands-env eval` do.
    """
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # for the interpreter's last collection: nanobind reports what it cannot free
    _raise_thresholds()
    if sys.platform == "linux":  # loading a large tokenizer leaves much free memory
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc; musl has none
        if trim is not None:
            trim(0)
