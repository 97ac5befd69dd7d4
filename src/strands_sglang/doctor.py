"""The command `strands-sglang doctor`: what this model's template, and with `--vision` its images, allow exactly.

```
strands-sglang doctor path/to/tokenizer
strands-sglang doctor --vision Qwen/Qwen2.5-VL-3B-Instruct --server http://localhost:30000
```

Exit status: 0 usable, 1 not, 2 wrong input.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
import sys
from dataclasses import dataclass
from typing import Any

from .client import SGLangClient, get_tokenizer
from .command_line import Exit
from .conversation import Conversation, TurnRequest
from .exceptions import MediaError, StrandsSGLangError
from .media import ProcessorExpander
from .media.processor import record_proof
from .template import doctor as template_doctor

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    template_doctor.add_arguments(parser)
    parser.add_argument("--vision", action="store_true", help="prove that a server expands the model's images as we do")
    parser.add_argument("--server", metavar="URL", help="server that runs the model, for --vision")


def run(args: argparse.Namespace) -> int:
    """Check a template, or prove the images of a model; returns the exit status."""
    if not args.vision:
        return template_doctor.run(args)
    if args.server is None:
        sys.stderr.write("strands-sglang doctor: --vision needs --server URL, a server that runs the model\n")
        return Exit.USAGE
    try:
        expander = ProcessorExpander.of_model(args.source, unproved=True)
        proof = asyncio.run(prove_vision(args.server, get_tokenizer(args.source), expander))
    except (StrandsSGLangError, OSError, ValueError) as error:
        sys.stderr.write(f"strands-sglang doctor: {'' if isinstance(error, MediaError) else 'not exact: '}{error}\n")
        return Exit.FAILED
    kept = record_proof(proof.fingerprint, args.server)
    if args.json:
        values = {"fingerprint": proof.fingerprint, "turns": proof.turns, "images": proof.images}
        sys.stdout.write(json.dumps({**values, "prompt_tokens": proof.prompt_tokens}) + "\n")
    else:
        sys.stdout.write(
            f"exact: {proof.images} images in {proof.turns} turns, {proof.prompt_tokens} tokens, every id as expected; "
            f"remembered in {kept}\n"
        )
    return Exit.OK


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
            request_fields={"return_prompt_token_ids": True},
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
