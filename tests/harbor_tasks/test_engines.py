"""Tasks on Harbor's own backends: podman, in real containers without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harbor.environments.factory import EnvironmentFactory
from harbor.models.trial.config import EnvironmentConfig

from strands_env.core import StepResult
from strands_env.environments.harbor import TaskFailedError, TaskTrial
from strands_env.environments.harbor.backend import Docker, Podman
from tests.container_support import TEST, make_task, podman_image
from tests.harbor_tasks.test_env import CHEATS, SERVER, call, episode, reward_of, shell

PODMAN = {"backend": "podman", "backend_options": {"network": "none"}}


def podman_task(folder: Path, **parts: Any) -> Path:
    """A task whose verifier has time for podman-compose, which takes seconds for each command."""
    task = make_task(folder, image=podman_image(), **parts)
    toml = (task / "task.toml").read_text().replace("timeout_sec = 20.0", "timeout_sec = 200.0")
    (task / "task.toml").write_text(toml.replace("timeout_sec = 60.0", "timeout_sec = 300.0"))
    return task


def reward(result: StepResult) -> float:
    assert result.reward is not None, result.error
    return result.reward.reward


async def test_podman_runs_a_tasks_own_solution(tmp_path: Path) -> None:
    assert await reward_of(podman_task(tmp_path), "oracle", **PODMAN) == 1.0


async def test_on_podman_what_the_agent_started_is_dead_before_the_tests_and_what_the_task_started_is_not(
    tmp_path: Path,
) -> None:
    own = "(while true; do touch /tmp/own; sleep 0.1; done) > /dev/null 2>&1 &"
    health = f'[environment.healthcheck]\ncommand = "{own}"\n'
    test = "#!/bin/bash\nrm -f /tmp/own /tmp/alive; sleep 1; [ -e /tmp/own ] && [ ! -e /tmp/alive ]\n"
    test += "echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    task = podman_task(tmp_path, more=health, test=test)
    forged = CHEATS["background-writer"] + CHEATS["linked-logs"]
    assert reward(await episode(task, shell(SERVER), shell(forged), "Done.", **PODMAN)) == 1.0


async def test_podman_grades_in_a_container_of_its_own(tmp_path: Path) -> None:
    declared = 'artifacts = ["/app/answer.txt"]\n'
    test = "#!/bin/bash\n[ -e /app/other.txt ] && exit 1\n" + TEST.removeprefix("#!/bin/bash\n")
    task = podman_task(tmp_path, head=declared, test=test)
    script = [shell("touch other.txt; echo 42 > answer.txt; rm /bin/cat"), "Done."]
    assert reward(await episode(task, *script, verifier="separate", **PODMAN)) == 1.0


async def test_our_agent_works_in_the_main_one_of_a_tasks_containers_on_podman(tmp_path: Path) -> None:
    beside = f"{{image: {podman_image()}, network_mode: none, command: [sh, -c, 'echo 41 > /shared/answer; sleep 1000']"
    compose = f"services:\n  main: {{volumes: [shared:/shared]}}\n  beside: {beside}, volumes: [shared:/shared]}}\n"
    files = {"environment/docker-compose.yaml": compose + "volumes: {shared: {}}\n"}
    script = [
        shell("pwd; id -un; ls /sys/class/net; echo problem >&2; exit 3"),
        shell("until cp /shared/answer answer.txt; do sleep 0.5; done 2> /dev/null"),
        call("edit_file", command="replace", path="/app/answer.txt", old_text="41", text="42"),
        "Done.",
    ]
    result = await episode(podman_task(tmp_path, files=files), *script, **PODMAN)
    assert reward(result) == 1.0
    assert "/app\nroot\nlo\nproblem\n[exit code 3]" in str(result.observation.messages[2]).replace("\\n", "\n")


async def test_a_network_that_is_neither_is_refused(tmp_path: Path) -> None:
    podman_image()
    trial = TaskTrial(make_task(tmp_path, image="x"), backend="podman", backend_options={"network": "host"})
    with pytest.raises(TaskFailedError, match="network must be one of task, none, got 'host'"):
        await trial.start()
    await trial.close()


@pytest.mark.skipif(not hasattr(EnvironmentFactory, "validate_options"), reason="Harbor checks options from 0.26 on")
@pytest.mark.parametrize("backend", [Docker, Podman])
def test_harbor_itself_takes_the_option_network_and_refuses_another_value(backend: type) -> None:
    def check(**options: Any) -> None:
        path = f"{backend.__module__}:{backend.__name__}"
        EnvironmentFactory.validate_options(EnvironmentConfig(import_path=path, kwargs=options))

    check(network="none", keep_containers=True)
    with pytest.raises(ValueError, match="network: Input should be 'task' or 'none'"):
        check(network="host")
    with pytest.raises(ValueError, match="Unknown option 'netwrok'"):
        check(netwrok="none")
