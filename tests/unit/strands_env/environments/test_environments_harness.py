"""`HarnessEnvironment`: a program of any make, in the sandbox, against a session of the step's model."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import pytest

import strands_env.environments.harness as harness_module
from strands_env.core import Action, RewardResult, TaskContext, TerminationReason
from strands_env.core.models import sglang_model_factory
from strands_env.environments import Harness, HarnessEnvironment
from strands_env.environments.harness import codex, opencode
from strands_env.sandbox import Isolation, SandboxUnavailableError
from strands_env.sandbox.agentcore import AgentCoreSandbox
from strands_env.training import samples_from_step
from strands_sglang.exceptions import SGLangConnectionError
from strands_sglang.testing import Reply
from tests.provider_support import Replay, completion, tokenizer
from tests.unit.gateway_support import CALL, CHAT_TOOLS
from tests.unit.sandbox_support import LIMITS, FolderSandbox, requires_isolation

# An agent of two turns, with the standard library alone.
AGENT = """
import json, os, sys, urllib.request
history = []
for text in sys.argv[1:]:
    history.append({"role": "user", "content": text})
    body = json.dumps({"model": "policy", "messages": history}).encode()
    request = urllib.request.Request(os.environ["BASE_URL"] + "/chat/completions", body, {
        "Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"})
    history.append(json.load(urllib.request.urlopen(request))["choices"][0]["message"])
open("answer.txt", "w").write(history[-1]["content"])
"""
HARNESS = Harness(
    command=("python3", "agent.py", "{prompt}", "Sure?"),
    environment={"BASE_URL": "{base_url}", "KEY": "{key}"},
    files={"agent.py": AGENT},
)


def environment(script: list[Any], **options: Any) -> HarnessEnvironment:
    options = {"harness": HARNESS, "isolation": Isolation.NONE, "python": sys.executable, **options}
    factory = sglang_model_factory(client=Replay(script), tokenizer=tokenizer())
    try:
        return HarnessEnvironment(model_factory=factory, **options)
    except SandboxUnavailableError as error:
        pytest.skip(str(error))


def task(text: str = "2+2?") -> Action:
    return Action(message=text, task_context=TaskContext(id="t"))


def running(source: str, *arguments: str, **environment: str) -> Harness:
    """The program of this source."""
    return dataclasses.replace(
        HARNESS,
        command=(*HARNESS.command, *arguments),
        files={"agent.py": source},
        environment={**HARNESS.environment, **environment},
    )


# Gives its only request up, as clients do at their time-outs.
IMPATIENT = """
import http.client, os, time, urllib.parse
url = urllib.parse.urlsplit(os.environ["BASE_URL"])
connection = http.client.HTTPConnection(url.hostname, url.port)
body = '{"model": "policy", "messages": [{"role": "user", "content": "Slow"}]}'
headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['KEY']}"}
connection.request("POST", f"{url.path}/chat/completions", body, headers)
time.sleep(0.5)
connection.close()
time.sleep(3.5)
"""


@requires_isolation
async def test_a_request_that_a_program_gives_up_in_its_sandbox_is_aborted() -> None:
    client = Replay([Reply(ids=completion("Never.").ids, delay=3.0)])
    factory = sglang_model_factory(client=client, tokenizer=tokenizer())
    result = await HarnessEnvironment(model_factory=factory, harness=running(IMPATIENT)).rollout(task())
    assert client.cancelled and not result.trajectories
    assert result.error is not None and "made no model call" in result.error.message


# The main agent with tools, then a request without any, as for a title.
TITLED = (
    AGENT.replace('"messages": history}', '"messages": history, "tools": json.loads(os.environ["TOOLS"])}')
    + """
body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "A title?"}]}).encode()
urllib.request.urlopen(urllib.request.Request(os.environ["BASE_URL"] + "/chat/completions", body, {
    "Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"})).read()
"""
)


async def test_the_step_holds_all_that_a_program_samples_and_its_title_is_not_the_main_conversation() -> None:
    script = [completion(f"Adding.{CALL}{CALL}", cached=3), completion("3."), completion("Sums")]
    env = environment(script, harness=running(TITLED, TOOLS=json.dumps(CHAT_TOOLS)))
    result = await env.rollout(task("1+2?"))
    assert result.termination_reason is TerminationReason.TASK_COMPLETE, result.error
    assert result.observation.final_response == "3." and len(result.trajectories) == 2
    assert [m["role"] for m in result.observation.messages] == ["user", "assistant"] * 2
    main = result.main_trajectory
    assert main is not None and tokenizer().decode(main.tokens.token_ids).endswith("3.<|im_end|>")
    assert main.tokens == result.observation.tokens
    metrics = result.observation.metrics
    replies = [len(reply.ids or ()) for reply in script]
    assert sum(sum(sample.loss_mask) for sample in samples_from_step(result)) == sum(replies)
    assert (metrics["output_tokens"]["total"], metrics["output_tokens"]["max"]) == (sum(replies), max(replies))
    assert metrics["input_tokens"]["total"] > sum(replies) and metrics["cache_read_input_tokens"]["total"] == 3
    assert (metrics["model_calls"], metrics["tool_calls"]) == (3, 2)


# The main agent, then another one beside it.
TWO_AGENTS = (
    AGENT
    + """
body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "Part"}]}).encode()
urllib.request.urlopen(urllib.request.Request(os.environ["BASE_URL"] + "/chat/completions", body, {
    "Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json",
    "x-claude-code-agent-id": "helper"})).read()
"""
)


@pytest.mark.parametrize(
    ("agents", "trained"), [(None, [True, True]), (["main"], [True, False]), (["helper"], [False, True])]
)
async def test_the_agents_that_are_trained_can_be_chosen(agents: list[str] | None, trained: list[bool]) -> None:
    script = [completion("Four."), completion("Yes."), completion("Helped.")]
    result = await environment(script, harness=running(TWO_AGENTS), trained_agents=agents).rollout(task())
    assert [path.trainable for path in result.trajectories] == trained, result.error
    assert len(samples_from_step(result)) == sum(trained)


RAISES = "def read(path):\n    return open(path + path)\n\n\nread('/no/such/file')\n"
NODE = (
    "node:internal/modules/cjs/loader:1215\n  throw err;\n  ^\n\nError: Cannot find module 'x'\n"
    "    at Module._load (node:internal:1:2)\n    at Module.run (node:internal:3:4)\n\nNode.js v22.1.0\n"
)
LAST_WORDS = {
    "python": (RAISES, "FileNotFoundError: [Errno 2] No such file or directory: '/no/such/file/no/such/file'"),
    "node": (f"import sys; sys.stderr.write({NODE!r}); sys.exit(1)", "Error: Cannot find module 'x'"),
}


@pytest.mark.parametrize(("source", "cause"), LAST_WORDS.values(), ids=LAST_WORDS)
async def test_a_programs_error_begins_with_its_cause(source: str, cause: str) -> None:
    result = await environment([], harness=running(source)).rollout(task())
    assert result.termination_reason.is_failure and result.error is not None
    first, _, rest = result.error.message.partition("\n")
    assert first == f"the program made no model call: error, exit code 1: {cause}" and cause in rest


@pytest.mark.parametrize("field", ["command", "environment", "files"])
def test_an_unknown_placeholder_is_refused_with_the_list(field: str) -> None:
    given = {"command": ("agent", "{baseurl}"), "environment": {"URL": "{baseurl}/v1"}, "files": {"{baseurl}/x": ""}}
    with pytest.raises(ValueError, match=r"unknown placeholder \{baseurl\}.*\{prompt\}, \{base_url\}.*\{home\}"):
        Harness(**{"command": ("agent",), field: given[field]})


def test_braces_of_the_programs_own_stay() -> None:
    own = {
        "command": ("sh", "-c", "awk '{ print }' ${shell} {a,b} @{upstream}"),
        "environment": {"CONFIG": '{"url": "{base_url}"}', "KEY": "{env:KEY}"},
        "files": {"agent.py": "print(f'{answer}', f\"{answer}\", '{answer}'.format(answer=1))\n", "t": "{{ task }}"},
    }
    filled = Harness(**own).fill({"base_url": "http://x"})
    assert filled._asdict() == own | {"environment": {"CONFIG": '{"url": "http://x"}', "KEY": "{env:KEY}"}}


@pytest.mark.parametrize(
    ("script", "options", "reason"),
    [
        ([completion("Four.")], {"max_requests": 1}, "max_tool_iterations_reached"),
        ([SGLangConnectionError("gone")], {}, "connection_error"),
    ],
)
async def test_a_limit_and_a_failing_model_end_the_step_as_what_they_are(script, options, reason):
    result = await environment(script, **options).rollout(task())
    assert (result.termination_reason, len(result.trajectories)) == (reason, len(options))


# What a program does after its first model call, and how its episode then ends.
ASKS = AGENT.replace("for text in sys.argv[1:]:", "for text in sys.argv[1:2]:")
ENDS = {
    "aborts": ("os.abort()", "error", -6),
    "exits with an error": ("sys.exit(3)", "error", 3),
    "never ends": ("import time; time.sleep(600)", "timeout", None),
    "floods": ("while True: os.write(1, b'x' * 65536)", "output_flood", None),
    "kills everything it can": (
        "import signal\nfor pid in map(int, filter(str.isdigit, os.listdir('/proc'))):\n"
        "    try: os.kill(pid, signal.SIGKILL)\n    except OSError: pass",
        "error",
        -9,
    ),
    "a child keeps the output open": ("import subprocess; subprocess.Popen(['sleep', '600'])", "ok", 0),
    "writes into its launcher": (
        "try: open(f'/proc/{os.getppid()}/fd/1', 'w').write('{\"exit\": 7}')\nexcept OSError: pass",
        "ok",
        0,
    ),
    "closes its output": ("os.close(1); os.close(2)", "ok", 0),
}


@requires_isolation
@pytest.mark.parametrize(("act", "outcome", "exit_code"), ENDS.values(), ids=ENDS)
async def test_however_a_program_ends_its_episode_is_scored_and_trained(act, outcome, exit_code):
    options = {
        "isolation": Isolation.BUBBLEWRAP,
        "python": None,
        "limits": dataclasses.replace(LIMITS, wall_seconds=3.0),
        "reward_fn": lambda action, result: 0.0,
    }
    result = await environment([completion("Four.")], harness=running(f"{ASKS}\n{act}\n"), **options).rollout(task())
    ended = result.observation.metrics["gateway"]
    assert (ended["outcome"], ended["exit_code"]) == (outcome, exit_code)
    assert outcome in ended.get("failure", "ok")
    assert result.termination_reason == ("task_complete" if outcome == "ok" else "program_failed")
    assert len(result.trajectories) == 1
    assert result.reward is not None and result.reward.reward == 0.0
    assert sum(sum(sample.loss_mask) for sample in samples_from_step(result)) > 0


async def test_a_program_that_fails_may_be_a_failure_without_a_reward() -> None:
    failing = running(f"{ASKS}\nsys.exit(3)\n")
    env = environment([completion("Four.")], harness=failing, score_failures=False, reward_fn=lambda *_: 0.0)
    result = await env.rollout(task())
    assert result.termination_reason.is_failure and result.reward is None and len(result.trajectories) == 1
    assert result.error is not None and "error, exit code 3" in result.error.message


async def test_an_episode_out_of_time_keeps_what_was_sampled() -> None:
    env = environment([completion("Four.")], harness=running(f"{ASKS}\nimport time; time.sleep(60)"), step_timeout=2.0)
    result = await env.rollout(task())
    assert result.termination_reason is TerminationReason.TIMEOUT
    assert result.observation.final_response == "Four." and len(result.trajectories) == 1
    assert result.observation.metrics["gateway"]["outcome"] == "cancelled"


# A request that the gateway refuses for what is in it: the program's own, whether it gets over it or not.
REFUSED = (
    ASKS
    + """
body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": [{"type": "image_url",
    "image_url": {"url": "data:image/png;base64,AAAA"}}]}]}).encode()
request = urllib.request.Request(os.environ["BASE_URL"] + "/chat/completions", body, {
    "Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"})
try: urllib.request.urlopen(request)
except urllib.error.HTTPError as error: status = error.code
sys.exit(0 if status == 400 and len(sys.argv) < 4 else 1)
"""
)


# Refused by the template, and by the gateway.
PREFILLED = REFUSED.replace(
    """[{"type": "image_url",
    "image_url": {"url": "data:image/png;base64,AAAA"}}]}]}""",
    '"go"}, {"role": "assistant", "content": "Well"}]}',
)


@pytest.mark.parametrize(
    ("source", "further", "reason"),
    [(REFUSED, (), "task_complete"), (REFUSED, ("fail",), "program_failed"), (PREFILLED, (), "task_complete")],
    ids=["got over", "not got over", "by the gateway"],
)
async def test_a_request_that_is_refused_does_not_hide_the_episode(source: str, further: Any, reason: str) -> None:
    assert REFUSED != PREFILLED
    env = environment([completion("Four.")], harness=running(source, *further), reward_fn=lambda action, result: 0.0)
    result = await env.rollout(task())
    assert (result.termination_reason, len(result.trajectories)) == (reason, 1), result.error
    assert result.reward is not None and result.reward.reward == 0.0


# Asks the gateway for what is not the program's.
NOSY = (
    AGENT
    + """
root = os.environ["BASE_URL"].partition("/s/")[0]
session = os.environ["BASE_URL"].split("/s/")[1].split("/")[0]
found = []
for method, path in (("POST", "/sessions"), ("GET", "/sessions"), ("POST", f"/sessions/{session}/close"),
                     ("DELETE", f"/sessions/{session}"), ("GET", f"/sessions/{session}/trajectories"),
                     ("POST", f"/s/{session}/reward")):
    try:
        body = b'{"reward": 1}' if method == "POST" else None
        request = urllib.request.Request(root + path, body, method=method, headers={
            "Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"})
        found.append(urllib.request.urlopen(request).status)
    except urllib.error.HTTPError as error:
        found.append(error.code)
print(found)
sys.exit(found != [404] * 5 + [403])
"""
)


@pytest.mark.parametrize("isolation", [Isolation.NONE, Isolation.BUBBLEWRAP])
async def test_the_program_sees_its_session_and_nothing_that_makes_others(isolation: Isolation) -> None:
    async def reward(action: Action, result: Any) -> float:
        return float((await env.sandbox.exec("cat answer.txt")).stdout == "Yes.")

    env = environment(
        [completion("Four."), completion("Yes.")],
        harness=running(NOSY),
        isolation=isolation,
        python=None if isolation is Isolation.BUBBLEWRAP else sys.executable,
        reward_fn=reward,
    )
    result = await env.rollout(task())
    assert result.termination_reason is TerminationReason.TASK_COMPLETE, result.observation.metrics["gateway"]
    assert result.reward is not None and result.reward.reward == 1.0


async def test_a_program_runs_in_any_sandbox_that_reaches_the_gateway() -> None:
    sandbox = FolderSandbox()
    factory = sglang_model_factory(client=Replay([completion("Four."), completion("Yes.")]), tokenizer=tokenizer())
    result = await HarnessEnvironment(model_factory=factory, harness=HARNESS, sandbox=sandbox).rollout(task())
    assert result.termination_reason is TerminationReason.TASK_COMPLETE, result.error
    assert result.observation.final_response == "Yes." and sandbox.is_closed
    gateway = result.observation.metrics["gateway"]
    assert (gateway["extension_rate"], gateway["exit_code"], len(result.trajectories)) == (1.0, 0, 1)
    with pytest.raises(ValueError, match="cannot reach the gateway"):
        HarnessEnvironment(model_factory=factory, harness=HARNESS, sandbox=AgentCoreSandbox())


# Scores itself, with the key that it is given.
GRADED = (
    AGENT
    + """
body = json.dumps({"reward": 0.5, "turns": {"1": 0.25}, "info": {"tests": 3}}).encode()
urllib.request.urlopen(urllib.request.Request(os.environ["BASE_URL"][:-3] + "/reward", body, {
    "Authorization": "Bearer " + os.environ["REWARD_KEY"], "Content-Type": "application/json"}))
"""
)


async def test_a_program_scores_itself_only_where_the_environment_says_so() -> None:
    graded = running(GRADED, REWARD_KEY="{reward_key}")
    script = [completion("Four."), completion("Yes.")]
    result = await environment(script, harness=graded, program_reward=True).rollout(task())
    assert result.reward == RewardResult(reward=0.5, turn_rewards={1: 0.25}, info={"tests": 3}), result.error
    with pytest.raises(ValueError, match="both score the episode"):
        environment([], harness=graded, program_reward=True, reward_fn=lambda action, result: 1.0)
    refused = await environment(script, harness=graded, reward_fn=lambda action, result: 1.0).rollout(task())
    assert refused.error is not None and "program_reward=True" in refused.error.message
    # The agent's own key is no reward key.
    forged = running(GRADED, REWARD_KEY="{key}")
    result = await environment(script, harness=forged, reward_fn=lambda action, result: 0.0).rollout(task())
    assert result.reward is not None and result.reward.reward == 0.0
    assert "HTTP Error 403" in result.observation.metrics["gateway"]["failure"]


async def test_a_program_that_sends_no_reward_is_an_error_if_it_ended_well_and_scores_0_if_not() -> None:
    script = [completion("Four."), completion("Yes.")]
    result = await environment(script, program_reward=True).rollout(task())
    assert result.termination_reason is TerminationReason.REWARD_ERROR and result.reward is None
    result = await environment(script, harness=running(AGENT + "sys.exit(3)"), program_reward=True).rollout(task())
    assert result.termination_reason is TerminationReason.PROGRAM_FAILED
    assert result.reward is not None and result.reward.reward == 0.0


def test_options_of_the_agent_loop_and_of_another_program_are_refused() -> None:
    with pytest.raises(ValueError, match="max_tool_calls"):
        environment([], max_tool_calls=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'context'"):
        codex(context=8_192)
    assert '"context": 8192, "output": 2048' in next(iter(opencode(context=8_192).fill({}).files.values()))


def test_codex_waits_for_a_gateway_that_a_router_says_is_away() -> None:
    (configuration,) = codex().fill({}).files.values()
    assert "\nstream_max_retries = 8\n" in configuration  # 88 s of refusals; its own number is 5, for 26 s


@pytest.mark.parametrize("name", [name for name in harness_module.__all__ if name[0].islower()])
def test_recipes_fill_in_address_and_prompt_and_keys_in_the_environment_alone(name: str) -> None:
    urls = dict.fromkeys(("base_url", "anthropic_url", "google_url"), "http://h/s/x")
    filled = getattr(harness_module, name)().fill({"key": "sk-0123", "prompt": "{do} it", "home": "/home", **urls})
    assert "{do} it" in filled.command or "--prompt={do} it" in filled.command
    assert "http://h/s/x" in str(filled) and "{model}" not in str(filled)
    assert "sk-0123" in filled.environment.values()
    assert "sk-0123" not in str(filled.command) + str(filled.files)


def test_making_an_environment_makes_nothing_else(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environment([])
    assert list(tmp_path.iterdir()) == []
