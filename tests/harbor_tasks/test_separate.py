"""Verifiers in a container of their own: which files reach it, and which image it is."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from strands_env.core import TerminationReason
from strands_env.environments.harbor.validation import TaskVerdict, validate_tasks
from strands_env.sandbox.images import ImageSandbox, ImageStore
from strands_env.sandbox.images.sources import built_name, import_image
from tests.container_support import TEST, make_task, require_images
from tests.harbor_tasks.test_env import episode, shell, verdicts
from tests.unit.strands_env.sandbox.test_images import packed_root

SEPARATE = 'environment_mode = "separate"'
SEEN = """#!/bin/bash
seen=0; for path in /app/out.txt /out /out/state.txt "/out/*.txt"; do [ -e "$path" ] && seen=1; done
echo $seen > /logs/verifier/reward.txt
"""
COLLECT = '[[verifier.collect]]\ncommand = "exit 3"\n'
LYING = "printf '#!/bin/busybox sh\\nexit 0\\n' > /tmp/sh; chmod 755 /tmp/sh; mv -f /tmp/sh /bin/bash"


@pytest.fixture(autouse=True)
def needs_images() -> None:
    require_images()


@pytest.mark.parametrize("way", ["task", "option"])
async def test_a_separate_verifier_sees_declared_artifacts_alone(tmp_path: Path, way: str) -> None:
    test = "#!/bin/bash\n[ -e /app/other.txt ] && exit 1\n" + TEST.removeprefix("#!/bin/bash\n")
    declared = 'artifacts = ["/app/answer.txt"]\n'
    verifier = 'environment_mode = "separate"' if way == "task" else ""
    task = make_task(tmp_path, head=declared, verifier=verifier, test=test)
    forged = "echo 1 > /logs/verifier/reward.txt; touch other.txt; rm -f /bin/cat"
    options = {} if way == "task" else {"verifier": "separate"}
    for command, reward in ((f"{forged}; echo 42 > answer.txt", 1.0), (f"{forged}; echo 1 > answer.txt", 0.0)):
        result = await episode(task, shell(command), "Done.", **options)
        assert result.reward is not None and result.reward.reward == reward, result.error


@pytest.mark.parametrize(
    ("artifacts", "command", "reward"),
    [
        ('["/app/out.txt"]', "true", 0.0),
        ('["/app/out.txt"]', "echo x > out.txt", 1.0),
        ('["/app/out.txt/"]', "echo x > out.txt", 0.0),
        ('["/out"]', "true", 0.0),
        ('["/out/"]', "true", 0.0),
        ('["/out/"]', "mkdir /out; echo x > /out/file", 1.0),
        ('["/out/*.txt"]', "mkdir /out; echo x > /out/file.txt", 0.0),
        ('[{source = "/out", exclude = ["*.log"]}]', "true", 0.0),
        ('[{source = "/out", exclude = ["*.log"]}]', "mkdir /out; rm /bin/tar", 1.0),
        ('["/app/out.txt"]', "ln -s /nowhere /app/out.txt", 0.0),
        ('["/app/out.txt"]', "ln -s out.txt /app/out.txt", 0.0),
        ('["/app/out.txt"]', "echo x > /app/real; ln -s real /app/out.txt", 1.0),
        ('["/app/out.txt"]', "mkfifo /app/out.txt", 0.0),
        ('["/app/out.txt"]', "ln -s /dev/zero /app/out.txt", 0.0),
        ('["/app/out.txt"]', "truncate -s 1100000000 /app/out.txt", 0.0),
        ('["/out"]', "mkdir /out; truncate -s 1100000000 /out/large", 0.0),
        ('["/app/out.txt"]', LYING, 0.0),
        ('["/out/state.txt"]', "true", 0.0),
    ],
)
async def test_what_the_agent_did_not_make_does_not_reach_the_tests(
    tmp_path: Path, artifacts: str, command: str, reward: float
) -> None:
    more = COLLECT if "state" in artifacts else ""
    task = make_task(tmp_path, head=f"artifacts = {artifacts}\n", verifier=SEPARATE, test=SEEN, more=more)
    result = await episode(task, shell(command), "Done.")
    assert result.reward is not None and result.reward.reward == reward, result.error


async def test_a_sound_task_with_artifacts_is_not_called_free(tmp_path: Path) -> None:
    test = "#!/bin/bash\n[ -e /app/answer.txt ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    task = make_task(tmp_path, head='artifacts = ["/app/answer.txt"]\n', verifier=SEPARATE, test=test)
    assert await verdicts([task]) == {"answer": TaskVerdict.SOUND}


@pytest.mark.parametrize(
    ("declared", "command"),
    [
        ("/app/given", "rm given; mkdir given; touch given/x"),
        ("/app/folder", "rm -rf folder; echo x > folder"),
        ("/app/given", "truncate -s 500000000 given"),
    ],
)
async def test_an_artifact_of_another_kind_is_graded(tmp_path: Path, declared: str, command: str) -> None:
    files = {"environment/given": "", "environment/folder/x": ""}  # both containers have them
    parts: dict[str, Any] = {"verifier": SEPARATE, "files": files, "environment": "storage_mb = 64"}
    task = make_task(tmp_path, head=f'artifacts = ["{declared}"]\n', **parts)
    result = await episode(task, shell(command), "Done.")
    assert result.reward is not None and result.reward.reward == 0.0, result.error


async def test_folders_are_copied_without_what_is_excluded(tmp_path: Path) -> None:
    declared = 'artifacts = [{source = "/out", exclude = ["*.log", "cache", "./top"]}]\n'
    test = (
        "#!/bin/bash\ncd /out && [ \"$(find . -type f | sort | tr '\\n' ' ')\" = './deep/kept ./deep/top ./kept ' ]\n"
        "echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    )
    made = "mkdir -p /out/deep/cache; cd /out; touch kept top a.log deep/b.log deep/cache/c deep/kept deep/top"
    task = make_task(tmp_path, head=declared, verifier=SEPARATE, test=test)
    result = await episode(task, shell(made), "Done.")
    assert result.reward is not None and result.reward.reward == 1.0, result.error


async def test_a_large_artifact_does_not_pass_through_memory(tmp_path: Path) -> None:
    test = "#!/bin/bash\n[ $(stat -c %s%a /app/out) = 700000000755 ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    task = make_task(tmp_path, head='artifacts = ["/app/out"]\n', verifier=SEPARATE, test=test)
    before = peak()
    result = await episode(task, shell("truncate -s 700000000 out; chmod 755 out"), "Done.")
    assert result.reward is not None and result.reward.reward == 1.0, result.error
    assert peak() - before < 200 << 10, "KiB"


def peak() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


async def test_a_machine_without_room_is_no_missing_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ImageSandbox, "copy_file", full)
    task = make_task(tmp_path, head='artifacts = ["/app/answer.txt"]\n', verifier=SEPARATE)
    result = await episode(task, shell("echo 42 > answer.txt"), "Done.")
    assert result.reward is None and result.error is not None and "No space left" in result.error.message


@pytest.mark.parametrize(
    "command",
    [
        "cd /; rm -rf /app; echo x > /app",
        "cd /; rm -rf /app",
        "cd /; rm -rf /app; ln -s /nowhere /app",
        "cd /; rm -rf /app; ln -s app /app",
        "cd /; rm -rf /app; echo x > /real; ln -s /real /app",
        "cd /; rm -rf /app; mkfifo /app",
        "chmod 000 /app",
    ],
)
@pytest.mark.parametrize("verifier", ["task", "in-place"])
async def test_a_work_directory_that_is_none_is_graded(tmp_path: Path, command: str, verifier: str) -> None:
    test = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"
    mode = SEPARATE if verifier == "task" else ""
    task = make_task(tmp_path, head='artifacts = ["/app", "/out/x"]\n', verifier=mode, test=test)
    result = await episode(task, shell(f"mkdir /out; echo x > /out/x; {command}"), "Done.", verifier=verifier)
    assert result.reward is not None and result.reward.reward == 1.0, result.error
    assert "grading_failure" not in result.reward.info


@pytest.mark.parametrize(
    "path", ["/", "/logs", "/logs/verifier", "/logs/verifier/reward.txt", "/tests", "/bin", "//bin/", "/usr", "/bin/sh"]
)
async def test_an_artifact_in_the_place_of_tests_or_programs_is_refused(tmp_path: Path, path: str) -> None:
    task = make_task(tmp_path, head=f'artifacts = ["{path}"]\n', verifier=SEPARATE)
    refused = await episode(task, "Done.")
    assert refused.termination_reason is TerminationReason.SETUP_ERROR and refused.reward is None
    assert refused.error is not None and f"got {path!r}" in refused.error.message
    (report,) = await validate_tasks([task], repeats=1)
    assert report.verdict is TaskVerdict.BROKEN and f"got {path!r}" in report.errors[0]


async def test_artifacts_beside_programs_of_the_image_are_copied(tmp_path: Path) -> None:
    test = "#!/bin/bash\n[ -x /usr/local/bin/tool ] && [ -s /etc/made.conf ] && [ -s /app/bin ]\n"
    test += "echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    declared = 'artifacts = ["/usr/local/bin/tool", "/etc/made.conf", "bin"]\n'
    task = make_task(tmp_path, head=declared, verifier=SEPARATE, test=test)
    made = "mkdir -p /usr/local/bin; cd /usr/local/bin; echo x | tee tool /etc/made.conf > /app/bin; chmod 755 tool"
    result = await episode(task, shell(made), "Done.")
    assert result.reward is not None and result.reward.reward == 1.0, result.error


@pytest.mark.parametrize(
    ("hook", "command", "reward"),
    [
        ("mkdir -p /out && date > /out/s", "true", 1.0),
        ("mkdir -p /out && date > /out/s", "mkdir /out; echo forged > /out/s; chmod 444 /out/s; rm /bin/date", 0.0),
        ("mkdir -p /out; date > /out/s; exit 1", "true", 0.0),
        ("mkdir -p /out; date > /out/s; sleep 60", "true", 0.0),
        ("date > /out", "echo forged > /logs/artifacts/s; mkdir /out; echo forged > /out/s", 0.0),
    ],
)
async def test_a_collect_hook_that_fails_leaves_no_artifact(
    tmp_path: Path, hook: str, command: str, reward: float
) -> None:
    test = "#!/bin/bash\n[ -s /out/s ] || [ -s /logs/artifacts/s ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    more = f'[[verifier.collect]]\ncommand = "{hook}"\ntimeout_sec = 2\n'
    task = make_task(tmp_path, head='artifacts = ["/out/s"]\n', verifier=SEPARATE, test=test, more=more)
    result = await episode(task, shell(command), "Done.")
    assert result.reward is not None and result.reward.reward == reward, result.error
    assert ("grading_failure" in result.reward.info) is (reward == 0.0)


async def test_validation_names_a_collect_hook_that_fails_after_the_solution(tmp_path: Path) -> None:
    more = '[[verifier.collect]]\ncommand = "exit 3"\n'
    task = make_task(tmp_path, head='artifacts = ["/app/answer.txt"]\n', verifier=SEPARATE, more=more)
    (report,) = await validate_tasks([task], repeats=1)
    assert report.verdict is TaskVerdict.UNSOLVED and "'exit 3' exited with 3" in report.errors[0], report.errors


# ---- its image -------------------------------------------------------------------------------------------------------


def image_with_tests(folder: Path, test: str) -> str:
    made = folder / "verifier-root"
    shutil.copytree(require_images(), made, symlinks=True)
    (made / "tests").mkdir()
    (made / "tests/test.sh").write_text(test)
    return str(made)


BAKED = "#!/bin/bash\n[ -e /tests/stray ] || cp /app/answer.txt /logs/verifier/reward.txt\n"


@pytest.mark.parametrize("agent_image", [None, "option"])
async def test_a_ready_image_of_the_verifier_keeps_its_own_tests(tmp_path: Path, agent_image: str | None) -> None:
    image = image_with_tests(tmp_path, BAKED)
    more = f'[verifier.environment]\ndocker_image = "{image}"\nnetwork_mode = "no-network"\n'
    task = make_task(tmp_path, head='artifacts = ["/app/answer.txt"]\n', more=more, files={"tests/stray": ""})
    options: dict[str, Any] = {"backend_options": {"image": require_images()}} if agent_image else {}
    result = await episode(task, shell("echo 0.5 > answer.txt"), "Done.", **options)
    assert result.reward is not None and result.reward.reward == 0.5, result.error


async def test_a_verifier_with_a_dockerfile_runs_in_the_image_that_was_built_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDS_ROLLOUT_CACHE", str(tmp_path / "cache"))
    files = {"tests/Dockerfile": "FROM scratch\nCOPY . /tests\n"}
    parts: dict[str, Any] = {"head": 'artifacts = ["/app/answer.txt"]\n', "verifier": SEPARATE, "files": files}
    task, other = make_task(tmp_path / "one", "dup", **parts), make_task(tmp_path / "two", "DUP", **parts)
    refused = await episode(task, "Done.")
    assert refused.termination_reason is TerminationReason.SETUP_ERROR and refused.reward is None
    assert refused.error is not None and "tests/Dockerfile" in refused.error.message
    assert f"strands-env images build {task}" in refused.error.message

    archive = tmp_path / "root.tar"
    archive.write_bytes(packed_root())
    image = import_image(str(archive), ImageStore(), name=built_name(task / "tests"))
    (Path(image.root) / "tests").mkdir()
    (Path(image.root) / "tests/test.sh").write_text(BAKED)
    for same in (task, other):
        (same / "tests/test.sh").chmod(0o644)
    result = await episode(task, shell("echo 0.5 > answer.txt"), "Done.")
    assert result.reward is not None and result.reward.reward == 0.5, result.error

    (other / "tests/Dockerfile").write_text("FROM scratch\nCOPY . /tests\nRUN true\n")
    for edited in (other, task):
        refused = await episode(edited, "Done.")
        assert refused.termination_reason is TerminationReason.SETUP_ERROR, refused.reward
        (task / "tests/test.sh").write_text("#!/bin/bash\n")


async def test_the_files_of_a_checkpoint_are_the_agents_alone(tmp_path: Path) -> None:
    from tests.harbor_tasks.test_checkpoints import episode as kept_episode
    from tests.harbor_tasks.test_programs import called, completion

    test = "#!/bin/bash\n[ -e /app/other ] && exit 1\n" + TEST.removeprefix("#!/bin/bash\n")
    task = make_task(tmp_path, head='artifacts = ["/app/answer.txt"]\n', verifier=SEPARATE, test=test)
    script = [called("echo 42 > answer.txt; touch other"), completion("Done.")]
    first, _ = await kept_episode(task, *script, checkpoints=tmp_path / "kept")
    start = tmp_path / "kept" / first.observation.metrics["episode"] / "turn-1"
    second, _ = await kept_episode(task, completion("Done."), start_from=start)
    assert second.reward is not None and second.reward.reward == 1.0, second.error
