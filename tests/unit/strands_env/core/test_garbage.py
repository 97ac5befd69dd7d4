"""Collections become rare and stay possible."""

from __future__ import annotations

import ctypes
import gc
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from strands_env.core import garbage
from strands_env.core.garbage import YOUNG_COLLECTIONS, YOUNG_OBJECTS, rare_collections, tune_garbage_collection


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before, frozen, callbacks = gc.get_threshold(), gc.get_freeze_count(), [*gc.callbacks]
    yield
    gc.callbacks[:] = callbacks
    gc.unfreeze()
    if frozen:
        gc.freeze()
    gc.set_threshold(*before)


def test_a_tuned_process_walks_no_more_what_was_there_and_rarely_the_rest() -> None:
    gc.set_threshold(700, 10, 10)
    tune_garbage_collection()
    assert gc.get_freeze_count() > 1_000
    assert gc.get_threshold() == (YOUNG_OBJECTS, YOUNG_COLLECTIONS, 10)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc gives memory back when asked")
def test_a_tuned_process_gives_free_memory_back() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    blocks = [bytes(1_000) for _ in range(50_000)]
    last = blocks.pop()  # or the heap would shrink by itself
    del blocks
    before = resident()
    tune_garbage_collection()
    assert len(last) == 1_000 and resident() < before - 20_000_000


@pytest.mark.parametrize(
    ("before", "during"),
    [
        ((700, 10, 10), (YOUNG_OBJECTS, YOUNG_COLLECTIONS, 10)),
        ((50_000, 5, 1_000), (50_000, YOUNG_COLLECTIONS, 1_000)),
        ((0, 10, 10), (0, 10, 10)),
        ((YOUNG_OBJECTS, YOUNG_COLLECTIONS, 10), (YOUNG_OBJECTS, YOUNG_COLLECTIONS, 10)),
    ],
    ids=["the defaults", "rarer already", "switched off", "tuned"],
)
def test_thresholds_are_raised_for_a_while(
    before: tuple[int, int, int], during: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.set_threshold(*before)
    with monkeypatch.context() as patched:  # walks all that is frozen: not in a tuned process
        if before == during:
            patched.setattr(gc, "get_freeze_count", lambda: pytest.fail("every frozen object was counted"))
        with rare_collections():
            assert gc.get_threshold() == during
    assert gc.get_threshold() == before


def test_results_of_a_run_are_not_walked_at_its_end_and_garbage_is_found_sometimes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    walked: list[int] = []
    with rare_collections():
        gc.callbacks.append(lambda phase, info: walked.append(info["generation"]))
        results = [[each] for each in range(30_000)]
    results += [[each] for each in range(2_000)]
    assert set(walked) == {0} and len(results) == 32_000

    monkeypatch.setattr(garbage, "_unwalked", garbage._UNWALKED)
    with rare_collections():
        pass
    assert 2 in walked and garbage._unwalked == 0


def test_what_the_caller_froze_stays_frozen() -> None:
    gc.set_threshold(700, 10, 10)
    gc.freeze()
    frozen = gc.get_freeze_count()
    with rare_collections():
        pass
    assert gc.get_freeze_count() == frozen
