"""The embedded engine sees: images in place of placeholders, exactly as a forward pass of transformers."""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

import torch
from image_support import engine_of, png
from PIL import Image

from strands_sglang.backends.engine import EmbeddedEngine, TinyModel, make_tiny_vision_model
from strands_sglang.exceptions import BackendRequestError, MediaError
from strands_sglang.trajectory.images import image_expander
from tests.servers.engine_server import generate
from tests.unit.engine_support import assert_exact

LOOK = "<|im_start|>user\nlook <|vision_start|><|image_pad|><|vision_end|>?<|im_end|>\n<|im_start|>assistant\n"
AGAIN = "<|im_end|>\n<|im_start|>user\nand <|vision_start|><|image_pad|><|vision_end|><|im_end|>\n"
SAMPLING = {"max_new_tokens": 6, "temperature": 1, "ignore_eos": True}


def picture(color: tuple[int, int, int], size: tuple[int, int] = (64, 48)) -> Any:
    return Image.new("RGB", size, color)


def data_url(image: Any) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


RED, BLUE = picture((200, 30, 60)), picture((5, 3, 60), (140, 84))


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def tiny(request: pytest.FixtureRequest) -> TinyModel:
    return make_tiny_vision_model(family=request.param)


@pytest.fixture
async def engine(tiny: TinyModel) -> AsyncIterator[EmbeddedEngine]:
    async with engine_of(tiny) as engine:
        yield engine


async def test_logprobs_over_two_turns_with_images_are_those_of_a_separate_forward_pass(engine, tiny):
    fields: dict[str, Any] = {"sampling_params": SAMPLING, "return_logprob": True, "return_prompt_token_ids": True}
    wire = tiny.tokenizer.encode(LOOK)
    first = await generate(engine, wire, image_data=[data_url(RED)], **fields)
    assert first["meta_info"]["prompt_tokens"] == len(first["prompt_token_ids"]) > len(wire)
    wire += first["output_ids"] + tiny.tokenizer.encode(AGAIN)
    second = await generate(engine, wire, image_data=[data_url(RED), data_url(BLUE)], **fields)
    # Everything of the first turn but the token sampled last comes from the prefix cache, its image included.
    assert second["meta_info"]["cached_tokens"] == first["meta_info"]["prompt_tokens"] + 5
    ids = torch.tensor([second["prompt_token_ids"] + second["output_ids"]])
    kinds = (ids == engine.image_expander.placeholder_id).int()
    fed = tiny.image_processor(images=[RED, BLUE], return_tensors="pt")
    model = functools.partial(tiny.model, mm_token_type_ids=kinds, attention_mask=torch.ones_like(ids), **fed)
    assert_exact(second, second["prompt_token_ids"], model)


async def test_the_cache_tells_images_of_one_size_apart(engine: EmbeddedEngine, tiny: TinyModel) -> None:
    wire = tiny.tokenizer.encode(LOOK)
    other = picture((0, 200, 0))
    for image, cached in ((RED, 0), (other, wire.index(tiny.tokenizer.convert_tokens_to_ids("<|image_pad|>")))):
        answer = await generate(engine, wire, image_data=[data_url(image)], sampling_params=SAMPLING)
        assert answer["meta_info"]["cached_tokens"] == cached


async def test_images_and_placeholders_that_do_not_agree_are_refused(engine, tiny):
    with pytest.raises(BackendRequestError, match="the prompt has 1 image placeholders for 2 images"):
        await generate(engine, tiny.tokenizer.encode(LOOK), image_data=[data_url(RED)] * 2, sampling_params=SAMPLING)
    with pytest.raises(BackendRequestError, match="cannot be processed"):
        broken = "data:image/png;base64," + base64.b64encode(b"no picture").decode()
        await generate(engine, tiny.tokenizer.encode(LOOK), image_data=[broken], sampling_params=SAMPLING)
    with pytest.raises(BackendRequestError, match="nothing is fetched"):
        await generate(engine, tiny.tokenizer.encode(LOOK), image_data=["https://a.b/c.png"], sampling_params=SAMPLING)


async def test_a_saved_model_sees_alike(engine: EmbeddedEngine, tiny: TinyModel, tmp_path: Any) -> None:
    make_tiny_vision_model(tmp_path, family=tiny.model.config.model_type)
    params = {"temperature": 0, "max_new_tokens": 6}
    wire = tiny.tokenizer.encode(LOOK)
    expected = await generate(engine, wire, image_data=[data_url(RED)], sampling_params=params)
    async with EmbeddedEngine(tmp_path, threads=1) as loaded:
        answer = await generate(loaded, wire, image_data=[data_url(RED)], sampling_params=params)
        expander = image_expander(tmp_path)
        assert expander.fingerprint == loaded.image_expander.fingerprint
    assert answer["output_ids"] == expected["output_ids"]


async def test_without_images_a_model_that_sees_is_a_language_model(engine: EmbeddedEngine, tiny: TinyModel) -> None:
    ids = tiny.tokenizer.encode("<|im_start|>user\nhello<|im_end|>\n")
    answer = await generate(engine, ids, sampling_params=SAMPLING, return_logprob=True)
    assert_exact(answer, ids, tiny.model)


def test_a_family_whose_images_are_not_merged_patches_is_refused(tiny):
    class GridlessImages:
        def to_dict(self) -> dict[str, int]:
            return {"patch_size": 14, "merge_size": 2}

        def __call__(self, **_: Any) -> dict[str, Any]:
            return {"pixel_values": []}

    def expander_of(images: Any) -> Any:
        return image_expander(SimpleNamespace(image_processor=images, image_token_id=5))

    with pytest.raises(MediaError, match="'SimpleNamespace' are not made of patches"):
        expander_of(SimpleNamespace(to_dict=dict))
    with pytest.raises(MediaError, match="'SimpleNamespace' have no grid of patches"):
        expander_of(GridlessImages()).prepare(png((1, 2, 3)))
    assert not expander_of(tiny.image_processor).is_verified
    with pytest.raises(MediaError, match="expected a model's folder or AutoProcessor"):
        image_expander(object())
