"""`VerifiersEnvironment`: verifiers' own code plays and scores, the policy is a model of ours."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers.v1.env", reason="needs the extra verifiers", exc_type=ImportError)

from strands_env.commands.cli import main
from strands_env.core import Action, TerminationReason
from strands_env.core.models import sglang_model_factory
from strands_env.environments.verifiers_env import VerifiersEnvironment, VerifiersError, actions_of
from strands_env.eval import read_results
from strands_env.training import samples_from_step
from strands_sglang.exceptions import SGLangConnectionError
from strands_sglang.testing import Reply
from tests.provider_support import Replay, completion, tokenizer

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

TASKSET = """
import asyncio
import verifiers.v1 as vf

__all__ = ["DoublesTaskset", "DoublesEnv"]


class DoublesData(vf.TaskData):
    answer: str


class DoublesTask(vf.Task[DoublesData]):
    async def setup(self, trace, runtime):
        if self.data.answer == "no world":
            raise OSError("no world")

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        if self.data.answer == "no grader":
            raise KeyError("no grader")
        if self.data.answer == "slow":
            await asyncio.sleep(1.5)
            return 1.0
        return float(self.data.answer in trace.last_reply)


class DoublesTaskset(vf.Taskset[DoublesTask]):
    def load(self):
        for n, answer in enumerate(("0", "2", "no world", "no grader", "slow")):
            yield DoublesTask(DoublesData(name=str(n), prompt=f"Twice {n}?", system_prompt="Count.", answer=answer))
"""
TWO_SEATS = """

class TwoSeats(vf.EnvConfig):
    solver: vf.AgentConfig = vf.AgentConfig()
    judge: vf.AgentConfig = vf.AgentConfig()


class DoublesEnv(vf.Env[TwoSeats]):
    async def setup(self, agents):
        agents.judge.trainable = False

    async def run(self, task, agents):
        async with agents.solver.interaction(task) as talk:
            first = await talk.turn()
            async with agents.judge.interaction(task) as judging:
                said = await judging.turn()
            await talk.turn("The judge says: " + said.last_reply)
"""


@pytest.fixture(autouse=True)
def _packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "doubles.py").write_text(TASKSET.replace(', "DoublesEnv"', ""))
    (tmp_path / "judged_doubles.py").write_text(TASKSET + TWO_SEATS)
    (tmp_path / "no_taskset.py").write_text("__all__ = []\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def environment(*script: Any, taskset: str = "doubles", **options: Any) -> VerifiersEnvironment:
    factory = sglang_model_factory(client=Replay(list(script)), tokenizer=tokenizer())
    return VerifiersEnvironment(taskset=taskset, model_factory=factory, **options)


def task(number: int, taskset: str = "doubles") -> Action:
    return next(islice(actions_of(taskset), number, None))


async def test_our_agent_plays_a_seat_that_names_no_program_and_verifiers_scores_it() -> None:
    result = await environment(completion("It is 2.")).rollout(task(1))
    assert result.termination_reason is TerminationReason.TASK_COMPLETE, result.error
    assert result.reward is not None and result.reward.reward == 1.0
    assert result.reward.info["rewards"] == [{"right": 1.0}]
    (sample,) = samples_from_step(result)
    text = tokenizer().decode(sample.token_ids.tolist())
    assert "Count." in text and text.endswith("Twice 1?<|im_end|>\n<|im_start|>assistant\nIt is 2.<|im_end|>")
    assert sample.trained_tokens == len(completion("It is 2.").ids or ())


async def test_seats_are_paths_with_names_and_a_fixed_one_is_not_trained() -> None:
    env = environment(completion("2?"), completion("Yes."), completion("2."), taskset="judged-doubles")
    result = await env.rollout(task(1, "judged-doubles"))
    assert result.reward is not None and result.reward.reward == 1.0
    paths = {path.agent_name: path for path in result.trajectories}
    assert {name: path.trainable for name, path in paths.items()} == {"solver": True, "judge": False}
    assert {sample.agent_name for sample in samples_from_step(result)} == {"solver"}


OUTCOMES = [
    (2, [completion("2")], {}, TerminationReason.UNCLASSIFIED_ERROR, None),  # the world's
    (3, [completion("2")], {}, TerminationReason.REWARD_ERROR, None),  # the grader's
    (1, [SGLangConnectionError("gone")], {}, TerminationReason.CONNECTION_ERROR, None),  # the model server's
    (1, [Reply(ids=completion("2").ids, delay=9.0)], {"step_timeout": 1.5}, TerminationReason.TIMEOUT, 0.0),
    (4, [completion("2")], {"step_timeout": 1.0}, TerminationReason.TIMEOUT, 1.0),  # grading is not the policy's time
    (1, [Reply(ids=completion("2").ids[:1], finish="length")], {}, TerminationReason.MAX_TOKENS_REACHED, 1.0),
    (1, [completion("2")], {"reward_fn": lambda action, result: 0.25}, TerminationReason.TASK_COMPLETE, 0.25),
]


@pytest.mark.parametrize(("number", "script", "options", "reason", "reward"), OUTCOMES)
async def test_ends_are_the_policys_the_graders_or_the_infrastructures(
    number: int, script: list[Any], options: dict[str, Any], reason: TerminationReason, reward: float | None
) -> None:
    result = await environment(*script, **options).rollout(task(number))
    assert result.termination_reason is reason, result.error
    assert (result.reward and result.reward.reward) == reward


MISTAKES = [
    ("no-such-env", None, "there is no environment 'no-such-env' of verifiers here: install its package"),
    ("no-taskset", None, "'no-taskset' is no taskset of verifiers v1"),
    ("doubles", {"agent": {"max_turn": 3}}, "the options of 'doubles' are wrong: agent.max_turn"),
    ("no-such-env+doubles", None, "there is no environment 'no-such-env+doubles' of verifiers here"),
]


@pytest.mark.parametrize(("name", "config", "message"), MISTAKES)
def test_mistakes_are_one_sentence(name: str, config: Any, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(VerifiersError, match=re.escape(message)):
        environment(taskset=name, config=config)
    options = [] if config is None else ["--env-config", json.dumps({"config": config})]
    assert main(["eval", f"verifiers:{name}", "--backend", "scripted", *options]) != 0
    err = capsys.readouterr().err
    assert message in err and len(err.splitlines()) == 1


def test_the_command_line_takes_an_environment_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["--backend", "local", "--model-id", "tiny", "--max-new-tokens", "4", "--limit", "2"]
    assert main(["eval", "verifiers:doubles", *arguments]) == 0
    samples = list(read_results(tmp_path / "runs" / "verifiers.doubles" / "results.jsonl"))
    assert len(samples) == 2 and all(sample.reward in (0.0, 1.0) for sample in samples)
