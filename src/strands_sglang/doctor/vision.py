"""The proof that a server sees a model's images as a trainer will: `strands-sglang doctor --vision`."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass
from typing import Any

from ..backends.sglang import SGLangClient
from ..conversation import Conversation, TurnRequest
from ..media import ProcessorExpander

_TURNS = (((64, 48),), ((140, 84), (84, 140)), (), ((64, 48), (301, 57)))
"""Sizes of the images of each user turn: alone, two at once, none, the first one again beside an odd one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionProof:
    """What comparing a server's prompts with ours has shown.

    Attributes:
        fingerprint: Of the processor.
        turns: Turns that agreed, id by id.
        images: Images in them.
        prompt_tokens: Length of the last expanded prompt.
    """

    fingerprint: str
    turns: int
    images: int
    prompt_tokens: int


async def prove_vision(server: str, tokenizer: Any, expander: ProcessorExpander) -> VisionProof:
    """Compare the prompts a server expands with ours, over a conversation with images.

    Args:
        server: Base URL.
        tokenizer: The model's tokenizer, with its chat template.
        expander: What is to be proved.

    Raises:
        SGLangDecodingError: The server expands an image differently, or changes ids beside it.
        StrandsSGLangError: It cannot be reached, or refuses the images.
    """
    colors = random.Random(0)
    async with SGLangClient(server, max_retries=2, retry_delay=0.2) as client:
        conversation = Conversation(
            client=client,
            tokenizer=tokenizer,
            processor=expander,
            sampling_params={"max_new_tokens": 8, "logit_bias": {str(token): -100.0 for token in expander.media_ids}},
            prove_images="always",
        )
        messages: list[Any] = []
        for number, sizes in enumerate(_TURNS):
            pictures = [{"image": {"format": "png", "source": {"bytes": _png(size, colors)}}} for size in sizes]
            messages.append({"role": "user", "content": [{"text": f"Picture {number}: "}, *pictures]})
            sampled = await conversation.turn(TurnRequest(messages=messages))
            messages.append({"role": "assistant", "content": [{"text": sampled.reply.text}]})
        trajectory = conversation.trajectories[-1]
    return VisionProof(
        fingerprint=expander.fingerprint,
        turns=len(conversation.forest.turns),
        images=len(trajectory.media),
        prompt_tokens=len(trajectory),
    )


def _png(size: tuple[int, int], colors: random.Random) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", size, tuple(colors.randrange(256) for _ in range(3))).save(file, "PNG")
    return file.getvalue()
