"""The options of a run: those given, those of a saved run, and defaults."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strands_env.core.jsonable import lacks_secrets
from strands_env.eval import Benchmark, EvalError
from strands_env.eval.saved import SavedRun
from strands_env.options import CONTINUED, OPTIONS, SAMPLING, EvalOptions, flag_of
from strands_env.recipe.objects import DATA, benchmark_of_data, load_evaluator


def resolve(arguments: Mapping[str, Any], *, from_run: str | None = None, resume: bool = False) -> EvalOptions:
    """All options of a run: those given, else the saved run's, else those of the run to resume, else defaults.

    Args:
        arguments: Those of the command line by name; None stands for one that was not given.
        from_run: Saved run to repeat: its folder or its `.run.json`.
    """
    given = {name: value for name, value in arguments.items() if name in OPTIONS and value is not None}
    sampling = {name: value for name in SAMPLING if (value := arguments.get(name)) is not None}
    if own := {**given.pop("sampling", {}), **sampling}:
        given["sampling"] = own
    saved: dict[str, Any] = {}
    if from_run is not None:
        path = Path(from_run)
        run = SavedRun.of(path.with_name(path.name.replace(".run.json", ".jsonl")))
        if not run.document:
            raise EvalError(f"found no saved run at {from_run!r}: give its folder or x.run.json")
        saved = run.saved_options
        if "benchmark" not in saved:
            raise EvalError(f"{from_run!r} was not saved by 'strands-env eval': its options are unknown")
    values = {**saved, **given}
    output = output_of(values)
    continued: dict[str, Any] = {}
    if resume and output is not None:
        before = SavedRun.of(output).saved_options
        continued = {name: before[name] for name in CONTINUED if before.get(name) is not None}
        values = {**continued, **values}
    earlier = {**continued, **saved}
    if "seed" in given:
        values["sampling_seed"] = given["seed"]
    if values.get("sampling_seed") is None:
        values["sampling_seed"] = secrets.randbits(31)
    data, saved_data = values.get("data_path"), continued.get("data_path")
    if data and saved_data and os.path.realpath(data) == os.path.realpath(saved_data):
        values["data_path"] = saved_data  # its spelling is part of the configuration
    if data and not values.get("benchmark"):
        values["benchmark"] = benchmark_of_data(str(data))
    for name, value in values.items():
        if name not in given and lacks_secrets(value):
            raise EvalError(f"the saved run does not hold the secrets of {flag_of(name)}: give that option again")
    if not values.get("benchmark"):
        if resume and "output_path" in given:
            raise EvalError(f"there is no run at {given['output_path']!r} to resume: name a benchmark to start one")
        raise EvalError("name a benchmark ('strands-env eval --list' shows them), --data FILE, or --from-run RUN")
    values["output_path"] = str(output_of(values))
    # A saved run has all its sampling parameters, a new one those of the benchmark.
    kind, base = load_evaluator(values["benchmark"]), earlier.get("sampling")
    if base is None and issubclass(kind, Benchmark):
        base = dict(kind.default_sampling)
        if values.get("n_samples_per_prompt", 1) > 1:
            base.pop("temperature", None)  # several samples are to differ
    values["sampling"] = {**(base or {}), **(given.get("sampling") or {})}
    return EvalOptions(**{"keep_tokens": True, "keep_results": False, **values})


def output_of(values: Mapping[str, Any]) -> Path | None:
    """Folder of the results; None if neither output nor benchmark is named."""
    if values.get("output_path"):
        return Path(values["output_path"])
    name = values.get("benchmark")
    if values.get("data_path") and name in (None, DATA, "harbor"):
        return Path("runs") / Path(values["data_path"]).stem
    return Path("runs") / str(name).replace(":", ".") if name else None
