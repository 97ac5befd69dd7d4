"""slime's prompt as an action, and its images."""

from __future__ import annotations

import asyncio
import base64
import functools
import logging
import uuid
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strands_env.core import Action, TaskContext
from strands_env.core.chat import ChatPrompt, UnsupportedPromptError, is_image
from strands_env.training.slime.settings import METADATA_KEY, Call, SlimeConfigError
from strands_sglang.exceptions import MediaError
from strands_sglang.trajectory.media import ImageEncoding, ProcessorExpander, as_rgb, encode

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimePrompt:
    """slime's prompt as an environment takes it: the last message, the ones before as history; the system message."""

    action: Action
    system: str | None = None


async def prompt_of(call: Call) -> SlimePrompt:
    """The prompt of a call. Its images are encoded in a thread."""
    sample = call.sample
    has_media = bool(getattr(sample, "multimodal_inputs", None)) or any(map(is_image, _parts(sample.prompt)))
    images = await asyncio.to_thread(prompt_images, sample, Pictures.of(call)) if has_media else ()
    return read_prompt(sample, images)


def read_prompt(sample: Any, images: Sequence[bytes] | None = None) -> SlimePrompt:
    """Slime's prompt; one of messages is in the format of chat completions.

    Args:
        images: PNGs of the image parts, in order; None leaves the parts out.

    Raises:
        SlimeConfigError: A part is neither text nor an image.
        ValueError: It does not end with a user message, or a message cannot be understood.
    """
    context: dict[str, Any] = {
        "id": str(sample.index) if sample.index is not None else uuid.uuid4().hex,
        "ground_truth": sample.label,
        "metadata": {key: value for key, value in (sample.metadata or {}).items() if key != METADATA_KEY},
    }
    if isinstance(sample.prompt, str):
        return SlimePrompt(action=Action(message=sample.prompt, task_context=TaskContext(**context)))
    try:
        chat = ChatPrompt.of(sample.prompt, images)
    except UnsupportedPromptError as error:
        raise SlimeConfigError(str(error)) from error
    context["conversation_history"] = chat.turns[:-1]
    action = Action(message=chat.turns[-1], task_context=TaskContext(**context))
    return SlimePrompt(action=action, system=chat.system)


def prompt_images(sample: Any, pictures: Pictures | None) -> list[bytes]:
    """The images of slime's prompt as PNG, in the order of their parts; for a thread.

    slime has loaded them (`--multimodal-keys`), one for every image part of the messages.

    Raises:
        SlimeConfigError: Nothing expands them, they do not fit the messages, or there are videos or audio.
    """
    inputs = getattr(sample, "multimodal_inputs", None) or {}
    given = sorted(name for name, value in inputs.items() if value is not None and _length(value))
    if others := [name for name in given if name != "images"]:
        raise SlimeConfigError(
            f"the data has multimodal inputs {others!r}: only images can be sent exactly, for with video or audio in a "
            "request SGLang decodes the ids and tokenises them again"
        )
    places = sum(map(is_image, _parts(sample.prompt)))
    if not given and not places:
        return []
    if pictures is None:
        raise SlimeConfigError(
            f"the data has multimodal inputs {given or ['images']!r}, and nothing expands them: slime found no "
            "processor in --hf-checkpoint, or its family is not proved; strands_env_processor names another folder"
        )
    images = list(inputs.get("images") or ()) if given else []
    if len(images) != places:
        raise SlimeConfigError(
            f"the prompt has {places} image parts, and the data's multimodal inputs have {len(images)} images: give "
            "images with --multimodal-keys, and the prompt as messages"
        )
    return [encode(as_rgb(image), ImageEncoding.PNG) for image in images]


def _parts(prompt: Any) -> list[Any]:
    if isinstance(prompt, str):
        return []
    contents = [message.get("content") for message in prompt]
    return [part for content in contents if not isinstance(content, str) for part in content or ()]


def _length(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 1


class Pictures:
    """The spans of tokens that one model's processor makes of images; shared by all rollouts of a run."""

    def __init__(self, expander: ProcessorExpander) -> None:
        self.expander = expander
        self._span = functools.lru_cache(maxsize=1024)(self._expand)

    @classmethod
    def of(cls, call: Call) -> Pictures | None:
        """The images' expansion for the trained model; None if it takes no images, or its family is not proved.

        Raises:
            SlimeConfigError: The processor that `strands_env_processor` names cannot be used.
        """
        if (named := call.settings.processor) is not None:
            try:
                return _load(named)
            except MediaError as error:
                raise SlimeConfigError(f"strands_env_processor: {error}") from error
        if getattr(call.state, "processor", None) is None:
            return None  # slime itself found none
        try:
            return _load(call.args.hf_checkpoint)
        except MediaError as error:
            _warn_once(str(error))
            return None

    def expanded(self, ids: Sequence[int], images: Sequence[str]) -> array[int]:
        """A prompt with every placeholder replaced by what its image expands to."""
        spans = iter(images)
        out: array[int] = array("i")
        for token in ids:
            if token == self.expander.placeholder_id:
                out += self._span(next(spans))
            else:
                out.append(token)
        return out

    def _expand(self, url: str) -> array[int]:
        return self.expander.enter(base64.b64decode(url.partition(",")[2])).span


@functools.cache
def _load(model: str) -> Pictures:
    return Pictures(ProcessorExpander.of_model(model))


@functools.cache
def _warn_once(error: str) -> None:
    logger.warning("error=<%s> | the model is trained without images", error)
