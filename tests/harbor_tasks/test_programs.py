"""Agent programs in a task's container, and an agent of Harbor's own: exact tokens through the gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial

from strands_env.core import Action, TaskContext, TerminationReason
from strands_env.core.models import sglang_model_factory
from strands_env.environments.harbor import HarborEnv
from strands_env.environments.harbor.agent import StrandsRolloutAgent, rollout_details
from strands_env.environments.harbor.trial import BACKENDS
from strands_env.environments.harness import Harness
from strands_env.training import samples_from_step
from strands_sglang.gateway import Gateway
from tests.container_support import make_task, require_images, root_with_tmux
from tests.provider_support import Replay, completion, tokenizer

ACTION = Action(message="", task_context=TaskContext(id="t"))

# An agent of shell commands, with busybox alone: it asks, runs what the answer says, and asks again.
AGENT = r"""#!/bin/sh
history='{"role": "user", "content": "'"$1"'"}'
for turn in 1 2; do
  body='{"model": "policy", "messages": ['"$history"']}'
  answer=$(wget -qO- --header "Authorization: Bearer $KEY" --header "Content-Type: application/json" \
    --post-data "$body" "$BASE_URL/chat/completions") || exit 3
  text=$(echo "$answer" | sed 's/.*"content":"\([^"]*\)".*/\1/')
  history="$history"', {"role": "assistant", "content": "'"$text"'"}, {"role": "user", "content": "done"}'
  cd /app && eval "$text"
done
"""
HARNESS = Harness(
    command=("/bin/sh", "{home}/agent.sh", "{prompt}"),
    environment={"BASE_URL": "{base_url}", "KEY": "{key}"},
    files={"agent.sh": AGENT},
)


async def test_a_program_in_the_container_is_sampled_exactly_and_graded_by_the_tests(tmp_path: Path) -> None:
    require_images()
    replies = [completion("echo 42 > answer.txt", split=True), completion("true")]
    factory = sglang_model_factory(client=Replay(list(replies)), tokenizer=tokenizer())
    env = HarborEnv(model_factory=factory, task_dir=make_task(tmp_path), harness=HARNESS)
    result = await env.rollout(ACTION)
    assert result.termination_reason is TerminationReason.TASK_COMPLETE, result.error
    assert result.reward is not None and result.reward.reward == 1.0
    (sample,) = samples_from_step(result)
    assert int(sample.loss_mask.sum()) == sum(len(reply.ids or ()) for reply in replies)
    assert result.observation.metrics["gateway"]["extension_rate"] == 1.0


async def test_a_program_that_overruns_the_tasks_time_is_graded(tmp_path: Path) -> None:
    require_images()
    task = make_task(tmp_path)
    (task / "task.toml").write_text((task / "task.toml").read_text().replace("timeout_sec = 60.0", "timeout_sec = 2.0"))
    factory = sglang_model_factory(
        client=Replay([completion("echo 42 > answer.txt; sleep 100")]), tokenizer=tokenizer()
    )
    result = await HarborEnv(model_factory=factory, task_dir=task, harness=HARNESS).rollout(ACTION)
    assert result.termination_reason is TerminationReason.TASK_TIME_LIMIT_REACHED, result.error
    assert result.reward is not None and result.reward.reward == 1.0
    assert len(result.trajectories) == 1


class ScriptedAgent(StrandsRolloutAgent):
    """Our agent with models that no command line can name."""

    models: ClassVar[list[Any]] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, model_factory=self.models[0], **kwargs)


async def trial_of(folder: Path, task: Path, agent: AgentConfig, **options: Any) -> Any:
    backend = EnvironmentConfig(import_path=BACKENDS["bubblewrap"], kwargs=options)
    config = TrialConfig(task=TaskConfig(path=task), trials_dir=folder / "trials", agent=agent, environment=backend)
    trial = await Trial.create(config)
    result = await trial.run()
    assert result.exception_info is None, result.exception_info
    return result


def called(command: str) -> Any:
    arguments = json.dumps({"name": "execute_command", "arguments": {"command": command}})
    return completion(f"I write.<tool_call>\n{arguments}\n</tool_call>", split=True)


async def test_our_agent_under_harbors_command_gives_every_sampled_token(tmp_path: Path) -> None:
    require_images()
    replies = [called("echo 42 > answer.txt"), completion("Done.")]
    client = Replay(list(replies))
    factory = sglang_model_factory(client=client, tokenizer=tokenizer())
    ScriptedAgent.models[:] = [factory]
    agent = AgentConfig(import_path=f"{__name__}:ScriptedAgent")
    result = await trial_of(tmp_path, make_task(tmp_path), agent)
    assert result.verifier_result.rewards == {"reward": 1.0}
    (detail,) = result.agent_result.rollout_details
    assert detail["completion_token_ids"] == [list(reply.ids or ()) for reply in replies]
    assert detail["prompt_token_ids"] == client.prompts
    assert [len(turn) for turn in detail["logprobs"]] == [len(reply.ids or ()) for reply in replies]


def terminus(commands: str, *, done: bool) -> Any:
    keys = [{"keystrokes": commands, "duration": 0.5}] if commands else []
    return completion(json.dumps({"analysis": "a", "plan": "p", "commands": keys, "task_complete": done}), split=True)


async def test_terminus_2_of_the_package_against_the_unchanged_gateway(tmp_path: Path) -> None:
    made = root_with_tmux()
    replies = [terminus("echo 42 > /app/answer.txt\n", done=False), terminus("", done=True), terminus("", done=True)]
    client = Replay(list(replies))
    async with Gateway(client=client, tokenizer=tokenizer(), context_window_limit=100_000) as gateway:
        session = gateway.open()
        agent = AgentConfig(
            name="terminus-2",
            model_name="hosted_vllm/policy",
            kwargs={
                "api_base": session.base_url,
                "collect_rollout_details": True,
                "enable_summarize": False,
                "proactive_summarization_threshold": 0,
                "record_terminal_session": False,
                "llm_kwargs": {"api_key": session.key},
                "model_info": {
                    "max_input_tokens": 100_000, "max_output_tokens": 4096,
                    "input_cost_per_token": 0.0, "output_cost_per_token": 0.0,
                },
            },
        )  # fmt: skip
        result = await trial_of(tmp_path, make_task(tmp_path), agent, image=made)
        await session.close()
    assert result.verifier_result.rewards == {"reward": 1.0}
    (detail,) = result.agent_result.rollout_details
    (ours,) = rollout_details(session.trajectories)
    assert detail["completion_token_ids"] == ours["completion_token_ids"] == [list(r.ids or ()) for r in replies]
    assert detail["prompt_token_ids"] == ours["prompt_token_ids"]
    assert detail["logprobs"] == ours["logprobs"]


async def test_terminus_2_by_its_name_gives_every_sampled_token(tmp_path: Path) -> None:
    made = root_with_tmux()
    replies = [terminus("echo 42 > /app/answer.txt\n", done=False), terminus("", done=True), terminus("", done=True)]
    factory = sglang_model_factory(client=Replay(list(replies)), tokenizer=tokenizer())
    env = HarborEnv(model_factory=factory, task_dir=make_task(tmp_path, image=made), agent="terminus-2")
    result = await env.rollout(ACTION)
    assert result.termination_reason is TerminationReason.TASK_COMPLETE, result.error
    assert result.reward is not None and result.reward.reward == 1.0
    (sample,) = samples_from_step(result)
    assert int(sample.loss_mask.sum()) == sum(len(reply.ids or ()) for reply in replies)
    assert result.observation.metrics["gateway"]["extension_rate"] == 1.0


def test_an_agent_that_harbor_does_not_have_is_refused() -> None:
    factory = sglang_model_factory(client=Replay([]), tokenizer=tokenizer())
    with pytest.raises(ValueError, match="terminus-3"):
        HarborEnv(model_factory=factory, agent="terminus-3")
