"""`strands-env verify`: are a run's files whole, and do a server's log-probabilities agree with the recorded ones?"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from strands_env.commands.progress import announced
from strands_env.commands.runs import SavedRun
from strands_env.commands.terminal import cannot_read, complain, format_number, one_line, say
from strands_env.core import Trajectory
from strands_env.eval import EvalError, StoreError, verify_run
from strands_env.eval.store import ResultReader
from strands_env.report.details import trajectories_of
from strands_sglang.backends.engine.own_models import check_model_name
from strands_sglang.command_line import Exit
from strands_sglang.exceptions import SGLangConnectionError, StrandsSGLangError

WORST = 10
"""Tokens that are shown."""
CONCURRENCY = 8
"""Trajectories that are scored at a time."""


def run(args: argparse.Namespace) -> int:
    """Verify."""
    try:
        saved = SavedRun.of(args.run)
        files = verify_run(saved.paths.results)
        mismatch: Mismatch | None = None
        if args.server is not None or args.model is not None:
            if args.server is not None and args.model is not None:
                raise EvalError("give --server or --model, not both")
            if not files.frames:
                raise EvalError(f"{args.run!r} holds no tokens to score again: it was run with --no-tokens")
            _check_temperature(saved)
            mismatch = asyncio.run(_score(saved, args))
    except (FileNotFoundError, StoreError) as error:
        return cannot_read("verify", error)
    except (EvalError, ValueError) as error:  # a name that cannot be a model, an invalid address
        complain("verify", error)
        return Exit.USAGE
    except (StrandsSGLangError, OSError) as error:
        complain("verify", error)
        return Exit.FAILED
    if args.json:
        say(json.dumps({"files": files.to_dict(), "mismatch": None if mismatch is None else mismatch.to_dict()}))
    else:
        _show(saved, files, mismatch)
    if not files.is_intact:
        return Exit.REFUSED
    if mismatch is not None and not mismatch.tokens:
        complain("verify", f"nothing was scored again: {mismatch.why_not()}")
        return Exit.USAGE
    too_far = mismatch is not None and args.max_kl is not None and mismatch.kl > args.max_kl
    return Exit.INCOMPLETE if too_far else Exit.OK


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

    Attributes:
        trajectories: Trajectories that were scored.
        skipped: Trajectories that were not, by reason.
        worst: The tokens that differ most.
    """

    trajectories: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    worst: list[Difference] = field(default_factory=list)
    _recorded: list[Any] = field(default_factory=list)
    _scored: list[Any] = field(default_factory=list)

    def add(self, name: str, item: Trajectory, scored: Any) -> None:
        """Take in a trajectory; `scored` is float64[tokens], NaN where there is nothing to compare."""
        recorded = item.tokens.logprobs_array
        places = np.flatnonzero(np.array(item.tokens.output_mask) & ~np.isnan(recorded) & ~np.isnan(scored))
        self.trajectories += 1
        self._recorded.append(recorded[places])
        self._scored.append(scored[places])
        gaps = np.abs(recorded[places] - scored[places])
        for place in places[np.argsort(-gaps)[:WORST]]:
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

    def why_not(self) -> str:
        """Why nothing was scored."""
        return "; ".join(f"{count} trajectories: {reason}" for reason, count in self.skipped.items()) or "no tokens"

    @property
    def _gaps(self) -> Any:
        """Scored less recorded, of every token."""
        if not self._recorded:
            return np.zeros(0)
        return np.concatenate(self._scored) - np.concatenate(self._recorded)

    @property
    def tokens(self) -> int:
        """Number of tokens compared."""
        return sum(len(part) for part in self._recorded)

    @property
    def kl(self) -> float:
        """Mismatch KL in nats a token: mean of `r - 1 - log r`, r the quotient of scored and recorded probability.

        Schulman's k3 estimator of KL(sampler || scorer), whose terms are never negative.
        """
        gaps = self._gaps
        return float(np.mean(np.expm1(gaps) - gaps)) if gaps.size else math.nan

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        gaps = np.abs(self._gaps)
        found = bool(gaps.size)
        return {
            "trajectories": self.trajectories,
            "skipped": self.skipped,
            "tokens": self.tokens,
            "kl": self.kl if found else None,
            "mean_abs_difference": float(gaps.mean()) if found else None,
            "p99_abs_difference": float(np.quantile(gaps, 0.99)) if found else None,
            "max_abs_difference": float(gaps.max()) if found else None,
            "worst": [asdict(one) for one in self.worst],
        }


def _check_temperature(saved: SavedRun) -> None:
    """Servers divide logits by the temperature when they sample, and do not when they score a prompt."""
    sampling = saved.model.get("sampling_params") or {}
    temperature = sampling.get("temperature")
    if temperature is not None and temperature not in (0, 1):
        raise EvalError(
            f"the run was sampled at temperature {temperature:g}: a server scores prompts at temperature 1, so its "
            "log-probabilities of the same tokens differ by definition; verify runs at temperature 1 or 0"
        )


async def _score(saved: SavedRun, args: argparse.Namespace) -> Mismatch:
    mismatch = Mismatch()
    quiet = args.json or sys.stderr is None
    doing = f"asking {args.server}" if args.server else f"loading the model {args.model}"
    with announced(doing, quiet=quiet):
        client = _client(args)
    try:
        vocab_size = await _vocab_size(client, args.server, saved) if args.server is not None else None
        with ResultReader(saved.paths.results) as reader, announced("scoring again", quiet=quiet):
            work = _work(reader, args.limit)
            async with asyncio.TaskGroup() as group:
                for _ in range(CONCURRENCY):
                    group.create_task(_scorer(client, work, mismatch, vocab_size))
    finally:
        await client.close()
    return mismatch


def _client(args: argparse.Namespace) -> Any:
    if args.server is not None:
        from strands_sglang import SGLangClient

        return SGLangClient(args.server, max_retries=3)
    check_model_name(args.model)  # before the engine loads torch
    from strands_sglang.backends.engine import EmbeddedEngine

    return EmbeddedEngine(args.model)


def _work(reader: ResultReader, limit: int | None) -> Iterator[tuple[str, Trajectory]]:
    for entry in reader.entries[:limit]:
        result = reader.read(entry, with_tokens=True).step_result
        for item in trajectories_of(result):
            yield f"{entry.prompt_id}/{entry.index}", item


async def _vocab_size(client: Any, server: str, saved: SavedRun) -> int | None:
    """The server's number of ids: one beyond it would kill the server.

    Raises:
        SGLangConnectionError: It does not answer.
        EvalError: It serves another model and does not say how many ids that has.
    """
    if not await client.health():
        raise SGLangConnectionError(f"no SGLang server answers at {server!r}")
    size: int | None = await client.vocab_size()
    if size is None:
        served, own = (await client.get_model_info()).get("model_path"), saved.model.get("model_id")
        if served != own:
            raise EvalError(
                f"the server has the model {served!r} and the run was sampled with {own!r}: token ids of another "
                "vocabulary kill a server, and this one does not say how large its own is"
            )
    return size


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
                mismatch.add(name, item, await score_again(client, item))
            except StrandsSGLangError as error:
                mismatch.skipped[f"{type(error).__name__}: {one_line(str(error))[:120]}"] += 1


async def score_again(client: Any, item: Trajectory) -> Any:
    """Log-probabilities of a trajectory's tokens under another engine: float64[tokens], NaN before the sampled ones.

    Args:
        client: Speaks the generate contract.
        item: The trajectory.
    """
    ids = item.tokens.token_ids
    sampled = np.flatnonzero(np.array(item.tokens.output_mask))
    start = max(0, int(sampled[0]) - 1) if sampled.size else 0
    answer = await client.generate(
        ids,
        sampling_params={"max_new_tokens": 0, "temperature": 1.0},
        return_logprob=True,
        logprob_start_len=start,
    )
    scored = np.full(len(ids), np.nan)
    rows = answer["meta_info"]["input_token_logprobs"]
    for place, (logprob, token, *_) in enumerate(rows, start=len(ids) - len(rows)):
        if logprob is not None and token == ids[place]:
            scored[place] = logprob
    return scored


def _show(saved: SavedRun, files: Any, mismatch: Mismatch | None) -> None:
    say(f"{saved.paths.results}: {files.samples} samples, {files.frames} token frames")
    if files.without_checksum:
        say(f"unchecked   {files.without_checksum} lines were written before lines had checksums")
    if files.torn_bytes:
        say(f"torn        {files.torn_bytes} bytes of an interrupted write at the end; a resume cuts them off")
    for damage in files.damages[:WORST]:
        place = f" byte {damage.offset}" if damage.offset is not None else ""
        where = f" line {damage.line}" if damage.line is not None else place
        say(f"damaged     {damage.path}{where}: {damage.what}")
    if files.is_intact:
        say("files       whole")
    if mismatch is None:
        return
    found = mismatch.to_dict()
    say(f"scored      {mismatch.trajectories} trajectories, {mismatch.tokens} sampled tokens")
    for reason, count in mismatch.skipped.items():
        say(f"skipped     {count} trajectories: {reason}")
    if not mismatch.tokens:
        return
    say(f"mismatch KL {mismatch.kl:.3g} nats a token")
    parts = [f"{name} {format_number(found[f'{name}_abs_difference'], 6)}" for name in ("mean", "p99", "max")]
    say(f"difference  {', '.join(parts)}  (of log-probabilities, absolute)")
    say("worst tokens")
    tokenizer = saved.tokenizer().tokenizer

    def texts(token: int) -> str:
        return f"id {token}" if tokenizer is None else f"{str(tokenizer.decode([token]))!r}"

    for one in mismatch.worst:
        say(
            f"  {one_line(one.sample)} token {one.position} {texts(one.token_id)}: recorded {one.recorded:.4f}, "
            f"scored {one.scored:.4f} ({one.scored - one.recorded:+.2g})"
        )
