"""Images through the gateway, in every dialect: what they become is what the model saw."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

import aiohttp
from image_support import EngineRecorder, assert_replays, client, png, seeing_engine, tiny

from strands_sglang.backends.engine import TinyModel
from strands_sglang.gateway import Gateway, Session
from tests.unit.gateway_support import trained_once

__all__ = ["client", "seeing_engine", "tiny"]  # fixtures
RED, TALL = png((200, 30, 60)), png((9, 99, 9), (84, 140))
RED_AGAIN = png((200, 30, 60), level=0)  # the same picture, other bytes
READ = '<tool_call>{"name": "Read", "arguments": {"file_path": "red.png"}}</tool_call>'
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
GOOGLE = "/v1beta/models/m:generateContent"


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def url(data: bytes) -> str:
    return f"data:image/png;base64,{encoded(data)}"


def anthropic_image(data: bytes) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded(data)}}


def chat_image(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(data)}}


@pytest.fixture
async def session(client: EngineRecorder, tiny: TinyModel) -> AsyncIterator[Session]:
    # Most tokens end a turn, so that random weights say something short.
    sampling = {"max_new_tokens": 60, "stop_token_ids": [n for n in range(1000) if n % 3], "sampling_seed": 11}
    async with Gateway(client=client, tokenizer=tiny.tokenizer, sampling_params=sampling) as gateway:  # type: ignore[arg-type]
        yield gateway.open()


async def post(session: Session, path: str, *, status: int = 200, **body: Any) -> Any:
    headers = {"Authorization": f"Bearer {session.key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{session.anthropic_url}{path}", json={"model": "m", **body}) as response,
    ):
        assert response.status == status, await response.text()
        return await response.json()


@pytest.mark.parametrize(
    ("path", "history", "content", "part", "reply"),
    [
        (CHAT, "messages", "content", chat_image, lambda answer: [answer["choices"][0]["message"]]),
        (RESPONSES, "input", "content", lambda image: {"type": "input_image", "image_url": url(image)},
         lambda answer: answer["output"]),
        (MESSAGES, "messages", "content", anthropic_image,
         lambda answer: [{"role": "assistant", "content": answer["content"]}]),
        (GOOGLE, "contents", "parts", lambda image: {"inlineData": {"mimeType": "image/png", "data": encoded(image)}},
         lambda answer: [answer["candidates"][0]["content"]]),
    ],
    ids=["chat", "responses", "messages", "google"],
)  # fmt: skip
async def test_turns_with_images_extend_and_replay(session, client, tiny, path, history, content, part, reply):
    said: list[Any] = []
    for image in (RED, TALL, RED):
        said.append({"role": "user", content: [part(image)]})
        said += reply(await post(session, path, **{history: said}))
    client.assert_extended()
    assert [len(fields["image_data"]) for _, fields, _ in client.calls] == [1, 2, 3]
    (trajectory,) = session.trajectories
    assert trajectory.images == client.entered(RED, TALL, RED) and trained_once(session)
    assert_replays(tiny, trajectory)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], ""),
        ([anthropic_image(RED[:60])], "image file is truncated"),
        ([anthropic_image(b"<html>404</html>")], "it is of no known format"),
        ([anthropic_image(b"")], "it is of no known format"),
        ([anthropic_image(png((1, 2, 3), (3000, 2)))], "too elongated"),
        ([{"type": "document", "source": {"type": "base64", "data": "AA=="}}], "a 'document' part is not supported"),
        ([{"type": "image", "source": {"type": "url", "url": "https://example.org"}}], "images must be base64"),
    ],
)
async def test_an_image_of_a_tool_is_shown_and_one_that_cannot_be_is_reported(session, client, content, words) -> None:
    client.script = [f"Let me look. {READ}"]
    tools = [{"name": "Read", "description": "Read a file.", "input_schema": {"type": "object"}}]
    history: list[Any] = [{"role": "user", "content": [anthropic_image(TALL), {"type": "text", "text": "Look."}]}]
    reply = (await post(session, MESSAGES, messages=history, tools=tools))["content"]
    result = {"type": "tool_result", "tool_use_id": reply[-1]["id"], "content": [anthropic_image(RED), *content]}
    history += [{"role": "assistant", "content": reply}, {"role": "user", "content": [result]}]
    await post(session, MESSAGES, messages=history, tools=tools)
    client.assert_extended()
    (trajectory,) = session.trajectories
    assert trajectory.images == client.entered(TALL, RED) and session.counters.unshown == len(content)
    assert words in session.conversation.text_of(trajectory.token_ids)


async def test_an_image_that_a_client_encodes_anew_is_a_new_root_and_counted(session: Session) -> None:
    first = {"role": "user", "content": [chat_image(RED)]}
    said = (await post(session, CHAT, messages=[first]))["choices"][0]["message"]
    again = {"role": "user", "content": [chat_image(RED_AGAIN)]}
    await post(session, CHAT, messages=[again, said, {"role": "user", "content": "and?"}])
    assert len(session.trajectories) == 2
    assert sum(session.counters.to_json()["roots"].values()) == 2


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (CHAT, {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}),
        (CHAT, {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA=="}}),
        (CHAT, {"type": "image_url", "image_url": {"url": "https://example.org/red.png"}}),
        (RESPONSES, {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}),
        (MESSAGES, {"type": "image", "source": {"type": "url", "url": "https://example.org/red.png"}}),
        (MESSAGES, anthropic_image(b"no picture")),
        (MESSAGES, {"type": "document", "source": {"type": "base64", "data": "AA=="}}),
    ],
)
async def test_what_cannot_be_exact_never_reaches_the_server(session, client, path, part):
    said = [{"role": "user", "content": [part]}]
    await post(session, path, status=400, **{"input" if path == RESPONSES else "messages": said})
    assert client.calls == []
