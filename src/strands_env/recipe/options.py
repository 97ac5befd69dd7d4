"""Options of a run: those given, those of a saved run, and defaults."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strands_env.core.jsonable import lacks_secrets
from strands_env.eval import EvalError
from strands_env.eval.store import StorePaths, load_run
from strands_env.recipe.names import DATA, benchmark_of_data

DEFAULTS: dict[str, Any] = {
    "backend": "local",
    "seed": 0,
    "n_samples_per_prompt": 1,
    "max_concurrency": 10,
    "max_attempts": 3,
    "group_policy": "keep",
    "reward_threshold": 1.0,
    "executor": "inline",
    "proof_seconds": 2.0,
    "script": "I do not know.",
}
_CONTINUED = (
    *("benchmark", "backend", "model_id", "base_url", "tokenizer", "tool_parser", "script", "env", "env_config"),
    *("reward", "data", "columns", "seed", "sampling_seed", "n_samples_per_prompt", "group_policy", "reward_threshold"),
)
"""Options that a resumed run takes from the saved one unless given: those that must match, and those that count."""


def resolve(given: Mapping[str, Any], *, from_run: str | None = None, resume: bool = False) -> dict[str, Any]:
    """All options of a run: those given, else the saved run's, else those of the run to resume, else defaults.

    Args:
        given: Every option by name; None and False stand for an option that was not given.
        from_run: Saved run to repeat: its folder or its `.run.json`.
    """
    chosen = {name: value for name, value in given.items() if value is not None and value is not False}
    saved: dict[str, Any] = {}
    if from_run is not None:
        path = Path(from_run)
        document = load_run(path if path.suffix == ".json" else StorePaths.of(path).run)
        if document is None:
            raise EvalError(f"found no saved run at {from_run!r}: give its folder or x.run.json")
        saved = document["about"].get("options") or {}
        if not saved:
            raise EvalError(f"{from_run!r} was not saved by 'strands-env eval': its options are unknown")
    continued: dict[str, Any] = {}
    if resume:
        continued = _continue_run(output_of({**saved, **chosen}))
    options = {**DEFAULTS, **continued, **saved, **chosen}  # the later wins
    if "seed" in chosen:
        options["sampling_seed"] = chosen["seed"]
    elif "sampling_seed" not in options:  # an earlier version had one seed for data and sampling
        before = {**continued, **saved}
        options["sampling_seed"] = before["seed"] if "seed" in before else secrets.randbits(31)
    if "sampling" in continued:
        options["sampling"] = {**continued["sampling"], **(options["sampling"] or {})}
    data, known = options.get("data"), continued.get("data")
    if data and known and os.path.realpath(data) == os.path.realpath(known):
        options["data"] = continued["data"]  # its spelling is part of the configuration
    if options.get("data") and not options.get("benchmark"):
        options["benchmark"] = benchmark_of_data(options["data"])
    for name in given:
        options.setdefault(name, None)
        if name not in chosen and lacks_secrets(options[name]):
            raise EvalError(
                f"the saved run does not hold the secrets of --{name.replace('_', '-')}: give that option again"
            )
    if not options["benchmark"]:
        if resume and given.get("output"):
            raise EvalError(f"there is no run at {given['output']!r} to resume: name a benchmark to start one")
        raise EvalError("name a benchmark ('strands-env list' shows them), --data FILE, or --from-run RUN")
    return options


def output_of(options: Mapping[str, Any]) -> Path | None:
    """Folder of the results; None if neither output nor benchmark is named."""
    if options.get("output"):
        return Path(options["output"])
    name = options.get("benchmark")
    if options.get("data") and name in (None, DATA, "harbor"):
        return Path("runs") / Path(options["data"]).stem
    return Path("runs") / str(name).replace(":", ".") if name else None


def _continue_run(output: Path | None) -> dict[str, Any]:
    """Options of the run in the output folder, with its sampling parameters as they were resolved."""
    document = None if output is None else load_run(StorePaths.of(output).run)
    if document is None:
        return {}
    saved = document["about"].get("options") or {}
    taken = {name: saved[name] for name in _CONTINUED if saved.get(name) is not None}
    model = document["config"].get("model")
    sampling = model.get("sampling_params") if isinstance(model, dict) else None
    if saved and isinstance(sampling, dict):
        taken |= {"sampling": sampling, "sampling_is_whole": True}
    return taken
