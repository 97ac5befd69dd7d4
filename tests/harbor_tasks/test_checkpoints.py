"""Episodes that go on from a turn of another: the same files, the same tokens, trained once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strands_env.core import StepResult
from strands_env.core.models import sglang_model_factory
from strands_env.environments.harbor import Checkpoint, CheckpointError, HarborEnv
from strands_env.environments.harbor.validation import CHEATS
from strands_env.training import samples_from_step
from tests.container_support import make_task, require_images
from tests.harbor_tasks.test_programs import ACTION, called
from tests.provider_support import Replay, completion, tokenizer


async def episode(task: Path, *replies: Any, **options: Any) -> tuple[StepResult, Replay]:
    require_images()
    client = Replay(list(replies))
    factory = sglang_model_factory(client=client, tokenizer=tokenizer())
    return await HarborEnv(model_factory=factory, task_dir=task, **options).rollout(ACTION), client


async def test_episodes_branch_from_a_turn_with_its_files_and_tokens(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    script = [called("echo 4 > half"), called("rm half"), completion("Failed.")]
    first, client = await episode(task, *script, checkpoints=tmp_path / "kept")
    assert first.reward is not None and first.reward.reward == 0.0, first.error
    kept = tmp_path / "kept" / first.observation.metrics["episode"]
    assert sorted(path.name for path in kept.iterdir()) == ["turn-1", "turn-2"]

    replies = [called("echo $(cat half)2 > answer.txt"), completion("Done.")]
    second, again = await episode(task, *replies, start_from=kept / "turn-1")
    assert second.reward is not None and second.reward.reward == 1.0, second.error
    assert again.prompts[0] == client.prompts[1], "the tokens of the first turn are those that were sampled"
    assert second.observation.metrics["continued_from"] == {"checkpoint": str(kept / "turn-1"), "turn": 1}
    (sample,) = samples_from_step(second)
    assert sample.loss_mask.sum() == sum(len(reply.ids or ()) for reply in replies)
    assert sum(one.loss_mask.sum() for one in samples_from_step(first)) == sum(len(r.ids or ()) for r in script)

    third, _ = await episode(task, called("cat half"), completion("Seen."), start_from=kept / "turn-2")
    assert "No such file" in str(third.observation.messages[-2])


async def test_a_branch_does_not_inherit_a_cheat(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    script = [called(CHEATS["replaced-shell"]), completion("Done.")]
    first, _ = await episode(task, *script, checkpoints=tmp_path / "kept")
    kept = tmp_path / "kept" / first.observation.metrics["episode"] / "turn-1"
    plain, _ = await episode(task, completion("Done."), start_from=kept, verifier="in-place")
    assert plain.reward is not None and plain.reward.reward == 1.0, plain.error
    second, _ = await episode(task, completion("Done."), start_from=kept)
    assert second.reward is not None and second.reward.reward == 0.0, second.error
    assert second.reward.info["outside_work"] == ["/bin/bash", "/bin/sh"]


async def test_what_cannot_be_continued_is_refused_in_one_sentence(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        await episode(task, start_from=tmp_path / "turn-1")
    with pytest.raises(ValueError, match="no other has snapshots"):
        await episode(task, checkpoints=tmp_path, backend="docker")
    result, _ = await episode(task, called("true"), completion("Done."), checkpoints=tmp_path / "kept")
    kept = Checkpoint.load(tmp_path / "kept" / result.observation.metrics["episode"] / "turn-1")
    other, _ = await episode(task, completion("x"), start_from=kept, system_prompt="Other words.")
    assert other.reward is None and other.error is not None and "not what it was" in other.error.message
