"""Rollouts with images in the trainers' own types: a forward pass on the trainer's side gives the sampled logprobs."""

from __future__ import annotations

import asyncio
import io
import types
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

import numpy as np
import torch
from PIL import Image

from strands_env.core import Action, Environment
from strands_env.training import (
    InvalidSampleError,
    TrainingSample,
    samples_from_model,
    score_with_teacher,
    skyrl,
    slime,
    verl,
)
from strands_env.training.export import reference_logprobs
from strands_env.training.slime.prompt import prompt_images
from strands_sglang import SGLangModel
from strands_sglang.backends import Backend, Capabilities, GenerateAnswer, GenerateRequest
from strands_sglang.backends.contract import PromptScoring
from strands_sglang.backends.engine import EmbeddedEngine, TinyModel, make_tiny_vision_model
from strands_sglang.exceptions import BackendAnswerError, BackendRequestError
from strands_sglang.trajectory import Finish, FinishType
from strands_sglang.trajectory.images import ProcessorExpander
from strands_sglang.trajectory.media import PreparedImage
from tests.slime_support import Rig, Sample, rig

__all__ = ["rig"]

# Most tokens end a turn: random weights say something, and the episode goes on.
SAMPLING = {"max_new_tokens": 40, "stop_token_ids": [n for n in range(1000) if n % 3]}


def picture(color: tuple[int, int, int], size: tuple[int, int] = (64, 48)) -> Any:
    return Image.new("RGB", size, color)


def block(image: Any) -> dict[str, Any]:
    file = io.BytesIO()
    image.save(file, "PNG")
    return {"image": {"format": "png", "source": {"bytes": file.getvalue()}}}


RED, TALL = picture((200, 30, 60)), picture((9, 99, 9), (84, 140))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> TinyModel:
    return make_tiny_vision_model(folder)


@pytest.fixture(scope="module")
def expander(folder: Path, tiny: TinyModel) -> ProcessorExpander:
    return ProcessorExpander.from_model(folder)


def engine_of(tiny: TinyModel) -> EmbeddedEngine:
    return EmbeddedEngine(tiny.model, tokenizer=tiny.tokenizer, image_processor=tiny.image_processor, threads=1, seed=0)


class LookEnv(Environment):
    """Shows another image after the first answer."""

    async def interact(self, agent: Any, action: Action) -> Any:
        await self.invoke(agent, action.prompt)
        return await self.invoke(agent, [{"text": "and this?"}, block(TALL)])


async def rollout(tiny: TinyModel, *content: dict[str, Any]) -> TrainingSample:
    async with engine_of(tiny) as engine:
        model = SGLangModel(client=engine, tokenizer=tiny.tokenizer, sampling_params=SAMPLING)
        env = LookEnv(model_factory=lambda: model)
        await env.step(Action(message={"role": "user", "content": list(content)}))
        (sample,) = samples_from_model(model, reward=1.0, rollout_id="r", group_id="g")
        return sample


@pytest.fixture(scope="module")
def sample(tiny: TinyModel) -> TrainingSample:
    return asyncio.run(rollout(tiny, {"text": "what is"}, block(RED)))


def differences(tiny: TinyModel, ids: list[int], fed: dict[str, Any], mask: list[int], logprobs: list[float]) -> Any:
    """Recorded log-probabilities less those of a forward pass, of the trained tokens."""
    row = torch.tensor([ids])
    placeholder = tiny.model.config.image_token_id
    with torch.no_grad():
        logits = tiny.model(input_ids=row, mm_token_type_ids=(row == placeholder).int(), **fed).logits[0]
    expected = torch.log_softmax(logits[:-1].float(), -1).gather(-1, row[0, 1:, None]).squeeze(-1)
    trained = torch.tensor(mask[1:]).bool()
    assert trained.any()
    return (torch.tensor(logprobs[1:])[trained] - expected[trained]).abs().max().item()


# ---- a teacher -------------------------------------------------------------------------------------------------------


async def test_a_teacher_scores_what_it_sees_as_transformers_does(sample: TrainingSample, tiny: TinyModel) -> None:
    """Two samples of equal tokens and different images share no scores from the image on."""
    teacher, blue = make_tiny_vision_model(seed=1), picture((5, 3, 200))
    data = block(blue)["image"]["source"]["bytes"]
    entered = PreparedImage.from_bytes(data, "image/png", array("i"), None)
    first, second = sample.media
    other = replace(sample, media=(replace(first, data=entered.data, digest=entered.digest), second))
    async with engine_of(teacher) as engine:
        seen = await score_with_teacher([sample, other], engine, tokenizer=tiny.tokenizer)
    values = [np.array(reference_logprobs(scored)) for scored in seen]
    assert second.offset > sample.prompt_length
    assert not values[0][second.offset : second.offset + second.length].any()
    for scored, pictures in zip(values, ([RED, TALL], [blue, TALL]), strict=True):
        fed = dict(teacher.image_processor(images=pictures, return_tensors="pt"))
        mask = (scored != 0).astype(int).tolist()
        assert sum(mask) == len(sample) - sample.prompt_length - second.length
        assert differences(teacher, sample.token_ids.tolist(), fed, mask, scored.tolist()) < 2e-5
    assert np.abs(values[0] - values[1]).max() > 1e-4


async def test_a_teacher_that_takes_no_images_or_shows_no_prompt_says_so(sample: TrainingSample) -> None:
    class Blind(Backend):
        capabilities = Capabilities(prompt_scoring=PromptScoring.CACHED)

        async def ask(self, request: GenerateRequest) -> GenerateAnswer:
            return GenerateAnswer(
                output_ids=array("i", [1]), finish=Finish(type=FinishType.LENGTH), prompt_tokens=request.prompt_tokens
            )

    teacher = Blind()
    with pytest.raises(BackendRequestError, match="Blind takes no images"):
        await teacher.score(sample.token_ids, images=sample.media)
    teacher.capabilities = replace(teacher.capabilities, images=True)
    with pytest.raises(BackendAnswerError, match="nothing proves how it expands images"):
        await teacher.score(sample.token_ids, images=sample.media)


# ---- slime -----------------------------------------------------------------------------------------------------------


def slimes_sample() -> Any:
    parts = [{"type": "text", "text": "what is"}, {"type": "image", "image": "red.png"}]
    prompt = [{"role": "user", "content": parts}]
    return Sample(prompt=prompt, multimodal_inputs={"images": [RED], "videos": None})


async def run_slime(rig: Rig, tiny: TinyModel, folder: Path, *, max_new_tokens: int = 60, reward_fn: Any = None) -> Any:
    rig.state = types.SimpleNamespace(aborted=False, tokenizer=tiny.tokenizer, processor=object())
    rig.args.hf_checkpoint, rig.args.strands_env_model_options = str(folder), {"sampling_params": SAMPLING}
    rig.environment = LookEnv
    if reward_fn is not None:
        rig.options = {"reward_fn": reward_fn}
    async with engine_of(tiny) as rig.client:
        return await rig.run(slimes_sample(), params={"max_new_tokens": max_new_tokens})


async def test_slime_trains_the_images_of_prompts_and_of_later_turns(rig, tiny, folder):
    done = await run_slime(rig, tiny, folder)
    assert done.status is Sample.Status.COMPLETED, done.metadata
    fed = done.multimodal_train_inputs
    assert fed["image_grid_thw"].shape == (2, 3) and fed["image_grid_thw"].dtype == torch.int64
    prompt = len(done.tokens) - done.response_length
    mask, logprobs = [0] * prompt + done.loss_mask, [0.0] * prompt + done.rollout_log_probs
    assert differences(tiny, done.tokens, fed, mask, logprobs) < 1e-4


async def test_slimes_budget_of_a_response_counts_the_tokens_of_images(rig, tiny, folder):
    whole = await run_slime(rig, tiny, folder)
    assert whole.response_length > 30
    cut = await run_slime(rig, tiny, folder, max_new_tokens=30)  # there is room but for the second image
    assert cut.status is Sample.Status.TRUNCATED and len(cut.multimodal_train_inputs["image_grid_thw"]) == 1


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"images": [RED, RED]}, "1 image parts, and the data's multimodal inputs have 2"),
        ({"images": [RED], "videos": [object()]}, "only images can be sent exactly"),
        ({"images": [RED], "audio": [object()]}, "only images can be sent exactly"),
    ],
)
def test_slimes_images_must_fit_the_prompt(inputs: dict[str, Any], message: str, folder: Path) -> None:
    given = slimes_sample()
    given.multimodal_inputs = inputs
    with pytest.raises(slime.SlimeConfigError, match=message):
        prompt_images(given, object())  # type: ignore[arg-type]


async def test_a_failed_rollout_with_images_has_no_image_tokens(rig, tiny, folder):
    done = await run_slime(rig, tiny, folder, reward_fn=fails)
    assert done.status is Sample.Status.FAILED and done.remove_sample
    assert (len(done.tokens), done.loss_mask) == (2, [0])


def fails(action: Any, result: Any) -> float:
    raise LookupError("no judge")


# ---- others ----------------------------------------------------------------------------------------------------------


def test_skyrl_gets_pixels_a_row(tiny: TinyModel, sample: TrainingSample, expander: ProcessorExpander) -> None:
    plain = replace(sample, token_ids=sample.token_ids[:1].repeat(len(sample)), media=(), rollout_id="plain")
    output = skyrl.generator_output([[plain], [sample]], expander=expander)
    assert [len(grids) for grids in output["image_grid_thw"]] == [0, 2]
    assert output["pixel_values"][0].shape == (0, output["pixel_values"][1].shape[1])
    ids = output["prompt_token_ids"][1] + output["response_ids"][1]
    fed = {name: output[name][1] for name in ("pixel_values", "image_grid_thw")}
    before = [0] * len(output["prompt_token_ids"][1])
    mask, logprobs = before + output["loss_masks"][1], before + output["rollout_logprobs"][1]
    assert differences(tiny, ids, fed, mask, logprobs) < 1e-4


def test_verl_gets_pictures_that_expand_to_the_tokens(tiny, sample, expander):
    fields = verl.agent_loop_output([sample], prompt_length=99, response_length=99, expander=expander)
    fed = tiny.image_processor(images=fields["multi_modal_data"]["images"], return_tensors="pt")
    ids = fields["prompt_ids"] + fields["response_ids"]
    before = [0] * len(fields["prompt_ids"])
    mask, logprobs = before + fields["response_mask"], before + fields["response_logprobs"]
    assert differences(tiny, ids, dict(fed), mask, logprobs) < 1e-4
    with pytest.raises(InvalidSampleError, match="cannot be cut"):
        verl.agent_loop_output([sample], prompt_length=9, response_length=99, expander=expander)


def test_a_verl_response_cut_inside_an_image_is_cut_before_it(sample, expander):
    image = sample.media[1]
    limit = image.offset + 3 - sample.prompt_length
    fields = verl.agent_loop_output([sample], prompt_length=99, response_length=limit, expander=expander)
    assert len(fields["multi_modal_data"]["images"]) == 1
    assert len(fields["prompt_ids"] + fields["response_ids"]) == image.offset


def test_other_processors_and_sampled_image_tokens_are_refused(sample, expander):
    foreign = replace(sample, media=tuple(replace(medium, processor="other") for medium in sample.media))
    with pytest.raises(InvalidSampleError, match="sampled under the image processor other"):
        skyrl.generator_output([[foreign]], expander=expander)
    ids = np.append(sample.token_ids[:-1], np.int32(expander.placeholder_id))
    with pytest.raises(InvalidSampleError, match="the model sampled the others"):
        skyrl.generator_output([[replace(sample, token_ids=ids)]], expander=expander)
