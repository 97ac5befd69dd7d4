"""Images of rollouts as slime trains them."""

from __future__ import annotations

import base64
import functools
import logging
from array import array
from collections.abc import Sequence
from typing import Any

from strands_env.training.export import image_tensors
from strands_env.training.sample import TrainingSample
from strands_env.training.slime.settings import Call, SlimeConfigError
from strands_sglang.exceptions import MediaError
from strands_sglang.media import ProcessorExpander

logger = logging.getLogger(__name__)


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
        return self.expander.expand(base64.b64decode(url.partition(",")[2])).span

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
