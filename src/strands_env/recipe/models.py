"""Model factories from plain values, and the checks of those values before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from strands_env.backends import BACKENDS, model_factory_from_args
from strands_env.core import ModelFactory
from strands_env.eval.errors import EvalError
from strands_env.options import EvalOptions
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

    @cached_property
    def _outcome(self) -> ModelFactory | Exception:
        try:
            return self._load()
        except Exception as error:  # loading takes minutes: a second try would only repeat it
            return error

    def load(self) -> ModelFactory:
        """The model factory itself; raises what loading raised, also when it is asked for again."""
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def __call__(self) -> Any:
        """A model."""
        return self.load()()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by protocols such as `copy`'s
            raise AttributeError(name)
        return getattr(self.load(), name)


def make_model_factory(options: EvalOptions, tape: Recorder | Replay | None = None) -> ModelFactory:
    """The model factory for options; `tape` records the calls of the models, or stands in for their backend."""
    backend = options.backend
    more: dict[str, Any] = {"script": options.script} if backend == "scripted" else dict(options.model_options or {})
    check_named_models(backend, options.model_id, options.tokenizer)
    if options.tool_parser is not None or backend == "local":
        from strands_sglang import get_tool_parser

        more["tool_parser"] = get_tool_parser(options.tool_parser or "hermes")
    try:
        if isinstance(tape, Replay):
            return tape.make_models(**more)
        if tape is not None:
            more["wrap"] = tape.wrap
        models = model_factory_from_args(
            backend,
            sglang_base_url=options.base_url,
            model_id=options.model_id,
            tokenizer=options.tokenizer,
            sampling_params=dict(options.sampling or {}) or None,
            **more,
        )
        if BACKENDS[backend].has_tokens:
            model: Any = models()  # a wrong sampling parameter fails here, not in every sample
            if tape is not None:
                config, seeing = getattr(models, "config", {}), model.conversation.expander
                tape.begin(model.tokenizer, config, seeded=config.get("seeded", False), expander=seeing)
        return models
    except BackendError:
        raise
    except OSError as error:
        raise EvalError(f"the model of the backend {backend!r} cannot be made: {error}") from error
    except ImportError as error:
        raise EvalError(what_to_install(error) or str(error)) from error
    except (ValueError, StrandsSGLangError) as error:  # a `RecordingError` too
        raise EvalError(str(error)) from error


def check_named_models(backend: str, model_id: str | None, tokenizer: str | None) -> None:
    """Refuse names that cannot be models, before anything is loaded."""
    for name in (model_id if backend == "local" else None, tokenizer):
        try:
            if name is not None:
                check_model_name(name)
        except UnknownModelError as error:
            raise EvalError(str(error)) from error


def loading(options: EvalOptions) -> str | None:
    """Sentence for a display while `make_model_factory` works on these options; None if that takes no time."""
    if options.backend == "local":
        from strands_sglang.backends.engine.loader import default_model_cached

        name = options.model_id or "smollm2"
        if name == "smollm2" and not default_model_cached():
            return "downloading and converting the model smollm2 (93 MB, once)"
        return f"loading the model {name}"
    if "base_url" not in BACKENDS[options.backend].needs:
        return None
    return f"asking the server at {options.base_url} for its model, and loading the tokenizer"
