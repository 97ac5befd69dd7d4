"""Images through the gateway, from unmodified clients: what they become is what the model saw."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

import aiohttp
import torch
from image_support import engine_of, png
from PIL import Image

from strands_sglang.backends.engine import EmbeddedEngine, TinyModel, make_tiny_vision_model
from strands_sglang.gateway import Gateway, Session
from strands_sglang.trajectory import Trajectory
from tests.conftest import SHARED
from tests.servers.engine_server import generate
from tests.unit.gateway_support import trained_once


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


RED, TALL = encoded(png((200, 30, 60))), encoded(png((9, 99, 9), (84, 140)))
RED_AGAIN = encoded(png((200, 30, 60), level=0))  # the same picture, other bytes
READ = '<tool_call>{"name": "Read", "arguments": {"file_path": "red.png"}}</tool_call>'


class Recorder:
    """An engine behind a client that keeps what was asked. The first replies are those of a script."""

    def __init__(self, engine: EmbeddedEngine, tiny: TinyModel) -> None:
        self._engine, self._tokenizer = engine, tiny.tokenizer
        self.image_expander = engine.image_expander
        self.calls: list[tuple[list[int], dict[str, Any], dict[str, Any]]] = []
        self.script: list[str] = []

    async def generate(self, input_ids: list[int], **fields: Any) -> dict[str, Any]:
        answer = await generate(self._engine, input_ids, **fields)
        if self.script:
            ids = self._tokenizer.encode(self.script.pop(0) + "<|im_end|>")
            meta = {**answer["meta_info"], "completion_tokens": len(ids)}
            meta["output_token_logprobs"] = [[-1.0, token, None] for token in ids]
            meta["finish_reason"] = {"type": "stop", "matched": ids[-1]}
            answer = {**answer, "output_ids": ids, "meta_info": meta}
        self.calls.append((list(input_ids), fields, answer))
        return answer

    def assert_extended(self) -> None:
        """Every call begins with the ids of the call before it and what was sampled for that."""
        for (held, _, answer), (sent, _, _) in zip(self.calls, self.calls[1:], strict=False):
            path = held + list(answer["output_ids"])
            assert sent[: len(path)] == path


@pytest.fixture(scope="module")
def tiny() -> TinyModel:
    return make_tiny_vision_model()


@pytest.fixture
async def client(tiny: TinyModel) -> AsyncIterator[Recorder]:
    async with engine_of(tiny) as engine:
        yield Recorder(engine, tiny)


@pytest.fixture
async def session(client: Recorder, tiny: TinyModel) -> AsyncIterator[Session]:
    # Most tokens end a turn, so that random weights say something short.
    sampling = {"max_new_tokens": 60, "stop_token_ids": [n for n in range(1000) if n % 3], "sampling_seed": 11}
    async with Gateway(client=client, tokenizer=tiny.tokenizer, sampling_params=sampling) as gateway:  # type: ignore[arg-type]
        yield gateway.open()


def assert_replays(tiny: TinyModel, trajectory: Trajectory) -> None:
    """The log-probabilities of sampled tokens are those of a forward pass over ids and pixels."""
    row = torch.tensor([trajectory.token_ids])
    pictures = [Image.open(io.BytesIO(medium.image)) for medium in trajectory.media]
    fed = tiny.image_processor(images=pictures, return_tensors="pt")
    kinds = (row == tiny.model.config.image_token_id).int()
    assert int(kinds.sum()) == sum(medium.length for medium in trajectory.media)
    with torch.no_grad():
        logits = tiny.model(input_ids=row, mm_token_type_ids=kinds, **fed).logits[0]
    expected = torch.log_softmax(logits.float(), -1)
    for place, trained in enumerate(trajectory.loss_mask):
        if trained:
            value = float(expected[place - 1, trajectory.token_ids[place]])
            assert trajectory.logprobs[place] == pytest.approx(value, abs=1e-4)


def urls(*images: str) -> list[str]:
    return [f"data:image/png;base64,{image}" for image in images]


def sent(client: Recorder, *images: str) -> list[str]:
    """Data URLs of the images as a server gets them."""
    return [client.image_expander.enter(base64.b64decode(image)).data for image in images]  # type: ignore[union-attr]


async def test_chat_completions_with_image_urls(session: Session, client: Recorder, tiny: TinyModel) -> None:
    openai = pytest.importorskip("openai", reason="the extra 'test' is not installed")
    messages: list[Any] = []
    async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.key) as chat:
        for image in (RED, TALL, RED):
            shown = {"type": "image_url", "image_url": {"url": urls(image)[0]}}
            messages.append({"role": "user", "content": [{"type": "text", "text": "what is"}, shown]})
            done = await chat.chat.completions.create(model="m", messages=messages)
            messages.append(done.choices[0].message.model_dump(exclude_none=True))
    client.assert_extended()
    assert [len(fields["image_data"]) for _, fields, _ in client.calls] == [1, 2, 3]
    (trajectory,) = session.trajectories
    assert trajectory.images == sent(client, RED, TALL, RED) and trained_once(session)
    assert_replays(tiny, trajectory)


async def test_responses_with_input_images(session: Session, client: Recorder, tiny: TinyModel) -> None:
    openai = pytest.importorskip("openai", reason="the extra 'test' is not installed")
    items: list[Any] = []
    async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.key) as api:
        for image in (RED, TALL):
            shown = {"type": "input_image", "image_url": urls(image)[0], "detail": "auto"}
            items.append({"role": "user", "content": [{"type": "input_text", "text": "what is"}, shown]})
            done = await api.responses.create(model="m", input=items)
            items += [item.model_dump(exclude_none=True) for item in done.output]
    client.assert_extended()
    (trajectory,) = session.trajectories
    assert trajectory.images == sent(client, RED, TALL)
    assert_replays(tiny, trajectory)


def anthropic_image(data: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


async def test_anthropic_images_in_messages_and_in_tool_results(session, client, tiny):
    anthropic = pytest.importorskip("anthropic", reason="the extra 'test' is not installed")
    client.script = [READ]
    schema = {"type": "object", "properties": {"file_path": {"type": "string"}}}
    tools = [{"name": "Read", "description": "Read a file.", "input_schema": schema}]
    async with anthropic.AsyncAnthropic(base_url=session.anthropic_url, api_key=session.key) as api:
        history: list[Any] = [
            {"role": "user", "content": [anthropic_image(TALL), {"type": "text", "text": "and red.png?"}]}
        ]
        done = await api.messages.create(model="m", max_tokens=60, messages=history, tools=tools)
        reply = [block.model_dump(exclude_none=True) for block in done.content]
        (use,) = [block for block in reply if block["type"] == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": [anthropic_image(RED)]}
        history += [{"role": "assistant", "content": reply}, {"role": "user", "content": [result]}]
        await api.messages.create(model="m", max_tokens=60, messages=history, tools=tools)
    client.assert_extended()
    (trajectory,) = session.trajectories
    assert trajectory.images == sent(client, TALL, RED)


async def test_claude_codes_read_of_an_image(session: Session, client: Recorder) -> None:
    record = SHARED / "data" / "client_requests" / "cc_img.jsonl"
    if not record.exists():
        pytest.skip("the recorded requests are not there")
    first, second = (json.loads(line)["body"] for line in record.read_text().splitlines())
    client.script = [f"Let me look. {READ}"]
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {session.key}"}) as http:

        async def ask(body: dict[str, Any]) -> Any:
            body = {**body, "stream": False, "tools": [{"name": "Read", "input_schema": {"type": "object"}}]}
            async with http.post(f"{session.anthropic_url}/v1/messages", json=body) as response:
                assert response.status == 200, await response.text()
                return await response.json()

        done = await ask(first)
        for message in second["messages"]:
            if message["role"] == "assistant":
                message["content"] = done["content"]
        (use,) = [block for block in done["content"] if block["type"] == "tool_use"]
        (result,) = second["messages"][-1]["content"]
        result["tool_use_id"] = use["id"]
        result["content"][0]["source"] |= {"data": RED, "media_type": "image/png"}
        await ask(second)
    client.assert_extended()
    (trajectory,) = session.trajectories
    assert trajectory.images == sent(client, RED)


async def test_an_image_that_a_client_encodes_anew_is_a_new_root_and_counted(session, client):
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {session.key}"}) as http:

        async def ask(messages: list[Any]) -> str:
            url = f"{session.base_url}/chat/completions"
            async with http.post(url, json={"model": "m", "messages": messages}) as response:
                assert response.status == 200, await response.text()
                return str((await response.json())["choices"][0]["message"]["content"])

        def shown(image: str) -> dict[str, Any]:
            return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": urls(image)[0]}}]}

        said = {"role": "assistant", "content": await ask([shown(RED)])}
        await ask([shown(RED_AGAIN), said, {"role": "user", "content": "and?"}])
    assert len(session.trajectories) == 2
    assert sum(session.counters.to_json()["roots"].values()) == 2


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/v1/chat/completions", {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}),
        ("/v1/chat/completions", {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA=="}}),
        ("/v1/chat/completions", {"type": "image_url", "image_url": {"url": "https://example.org/red.png"}}),
        ("/v1/responses", {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}),
        ("/v1/messages", {"type": "image", "source": {"type": "url", "url": "https://example.org/red.png"}}),
        ("/v1/messages", anthropic_image(encoded(b"no picture"))),
        ("/v1/messages", {"type": "document", "source": {"type": "base64", "data": "AA=="}}),
    ],
)
async def test_what_cannot_be_exact_never_reaches_the_server(session, client, path, part):
    messages = [{"role": "user", "content": [part]}]
    body = {"model": "m", "max_tokens": 5, "messages": messages, "input": messages}
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {session.key}"}) as http,
        http.post(f"{session.anthropic_url}{path}", json=body) as response,
    ):
        assert response.status == 400, await response.text()
    assert client.calls == []


async def test_a_model_without_a_processor_refuses_images_with_the_reason(tiny: TinyModel) -> None:
    class Blind:
        async def generate(self, input_ids: list[int], **fields: Any) -> dict[str, Any]:
            raise AssertionError("not reached")

    async with Gateway(client=Blind(), tokenizer=tiny.tokenizer) as gateway:  # type: ignore[arg-type]
        session = gateway.open()
        content = [{"type": "image_url", "image_url": {"url": urls(RED)[0]}}]
        headers = {"Authorization": f"Bearer {session.key}"}
        body = {"model": "m", "messages": [{"role": "user", "content": content}]}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(f"{session.base_url}/chat/completions", json=body) as response,
        ):
            assert response.status == 400 and "was given no processor" in await response.text()
