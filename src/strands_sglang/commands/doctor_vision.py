"""The proof that a server sees a model's images as a trainer will: `strands-sglang doctor --vision`."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..backends import client_class
from ..backends.clients import get_tokenizer
from ..command_line import CommandError, Exit
from ..conversation import Conversation, TurnRequest
from ..exceptions import MediaError, StrandsSGLangError
from ..trajectory import Trajectory
from ..trajectory.images import ProcessorExpander, record_proof

# The pictures of each user turn: alone, two at once, none, the first one again beside another.
_TURNS = (("text",), ("photo", "alpha"), (), ("text", "palette"), ("exif", "cmyk", "16 bit"))
_BIAS = -100.0  # a sampled placeholder would close the path


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionProof:
    """The agreement between a server's prompts with images and ours.

    Attributes:
        turns: Turns that agreed, id by id.
        prompt_tokens: Length of the last expanded prompt.
        difference: Largest difference of log-probabilities in a replay, in nats; None without one.
    """

    fingerprint: str
    turns: int
    images: int
    prompt_tokens: int
    difference: float | None = None


async def prove_vision(server: str, tokenizer: Any, expander: ProcessorExpander, model: Any = None) -> VisionProof:
    """Compare the prompts a server expands with ours, over a conversation with pictures that need every conversion.

    Args:
        server: Base URL.
        tokenizer: The model's tokenizer, with its chat template.
        model: The same model in transformers, to replay what the server sampled: proves the pixels, too.

    Raises:
        BackendAnswerError: The server expands an image differently, or changes ids beside it.
        StrandsSGLangError: It cannot be reached, or refuses the images.
    """
    pictures = proof_pictures()
    make_client, address = client_class(server)
    async with make_client(address, max_retries=2, retry_delay=0.2) as client:
        conversation = Conversation(
            client=client,
            tokenizer=tokenizer,
            processor=expander,
            sampling_params={"max_new_tokens": 8, "logit_bias": {str(token): _BIAS for token in expander.media_ids}},
            prove_images="always",
        )
        messages: list[Any] = []
        for number, names in enumerate(_TURNS):
            shown = [{"image": {"format": "png", "source": {"bytes": pictures[name]}}} for name in names]
            messages.append({"role": "user", "content": [{"text": f"Picture {number}: "}, *shown]})
            sampled = await conversation.turn(TurnRequest(messages=messages))
            messages.append({"role": "assistant", "content": [{"text": sampled.reply.text}]})
        trajectory = conversation.trajectories[-1]
    proof = VisionProof(
        fingerprint=expander.fingerprint,
        turns=len(conversation.forest.turns),
        images=len(trajectory.media),
        prompt_tokens=len(trajectory),
    )
    return proof if model is None else replace(proof, difference=replay(model, trajectory, expander))


def replay(model: Any, trajectory: Trajectory, expander: ProcessorExpander) -> float:
    """Largest difference between recorded logprobs and those of `model` (transformers) over ids and exported pixels."""
    import numpy as np
    import torch

    inputs = [expander.pixels(medium.image) for medium in trajectory.media]
    pixels, grids = (
        torch.from_numpy(np.concatenate([each[name] for each in inputs])).to(model.device)
        for name in ("pixel_values", "image_grid_thw")
    )
    row = torch.tensor([trajectory.token_ids], device=model.device)
    kinds = (row == expander.placeholder_id).int()
    fed = {"pixel_values": pixels.to(model.dtype), "image_grid_thw": grids, "mm_token_type_ids": kinds}
    with torch.inference_mode():
        logits = model(input_ids=row, **fed).logits[0, :-1].float()
        logits[:, sorted(expander.media_ids)] += _BIAS
        replayed = torch.log_softmax(logits, -1).gather(-1, row[0, 1:, None]).squeeze(-1).tolist()
    recorded = trajectory.logprobs[1:]
    differences = [
        abs(known - float(value))
        for known, value, sampled in zip(recorded, replayed, trajectory.loss_mask[1:], strict=True)
        if sampled and known is not None
    ]
    return max(differences)


def check_vision(args: argparse.Namespace) -> int:
    """Prove the images of a model against a server that runs it; returns the exit status."""
    try:
        expander = ProcessorExpander.from_model(args.source, unproved=True)
        model = None
        if args.replay is not None:
            from transformers import AutoModelForImageTextToText

            model = AutoModelForImageTextToText.from_pretrained(args.source, dtype="auto").eval()
        proof = asyncio.run(prove_vision(args.server, get_tokenizer(args.source), expander, model))
    except (StrandsSGLangError, OSError, ValueError) as error:
        raise CommandError(f"{'' if isinstance(error, MediaError) else 'not exact: '}{error}") from error
    if proof.difference is not None and proof.difference > args.replay:
        raise CommandError(
            f"not exact: the same ids and pixels give log-probabilities that are up to {proof.difference:.1e} nats "
            f"apart, more than {args.replay:g}: the server sees other pixels, or computes in another precision"
        )
    file = record_proof(proof.fingerprint, args.server)
    if args.json:
        sys.stdout.write(json.dumps(asdict(proof)) + "\n")
    else:
        replayed = "" if proof.difference is None else f", log-probabilities at most {proof.difference:.1e} nats apart"
        sys.stdout.write(
            f"exact: {proof.images} images in {proof.turns} turns, {proof.prompt_tokens} tokens, every id as expected"
            f"{replayed}; remembered in {file}\n"
        )
    return Exit.OK


# ---- pictures that take every way into a model: what a flat colour would hide, they show


def proof_pictures() -> dict[str, bytes]:
    """Encoded pictures by name: text, photo, alpha, palette, EXIF orientation, CMYK and 16 bits; always the same.

    Text and a photo need the resizing, the others a conversion. None has a size that a processor leaves alone.
    """
    from PIL import Image, ImageDraw

    photo = _photo((301, 187))
    text = Image.new("RGB", (420, 250), "white")
    draw = ImageDraw.Draw(text)
    for line in range(16):
        draw.text(
            (5 + line, 3 + 15 * line), f"{line}: the quick brown fox jumps over the lazy dog", fill=(line * 9, 0, 90)
        )
    alpha = _photo((150, 101)).convert("RGBA")
    alpha.putalpha(Image.linear_gradient("L").resize(alpha.size))
    palette = _photo((140, 90)).quantize(16)
    palette.info["transparency"] = bytes([0, 90, 255] * 6)[:16]
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    gray = _photo((133, 77)).convert("L").convert("I;16")
    deep = gray.point(lambda value: value * 257)
    return {
        "text": _encode(text, "PNG"),
        "photo": _encode(photo, "JPEG", quality=90),
        "alpha": _encode(alpha, "PNG"),
        "palette": _encode(palette, "PNG"),
        "exif": _encode(_photo((180, 95)), "JPEG", exif=exif),
        "cmyk": _encode(_photo((121, 160)).convert("CMYK"), "JPEG", quality=95),
        "16 bit": _encode(deep, "PNG"),
    }


def _photo(size: tuple[int, int]) -> Any:
    """Smooth colours with edges and grain."""
    from PIL import Image, ImageChops, ImageDraw, ImageFilter

    seeded = random.Random(repr(size))
    coarse = Image.frombytes("RGB", (7, 5), seeded.randbytes(7 * 5 * 3)).resize(size, Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(coarse)
    for _ in range(9):
        x, y = seeded.randrange(size[0]), seeded.randrange(size[1])
        draw.ellipse((x, y, x + 40, y + 25), fill=(*seeded.randbytes(3),))
    grain = Image.frombytes("RGB", size, seeded.randbytes(size[0] * size[1] * 3)).point(lambda value: value // 12)
    return ImageChops.add(coarse.filter(ImageFilter.GaussianBlur(1)), grain)


def _encode(picture: Any, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()
