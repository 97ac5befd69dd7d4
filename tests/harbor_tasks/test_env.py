"""Episodes of `HarborEnv` on small tasks, over bubblewrap."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from strands_env.core import Action, StepResult, TaskContext, TerminationReason
from strands_env.environments.harbor import HarborEnv, TaskTrial
from strands_env.environments.harbor.outcome import choose_reward
from strands_env.environments.harbor.validation import CHEATS, validate_tasks
from strands_env.rewards.proof import TaskVerdict
from strands_env.sandbox.images.layers import containers_folder
from strands_env.testing import ScriptedModel, call
from tests.container_support import CHECK, PYTEST, TEST, make_task, require_images, root_with_python

ACTION = Action(message="", task_context=TaskContext(id="t"))
WRITES = "#!/bin/bash\nprintf '%s' '{}' > /logs/verifier/{}\n"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    require_images()
    yield
    assert list(containers_folder().glob(f"{os.getpid()}-*")) == []


def shell(command: str) -> Any:
    return call("execute_command", command=command)


async def episode(task: Path, *script: Any, **options: Any) -> StepResult:
    env = HarborEnv(model_factory=lambda: ScriptedModel(list(script)), task_dir=task, **options)
    return await env.rollout(ACTION)


async def reward_of(task: Path, agent: str, **options: Any) -> float:
    trial = TaskTrial(task, agent=agent, **options)
    try:
        await trial.start()
        return choose_reward(await trial.reward())
    finally:
        await trial.close()


async def test_an_agent_solves_a_task_with_its_tools(tmp_path: Path) -> None:
    script = [
        shell("pwd; id -un; echo $HOME"),
        call("edit_file", command="create", path="/app/answer.txt", text="41\n"),
        call("edit_file", command="replace", path="/app/answer.txt", old_text="41", text="42"),
        call("edit_file", command="view", path="/app/answer.txt"),
        "Done.",
    ]
    result = await episode(make_task(tmp_path), *script)
    assert result.termination_reason is TerminationReason.TASK_COMPLETE, result.error
    assert result.reward is not None and result.reward.reward == 1.0
    messages = result.observation.messages
    assert messages[0]["content"][0]["text"] == "Write 42 into /app/answer.txt."
    assert "/app\nroot\n/root" in str(messages[2]["content"]).replace("\\n", "\n")
    assert "1\\t42" in str(messages[8]["content"])


@pytest.mark.parametrize(
    ("test", "reward"),
    [
        (WRITES.format("0.5", "reward.txt"), 0.5),
        (WRITES.format('{"reward": 0.25, "style": 1}', "reward.json"), 0.25),
        (WRITES.format('{"only": 2}', "reward.json"), 2.0),
        (WRITES.format('{"a": 1, "b": 0}', "reward.json"), None),
        (WRITES.format("", "reward.txt"), None),
        (WRITES.format("nan", "reward.txt"), None),
        (WRITES.format('{"reward": 1e999}', "reward.json"), None),
        (WRITES.format('{"reward": true}', "reward.json"), None),
        (WRITES.format("[1]", "reward.json"), None),
        ("#!/bin/bash\nprintf '{\"reward\": 1%0400d}' 0 > /logs/verifier/reward.json\n", None),
        ("#!/bin/bash\nexit 1\n", None),
    ],
)
async def test_only_finite_numbers_count_and_all_else_is_not_measured(
    tmp_path: Path, test: str, reward: float | None
) -> None:
    result = await episode(make_task(tmp_path, test=test), "Done.")
    if reward is not None:
        assert result.reward is not None and result.reward.reward == reward
    else:
        assert result.reward is None and result.termination_reason is TerminationReason.REWARD_ERROR
        assert result.error is not None and "harbor.outcome.NotMeasuredError" in result.error.type


async def test_a_slow_verifier_measured_nothing(tmp_path: Path) -> None:
    result = await episode(make_task(tmp_path, test="#!/bin/bash\nsleep 60\n", verifier_seconds=0.5), "Done.")
    assert result.reward is None and result.error is not None and "timed out" in result.error.message


async def test_an_agent_that_runs_out_of_time_is_graded_for_what_it_did(tmp_path: Path) -> None:
    task = make_task(tmp_path, agent_seconds=1.0)
    result = await episode(task, shell("echo 42 > answer.txt"), shell("sleep 60"), "Done.")
    assert result.termination_reason is TerminationReason.TASK_TIME_LIMIT_REACHED, result.error
    assert result.reward is not None and result.reward.reward == 1.0


async def test_a_model_that_fails_is_no_failure_of_the_task(tmp_path: Path) -> None:
    result = await episode(make_task(tmp_path), shell("echo 42 > answer.txt"), ConnectionError("gone"))
    assert result.termination_reason is TerminationReason.CONNECTION_ERROR and result.reward is None


STEPS = """
[[steps]]
name = "first"
min_reward = 1.0
[[steps]]
name = "second"
"""
STEP_FILES = {
    "steps/first/instruction.md": "Write 42 into answer.txt.",
    "steps/first/tests/test.sh": TEST,
    "steps/first/solution/solve.sh": "#!/bin/bash\necho 42 > /app/answer.txt\n",
    "steps/second/instruction.md": "Remove it, and say so.",
    "steps/second/tests/test.sh": "#!/bin/bash\n[ -e /app/answer.txt ]; echo $? > /logs/verifier/reward.txt\n",
    "steps/second/solution/solve.sh": "#!/bin/bash\nrm /app/answer.txt\n",
}


async def test_the_steps_of_a_task_are_one_conversation(tmp_path: Path) -> None:
    task = make_task(tmp_path, more=STEPS, files=STEP_FILES)
    script = [shell("echo 42 > answer.txt"), "First done.", shell("rm answer.txt; ls -a /tests"), "Second done."]
    result = await episode(task, *script)
    assert result.reward is not None and result.reward.reward == 1.0, result.error
    texts = [block["text"] for m in result.observation.messages for block in m["content"] if "text" in block]
    assert texts[0] == "Write 42 into answer.txt." and "Remove it, and say so." in texts
    assert "test.sh" not in str(result.observation.messages)
    assert await reward_of(task, "oracle") == 1.0 and await reward_of(task, "nop") == 0.0
    below = await episode(task, "Nothing done.")  # its first step has a minimum
    assert below.reward is not None and below.reward.reward == 0.0
    assert "Remove it" not in str(below.observation.messages)


@pytest.mark.parametrize("steps", [1, 2])
async def test_a_time_out_of_the_step_is_graded_for_what_was_done(tmp_path: Path, steps: int) -> None:
    task = make_task(tmp_path, more=STEPS, files=STEP_FILES) if steps == 2 else make_task(tmp_path)
    result = await episode(task, shell("echo 42 > answer.txt"), shell("sleep 60"), "Done.", step_timeout=3.0)
    assert result.termination_reason is TerminationReason.TIMEOUT, result.error
    assert result.reward is not None and result.reward.reward == (1.0 if steps == 1 else 0.5)


async def test_the_network_is_none(tmp_path: Path) -> None:
    result = await episode(make_task(tmp_path), shell("cat /proc/net/dev; ping -c1 -w1 1.1.1.1"), "Done.")
    seen = str(result.observation.messages[2])
    assert "lo:" in seen and "eth" not in seen and "unreachable" in seen


HEALTH = '[environment.healthcheck]\ncommand = "exit 1"\ninterval_sec = 0.1\nretries = 1\n'
COMPOSE = {"environment/docker-compose.yaml": "services:\n  main: {}\n  database: {image: postgres}\n"}


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"more": HEALTH}, "ealthcheck"),
        ({"files": COMPOSE}, "several containers (docker-compose.yaml)"),
        ({"files": COMPOSE}, "use the backend 'docker' or 'podman'"),
        ({"image": "nobody/nothing:1"}, "strands-env images pull nobody/nothing:1"),
        ({"agent": "user = []"}, "the task 'answer' cannot be run"),
        ({"environment": 'network_mode = "allowlist"\nallowed_hosts = ["example.com"]'}, "allowlist"),
    ],
)
async def test_a_task_that_cannot_be_set_up_is_refused_in_one_sentence(
    tmp_path: Path, parts: dict[str, Any], why: str
) -> None:
    task = make_task(tmp_path, **parts)
    if "environment" in parts:
        (task / "task.toml").write_text((task / "task.toml").read_text().replace("allow_internet = false\n", ""))
    refused = await episode(task, "Done.")
    assert refused.termination_reason is TerminationReason.SETUP_ERROR and refused.reward is None
    assert refused.error is not None and why in refused.error.message


async def test_users_and_variables_of_the_task_are_honoured(tmp_path: Path) -> None:
    task = make_task(tmp_path, agent='user = "worker"', more='[environment.env]\nGREETING = "hello"\n', test=TEST)
    script = [shell("id -un; id -Gn; echo $HOME $GREETING; touch /app/x /root/x /tmp/x"), "Done."]
    seen = str((await episode(task, *script)).observation.messages[2])
    assert "worker" in seen and "helpers" in seen and "/home/worker hello" in seen
    assert "/root/x: Permission denied" in seen and "/tmp/x" not in seen


SERVER = "(while true; do echo up > /tmp/alive; sleep 0.05; done) > /dev/null 2>&1 & echo started"
IF_THERE = "#!/bin/bash\n{}\nif [ -e {} ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


async def test_a_server_lives_through_the_episode_and_dies_before_the_tests(tmp_path: Path) -> None:
    task = make_task(tmp_path, test=IF_THERE.format("rm -f /tmp/alive; sleep 0.5", "/tmp/alive"))
    script = [shell(SERVER), shell("rm /tmp/alive; until grep up /tmp/alive; do sleep 0.1; done 2> /dev/null"), "Done."]
    result = await episode(task, *script)
    assert "up" in str(result.observation.messages[4])
    assert result.reward is not None and result.reward.reward == 0.0
    kept = await episode(task, *script, keep_processes=True)
    assert kept.reward is not None and kept.reward.reward == 1.0


async def test_a_cancelled_episode_leaves_nothing(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    work = asyncio.create_task(episode(task, shell("(sleep 300 &) ; sleep 300")))
    while not any("sleep" in child.name() for child in psutil.Process().children(recursive=True)):
        await asyncio.sleep(0.02)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


# ---- cheats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cheat", sorted(CHEATS))
async def test_no_cheat_gives_a_reward(tmp_path: Path, cheat: str) -> None:
    result = await episode(make_task(tmp_path), shell(CHEATS[cheat]), "Done.")
    assert result.reward is None or result.reward.reward == 0.0
    assert result.reward is not None, result.error


async def test_another_home_for_the_user_of_the_tests_leads_no_program_astray(tmp_path: Path) -> None:
    site = "/opt/h/.local/lib/python$(python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])')/site-packages"
    line = "import os; open('/logs/verifier/reward.txt', 'w').write('1'); os._exit(0)"
    move = f"sed -i 's|:/home/worker:|:/opt/h:|' /etc/passwd; mkdir -p {site}; echo \"{line}\" > {site}/z.pth"
    files = {"tests/check.py": CHECK}
    task = make_task(tmp_path, image=root_with_python(), test=PYTEST, verifier='user = "worker"', files=files)
    cheated = await episode(task, shell(move), "Done.")
    assert cheated.reward is not None and cheated.reward.reward == 0.0, cheated.error
    solved = await episode(task, shell(f"{move}; echo 42 > answer.txt"), "Done.")
    assert solved.reward is not None and solved.reward.reward == 1.0, solved.error


@pytest.mark.parametrize(
    ("cheat", "options"),
    [("replaced-shell", {"verifier": "in-place"}), ("background-writer", {"keep_processes": True})],
)
async def test_the_cheats_work_where_nothing_stops_them(tmp_path: Path, cheat: str, options: dict[str, Any]) -> None:
    task = make_task(tmp_path, test=TEST + "sleep 0.5\n")
    for _ in range(5):  # a file that is written while it is fetched is not measured
        result = await episode(task, shell(CHEATS[cheat]), "Done.", **options)
        if result.reward is not None:
            break
    assert result.reward is not None and result.reward.reward == 1.0


@pytest.mark.parametrize(
    "left",
    [
        "mkfifo reward.txt",
        "mkdir reward.txt",
        "ln -s /etc/passwd reward.txt",
        "ln -s loop reward.json; ln -s reward.json loop",
        "(echo 1; head -c 3000000 /dev/zero | tr '\\0' ' ') > reward.txt",
    ],
)
async def test_a_reward_that_is_no_small_file_is_not_measured(tmp_path: Path, left: str) -> None:
    result = await episode(make_task(tmp_path, test=f"#!/bin/bash\ncd /logs/verifier\n{left}\n"), "Done.")
    assert result.reward is None and result.termination_reason is TerminationReason.REWARD_ERROR


SHARED_MEMORY = """import ctypes
libc, size = ctypes.CDLL(None), 200 << 20
libc.shmat.restype = ctypes.c_void_p
ctypes.memset(libc.shmat(libc.shmget(0, ctypes.c_size_t(size), 0o1600), None, 0), 1, size)"""


@pytest.mark.parametrize(
    ("limit", "command"),
    [
        ("storage_mb = 64", "for name in a b c; do cat /dev/zero > /tmp/$name; done"),
        ("memory_mb = 256", "head -c 200000000 /dev/zero > /dev/shm/a"),
        ("memory_mb = 256", "head -c 200000000 /dev/zero > /dev/a"),
        ("memory_mb = 256", f"python3 -c '{SHARED_MEMORY}'"),
    ],
)
async def test_an_agent_that_leaves_no_room_is_graded_all_the_same(tmp_path: Path, limit: str, command: str) -> None:
    test = TEST.replace("#!/bin/bash\n", "#!/bin/bash\nsleep 2\nprintf -v x '%60000000s' y\n")
    image = root_with_python() if "python3" in command else None
    task = make_task(tmp_path, environment=limit, test=test, image=image, agent='user = "worker"' if image else "")
    result = await episode(task, shell(command), "Done.")
    assert result.reward is not None and result.reward.reward == 0.0, result.error


async def verdicts(folders: Sequence[Path], **options: Any) -> dict[str, TaskVerdict]:
    return {report.task: report.verdict for report in await validate_tasks(folders, **options)}


async def test_validation_tells_sound_tasks_from_all_others(tmp_path: Path) -> None:
    gullible = IF_THERE.format("[ -e /app/answer.txt ] && touch /app/cheated", "/app/cheated")
    tasks = [
        make_task(tmp_path, "good"),
        make_task(tmp_path, "unsolved", solve="#!/bin/bash\necho 41 > /app/answer.txt\n"),
        make_task(tmp_path, "free", test=WRITES.format("1", "reward.txt")),
        make_task(tmp_path, "silent", test="#!/bin/bash\n"),
        make_task(tmp_path, "flaky", test="#!/bin/bash\necho 0.$RANDOM > /logs/verifier/reward.txt\n"),
        make_task(tmp_path, "hackable", test=gullible, files={"cheats/touch.sh": "touch /app/cheated\n"}),
    ]
    assert await verdicts(tasks) == {
        "good": TaskVerdict.SOUND,
        "unsolved": TaskVerdict.UNSOLVED,
        "free": TaskVerdict.FREE,
        "silent": TaskVerdict.BROKEN,
        "flaky": TaskVerdict.FLAKY,
        "hackable": TaskVerdict.HACKABLE,
    }


async def test_validation_says_once_why_a_task_fails(tmp_path: Path) -> None:
    task = make_task(tmp_path, "dry")
    toml = task / "task.toml"
    toml.write_text("".join(line for line in toml.open() if "docker_image" not in line))
    (dry,) = await validate_tasks([task])
    assert len(dry.errors) == 1 and "oracle, nop: " in dry.errors[0] and "has no Dockerfile" in dry.errors[0]
    (task / "environment/Dockerfile").write_text("FROM scratch\n")
    (dry,) = await validate_tasks([task])
    assert f"strands-env images build {task}'" in dry.errors[0]
