"""Model factories from plain values, and the checks of those values before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import chain, repeat
from typing import Any

from strands_env.backends import BACKENDS, model_factory_from_args
from strands_env.core import ModelFactory
from strands_env.core.models import sglang_model_factory
from strands_env.eval.errors import EvalError
from strands_env.recipe.recording import Recorder, Replay
from strands_sglang.backends.engine.own_models import UnknownModelError, check_model_name
from strands_sglang.command_line import what_to_install
from strands_sglang.exceptions import BackendError, StrandsSGLangError


class DeferredModels:
    """A model factory that loads its model when it is first called or asked for an attribute.

    So mistakes in an environment are reported before the seconds or minutes that loading a model takes.
    """

    def __init__(self, load: Callable[[], ModelFactory]) -> None:
        self._load = load
        self._loaded: ModelFactory | None = None
        self._failure: Exception | None = None

    def load(self) -> ModelFactory:
        """The model factory itself; raises what loading raised, also when it is asked for again."""
        if self._failure is not None:  # loading takes minutes: a second try would only repeat it
            raise self._failure
        if self._loaded is None:
            try:
                self._loaded = self._load()
            except Exception as error:
                self._failure = error
                raise
        return self._loaded

    def __call__(self) -> Any:
        """A model."""
        return self.load()()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by protocols such as `copy`'s
            raise AttributeError(name)
        return getattr(self.load(), name)


def has_tokens(backend: str) -> bool:
    """The backend gives exact token data."""
    return backend in BACKENDS and BACKENDS[backend].has_tokens


def check_sampling(backend: str, params: Mapping[str, Any]) -> None:
    """Refuse sampling parameters that the backend would refuse."""
    if backend not in BACKENDS:
        return
    try:
        BACKENDS[backend].check(params)
    except StrandsSGLangError as error:
        raise EvalError(str(error)) from error


def make_model_factory(
    *,
    backend: str,
    model_id: str | None = None,
    base_url: str | None = None,
    tokenizer: str | None = None,
    tool_parser: str | None = None,
    sampling_params: Mapping[str, Any] | None = None,
    script: str = "I do not know.",
    script_delay: float = 0.0,
    tape: Recorder | Replay | None = None,
) -> ModelFactory:
    """The model factory for plain values.

    Args:
        backend: A name of `strands_env.backends`, or `scripted` (for trying things).
        script: Its answer, always the same; or a JSON list of a rollout's replies, the last of which repeats: texts,
            and tool calls as `{"tool": name, "input": {...}}`.
        script_delay: Seconds each call of the scripted model takes.
        tape: Records the calls of the models, or stands in for their backend.
    """
    if backend == "scripted":
        from strands_env.testing import ScriptedModel

        replies = _read_script(script)
        return lambda: ScriptedModel(chain(replies, repeat(replies[-1])), delay=script_delay)

    check_named_models(backend, model_id, tokenizer)
    options: dict[str, Any] = {}
    if tool_parser is not None or backend == "local":
        from strands_sglang import get_tool_parser

        options["tool_parser"] = get_tool_parser(tool_parser or "hermes")
    try:
        if isinstance(tape, Replay):
            return _replay_models(tape, **options)
        if tape is not None:
            options["wrap"] = tape.wrap
        made = model_factory_from_args(
            backend,
            sglang_base_url=base_url,
            model_id=model_id,
            tokenizer=tokenizer,
            sampling_params=dict(sampling_params or {}) or None,
            **options,
        )
        if has_tokens(backend):
            model: Any = made()  # a wrong sampling parameter fails here, not in every sample
            if tape is not None:
                config, seeing = getattr(made, "config", {}), model.conversation.expander
                tape.begin(model.tokenizer, config, seeded=config.get("seeded", False), expander=seeing)
        return made
    except BackendError:
        raise
    except OSError as error:
        raise EvalError(f"the model of the backend {backend!r} cannot be made: {error}") from error
    except ImportError as error:
        raise EvalError(what_to_install(error) or str(error)) from error
    except (ValueError, StrandsSGLangError) as error:  # a `RecordingError` too
        raise EvalError(str(error)) from error


def _read_script(script: str) -> list[Any]:
    """The replies of the scripted backend; text that is not a JSON list is its only one."""
    from strands_env.testing import call

    try:
        items = json.loads(script)
    except ValueError:
        return [script]
    if not isinstance(items, list):
        return [script]
    replies: list[Any] = []
    for item in items:
        if isinstance(item, dict) and item.keys() == {"tool", "input"} and isinstance(item["input"], dict):
            replies.append(call(str(item["tool"]), **item["input"]))
        elif isinstance(item, str):
            replies.append(item)
        else:
            raise EvalError(f'--script: a reply must be a text or {{"tool": NAME, "input": {{...}}}}, got {item!r}')
    if not replies or not isinstance(replies[-1], str):
        raise EvalError(f"--script: the last reply must be a text, which ends the rollout, got {script!r}")
    return replies


def _replay_models(replay: Replay, **options: Any) -> ModelFactory:
    """The factory of a recorded run, without its backend."""
    recorded = replay.model
    return sglang_model_factory(
        tokenizer=replay.tokenizer,
        processor=replay.expander,
        client=replay.wrap(None, 0),
        model_id=recorded["model_id"],
        sampling_params=recorded["sampling_params"],
        seeded=replay.is_seeded,
        wrap=replay.wrap,
        **options,
    )


def check_named_models(backend: str, model_id: str | None, tokenizer: str | None) -> None:
    """Refuse names that cannot be models, before anything is loaded."""
    for name in (model_id if backend == "local" else None, tokenizer):
        try:
            if name is not None:
                check_model_name(name)
        except UnknownModelError as error:
            raise EvalError(str(error)) from error


def loading(options: Mapping[str, Any]) -> str | None:
    """Sentence for a display while `make_model_factory` works on these options; None if that takes no time."""
    if options["backend"] == "local":
        from strands_sglang.backends.engine.loader import default_model_cached

        name = options.get("model_id") or "smollm2"
        if name == "smollm2" and not default_model_cached():
            return "downloading and converting the model smollm2 (93 MB, once)"
        return f"loading the model {name}"
    backend = BACKENDS.get(options["backend"])
    return None if backend is None or backend.loading is None else backend.loading.format_map(options)
