"""TRL's own trainer on rollouts of real agents: it must compute the log-probabilities that were sampled."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("datasets")
pytest.importorskip("trl")

import torch
from datasets import Dataset
from strands import Agent
from strands.types.exceptions import MaxTokensReachedException
from trl import GRPOConfig, GRPOTrainer

from strands_env.core import Action, TaskContext
from strands_env.training import TrainingSample, samples_from_model
from strands_env.training.formats import PromptRecord, draw_rows, prompt_rows, write_prompts
from strands_env.training.trl import environment_reward, make_rollout_func
from strands_sglang import SGLangModel
from strands_sglang.backends.engine import EmbeddedEngine
from strands_sglang.backends.engine.tiny import TinyModel, make_tiny_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Recording(GRPOTrainer):
    """Keeps the batches it is about to train on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches: list[dict[str, Any]] = []

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
        seen = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
        own = self._get_per_token_logps_and_entropies(self.model, ids, seen, output["completion_ids"].size(1))[0]
        self.batches.append({**output, "own": own.detach()})
        return output


@pytest.fixture(scope="module")
def tiny() -> TinyModel:
    return make_tiny_model(seed=1)


@pytest.fixture
def engine(tiny: TinyModel) -> Iterator[EmbeddedEngine]:
    engine = EmbeddedEngine(copy.deepcopy(tiny.model), tokenizer=tiny.tokenizer, threads=1, seed=0)
    yield engine
    asyncio.run(engine.close())


def train(tiny: TinyModel, engine: EmbeddedEngine, folder: Path, rollouts: list[TrainingSample]) -> Recording:
    """Two steps of GRPO, two prompts of four rollouts, each of two user turns."""

    async def run(prompt: str, trainer: Any) -> Sequence[TrainingSample]:
        model = SGLangModel(
            tokenizer=tiny.tokenizer, client=engine, sampling_params={"max_new_tokens": 8, "temperature": 1.0}
        )
        agent = Agent(model=model, callback_handler=None, retry_strategy=None)
        for question in (prompt, "Go on."):
            with suppress(MaxTokensReachedException):
                await agent.invoke_async(question)
        reward = float(sum(model.token_manager.token_ids) % 7)
        samples = samples_from_model(model, reward=reward)
        rollouts.extend(samples)
        return samples

    actions = [Action(message=f"What is {n} + {n}?", task_context=TaskContext(ground_truth=2 * n)) for n in range(4)]
    records = [PromptRecord(prompt_id=action.text, action=action, passed=1, measured=2) for action in actions]
    write_prompts(draw_rows(prompt_rows(records), 4), folder / "prompts.parquet")  # the prompts of a run before

    async def prepare(trainer: Any) -> None:
        await engine.update_weights(trainer.model, f"step-{trainer.state.global_step}")

    trainer = Recording(
        model=copy.deepcopy(tiny.model),
        processing_class=tiny.tokenizer,
        reward_funcs=environment_reward,
        rollout_func=make_rollout_func(run, prepare=prepare),
        train_dataset=Dataset.from_parquet(str(folder / "prompts.parquet"), cache_dir=str(folder / "cache")),
        args=GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=64,
            max_steps=2,
            learning_rate=1e-2,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            seed=0,
        ),
    )
    trainer.train()
    return trainer


def test_the_trainer_computes_what_was_sampled(tiny: TinyModel, engine: EmbeddedEngine, tmp_path: Path) -> None:
    rollouts: list[TrainingSample] = []
    trainer = train(tiny, engine, tmp_path, rollouts)
    assert len(trainer.batches) == 2
    for batch in trainer.batches:
        trained = (batch["completion_mask"] * batch["tool_mask"]).bool()
        environment = batch["completion_mask"].bool() & ~batch["tool_mask"].bool()
        assert trained.any(1).all() and environment.any(1).all()
        gap = (batch["own"] - batch["sampling_per_token_logps"])[trained].abs().max()
        assert gap < 1e-4, gap
    # What the trainer holds is what was sampled, id by id, the second turn's prompt in between untrained.
    held = {
        tuple(ids[seen.bool()].tolist())
        for batch in trainer.batches
        for ids, seen in zip(batch["completion_ids"], batch["completion_mask"], strict=True)
    }
    assert held == {tuple(sample.token_ids[sample.prompt_length :].tolist()) for sample in rollouts}
    assert {span.version for sample in rollouts for span in sample.weight_versions} == {"step-0", "step-1"}
    before, after = tiny.model.state_dict(), trainer.model.state_dict()
    assert any(not torch.equal(before[name], after[name].to(before[name])) for name in before)
