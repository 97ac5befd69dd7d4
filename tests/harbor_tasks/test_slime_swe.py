"""`examples/slime_swe` on a task of Harbor's: its program is shown in the container and asks through the gateway."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

from strands_env.core import TerminationReason
from strands_env.core.models import sglang_model_factory
from tests.conftest import ROOT
from tests.container_support import make_task, require_images
from tests.harbor_tasks.test_programs import ACTION, AGENT
from tests.provider_support import Replay, completion, tokenizer

MINI = AGENT.replace("history=", 'while [ "$1" != --task ]; do shift; done; shift\nhistory=', 1)


async def test_the_environment_of_a_harbor_task(tmp_path: Path) -> None:
    require_images()
    programs = tmp_path / "agents"
    programs.mkdir()
    mini = programs / "mini"
    mini.write_text(MINI.replace("$KEY", "$OPENAI_API_KEY").replace("$BASE_URL", "$OPENAI_BASE_URL"))
    mini.chmod(0o755)
    spec = importlib.util.spec_from_file_location("swe_env", ROOT / "examples" / "slime_swe" / "swe_env.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    replies = [completion("echo 42 > answer.txt"), completion("true")]
    env = example.make_env(
        model_factory=sglang_model_factory(client=Replay(replies), tokenizer=tokenizer()),
        sample=SimpleNamespace(metadata={"task_dir": str(make_task(tmp_path))}),
        options={"harness": "mini_swe_agent", "program": str(mini), "programs": str(programs), "step_timeout": 60.0},
    )
    result = await env.rollout(ACTION)
    assert result.termination_reason is TerminationReason.TASK_COMPLETE, result.error
    assert result.reward is not None and result.reward.reward == 1.0
