"""A run in a YAML file: the options of `strands-env eval` and `train` under the names of their arguments.

```yaml
data: tasks.jsonl
env: shop
temperature: 1
n_samples_per_prompt: 4
```

Both commands read the same file, each its own keys. `RunFile` checks it; its JSON schema is for editors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import Field as DataclassField
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    create_model,
)

from strands_env.eval.errors import EvalError
from strands_env.eval.options import (
    COLUMNS,
    DATA,
    OPTIONS,
    SAMPLING,
    SHARED,
    TRAIN_OPTIONS,
    EvalOptions,
    TrainOptions,
    columns_of,
    flag_of,
    is_run_file,
    seed_number,
    trackers_of,
)
from strands_env.training.log import NAME as LOG
from strands_sglang.command_line import json_object, non_negative, number, positive
from strands_sglang.hints import did_you_mean
from strands_sglang.secret_names import lacks_secrets

SAVED: Final = "run.yaml"
"""Name of the file in the folder of a training."""
_KINDS: Final[Mapping[Any, Any]] = {
    positive: PositiveInt,
    non_negative: NonNegativeInt,
    seed_number: NonNegativeInt,
    number: FiniteFloat,
    int: int,
    json_object: dict[str, Any],
    columns_of: dict[Literal[tuple(COLUMNS)], str],  # type: ignore[misc]
    trackers_of: list[str],
}
"""Types of values in a file by those of arguments."""


def _key_of(name: str, option: DataclassField[Any]) -> str:
    """The key of an option: its argument's name, or its own where the argument is a switch."""
    flag = next((flag for flag in option.metadata["flags"] if flag.startswith("--")), None)
    return name if flag is None or "action" in option.metadata["argument"] else flag[2:].replace("-", "_")


def _kind_of(argument: Mapping[str, Any]) -> Any:
    if "choices" in argument:
        return Literal[tuple(map(str, argument["choices"]))]
    if "action" in argument:
        return bool
    return _KINDS[argument["type"]] if "type" in argument else str


_DECLARED = {name: option for name, option in (OPTIONS | TRAIN_OPTIONS).items() if option.metadata["flags"]}
KEYS: Final = {"benchmark": "benchmark", "sampling_seed": "sampling_seed"} | {
    _key_of(name, option): name for name, option in _DECLARED.items()
}
"""Names of options by the keys of a file; the parameters of `SAMPLING` are keys, too."""
_VALUES: dict[str, Any] = {
    "benchmark": (str | None, Field(None, description=OPTIONS["benchmark"].metadata["help"])),
    "sampling_seed": (int | None, Field(None, description="seed of sampling; `seed` sets it, too")),
} | {
    key: (kind | None, Field(None, description=about.get("help")))
    for key, kind, about in [
        *((key, _kind_of(_DECLARED[name].metadata["argument"]), _DECLARED[name].metadata)
          for key, name in KEYS.items() if name in _DECLARED),
        *((name, _kind_of(about), about) for name, about in SAMPLING.items()),
    ]
}  # fmt: skip
RunFile: type[BaseModel] = create_model(
    "RunFile",
    __config__=ConfigDict(extra="forbid", strict=True, title="A run of strands-env eval or train"),
    **_VALUES,
)
"""The options in a file, each or None."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """JSON's types; a key that is there twice, or an alias, is refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for place, key in enumerate(keys):
            why = "is there twice" if key in keys[:place] else None if isinstance(key, str) else "must be text"
            if why is not None:
                mark = node.value[place][0].start_mark
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} {why}", problem_mark=mark)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not read", problem_mark=mark)
        return super().compose_node(parent, index)


# Scalars as YAML 1.2 and JSON have them: to YAML 1.1, 1e-5 is text, 012 is 10, `no` is false, and 2026-11-28 a date.
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", list("-+0123456789.")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def read_run_file(path: str | Path) -> dict[str, Any]:
    """The options in a file by their names, with all sampling parameters under `sampling`.

    Raises:
        EvalError: The file cannot be read, has an unknown key, or a value of another type.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise EvalError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error
    return parse_run_file(text, repr(str(path)))


def parse_run_file(text: str, where: str = "the file") -> dict[str, Any]:
    """The options in the text of a file; `where` names it in errors. See `read_run_file`."""
    try:
        content = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or error
        line = "" if mark is None else f", line {mark.line + 1}"
        raise EvalError(f"{where}{line} is not YAML that describes a run: {' '.join(str(problem).split())}") from error
    if not isinstance(content, dict):
        raise EvalError(f"{where} must hold keys and values, as in 'data: tasks.jsonl', got {type(content).__name__}")
    try:
        checked = RunFile.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            hint = did_you_mean(key, RunFile.model_fields) or f"; there are {', '.join(sorted(RunFile.model_fields))}"
            raise EvalError(f"{where} has the unknown key {key!r}{hint}") from error
        message = first["msg"][:1].lower() + first["msg"][1:]
        raise EvalError(f"{where}, key {key!r}: {message}, got {first['input']!r:.80}") from error
    given = {name: value for name in content if (value := getattr(checked, name)) is not None}
    sampling = {name: given.pop(name) for name in SAMPLING if name in given}
    values = {KEYS[key]: value for key, value in given.items()}
    return {**values, "sampling": {**values.get("sampling", {}), **sampling}} if sampling else values


def run_file_text(options: EvalOptions, training: TrainOptions | None = None) -> str:
    """A file that gives these options again, without the defaults of an evaluation, and without secrets."""
    values = options.to_saved()
    if training is not None:
        values = {name: value for name, value in values.items() if name in SHARED}
        values |= {name: getattr(training, name) for name in TRAIN_OPTIONS}
    values["sampling_seed"] = options.sampling_seed
    defaults = {name: option.default for name, option in OPTIONS.items()} | {"keep_tokens": True}
    document = {key: values[name] for key, name in KEYS.items()
                if values.get(name) not in (None, [], defaults.get(name))}  # fmt: skip
    if "data" in document and document.get("benchmark") == DATA:
        del document["benchmark"]
    sampling = dict(document.pop("sampling", {}))
    document |= {name: sampling.pop(name) for name in SAMPLING if name in sampling}
    if sampling:
        document["sampling"] = sampling
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return text


def with_run_file(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a command, with the options of the file that they name, as benchmark or as run to start from.

    An argument that is given replaces the option of the file. The folder of a training stands for its file, without
    its output path.

    Raises:
        EvalError: The file is wrong, there are two, or it lacks a secret that is not given.
    """
    merged = dict(arguments)
    names = [name for name in ("benchmark", "from_run") if is_run_file(merged.get(name))]
    if len(names) > 1:
        raise EvalError(
            f"{merged['benchmark']!r} and --from-run {merged['from_run']!r} are two files of runs: give one"
        )
    path, folder = (merged.pop(names[0]) if names else None), merged.get("from_run")
    is_training = path is None and folder is not None and os.path.isfile(Path(folder) / LOG)
    if is_training:
        path = Path(merged.pop("from_run")) / SAVED
    if path is None:
        return merged
    values = read_run_file(path)
    if is_training:
        values.pop("output_path", None)
    for name, value in values.items():
        if name == "sampling":
            merged["sampling"] = {**value, **(merged.get("sampling") or {})}
        elif merged.get(name) is None:
            if lacks_secrets(value):
                raise EvalError(f"{str(path)!r} does not hold the secrets of {flag_of(name)}: give that option again")
            merged[name] = value
    return {**dict.fromkeys(("benchmark", "from_run")), **merged}
