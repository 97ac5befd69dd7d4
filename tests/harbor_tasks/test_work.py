"""What tests see of an agent's container, how that is learnt, and agents that break their own grading."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from harbor.verifier.verifier import RewardFileNotFoundError, Verifier
from strands.hooks import AfterToolCallEvent

from strands_env.commands.cli import main
from strands_env.core import TaskContext, TerminationReason
from strands_env.environments.harbor import HarborEnv, create_env_factory
from strands_env.environments.harbor.validation import validate_tasks
from strands_env.eval.benchmarks.harbor import HarborEvaluator
from strands_env.rewards.proof import TaskVerdict
from strands_env.sandbox.images.image_sandbox import DEFAULT_IMAGE_LIMITS
from strands_env.sandbox.images.layers import containers_folder
from strands_env.testing import ScriptedModel
from tests.container_support import CHECK, PYTEST, TEST, make_task, require_images, root_with_python
from tests.harbor_tasks.test_env import ACTION, IF_THERE, STEP_FILES, STEPS, episode, nothing_is_left, shell

__all__ = ["nothing_is_left"]  # a fixture of every test here

SOLVED = "mkdir -p /app; echo 42 > /app/answer.txt"


# ---- agents that break their own grading -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "test"),
    [
        ("cd /; rm -rf /app", TEST),
        ("cd /; rm -rf /app; echo > /app", TEST),
        ("cd /; rm -rf /app; ln -s app /app", TEST),
        ("mkfifo answer.txt", TEST),
        ("ln -s /dev/zero answer.txt", TEST),
        ("chmod 000 /app; chown worker /app", TEST),
        ("printf '#!/bin/bash\\nwhile true; do echo yes; done\\n' > run; chmod +x run", "#!/bin/bash\n./run\n" + TEST),
        ("echo 'kill -9 -1' > run", "#!/bin/bash\n[ -e run ] && source ./run\n" + TEST),
    ],
)
async def test_an_agent_that_breaks_its_own_grading_has_scored_nothing(tmp_path: Path, script: str, test: str) -> None:
    result = await episode(make_task(tmp_path, test=test, verifier_seconds=1.5), shell(script), "Done.")
    assert result.reward is not None and result.reward.reward == 0.0, result.error
    if script == "mkfifo answer.txt":
        assert "timed out" in result.reward.info["grading_failure"]


async def test_tests_that_end_on_no_image_measure_nothing_whatever_the_agent_did(tmp_path: Path) -> None:
    task = make_task(tmp_path, test="#!/bin/bash\n[ -e answer.txt ] && echo 1 > /logs/verifier/reward.txt\n")
    result = await episode(task, shell("mkfifo other"), "Done.")
    assert result.reward is None and result.termination_reason is TerminationReason.REWARD_ERROR


async def test_a_failure_that_does_not_happen_again_is_not_the_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, failures = Verifier.verify, [RewardFileNotFoundError("the machine had a bad moment")]

    async def verify(self: Any) -> Any:
        if failures:
            raise failures.pop()
        return await whole(self)

    monkeypatch.setattr(Verifier, "verify", verify)
    result = await episode(make_task(tmp_path), shell(SOLVED), "Done.")
    assert result.reward is not None and result.reward.reward == 1.0, result.error
    assert "grading_failure" not in result.reward.info


async def test_a_step_that_breaks_its_grading_scores_nothing_and_the_others_what_they_earned(tmp_path: Path) -> None:
    test = "#!/bin/bash\n[ -e run ] && source ./run\necho 1 > /logs/verifier/reward.txt\n"
    second = {"steps/second/tests/test.sh": test}
    task = make_task(tmp_path, more=STEPS, files=STEP_FILES | second, verifier_seconds=1.5)
    script = [shell(SOLVED), "First done.", shell("echo 'exit 1' > run"), "Second done."]
    result = await episode(task, *script)
    assert result.reward is not None and result.reward.reward == 0.5, result.error


@pytest.mark.parametrize("written", ["١", "1_0", "infinity", "nan", "0x1", "1 2", "1\\0"])
async def test_a_number_that_nobody_means_is_not_measured_even_where_the_work_is_missing(
    tmp_path: Path, written: str
) -> None:
    test = TEST.replace("echo 1;", f"printf '{written}';")
    result = await episode(make_task(tmp_path, test=test), shell(SOLVED), "Done.")
    assert result.reward is None and result.termination_reason is TerminationReason.REWARD_ERROR


FULL = "echo 42 > answer.txt; dd if=/dev/zero of=/big bs=1M; i=0; while : > $((i++)); do :; done; true"
"""Takes every block and every name of the disk."""


@pytest.mark.parametrize("verifier", ["task", "in-place"])
async def test_work_on_a_full_disk_is_graded(tmp_path: Path, verifier: str) -> None:
    task = make_task(tmp_path, environment="storage_mb = 32")
    result = await episode(task, shell(FULL), "Done.", verifier=verifier)
    assert result.reward is not None and result.reward.reward == 1.0, result.error
    assert "No space left" in str(result.observation.messages[2])


@pytest.mark.parametrize("when", ["command", "between", "tests", "end", "end of a step"])
async def test_a_container_that_is_lost_in_the_middle_is_not_measured_and_later_it_is(
    tmp_path: Path, when: str
) -> None:
    test = TEST + ("sleep 5\n" if when == "tests" else "")
    script = [shell(SOLVED), shell("sleep 5" if when == "command" else "true"), "Done."]
    task = make_task(tmp_path, test=test)
    if when == "end":
        script = [shell(SOLVED), "Done."]
    elif when == "end of a step":
        task = make_task(tmp_path / "steps", more=STEPS, files=STEP_FILES)
        script = [shell(f"touch /etc/mine; {SOLVED}"), "First done.", shell("ls /etc/mine && rm answer.txt"), "Done."]
    env = HarborEnv(model_factory=lambda: ScriptedModel(script), task_dir=task)
    killed: list[Any] = []

    async def kill(_: Any = None) -> None:
        """End process 1, as the kernel does where memory is short."""
        assert env.trial is not None and env.trial._trial is not None
        process = env.trial._trial.agent_environment.sandbox._process
        (first,) = psutil.Process(process._process.pid).children()
        killed.append(first.kill())
        await asyncio.sleep(0.3)

    class Between:
        def register_hooks(self, registry: Any, **_: Any) -> None:
            async def after(event: AfterToolCallEvent) -> None:
                if not killed:
                    await kill()

            registry.add_callback(AfterToolCallEvent, after)

    if when not in ("command", "tests"):
        env.get_hooks = lambda: [Between()]
    running = asyncio.create_task(env.rollout(ACTION))
    if when in ("command", "tests"):
        place = "answer.txt" if when == "command" else "verifier/reward.txt"
        while not [*containers_folder().glob(f"{os.getpid()}-*/files/upper/*/{place}")]:
            await asyncio.sleep(0.02)
        await kill()
    result = await running
    assert killed
    if when not in ("command", "between"):  # its work is there, and graded
        assert result.reward is not None and result.reward.reward == 1.0, result.error
        return
    assert result.reward is None and result.termination_reason is TerminationReason.TOOL_ERROR
    assert result.error is not None and result.error.type.endswith("SandboxLostError"), result.error


BOMB = "printf '#!/bin/bash\\nwhile :; do setsid /bomb & done\\n' > /bomb; chmod +x /bomb; /bomb; /bomb"


@pytest.mark.parametrize(("script", "ends"), [(BOMB, True), (BOMB, False), ("sleep 60", False)])
async def test_processes_that_do_not_end_cost_no_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, ends: bool
) -> None:
    """Neither where they are many, nor where the supervisor does not end them in time."""
    monkeypatch.setattr(
        "strands_env.environments.harbor.backend.DEFAULT_IMAGE_LIMITS", replace(DEFAULT_IMAGE_LIMITS, processes=400)
    )
    if not ends:
        monkeypatch.setattr("strands_env.sandbox.bubblewrap.process.END_SECONDS", 0.0)
    for work, reward in ((SOLVED, 1.0), ("true", 0.0)):
        task = make_task(tmp_path / work[:4], agent_seconds=2.0)
        result = await episode(task, shell(work), shell(script), "Done.")
        assert result.termination_reason is TerminationReason.TASK_TIME_LIMIT_REACHED, result.error
        assert result.reward is not None and result.reward.reward == reward, result.error


# ---- honest work of odd kinds ----------------------------------------------------------------------------------------

DEEP = "mkdir -p deep; cd deep; for i in $(seq 40); do d=$(printf '%0100d' $i); mkdir $d; cd $d; done; "


@pytest.mark.parametrize(
    ("script", "check"),
    [
        (DEEP + "echo 42 > /app/answer.txt", "[ $(find /app/deep -type d | wc -l) = 41 ]"),
        ("rm data/old; echo 42 > answer.txt", "[ ! -e /app/data/old ] && [ -e /app/data/kept ]"),
        ("rm -rf data; mkdir data; echo 42 > answer.txt", "[ ! -e /app/data/kept ]"),
        ("cd /; mkdir /srv; mv /app /srv/moved; ln -s /srv/moved /app; echo 42 > app/answer.txt", "[ -L /app ]"),
        ("echo 42 > a; ln a b; ln -s b answer.txt", "[ -L /app/answer.txt ] && [ /app/a -ef /app/b ]"),
        ("echo 42 > answer.txt; chown worker .; chmod 4750 answer.txt",
         '[ "$(stat -c %U%a . answer.txt | xargs)" = "worker755 root4750" ]'),
        ("mkdir 'a b' $'\\xff'; echo 42 > answer.txt", "[ -d '/app/a b' ] && [ -d $'/app/\\xff' ]"),
        ("mkdir -p /root/notes /opt/made /srv/a; touch /srv/a/b; echo 42 > answer.txt",
          "[ -d /opt/made -a -d /root/notes ] && [ -e /srv/a/b ]"),
        ("mkdir /app/none; chmod 000 /app/none; echo 42 > answer.txt", "[ $(stat -c %a /app/none) = 0 ]"),
    ],
)  # fmt: skip
async def test_honest_work_is_graded_as_it_is(tmp_path: Path, script: str, check: str) -> None:
    test = TEST.replace("#!/bin/bash\n", f"#!/bin/bash\n{check} || exit 3\n")
    files = {"environment/data/old": "", "environment/data/kept": ""}
    result = await episode(make_task(tmp_path, test=test, files=files), shell(script), "Done.")
    assert result.reward is not None and result.reward.reward == 1.0, result.error


async def test_what_the_task_brings_is_there_for_the_tests_and_its_deletion_is_too(tmp_path: Path) -> None:
    task = make_task(tmp_path, test=IF_THERE.format("", "/app/data/old"), files={"environment/data/old": ""})
    for script, reward in (("true", 1.0), ("rm -r data", 0.0), ("cd /; rm -rf app", 0.0)):
        result = await episode(task, shell(script), "Done.")
        assert result.reward is not None and result.reward.reward == reward, result.error


async def test_an_agent_finds_its_own_container_again_in_the_next_step(tmp_path: Path) -> None:
    task = make_task(tmp_path, more=STEPS, files=STEP_FILES)
    script = [shell(f"touch /etc/mine; {SOLVED}"), "First done.", shell("ls /etc/mine && rm answer.txt"), "Done."]
    result = await episode(task, *script)
    assert result.reward is not None and result.reward.reward == 1.0, result.error
    assert result.reward.info["outside_work"] == ["/etc/mine"]


# ---- what counts as work ---------------------------------------------------------------------------------------------

CONFIGURED = IF_THERE.format("", "/etc/tool/tool.conf -a -e /app/answer.txt")
CONFIGURE = "#!/bin/bash\nmkdir -p /etc/tool; touch /etc/tool/tool.conf /app/answer.txt; echo :x >> /etc/group\n"


async def test_validation_learns_what_counts_as_work_and_an_evaluation_uses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = make_task(
        tmp_path / "tasks",
        test=CONFIGURED.replace("|| exit 1", "|| { echo 0 > /logs/verifier/reward.txt; exit; }"),
        solve=CONFIGURE,
    )
    checked = tmp_path / "checked"
    assert await asyncio.to_thread(main, ["check", "--data", str(task.parent), "-o", str(checked)]) == 0
    assert "work: /etc/group /etc/tool" in capsys.readouterr().out
    work = json.loads((checked / "report.json").read_text())["tasks"][0]["work"]
    assert work == ["/root/*", "/home/*/*", "/srv/*", "/opt/*", "/var/www/*", "/etc/group", "/etc/tool"]

    script = shell("mkdir /etc/tool; touch answer.txt /etc/tool/tool.conf /etc/passwd-")
    plain = await episode(task, script, "Done.")
    assert plain.reward is not None and plain.reward.reward == 0.0
    assert plain.reward.info["outside_work"] == ["/etc/passwd-", "/etc/tool"]
    for given in (checked, str(checked / "report.json"), ["/etc/tool"]):
        result = await episode(task, script, "Done.", work=given)
        assert result.reward is not None and result.reward.reward == 1.0, result.error

    factory = create_env_factory(lambda: ScriptedModel([script, "Done."]))
    (action,) = HarborEvaluator(factory, data_path=str(checked)).load_dataset()
    result = await factory(action).rollout(action)
    assert result.reward is not None and result.reward.reward == 1.0, result.error


@pytest.mark.parametrize(
    "place", ["/etc/ld.so.cache", "/root/.cache/tool/model", "/home/worker/.cache/x", "/data/a*b/x", "/etc/*", "/*/x"]
)
async def test_a_solution_may_need_a_cache_or_a_name_with_a_star(tmp_path: Path, place: str) -> None:
    test = f"#!/bin/bash\n[ \"$(cat '{place}')\" = 42 ]; echo $((1 - ($? != 0))) > /logs/verifier/reward.txt\n"
    make = f"mkdir -p '{Path(place).parent}'; echo 42 > '{place}'"
    task = make_task(tmp_path, test=test, solve=f"#!/bin/bash\n{make}\n")
    (report,) = await validate_tasks([task])
    assert report.verdict is TaskVerdict.SOUND, (report.errors, report.rewards)
    result = await episode(task, shell(make), "Done.", work=report.work)
    assert result.reward is not None and result.reward.reward == 1.0, result.error


async def test_a_task_may_declare_its_work(tmp_path: Path) -> None:
    task = make_task(tmp_path, test=IF_THERE.format("", "/etc/tool/tool.conf"), solve=CONFIGURE)
    toml = (task / "task.toml").read_text()
    (task / "task.toml").write_text(toml.replace("[metadata]", '[metadata]\nwork = ["/etc/tool"]'))
    (report,) = await validate_tasks([task])
    assert report.verdict is TaskVerdict.SOUND and report.work is None, report.errors
    (task / "task.toml").write_text(toml.replace("[metadata]", '[metadata]\nwork = ["/etc/group"]'))
    (report,) = await validate_tasks([task])
    assert report.verdict is TaskVerdict.UNSOLVED
    (task / "task.toml").write_text(toml.replace("[metadata]", '[metadata]\nwork = "all"'))
    (report,) = await validate_tasks([task])
    assert report.verdict is TaskVerdict.BROKEN and "must be a list of paths, got 'all'" in report.errors[0]


async def test_declared_artifacts_are_work(tmp_path: Path) -> None:
    head = 'artifacts = ["/etc/made", "/logs/verifier/x"]\n'
    task = make_task(tmp_path, head=head, test=IF_THERE.format("[ -e /etc/other ] && exit", "/etc/made"))
    result = await episode(task, shell("touch /etc/made /etc/other"), "Done.")
    assert result.reward is not None and result.reward.reward == 1.0, result.error


async def test_validation_says_when_tests_need_more_than_the_work(tmp_path: Path) -> None:
    solve = "#!/bin/bash\n(while true; do touch /tmp/alive; sleep 0.05; done) > /dev/null 2>&1 &\n"
    task = make_task(tmp_path, test=IF_THERE.format("rm -f /tmp/alive; sleep 0.5", "/tmp/alive"), solve=solve)
    (report,) = await validate_tasks([task], repeats=1)
    assert report.verdict is TaskVerdict.UNSOLVED and "--keep-processes" in report.errors[0]
    (report,) = await validate_tasks([task], repeats=1, keep_processes=True)
    assert report.verdict is TaskVerdict.SOUND and not report.errors


async def test_an_editable_installation_is_learnt(tmp_path: Path) -> None:
    site = "$(python3 -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))')"
    solve = f"#!/bin/bash\nmkdir -p /app/src; echo 'x = 42' > /app/src/made.py; echo /app/src > {site}/made.pth\n"
    test = "#!/bin/bash\ncd /\npython3 -c 'import made'\necho $((1 - ($? != 0))) > /logs/verifier/reward.txt\n"
    task = make_task(tmp_path, image=root_with_python(), test=test, solve=solve)
    (report,) = await validate_tasks([task])
    assert report.verdict is TaskVerdict.SOUND and report.work is not None, report.errors
    (learnt,) = report.work[5:]
    assert learnt.endswith("-packages/made.pth")
    script = shell(solve.replace("#!/bin/bash\n", ""))
    result = await episode(task, script, "Done.", work=report.work)
    assert result.reward is not None and result.reward.reward == 1.0, result.error
    assert result.reward.info["changed_programs"] == [learnt]


async def test_a_whole_disk_for_a_work_directory_is_no_list_of_work(tmp_path: Path) -> None:
    test = PYTEST.replace("cd /app\n", "")
    task = make_task(tmp_path, image=root_with_python(), test=test, files={"tests/check.py": CHECK}, workdir="/")
    refused = await episode(task, shell(SOLVED), "Done.")
    assert refused.reward is None and refused.termination_reason is TerminationReason.SETUP_ERROR
    assert refused.error is not None and "the work directory '/' says nothing" in refused.error.message
    (report,) = await validate_tasks([task], cheats=True, repeats=1)
    assert report.verdict is TaskVerdict.SOUND and report.work == ["/app/answer.txt"], report
    forge = "import os; open('/logs/verifier/reward.txt', 'w').write('1'); os._exit(0)"
    for script, reward in ((f'echo "{forge}" > /conftest.py', 0.0), (SOLVED, 1.0)):
        result = await episode(task, shell(script), "Done.", work=report.work)
        assert result.reward is not None and result.reward.reward == reward, result.error


@pytest.mark.parametrize("work", ["relative", "/", "/tests", "/logs", "/logs/verifier/x", "/proc/1", "/a/../..", "/\0"])
async def test_work_that_cannot_be_is_refused(tmp_path: Path, work: str) -> None:
    with pytest.raises(ValueError, match="work must"):
        await episode(make_task(tmp_path), work=[work])
    with pytest.raises(ValueError, match="the folder that 'strands-env check -o' wrote"):
        await episode(tmp_path, work=tmp_path)  # which has no report


async def test_messages_of_harbors_agents_are_said_once_in_a_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strands_env.environments.harbor.trial._said", set())
    for _ in range(2):
        await episode(make_task(tmp_path), "Done.")
    assert sum("web search" in message for message in caplog.messages) == 1


async def test_grading_in_place_is_named_forgeable(tmp_path: Path) -> None:
    result = await episode(make_task(tmp_path), shell(SOLVED), "Done.", verifier="in-place")
    assert result.reward is not None and result.reward.info == {"rewards": {"reward": 1.0}, "forgeable": True}
    with pytest.raises(ValueError, match="verifier must be one of"):
        await episode(make_task(tmp_path), verifier="shared")


def test_a_context_without_work_leaves_the_default(tmp_path: Path) -> None:
    require_images()
    factory = create_env_factory(lambda: ScriptedModel([]))
    assert (
        factory(SimpleNamespace(task_context=TaskContext(task_dir=str(make_task(tmp_path))))).task_dir
        == tmp_path / "answer"
    )
