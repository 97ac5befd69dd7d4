"""A run on disk as reports and commands open it: configuration, scores, tokenizer and drift."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from strands_env.core.notebook import table_html
from strands_env.eval.drift import DriftTotals, find_drift
from strands_env.eval.errors import EvalError, NoResultsError, StoreCorruptError
from strands_env.eval.metrics import ScoreTable, summarize
from strands_env.eval.options import EvalOptions
from strands_env.eval.store import ResultReader, StorePaths, load_run, read_results
from strands_sglang.backends.engine.own_models import UnknownModelError

MAX_ROWS = 1000
"""Samples of a run that trackers get as a table; of larger ones they get none."""
ROW_TEXT = 2000
"""Characters of a prompt or reply in such a table."""
_ROWS = 20
"""Prompts of a run that a notebook shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTokenizer:
    """The tokenizer of a run, Hugging Face style; `note` says why there is none."""

    tokenizer: Any
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    """A run on disk; `document` is its saved configuration, empty where there is none, with these three sections."""

    paths: StorePaths
    document: Mapping[str, Any] = field(repr=False)
    config: Mapping[str, Any] = field(init=False, repr=False)
    environment: Mapping[str, Any] = field(init=False, repr=False)
    about: Mapping[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for section in ("config", "environment", "about"):
            object.__setattr__(self, section, self.document.get(section) or {})

    @classmethod
    def of(cls, path: str | Path, *, must_exist: bool = False) -> Self:
        """The run at a path: its folder or its `.jsonl`; a `NoResultsError` where it has no results but must."""
        paths = StorePaths.of(path)
        if must_exist and not paths.results.exists():
            raise NoResultsError.at(paths.results)
        return cls(paths=paths, document=load_run(paths.run) or {})

    @property
    def name(self) -> str:
        """The benchmark; for results without one, their folder, or the file's own name."""
        file, folder = self.paths.results.stem, self.paths.results.resolve().parent.name
        own = folder if file == "results" and folder else file
        return str(self.config.get("benchmark") or own)

    def _repr_html_(self) -> str:
        table = self.scores()
        summary = summarize(table)
        value = summary.mean_reward
        title = (
            f"{self.name} · reward {value.value:.3f} [{value.low:.3f}, {value.high:.3f}] · {summary.samples} samples"
        )
        scores = list(zip(table.prompt_ids, table.by_prompt(), strict=True))
        rows = [(name, score.mean if score.n else None, score.n) for name, score in scores[:_ROWS]]
        more = f"{title}, the first {_ROWS} of {len(scores)} prompts" if len(scores) > _ROWS else title
        return table_html(more, ("prompt", "reward", "samples"), rows)

    @property
    def header(self) -> dict[str, Any]:
        """Model, sampling, date and wall time, as reports show them; None where one was not saved."""
        about, environment = self.about, self.environment
        model, options = self.model, self.options
        backend = None if options.benchmark is None else options.backend
        described = environment.get("model") or {}
        sampling = model.get("sampling_params") or described.get("sampling_params") or {}
        return {
            "model": model.get("model_id") or ("smollm2" if backend == "local" else backend),
            "sampling": {name: value for name, value in sampling.items() if value is not None},
            "started": about.get("started"),
            "wall_s": self.wall_s,
            "seed": environment.get("sampling_seed"),
            "rescored": (about.get("rescored") or {}).get("reward"),
        }

    @property
    def saved_options(self) -> dict[str, Any]:
        """The options that were written down, with the seed of sampling where it was used; empty where none were."""
        options = dict(self.about.get("options") or {})
        used = {"sampling_seed": self.environment.get("sampling_seed")}
        return {**options, **used} if options else {}

    @property
    def options(self) -> EvalOptions:
        """The options of the run; defaults where none were written down.

        Raises:
            StoreCorruptError: They are not options of a run.
        """
        try:
            return EvalOptions.of_saved(self.saved_options)
        except (TypeError, ValueError) as error:
            raise StoreCorruptError(f"{str(self.paths.run)!r} holds options that no run has: {error}") from error

    def scores(self) -> ScoreTable:
        """The scores under the run's own options.

        Raises:
            FileNotFoundError: There are no results.
            StoreError: They cannot be read, or are damaged.
        """
        samples = read_results(self.paths.results)
        table = ScoreTable.from_samples(((sample.prompt_id, sample) for sample in samples), self.options)
        if isinstance(tasks := self.about.get("tasks"), int):
            table.missing = max(0, tasks * table.options.n_samples_per_prompt - len(table))
        return table

    @property
    def model(self) -> dict[str, Any]:
        """Description of the model in the saved configuration or environment."""
        described = self.environment.get("model") or {}
        configured = self.config.get("model") or {}
        configured = configured if isinstance(configured, dict) else {"model_id": configured}
        return {name: value for part in (described, configured) for name, value in part.items() if value is not None}

    @property
    def system_prompt(self) -> str | None:
        """The system prompt of the environment, where it was described."""
        prompt = self.environment.get("system_prompt")
        return prompt if isinstance(prompt, str) else None

    @property
    def wall_s(self) -> float | None:
        """Seconds the run took, all its parts; of a killed one up to the last time saved. None where none was saved."""
        value = self.about.get("wall_s")
        return float(value) if value else None

    def drift(self, tokenizer: Any, *, budget: int | None = None, examples: int = 0) -> DriftTotals:
        """The changes that re-tokenising the run's texts would make, those of its first `budget` tokens.

        `examples` is the number of places to keep.
        """
        totals, length = DriftTotals(tokenizer=tokenizer, max_examples=examples), 0
        with ResultReader(self.paths.results) as reader:
            for name, item in reader.trajectories():
                totals.add(item.tokens, name=name)
                length += len(item.tokens)
                if budget is not None and length >= budget:
                    break
        return totals

    def sample_rows(self, tokenizer: Any = None) -> list[dict[str, Any]] | None:
        """The samples as rows of a tracker's table; None where there are more than `MAX_ROWS`.

        `drift` is the number of places that a tokenizer would bring back as other tokens; None where it is not known.
        """
        rows = []
        with ResultReader(self.paths.results) as reader:
            if len(reader.entries) > MAX_ROWS:
                return None
            for entry in reader.in_task_order():
                sample = reader.read(entry, with_tokens=tokenizer is not None)
                result = sample.step_result
                paths = [] if tokenizer is None else result.recorded_trajectories
                spans = [span for path in paths for span in find_drift(path.token_ids, tokenizer)]
                texts = {"prompt": sample.action.text, "reply": result.observation.final_response or ""}
                rows.append(
                    {
                        "sample": f"{entry.prompt_id}/{entry.index}",
                        **{name: text[:ROW_TEXT] for name, text in texts.items()},
                        "reward": sample.reward,
                        "ended": result.termination_reason.value,
                        "drift": len(spans) if paths else None,
                    }
                )
        return rows

    def threshold(self, threshold: float | None) -> float:
        """The reward from which on a sample passes: the one given here, otherwise the run's, otherwise 1."""
        return self.options.reward_threshold if threshold is None else threshold

    def tokenizer(self, tokenizer: str | None = None) -> RunTokenizer:
        """The tokenizer that is named (an `EvalError` if it cannot be loaded), else the run's own; `none` for none."""
        if tokenizer == "none":
            return RunTokenizer(tokenizer=None, note="Tokens are shown as ids: no tokenizer was asked for.")
        name = tokenizer or self._tokenizer_name()
        if name is None and self.options.backend == "scripted":
            return RunTokenizer(tokenizer=_Bytes())
        if name is None:
            return RunTokenizer(
                tokenizer=None,
                note="Tokens are shown as ids: name the tokenizer with --tokenizer to see texts and drift.",
            )
        from strands_sglang import get_tokenizer
        from strands_sglang.backends.engine.own_tokenizer import own_tokenizer

        try:
            return RunTokenizer(tokenizer=own_tokenizer(name) or get_tokenizer(name))
        except Exception as error:
            if tokenizer is not None:
                cannot = (
                    f"the tokenizer {tokenizer!r} cannot be loaded: " if isinstance(error, UnknownModelError) else ""
                )
                raise EvalError(f"{cannot}{error}") from error
            note = f"Tokens are shown as ids: the run's tokenizer {name!r} cannot be loaded ({type(error).__name__})."
            return RunTokenizer(tokenizer=None, note=note)

    def _tokenizer_name(self) -> str | None:
        options = self.options
        if options.tokenizer or options.benchmark is None:  # a program's run does not say where its model is
            return options.tokenizer
        if options.backend == "sglang":
            return self.model.get("model_id")  # the factory's label is where the server's tokenizer came from
        if options.backend != "local":
            return None
        name = options.model_id or "smollm2"
        if name != "smollm2":
            return name
        from strands_sglang.backends.engine.loader import default_model_cached

        return name if default_model_cached() else None  # a report downloads nothing


class _Bytes:
    """The scripted model's tokens are bytes."""

    def decode(self, ids: list[int], **options: Any) -> str:
        return bytes(ids).decode("utf-8", "replace")

    def encode(self, text: str, **options: Any) -> list[int]:
        return list(text.encode())


def read_scores(output_path: str | Path) -> ScoreTable:
    """The scores of a saved run (its `.jsonl` file or folder) under its own group policy; see `SavedRun.scores`."""
    return SavedRun.of(output_path).scores()
