"""Whether the files of a run are whole, and whether another engine agrees on its log-probabilities."""

from __future__ import annotations

import asyncio
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from strands_env.core import Trajectory
from strands_env.eval.errors import EvalError, StoreError, naming_errors
from strands_env.eval.metrics.summary import without_nan
from strands_env.eval.store import ResultReader, StorePaths, load_run
from strands_env.eval.store.config import checksum_of
from strands_env.eval.store.results import scan
from strands_sglang.backends import as_backend
from strands_sglang.backends.vllm import VLLMClient
from strands_sglang.exceptions import BackendConnectionError, StrandsSGLangError

WORST = 10  # tokens that are kept as examples
CONCURRENCY = 8  # trajectories that are scored at a time


@dataclass(slots=True, kw_only=True)
class Verification:
    """The findings of `verify_run`.

    Attributes:
        samples: Samples that can be read, each once.
        superseded: Lines of samples that were tried again since.
        with_tokens: Lines that hold tokens.
        torn_bytes: Bytes behind the last whole line, which the next resume cuts off.
        damages: A sentence for each place that differs from the written data: the file, the line, how to repair it.
    """

    path: str
    samples: int = 0
    superseded: int = 0
    with_tokens: int = 0
    torn_bytes: int = 0
    damages: list[str] = field(default_factory=list)

    @property
    def is_intact(self) -> bool:
        """True without damages."""
        return not self.damages

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "is_intact": self.is_intact}


def verify_run(output_path: str | Path) -> Verification:
    """Read every line with its tokens, and the configuration of a run, and compare the checksums.

    Changes nothing, and may be used while the run goes on.

    Args:
        output_path: The `.jsonl` file or its folder.

    Raises:
        FileNotFoundError: There are no results.
        StoreError: They cannot be read at all.
    """
    verification = Verification(path=str(StorePaths.of(output_path).results))
    damages, ids, end = verification.damages, set[bytes](), 0
    with ResultReader(output_path) as reader, naming_errors("read", reader.paths.results):
        for entry in scan(reader.fd, reader.paths.results, damages):
            end = entry.offset + entry.length
            try:
                sample = reader.read(entry, with_tokens=True)
            except StoreError as error:
                damages.append(str(error))
                continue
            verification.superseded += entry.id in ids
            ids.add(entry.id)
            verification.with_tokens += bool(sample.step_result.recorded_trajectories)
        verification.torn_bytes = os.fstat(reader.fd).st_size - end
    verification.samples = len(ids)
    run = reader.paths.run
    try:
        document = load_run(run)
        if document is None:
            damages.append(f"{str(run)!r} is missing, so the run cannot be continued")
        elif document.get("crc") not in (None, checksum_of(document)):
            damages.append(f"{str(run)!r} was changed after it was written: its checksum does not fit")
    except StoreError as error:
        damages.append(str(error))
    return verification


# ---- log-probabilities -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A sampled token whose log-probabilities differ."""

    sample: str
    position: int
    token_id: int
    recorded: float
    scored: float


@dataclass(slots=True, kw_only=True)
class Mismatch:
    """Recorded log-probabilities, of the engine that sampled, beside those of another one for the same tokens.

    `skipped` counts trajectories that were not scored, by reason.
    """

    trajectories: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    worst: list[Difference] = field(default_factory=list)
    _gaps: list[Any] = field(default_factory=list)  # of each trajectory: scored less recorded

    def add(self, name: str, item: Trajectory, scored: Any) -> None:
        """Take in a trajectory; `scored` is float64[tokens], NaN where there is nothing to compare."""
        recorded = item.tokens.logprobs_array
        # Only tokens sampled and scored by both: prompts have no log-probability.
        places = np.flatnonzero(np.array(item.tokens.output_mask) & ~np.isnan(recorded) & ~np.isnan(scored))
        self.trajectories += 1
        gaps = scored[places] - recorded[places]
        self._gaps.append(gaps)
        for place in places[np.argsort(-np.abs(gaps))[:WORST]]:
            self.worst.append(
                Difference(
                    sample=name,
                    position=int(place),
                    token_id=int(item.tokens.token_ids_array[place]),
                    recorded=float(recorded[place]),
                    scored=float(scored[place]),
                )
            )
        self.worst = sorted(self.worst, key=lambda one: -abs(one.recorded - one.scored))[:WORST]

    @property
    def tokens(self) -> int:
        """Number of tokens compared."""
        return sum(map(len, self._gaps))

    @property
    def kl(self) -> float:
        """Mismatch KL in nats a token: mean of `r - 1 - log r`, r the quotient of scored and recorded probability.

        Schulman's k3 estimator of KL(sampler || scorer), whose terms are never negative.
        """
        if not self.tokens:
            return math.nan
        gaps = np.concatenate(self._gaps)
        return float(np.mean(np.expm1(gaps) - gaps))

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        gaps = np.abs(np.concatenate(self._gaps)) if self.tokens else np.full(1, np.nan)
        numbers = {
            "kl": self.kl,
            "mean_abs_difference": float(gaps.mean()),
            "p99_abs_difference": float(np.quantile(gaps, 0.99)),
            "max_abs_difference": float(gaps.max()),
        }
        return {
            "trajectories": self.trajectories,
            "skipped": self.skipped,
            "tokens": self.tokens,
            **without_nan(numbers),
            "worst": [asdict(one) for one in self.worst],
        }


def check_temperature(sampling_params: Mapping[str, Any]) -> None:
    """Servers divide logits by the temperature when they sample, and do not when they score a prompt."""
    temperature = sampling_params.get("temperature")
    if temperature is not None and temperature not in (0, 1):
        raise EvalError(
            f"the run was sampled at temperature {temperature:g}: a server scores prompts at temperature 1, so its "
            "log-probabilities of the same tokens differ by definition; verify runs at temperature 1 or 0"
        )


async def vocab_size_of(client: Any, server: str, model_id: str | None) -> int | None:
    """The server's number of ids: one beyond it would kill the server."""
    if not await client.health():
        raise BackendConnectionError(f"no server answers at {server!r}")
    if isinstance(client, VLLMClient):  # which answers 400 to an id it does not have
        return None
    size: int | None = await client.vocab_size()
    if size is None:
        served, own = (await client.get_model_info()).get("model_path"), model_id
        if served != own:
            raise EvalError(
                f"the server has the model {served!r} and the run was sampled with {own!r}: token ids of another "
                "vocabulary kill a server, and this one does not say how large its own is"
            )
    return size


async def measure_mismatch(
    source: StorePaths, client: Any, *, limit: int | None = None, vocab_size: int | None = None
) -> Mismatch:
    """Score the trajectories of a saved run again, of its first `limit` samples.

    Args:
        vocab_size: Number of ids that the client takes; trajectories with others are skipped. None checks nothing.
    """
    mismatch = Mismatch()
    with ResultReader(source.results) as reader:
        work = reader.trajectories(limit)
        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(_scorer(client, work, mismatch, vocab_size))
    return mismatch


async def _scorer(
    client: Any, work: Iterator[tuple[str, Trajectory]], mismatch: Mismatch, vocab_size: int | None
) -> None:
    for name, item in work:
        if vocab_size is not None and max(item.tokens.token_ids, default=0) >= vocab_size:
            reason = f"it has token ids beyond the server's {vocab_size:,}, so the server has another model"
            mismatch.skipped[reason] += 1
        elif item.images:
            mismatch.skipped["it holds images"] += 1
        elif np.isnan(item.tokens.logprobs_array).all():
            mismatch.skipped["no log-probabilities were recorded"] += 1
        else:
            try:
                scored = np.full(len(item.tokens), np.nan)
                sampled = np.flatnonzero(np.array(item.tokens.output_mask))
                if sampled.size:
                    start = int(sampled[0])
                    scored[start:] = (await as_backend(client).score(item.tokens.token_ids, start=start)).logprobs
                mismatch.add(name, item, scored)
            except StrandsSGLangError as error:
                mismatch.skipped[f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"] += 1
