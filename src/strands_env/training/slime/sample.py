"""slime's `Sample`: its prompt as an action, its images, and a rollout written into it, top-p data included."""

from __future__ import annotations

import base64
import copy
import functools
import logging
import math
import uuid
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strands_env.core import Action, TaskContext
from strands_env.core.chat import ChatPrompt, UnsupportedPromptError, is_image
from strands_env.training.export import image_tensors
from strands_env.training.sample import InvalidSampleError, SampleStatus, TrainingSample
from strands_env.training.slime.settings import Call, Needs, SlimeConfigError
from strands_sglang.exceptions import MediaError
from strands_sglang.trajectory import SamplingMask
from strands_sglang.trajectory.media import ImageEncoding, ProcessorExpander, as_rgb, encode

logger = logging.getLogger(__name__)

METADATA_KEY = "strands_env"
"""Where a sample's `metadata` holds termination reason, final answer, error, metrics and reward information."""


# ---- the prompt and its images ------------------------------------------------------------------------------------


def action_of(sample: Any, environment: Any = None, images: Sequence[bytes] | None = None) -> Action:
    """Slime's prompt as an action: the last message, the ones before as history, a system message for the agent.

    Args:
        sample: slime's sample; a prompt of messages is in the format of chat completions.
        environment: Gets the system message as its system prompt.
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
        prompt = ChatPrompt.of(sample.prompt, images)
    except UnsupportedPromptError as error:
        raise SlimeConfigError(str(error)) from error
    if prompt.system is not None and environment is not None:
        environment.system_prompt = prompt.system
    context["conversation_history"] = prompt.turns[:-1]
    return Action(message=prompt.turns[-1], task_context=TaskContext(**context))


def has_media(sample: Any) -> bool:
    """Whether the prompt has images, or the data something beside it."""
    return bool(getattr(sample, "multimodal_inputs", None)) or any(map(is_image, _parts(sample.prompt)))


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
    """What one model makes of images; shared by all rollouts of a run.

    Args:
        expander: What expands them.
    """

    def __init__(self, expander: ProcessorExpander) -> None:
        self.expander = expander
        self._span = functools.lru_cache(maxsize=1024)(self._expand)

    @classmethod
    def of(cls, call: Call) -> Pictures | None:
        """Those of the model that is trained; None where it does not see, or is of a family that is not proved.

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

    def train_inputs(self, source: TrainingSample) -> dict[str, Any]:
        """`multimodal_train_inputs`: the tensors that Megatron's model is fed beside the tokens.

        Raises:
            InvalidSampleError: The images do not expand to the tokens of the sample.
        """
        return image_tensors(source, self.expander)


@functools.cache
def _load(model: str) -> Pictures:
    return Pictures(ProcessorExpander.of_model(model))


@functools.cache
def _warn_once(error: str) -> None:
    logger.warning("error=<%s> | the model is trained without images", error)


# ---- top-p data ---------------------------------------------------------------------------------------------------

_TOP_P_IDS = ("top_p_token_ids", "top_p_kept_token_ids")
_TOP_P_OFFSETS = ("top_p_token_offsets", "top_p_kept_token_offsets")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """What one answer said beyond the trajectory.

    Attributes:
        prompt: Ids of the request as the model saw them.
        output: Sampled ids.
        kept: Top-p survivors of the sampled ids, or None.
    """

    prompt: Sequence[int]
    output: Sequence[int]
    kept: SamplingMask


def kept_sets_of(meta: Mapping[str, Any], count: int) -> SamplingMask | None:
    """The top-p data of slime's patched server: int32 arrays, as lists or base64; None where the answer has none.

    Raises:
        ValueError: The data does not fit the number of sampled tokens.
    """
    ids, offsets = _int32(meta, _TOP_P_IDS), _int32(meta, _TOP_P_OFFSETS)
    if ids is None or offsets is None or not (count or len(offsets)):
        return None  # without tokens there may be no offsets
    if len(offsets) != count + 1 or int(offsets[-1]) != len(ids):
        raise ValueError(
            f"top-p data has {len(offsets)} offsets up to {int(offsets[-1]) if len(offsets) else None} and {len(ids)} "
            f"ids for {count} sampled tokens"
        )
    return SamplingMask(ids=ids, offsets=offsets.astype(np.int64))


def _int32(meta: Mapping[str, Any], names: Sequence[str]) -> NDArray[np.int32] | None:
    for name in names:
        value = meta.get(name)
        if value is None:
            continue
        if isinstance(value, str):
            return np.frombuffer(base64.b64decode(value, validate=True), dtype="<i4").astype(np.int32)
        return np.array(value, dtype=np.int32)
    return None


def kept_of_sample(token_ids: NDArray[np.int32], records: Sequence[CallRecord]) -> SamplingMask | None:
    """Top-p data of a path, out of the calls that made it; None where no call belongs to it.

    A position that several calls sampled alike (a retry of one prompt) has the set of the longest of them.
    """
    sets: dict[int, NDArray[np.int32]] = {}
    for record in sorted(records, key=lambda record: len(record.output)):
        start, end = len(record.prompt), len(record.prompt) + len(record.output)
        on_path = np.array_equal(token_ids[:start], record.prompt) and np.array_equal(
            token_ids[start:end], record.output
        )
        if on_path:
            sets.update(zip(range(start, end), np.split(record.kept.ids, record.kept.offsets[1:-1]), strict=False))
    if not sets:
        return None
    none = np.zeros(0, dtype=np.int32)
    parts = [sets.get(position, none) for position in range(len(token_ids))]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return SamplingMask(ids=np.concatenate(parts).astype(np.int32), offsets=offsets)


# ---- a rollout in a sample -----------------------------------------------------------------------------------------


def set_status(sample: Any, status: SampleStatus) -> None:
    """Set slime's status."""
    sample.status = getattr(type(sample).Status, status.name)


def fill(sample: Any, source: TrainingSample, needs: Needs, text_of: Callable[[list[int]], str]) -> None:
    """Write a training sample into slime's sample. Which fields are set depends on `needs` alone.

    Args:
        text_of: Decodes the response, for logs: nothing is ever encoded again from it.

    Raises:
        InvalidSampleError: What is needed is missing: a log-probability, experts, top-p data of a trained token.
    """
    source.validate(logprobs_required=True)
    experts = kept = None
    if needs.experts_shape is not None:
        experts = source.experts_array()
        if experts is None:
            raise InvalidSampleError("the trainer replays routed experts and the rollout has none")
    if needs.top_p:
        if source.sampling_mask is None:
            raise InvalidSampleError("rollout_top_p is not 1, and the server returned no top-p token ids")
        kept = source.sampling_mask.part(source.prompt_length, len(source))
    _set_arrays(
        sample,
        token_ids=source.token_ids,
        prompt_length=source.prompt_length,
        mask=source.loss_mask[source.prompt_length :],
        logprobs=source.response_logprobs(),
        experts=experts,
        kept=kept,
    )
    sample.response = text_of(sample.tokens[source.prompt_length :])
    sample.weight_versions = versions_of(source)
    set_status(sample, source.status)


def versions_of(source: TrainingSample) -> list[str]:
    """The weight versions, one per call; two for a call that was resumed with other weights."""
    return [span.version for span in source.weight_versions if span.version is not None]


def fill_unusable(sample: Any, source: TrainingSample | None, needs: Needs) -> None:
    """Make a sample that slime can carry and that trains nothing: mask 0, removed.

    The fields are those that every sample of the run has, for slime decides by the first sample of a batch. A rollout
    that sampled nothing is given one masked token, since slime's tensors cannot be empty.
    """
    if source is not None and source.media:
        source = None  # its image tokens without pixels would break the trainer's forward pass
    if source is not None and source.response_length:
        ids, prompt_length = source.token_ids, source.prompt_length
        logprobs = np.zeros(source.response_length) if source.logprobs is None else source.logprobs[prompt_length:]
        values = np.where(np.isfinite(logprobs), logprobs, 0.0)
        sample.weight_versions = versions_of(source)
    else:
        prompt = (source.token_ids.tolist() if source is not None else []) or [0]
        ids, prompt_length = np.array([*prompt, prompt[-1]], dtype=np.int32), len(prompt)
        values = np.zeros(1)
    length = len(ids) - prompt_length
    experts = None
    if needs.experts_shape is not None:
        layers, top_k = needs.experts_shape
        row = np.arange(top_k, dtype=np.int32) if top_k > 1 else np.ones(1, dtype=np.int32)  # no layer is all 0
        experts = np.broadcast_to(row, (len(ids) - 1, layers, top_k)).copy()
    empty = SamplingMask(ids=np.zeros(0, dtype=np.int32), offsets=np.zeros(length + 1, dtype=np.int64))
    _set_arrays(
        sample,
        token_ids=ids,
        prompt_length=prompt_length,
        mask=np.zeros(length, dtype=np.uint8),
        logprobs=values.tolist(),
        experts=experts,
        kept=empty if needs.top_p else None,
    )
    sample.response = ""
    if hasattr(sample, "multimodal_train_inputs"):
        sample.multimodal_train_inputs = None
    sample.remove_sample = True


class KeyedReward(dict[str, Any]):
    """A reward under its keys. slime rounds rewards that are all equal, even without looking under the key."""

    def __round__(self, digits: int | None = None) -> float:
        return round(float(next(iter(self.values()))), digits)


def reward_value(
    args: Any, reward: Any, info: Mapping[str, Any] | None = None, *, evaluation: bool = False, category: str = "none"
) -> Any:
    """A reward as slime reads it: a number, or a dict where one of its keys is set.

    Args:
        args: slime's arguments; `reward_key`, `eval_reward_key` and `log_reward_category` are read.
        reward: The reward.
        info: The `info` of a `RewardResult`, which may hold the category.
        evaluation: In evaluations slime reads `reward_key` beside `eval_reward_key`.
        category: Category where `info` has none.
    """
    names = ("reward_key", "eval_reward_key") if evaluation else ("reward_key",)
    keys = [key for name in names if (key := getattr(args, name, None))]
    if not keys:
        return reward
    value = KeyedReward(dict.fromkeys(keys, reward))
    if category_key := getattr(args, "log_reward_category", None):
        value[category_key] = str((info or {}).get(category_key, category))
    return value


def is_distilled(args: Any, *, evaluation: bool = False) -> bool:
    """Whether rewards are answers of a teacher (on-policy distillation), which slime asks for itself."""
    path = str(getattr(args, "custom_reward_post_process_path", None) or "")
    return path.endswith("on_policy_distillation.post_process_rewards") and not evaluation


def unusable_reward(args: Any, sample: Any, category: str, *, evaluation: bool = False) -> Any:
    """A reward for a removed sample that slime's own functions can read. Nothing is learnt from it.

    Args:
        args: slime's arguments.
        sample: slime's sample, with its tokens.
        category: Its `log_reward_category`.
        evaluation: Whether slime evaluates.
    """
    reward: Any = 0.0
    if is_distilled(args, evaluation=evaluation):
        scores = [[None if place == 0 else 0.0, token, None] for place, token in enumerate(sample.tokens)]
        # No two are equal: slime rounds rewards that are, which it cannot with answers of a teacher.
        reward = {"meta_info": {"id": uuid.uuid4().hex, "input_token_logprobs": scores}}
    return reward_value(args, reward, evaluation=evaluation, category=category)


def read_reward(args: Any, sample: Any) -> float | None:
    """The reward of a sample as a number, whoever set it; None if it is missing, NaN or infinite."""
    value = getattr(sample, "reward", None)
    if isinstance(value, dict):
        keys = [getattr(args, "reward_key", None), getattr(args, "eval_reward_key", None)]
        value = next((value[key] for key in keys if key and key in value), None)
    if value is None or isinstance(value, str | bytes):
        return None
    try:
        number = float(value)  # numbers of numpy and torch too
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def rollout_key(sample: Any, position: int) -> Any:
    """What the samples of one rollout share, within a group."""
    for name in ("rollout_id", "index"):
        value = getattr(sample, name, None)
        if value is not None:
            return value
    return ("position", position)


def note(sample: Any, notes: dict[str, Any]) -> None:
    """Leave our notes in the sample's metadata, which is replaced and not changed."""
    sample.metadata = {**(sample.metadata or {}), METADATA_KEY: notes}


def notes_of(sample: Any) -> dict[str, Any]:
    """Our notes, possibly empty."""
    notes = (getattr(sample, "metadata", None) or {}).get(METADATA_KEY)
    return notes if isinstance(notes, dict) else {}


def clear(sample: Any) -> None:
    """Forget an earlier attempt, so that nothing is doubled."""
    sample.tokens, sample.response, sample.response_length = [], "", 0
    sample.loss_mask = sample.rollout_log_probs = sample.reward = None
    sample.weight_versions = []
    sample.remove_sample = False
    if sample.metadata and METADATA_KEY in sample.metadata:
        sample.metadata = {key: value for key, value in sample.metadata.items() if key != METADATA_KEY}
    optional = ("rollout_routed_experts", "rollout_top_p_token_ids", "rollout_top_p_token_offsets")
    for name in (*optional, "multimodal_train_inputs"):
        if hasattr(sample, name):
            setattr(sample, name, None)
    _reset_counters(sample)


def sibling_of(sample: Any) -> Any:
    """Another sample of the same rollout; containers are its own."""
    sibling = copy.copy(sample)
    sibling.metadata = copy.copy(sample.metadata)
    if hasattr(sample, "trace"):
        sibling.trace = None  # its requests are counted on the first
    _reset_counters(sibling)  # counted once, on the first
    return sibling


def _reset_counters(sample: Any) -> None:
    for name in ("spec_info", "prefix_cache_info"):
        if hasattr(sample, name):
            setattr(sample, name, type(getattr(sample, name))())
    sample.non_generation_time = 0.0


def _set_arrays(
    sample: Any,
    *,
    token_ids: NDArray[np.int32],
    prompt_length: int,
    mask: NDArray[np.uint8],
    logprobs: list[float],
    experts: NDArray[np.int32] | None,
    kept: SamplingMask | None,
) -> None:
    sample.tokens = token_ids.tolist()
    sample.response_length = len(token_ids) - prompt_length
    sample.loss_mask = list(mask.tobytes())
    sample.rollout_log_probs = logprobs
    if experts is not None:
        sample.rollout_routed_experts = experts
    if kept is not None:
        sample.rollout_top_p_token_ids = kept.ids.tolist()
        sample.rollout_top_p_token_offsets = kept.offsets.tolist()
