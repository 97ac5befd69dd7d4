"""A backend that writes down what it was asked and answered, and one that answers from the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from strands import Agent

from strands_sglang import SGLangModel
from strands_sglang.backends import BackendWrapper, GenerateAnswer, GenerateRequest, RecordingBackend, ReplayBackend
from strands_sglang.backends.engine.templates import HERMES_TEMPLATE
from strands_sglang.backends.engine.tiny import make_tiny_tokenizer
from strands_sglang.exceptions import BackendRequestError, SGLangHTTPError
from strands_sglang.testing import ScriptedClient


class FailsFirst(BackendWrapper):
    """Its first call fails."""

    failed = False

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        if not self.failed:
            self.failed = True
            raise SGLangHTTPError(418, "teapot")
        return await super().ask(request)


def tokenizer() -> Any:
    made = make_tiny_tokenizer()
    made.chat_template = HERMES_TEMPLATE
    return made


async def rollout(client: Any, text: str = "Hello") -> tuple[SGLangModel, str]:
    model = SGLangModel(client=client, tokenizer=tokenizer(), sampling_params={"max_new_tokens": 64})
    agent = Agent(model=model, callback_handler=None)
    await agent.invoke_async(text)
    return model, str(await agent.invoke_async("And again?"))


async def test_a_recorded_rollout_is_the_same_without_its_backend(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    live = RecordingBackend(FailsFirst(ScriptedClient(["One.", "Two."], tokenizer=tokenizer())), path)
    with pytest.raises(SGLangHTTPError, match="teapot"):
        await rollout(live)
    first, said = await rollout(live)
    again = ReplayBackend(path)
    assert (again.capabilities, await again.info()) == (live.capabilities, await live.info())
    with pytest.raises(SGLangHTTPError, match="teapot") as failure:
        await rollout(again)
    assert failure.value.status == 418
    second, repeated = await rollout(again)
    assert (repeated, second.token_manager.segment_info) == (said, first.token_manager.segment_info)
    assert second.token_manager.token_ids == first.token_manager.token_ids
    assert second.token_manager.logprobs == first.token_manager.logprobs
    with pytest.raises(BackendRequestError, match="was not recorded, or not so often"):
        await rollout(again)  # the answers are used up


async def test_another_request_is_not_answered(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    await rollout(RecordingBackend(ScriptedClient(["One.", "Two."], tokenizer=tokenizer()), path))
    with pytest.raises(BackendRequestError, match=r"a request of \d+ tokens was not recorded"):
        await rollout(ReplayBackend(path), "Good bye")


@pytest.mark.parametrize("text", ["", "{}", '{"info": 1}', "no JSON", '{"info": ["Finish", {}]}'])
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match="is not a recording of a backend"):
        ReplayBackend(path)


async def test_a_torn_recording_is_refused_and_an_error_of_another_name_is_a_backends(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    await rollout(RecordingBackend(ScriptedClient(["One.", "Two."], tokenizer=tokenizer()), path))
    lines = path.read_text().splitlines()
    exchange = {"asked": json.loads(lines[1])["asked"], "error": ["getattr", ["gone"], {}]}
    path.write_text("\n".join([lines[0], json.dumps(exchange)]))
    with pytest.raises(Exception, match="gone"):
        await rollout(ReplayBackend(path))
    path.write_text("\n".join(lines)[:-5])
    with pytest.raises(ValueError, match="is not a recording"):
        ReplayBackend(path)
