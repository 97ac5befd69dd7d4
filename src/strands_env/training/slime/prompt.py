"""slime's prompt, text or messages with images, as an action, and how its images expand."""

from __future__ import annotations

import base64
import functools
import uuid
from array import array
from collections.abc import Sequence
from typing import Any

from strands_env.core import Action, TaskContext
from strands_env.core.chat_messages import ChatPrompt, UnsupportedPromptError, is_image
from strands_env.training.slime.settings import METADATA_KEY, RolloutCall, SlimeConfigError, warn_once
from strands_sglang.exceptions import MediaError
from strands_sglang.trajectory.images import ProcessorExpander, as_rgb, encode
from strands_sglang.trajectory.media import ImageEncoding

NO_PROCESSOR = (
    "slime found no processor in --hf-checkpoint, or one that is not supported; strands_env_processor names another "
    "folder"
)
"""The reason there is no image expander, and the remedy."""


def read_prompt(sample: Any, images: Sequence[bytes] | None = None) -> Action:
    """Slime's prompt, text or messages in the format of chat completions, as an action.

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
        return Action(message=sample.prompt, task_context=TaskContext(**context))
    try:
        chat = ChatPrompt.of(sample.prompt, images)
    except UnsupportedPromptError as error:
        raise SlimeConfigError(str(error)) from error
    context["conversation_history"] = chat.turns[:-1]
    if chat.system is not None:
        context["system_prompt"] = chat.system
    return Action(message=chat.turns[-1], task_context=TaskContext(**context))


def has_images(sample: Any) -> bool:
    """The sample has image parts, or multimodal inputs that may be images."""
    return bool(getattr(sample, "multimodal_inputs", None)) or _count_images(sample.prompt) > 0


def prompt_images(sample: Any, expander: ProcessorExpander | None) -> list[bytes]:
    """The images of slime's prompt as PNG, in the order of their parts; for a thread.

    slime has loaded them (`--multimodal-keys`), one for every image part of the messages.

    Raises:
        SlimeConfigError: Nothing expands them, they do not fit the messages, or there are videos or audio.
    """
    inputs = getattr(sample, "multimodal_inputs", None) or {}
    # By length where there is one, for the truth value of a tensor is an error.
    names = sorted(
        name
        for name, value in inputs.items()
        if value is not None and not (hasattr(value, "__len__") and not len(value))
    )
    if others := [name for name in names if name != "images"]:
        raise SlimeConfigError(
            f"the data has multimodal inputs {others!r}: only images can be sent exactly, for with video or audio in a "
            "request SGLang decodes the ids and tokenises them again"
        )
    places = _count_images(sample.prompt)
    if not names and not places:
        return []
    if expander is None:
        raise SlimeConfigError(
            f"the data has multimodal inputs {names or ['images']!r}, and nothing expands them: {NO_PROCESSOR}"
        )
    images = list(inputs.get("images") or ()) if names else []
    if len(images) != places:
        raise SlimeConfigError(
            f"the prompt has {places} image parts, and the data's multimodal inputs have {len(images)} images: give "
            "images with --multimodal-keys, and the prompt as messages"
        )
    return [encode(as_rgb(image), ImageEncoding.PNG) for image in images]


def _count_images(prompt: Any) -> int:
    contents = [] if isinstance(prompt, str) else [message.get("content") for message in prompt]
    return sum(is_image(part) for content in contents if not isinstance(content, str) for part in content or ())


# ---- how its images expand ------------------------------------------------------------------------------------------

_load_expander = functools.cache(ProcessorExpander.from_model)


def image_expander(call: RolloutCall) -> ProcessorExpander | None:
    """The expander of the trained model's images; None if it takes none, or its processor is not supported.

    Raises:
        SlimeConfigError: The processor that `strands_env_processor` names cannot be used.
    """
    if (named := call.settings.processor) is not None:
        try:
            return _load_expander(named)
        except MediaError as error:
            raise SlimeConfigError(f"strands_env_processor: {error}") from error
    if getattr(call.state, "processor", None) is None:
        return None  # slime itself found none
    try:
        return _load_expander(call.args.hf_checkpoint)
    except MediaError as error:
        warn_once(f"error=<{error}> | the model is trained without images")
        return None


def expand_prompt(expander: ProcessorExpander, ids: Sequence[int], images: Sequence[str]) -> array[int]:
    """A prompt with every placeholder replaced by the tokens of its image."""
    spans = iter(images)
    out: array[int] = array("i")
    for token in ids:
        if token == expander.placeholder_id:
            out += _span(expander, next(spans))
        else:
            out.append(token)
    return out


@functools.lru_cache(maxsize=1024)  # every turn of every rollout of a group has the same images
def _span(expander: ProcessorExpander, url: str) -> array[int]:
    return expander.prepare(base64.b64decode(url.partition(",")[2])).span
