"""The options of an evaluation, and those that a training has beside them, each once.

The arguments of `strands-env eval` and `train`, those of `Evaluator`, the options that a run saves and a resume takes
over, the keys of run files, and the configuration of trackers are made from the fields of `EvalOptions` and
`TrainOptions`. Nothing heavy is imported: help comes at once.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, Final, Self

from strands_env.core.backends import BACKENDS
from strands_env.core.trackers import TRACKERS, check_tracker
from strands_sglang.command_line import json_object, non_negative, number, positive, whole

logger = logging.getLogger(__name__)

# As readers of JSON hold.
seed_number = partial(whole, least=0, most=2**63 - 1, expected="a whole number from 0, below 2^63")

REWARDS: Final = {
    "choice": "strands_env.rewards:ChoiceReward",
    "exact": "strands_env.rewards:ExactMatchReward",
    "math": "strands_env.rewards:MathRewardFunction",
    "number": "strands_env.rewards:NumberReward",
}
"""Reward functions that have a name, and where they are."""
DATA: Final = "data"
"""Name of the benchmark of a file of rows."""
COLUMNS: Final = {
    "question": ("question", "prompt", "problem", "query", "input", "instruction"),
    "answer": ("answer", "ground_truth", "solution", "output", "target", "label"),
    "id": ("id", "task_id", "unique_id", "uid"),
}
"""Parts of a task in a file of data, each with the column names that are tried."""


def is_run_file(name: str | None) -> bool:
    """True for the name of a YAML file."""
    return name is not None and Path(name).suffix in (".yaml", ".yml")


def columns_of(text: str) -> dict[str, str]:
    """The map of `--columns question=prompt,answer=solution`."""
    columns: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        kind, equals, column = part.partition("=")
        if not equals or kind not in COLUMNS or not column:
            names = ", ".join(COLUMNS)
            raise argparse.ArgumentTypeError(f"it maps {names} to columns, as in question=prompt, got {part!r}")
        columns[kind] = column
    return columns


def trackers_of(text: str) -> list[str]:
    """The trackers of `--track wandb,tensorboard`."""
    return [name.strip() for name in text.split(",") if name.strip()]


SAMPLING: Final[Mapping[str, Any]] = {
    "temperature": {"type": number, "metavar": "T", "help": "0 is greedy"},
    "top_p": {"type": number, "metavar": "P"},
    "top_k": {"type": int, "metavar": "K"},
    "max_new_tokens": {"type": positive, "metavar": "N", "help": "tokens of one model call"},
}
"""Sampling parameters with an argument of their own, beside `--sampling`."""


def declare_option(group: str, default: Any, help: str, *flags: str, **argument: Any) -> Any:
    """A field: the heading of its argument, its default and its text, the argument's flags and further settings."""
    return field(default=default, metadata={"group": group, "help": help, "flags": flags, "argument": argument})


_model = partial(declare_option, "model")
_environment = partial(declare_option, "environment")
_data = partial(declare_option, "data")
_run = partial(declare_option, "run")
_SCRIPT = 'answer of the backend scripted, or a JSON list of texts and calls {"tool": NAME, "input": {...}}'
_MODEL_OPTIONS = """further options of the model, or a file, as in '{"injected_context": "keep"}'"""
_REWARD = f"reward function: {', '.join(REWARDS)}, or module:attribute (default: the environment's)"
_PROOF = "seconds in which the reward is proven on local tasks, before the run; 0: none"
_SEED = "seed of the data (default: 0) and of sampling (default: drawn)"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """Options of an evaluation. `Evaluator` takes those of the group `run`, benchmarks also those of `data`.

    Raises:
        ValueError: An option is out of range, or two contradict each other.
        TrackerError: A tracker is unknown.
    """

    benchmark: str | None = declare_option(
        "", None, "name of a benchmark (see --list), or module:attribute of your own"
    )

    backend: str = _model("local", "where the model is", "--backend", choices=BACKENDS)
    model_id: str | None = _model(None, "model: a name, a hub id or a folder", "--model", "--model-id", metavar="ID")
    base_url: str | None = _model(
        None, "server: sglang, vllm, openai", "--base-url", "--sglang-base-url", metavar="URL"
    )
    tokenizer: str | None = _model(None, "tokenizer (default: the server's)", "--tokenizer", metavar="ID")
    tool_parser: str | None = _model(None, "default: fits the chat template", "--tool-parser", metavar="NAME")
    sampling: Mapping[str, Any] | None = _model(
        None, "further sampling parameters, or a file", "--sampling", metavar="JSON", type=json_object
    )
    model_options: Mapping[str, Any] | None = _model(
        None, _MODEL_OPTIONS, "--model-options", metavar="JSON", type=json_object
    )
    script: str = _model("I do not know.", _SCRIPT, "--script", metavar="TEXT")

    env: str | None = _environment(None, "module:function of a hook, or module:Class", "--env", metavar="HOOK")
    env_config: Mapping[str, Any] | None = _environment(
        None, "arguments of the hook, or a file", "--env-config", metavar="JSON", type=json_object
    )
    reward: str | None = _environment(None, _REWARD, "--reward", metavar="HOOK")

    data_path: str | Path | None = _data(  # noqa: RUF009 - it makes a field
        None, "local .jsonl, .json or .parquet file, of tasks where no benchmark is named", "--data", metavar="PATH"
    )
    columns: Mapping[str, str] | None = _data(
        None, "columns of the data, as in question=prompt,answer=solution", "--columns", metavar="MAP", type=columns_of
    )
    limit: int | None = _data(None, "number of tasks", "--limit", metavar="N", type=positive)
    seed: int = _data(0, _SEED, "--seed", metavar="N", type=seed_number)

    n_samples_per_prompt: int = _run(
        1, "samples of each task, the n of pass@k", "-n", "--n-samples-per-prompt", metavar="N", type=positive
    )
    max_concurrency: int = _run(10, "rollouts at a time", "-c", "--max-concurrency", metavar="N", type=positive)
    output_path: str | Path | None = _run(  # noqa: RUF009 - it makes a field
        "results.jsonl", "folder of the results (default: runs/BENCHMARK)", "-o", "--output", metavar="DIR"
    )
    """A `.jsonl` file, or a folder for `results.jsonl`, from which the next run continues; None: only in memory."""
    keep_tokens: bool = _run(
        False, "do not keep token ids and log-probabilities", "--no-tokens", action="store_const", const=False
    )
    """Keep token ids, masks and log-probabilities: in the samples, and in the results file."""
    keep_results: bool = _run(True, "keep samples in memory and return them")
    """With False `run` returns `{}`, and results are read from the file, for runs of any size."""
    max_attempts: int = _run(3, "rollouts of a sample that gets lost", "--max-attempts", metavar="N", type=positive)
    max_failures: int | None = _run(
        None, "give up after so many lost samples", "--max-failures", metavar="N", type=non_negative
    )
    max_same_failures: int | None = _run(10, "give up when so many first samples all fail alike; None: never")
    sample_timeout: float | None = _run(None, "seconds of one rollout", "--sample-timeout", metavar="S", type=number)
    """Up to its cleanup, beside the environment's own deadlines. A rollout cut off in its loop has no tokens and, with
    a reward function, reward 0: prefer `step_timeout`."""
    reward_threshold: float = _run(
        1.0, "a sample passes from this reward on", "--reward-threshold", metavar="R", type=number
    )
    proof_seconds: float = _run(2.0, _PROOF, "--proof-seconds", metavar="S", type=number)
    fsync_interval: float | None = _run(0.0, "seconds between forced writes; 0: after every batch, None: never")
    sampling_seed: int | None = _run(None, "seed from which every sample gets its own")
    """Seed for models of the embedded engine and of `sglang_model_factory(seeded=True)`; recorded where it was used.
    None draws one for a new run, so that two runs are independent, and takes the recorded one to continue."""

    executor: str = declare_option(
        "workers", "inline", "where rollouts run", "--executor", choices=("inline", "processes", "ray")
    )
    workers: int | None = declare_option(
        "workers", None, "worker processes or Ray actors", "--workers", metavar="N", type=positive
    )
    track: tuple[str, ...] = declare_option(
        "trackers", (), f"also report to {', '.join(TRACKERS)}", "--track", metavar="NAMES", type=trackers_of
    )
    project: str | None = declare_option("trackers", None, "default: the benchmark", "--project", metavar="NAME")

    def __post_init__(self) -> None:
        from strands_sglang.exceptions import check_positive  # brings the SDK, which help does without

        names = ("n_samples_per_prompt", "max_concurrency", "max_attempts")
        check_positive(whole=True, **{name: getattr(self, name) for name in names})
        check_positive(whole=True, optional=True, limit=self.limit)
        check_positive(whole=True, optional=True, zero=True, max_failures=self.max_failures)
        check_positive(whole=True, zero=True, seed=self.seed)
        check_positive("seconds", optional=True, sample_timeout=self.sample_timeout)
        threshold: object = self.reward_threshold
        if isinstance(threshold, bool) or not isinstance(threshold, Real) or not math.isfinite(threshold):
            raise ValueError(f"reward_threshold must be a finite number, got {self.reward_threshold!r}")
        if self.sampling_seed is not None and (type(self.sampling_seed) is not int or abs(self.sampling_seed) >= 2**63):
            raise ValueError(f"sampling_seed must be None or an integer of at most 63 bits, got {self.sampling_seed!r}")
        if not 0 <= self.proof_seconds < math.inf:
            raise ValueError(f"proof_seconds must be a number of seconds, 0 for no proof, got {self.proof_seconds!r}")
        if not self.keep_results and self.output_path is None:
            raise ValueError("keep_results=False with output_path=None would keep results nowhere: give output_path")
        object.__setattr__(self, "track", tuple(self.track))  # of a list
        for kind in self.track:
            check_tracker(kind)

    @classmethod
    def of_saved(cls, values: Mapping[str, Any]) -> Self:
        """The options that `to_saved` wrote; those that this version does not know are left out."""
        if (policy := values.get("group_policy", "keep")) != "keep":  # of an earlier version: its metrics were others
            logger.warning(
                "group_policy=<%s> | it is gone: metrics of this run take all samples that were scored", policy
            )
        return cls(**{name: values[name] for name in values.keys() & OPTIONS.keys()})

    def to_saved(self) -> dict[str, Any]:
        """The options as JSON to write down, without secrets and those that are None.

        The seed of sampling is not one of them: it is written down with the environment, where it was used.
        """
        from strands_env.core.jsonable import shown  # loads pydantic, which help does without

        values = {name: getattr(self, name) for name in OPTIONS if name != "sampling_seed"}
        paths = {name: str(value) for name, value in values.items() if isinstance(value, Path)}
        document: dict[str, Any] = shown(
            {name: value for name, value in {**values, **paths}.items() if value is not None}
        )
        return document

    def model(self) -> dict[str, Any]:
        """The options of the model alone, as a hook that makes its own models gets them."""
        names = ["backend", "model_id", "base_url", "tokenizer", "tool_parser"]
        names += ["script"] if self.backend == "scripted" else []
        given = {name: getattr(self, name) for name in names}
        return {**(self.model_options or {}), **given, "sampling_params": dict(self.sampling or {})}

    def identity(self) -> dict[str, Any]:
        """Options that a resumed run of the command line must share with the saved one."""
        data = None if self.data_path is None else str(self.data_path)
        return {
            "model": {name: value for name, value in self.model().items() if name != "base_url"},
            "environment": {"hook": self.env, "config": self.env_config, "reward": self.reward},
            "data": {"path": data, "seed": self.seed, "columns": self.columns},
            "env_factory": self.env or self.benchmark,
        }


OPTIONS: Final = {option.name: option for option in fields(EvalOptions)}
"""The options by name."""
GROUPS: Final = {group: [name for name, option in OPTIONS.items() if option.metadata["group"] == group]
                 for group in dict.fromkeys(option.metadata["group"] for option in OPTIONS.values())}  # fmt: skip
"""Names of options by group."""
CONTINUED: Final = [
    *(name for group in ("", "model", "environment", "data") for name in GROUPS[group] if name != "limit"),
    *("sampling_seed", "n_samples_per_prompt", "reward_threshold"),
]
"""Options that a resumed run takes from the saved one unless given: those that it must share, and those that change
its numbers."""


# ---- of a training ---------------------------------------------------------------------------------------------------


TRAINERS: Final = ("trl", "slime", "verl", "skyrl")
"""Trainers: TRL in this process, on the embedded model; the launch of the others is printed."""
_training = partial(declare_option, "training")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """Options of GRPO.

    Raises:
        ValueError: An option is out of range.
    """

    trainer: str = _training(
        "trl", "trl trains here; slime, verl and skyrl: print their launch", "--trainer", choices=TRAINERS
    )
    steps: int = _training(20, "updates of the weights", "--steps", metavar="N", type=positive)
    lr: float = _training(1e-5, "learning rate, constant", "--lr", metavar="RATE", type=number)
    group: int = _training(8, "rollouts of a prompt, whose mean reward is the baseline", "--group", metavar="N",
                           type=positive)  # fmt: skip
    prompts: int = _training(4, "prompts of a step, at most all of them", "--prompts", metavar="N", type=positive)
    save_every: int = _training(1, "steps between checkpoints", "--save-every", metavar="N", type=positive)

    def __post_init__(self) -> None:
        from strands_sglang.exceptions import check_positive

        if self.trainer not in TRAINERS:
            raise ValueError(f"trainer must be one of {', '.join(TRAINERS)}, got {self.trainer!r}")
        check_positive(whole=True, steps=self.steps, prompts=self.prompts, save_every=self.save_every)
        check_positive(lr=self.lr)
        if type(self.group) is not int or self.group < 2:
            raise ValueError(f"group must be a whole number of at least 2, or nothing is compared, got {self.group!r}")


TRAIN_OPTIONS: Final = {option.name: option for option in fields(TrainOptions)}
"""The options by name."""
SHARED: Final = (
    "benchmark",
    *(name for group in ("model", "environment", "data") for name in GROUPS[group]),
    *("output_path", "max_concurrency", "max_attempts", "max_failures", "sample_timeout", "track", "project"),
)
"""Options of an evaluation that a training has, too: its rollouts are evaluated."""
CHANGEABLE: Final = frozenset({"steps", "save_every", "max_concurrency", "max_attempts", "max_failures", "output_path",
                               "track", "project"})  # fmt: skip
"""Options that may change when a training is resumed; any other would make it another training."""


# ---- arguments -------------------------------------------------------------------------------------------------------


def flag_of(name: str) -> str:
    """The argument of an option, as its users know it: `--data` for `data_path`."""
    return next((flag for flag in OPTIONS[name].metadata["flags"] if flag.startswith("--")), name)


def add_options(
    parser: argparse._ActionsContainer,
    names: Iterable[str],
    declared: Mapping[str, Field[Any]] = OPTIONS,
    **defaults: Any,
) -> None:
    """Add the arguments of declared options to a parser. Defaults are None, or in `defaults`."""
    for name in names:
        option, about = declared[name], declared[name].metadata
        default = defaults.get(name, option.default)
        is_plain = default is not False and default is not None and default != () and "default:" not in about["help"]
        text = f"{about['help']} ({default})" if is_plain else about["help"]
        if about["flags"]:
            given = defaults.get(name)
            parser.add_argument(*about["flags"], dest=name, default=given, help=text, **about["argument"])
