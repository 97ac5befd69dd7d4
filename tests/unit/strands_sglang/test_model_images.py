"""Images in a conversation: one placeholder is held and sent, the expanded view is what is counted and trained."""

from __future__ import annotations

import base64
import io
import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

from image_support import EngineRecorder, assert_replays, client, image, png, seeing_engine, tiny
from PIL import Image
from strands import Agent, tool

from strands_sglang import SGLangModel
from strands_sglang.backends.engine import TinyModel, make_tiny_vision_model
from strands_sglang.conversation import Conversation, TurnRequest
from strands_sglang.exceptions import MediaError, MessageConversionError, SGLangDecodingError
from strands_sglang.trajectory import Image as EncodedImage

__all__ = ["client", "seeing_engine", "tiny"]  # fixtures
LONG = {"max_new_tokens": 40}
SAMPLING = {"max_new_tokens": 5, "ignore_eos": True, "sampling_seed": 3}


RED, BLUE, TALL = png((200, 30, 60)), png((5, 3, 160)), png((9, 99, 9), (84, 140))


def user(*blocks: str | bytes) -> dict[str, Any]:
    return {"role": "user", "content": [{"text": b} if isinstance(b, str) else image(b) for b in blocks]}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"text": text}]}


def conversation(client: EngineRecorder, tiny: TinyModel, **options: Any) -> Conversation:
    return Conversation(client=client, tokenizer=tiny.tokenizer, sampling_params=SAMPLING, **options)


async def talk(conv: Conversation, *turns: dict[str, Any]) -> None:
    messages: list[Any] = []
    for message in turns:
        messages.append(message)
        sampled = await conv.turn(TurnRequest(messages=messages))
        messages.append(said(sampled.reply.text))


async def test_three_turns_with_images_extend_what_was_sent_and_replay_exactly(client, tiny):
    conv = conversation(client, tiny)
    await talk(conv, user("compare", RED, "with", TALL), user("no image here"), user(BLUE, "and the first again", RED))
    placeholder = client.image_expander.placeholder_id  # type: ignore[union-attr]
    client.assert_extended()
    assert [ids.count(placeholder) for ids, _, _ in client.calls] == [2, 2, 4]
    last = client.calls[-1]
    assert [len(fields["image_data"]) for _, fields, _ in client.calls] == [2, 2, 4]

    tokens = conv.rollout
    assert len(tokens) == last[2]["meta_info"]["prompt_tokens"] + len(last[2]["output_ids"])
    (trajectory,) = conv.trajectories
    assert trajectory.token_ids == tokens.token_ids
    for medium in trajectory.media:
        assert tokens.token_ids[medium.offset : medium.offset + medium.length] == [placeholder] * medium.length
    assert sum(medium.length for medium in trajectory.media) == tokens.token_ids.count(placeholder)
    assert trajectory.media[0].data is trajectory.media[3].data  # the same image is held once

    assert_replays(tiny, trajectory)
    assert sum(trajectory.loss_mask) == 15
    assert {tokens.logprobs[place] for place, token in enumerate(tokens.token_ids) if token == placeholder} == {None}


async def test_budgets_count_expanded_tokens(client: EngineRecorder, tiny: TinyModel) -> None:
    conv = conversation(client, tiny, return_prompt_logprobs=True)
    sampled = await conv.turn(TurnRequest(messages=[user("see", RED)]))
    (ids, fields, answer) = client.calls[0]
    assert sampled.prompt_length == answer["meta_info"]["prompt_tokens"] == len(ids) + 19
    assert fields["logprob_start_len"] == 0
    assert conv.estimate_tokens([user("see", RED)]) >= 0
    values = conv.rollout.logprobs
    assert values[0] is None and values[1] is not None  # scored, but for the first token and the image
    assert sum(value is None for value in values) == 1 + 20


@pytest.mark.parametrize("length", [-1, 1])
async def test_a_server_that_expands_otherwise_is_refused_and_nothing_is_recorded(client, tiny, length):
    def changed(answer: dict[str, Any]) -> dict[str, Any]:
        meta = answer["meta_info"]
        return {**answer, "meta_info": {**meta, "prompt_tokens": meta["prompt_tokens"] + length}}

    client.change = changed
    conv = conversation(client, tiny)
    with pytest.raises(SGLangDecodingError, match=r"tokenised the prompt again"):
        await conv.turn(TurnRequest(messages=[user("see", RED)]))
    assert conv.forest.turns == ()


async def test_the_first_request_with_an_image_proves_the_ids(client: EngineRecorder, tiny: TinyModel) -> None:
    def changed(answer: dict[str, Any]) -> dict[str, Any]:
        ids = list(answer["prompt_token_ids"])
        ids[2], ids[3] = ids[3], ids[2]
        return {**answer, "prompt_token_ids": ids}

    client.change = changed
    conv = conversation(client, tiny)
    with pytest.raises(SGLangDecodingError, match="changed ids beside them"):
        await conv.turn(TurnRequest(messages=[user("see", RED)]))
    client.change = lambda answer: {key: value for key, value in answer.items() if key != "prompt_token_ids"}
    with pytest.raises(SGLangDecodingError, match="does not show prompt_token_ids"):
        await conv.turn(TurnRequest(messages=[user("see", RED)]))
    assert conv.forest.turns == ()


@pytest.mark.parametrize(("is_verified", "shown"), [(True, [0]), (False, [0, 1, 2])])
async def test_a_family_that_is_not_verified_proves_the_ids_of_every_request(client, tiny, is_verified, shown):
    client.image_expander.is_verified = is_verified
    await talk(conversation(client, tiny), user("see", RED), user("no image here"), user(BLUE))
    proved = [number for number, (_, fields, _) in enumerate(client.calls) if fields.get("return_prompt_token_ids")]
    assert proved == shown


async def test_a_sampled_placeholder_closes_its_path(client: EngineRecorder, tiny: TinyModel) -> None:
    placeholder = client.image_expander.placeholder_id  # type: ignore[union-attr]
    conv = conversation(client, tiny)
    params = {"logit_bias": {str(placeholder): 100.0}, "max_new_tokens": 2}
    first = await conv.turn(TurnRequest(messages=[user("see", RED)], params=params))
    assert first.turn.completion.output_ids.tolist() == [placeholder] * 2
    asked = len(client.calls)
    with pytest.raises(MediaError, match="cannot be extended"):
        await conv.turn(TurnRequest(messages=[user("see", RED), said(first.reply.text), user("go on")]))
    assert len(client.calls) == asked and len(conv.forest.turns) == 1


async def test_placeholders_and_images_that_do_not_agree_never_reach_the_server(client, tiny):
    bang = tiny.tokenizer.encode("!")[0]  # a placeholder that the text spells
    spelt = SimpleNamespace(fingerprint="test", placeholder_id=bang, media_ids=frozenset({bang}), prepare=None)
    conv = conversation(client, tiny, processor=spelt)
    with pytest.raises(MediaError, match="1 image placeholders for 0 images"):
        await conv.turn(TurnRequest(messages=[user("hello!")]))
    blind = Conversation(client=SimpleNamespace(generate=client.generate), tokenizer=tiny.tokenizer)
    with pytest.raises(MediaError, match="was given no processor"):
        await blind.turn(TurnRequest(messages=[user("see", RED)]))
    broken = conversation(client, tiny)
    with pytest.raises(MediaError, match="cannot be processed"):
        await broken.turn(TurnRequest(messages=[user("see", b"no image")]))
    assert client.calls == []


async def test_a_text_that_spells_the_placeholder_is_text(client: EngineRecorder, tiny: TinyModel) -> None:
    conv = conversation(client, tiny)
    await conv.turn(TurnRequest(messages=[user("<|image_pad|> is no image, this is one:", RED)]))
    placeholder = client.image_expander.placeholder_id  # type: ignore[union-attr]
    assert client.calls[0][0].count(placeholder) == 1
    allowed = conversation(client, tiny, control_tokens="allow")
    with pytest.raises(MediaError, match="2 image placeholders for 1 images"):
        await allowed.turn(TurnRequest(messages=[user("<|image_pad|> is no image, this is one:", RED)]))
    assert len(client.calls) == 1


async def test_a_large_image_is_resized_once_and_every_turn_sends_the_same_bytes(client, tiny):
    conv = conversation(client, tiny, max_image_pixels=30_000)
    large = png((9, 99, 9), (560, 280))
    await talk(conv, user("see", large, RED), user("and?"))
    first, second = (fields["image_data"] for _, fields, _ in client.calls)
    assert first == second
    (trajectory,) = conv.trajectories
    with Image.open(io.BytesIO(trajectory.media[0].image)) as sent:
        assert sent.size == (224, 112)


async def test_images_are_processed_beside_the_event_loop_also_in_a_history_that_is_new(client, tiny):
    loop_thread, seen = threading.get_ident(), []
    enter = client.image_expander.prepare  # type: ignore[union-attr]

    def noted(data: bytes, **options: Any) -> Any:
        seen.append(threading.get_ident())
        return enter(data, **options)

    client.image_expander.prepare = noted  # type: ignore[union-attr, method-assign]
    tone = iter(range(100, 200))
    images = [png((next(tone), 1, 1)) for _ in range(3)]
    encoded = {"image": {"format": "png", "source": {"bytes": base64.b64encode(images[2]).decode()}}}
    result = {"toolResult": {"toolUseId": "call00000", "status": "success", "content": [image(images[1])]}}
    use = {"toolUse": {"toolUseId": "call00000", "name": "look", "input": {}}}
    messages = [
        user("see", images[0]),
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
        said("done"),
        {"role": "user", "content": [encoded]},
    ]
    conv = conversation(client, tiny)
    tools = [{"name": "look", "description": "Look.", "inputSchema": {"json": {"type": "object", "properties": {}}}}]
    await conv.turn(TurnRequest(messages=messages, tools=tools))  # type: ignore[arg-type]
    in_loop = [thread for thread in seen if thread == loop_thread]
    assert len(seen) >= 3 and not in_loop


ONE = "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
PARTS = "{%- for p in m.content %}{{ IMAGE if p.type == 'image' else p.text }}{%- endfor %}"
END = "<|im_end|>\n{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}"
SHOWN = "<|vision_start|><|image_pad|><|vision_end|>"


def template_of(parts: str, before: str = "") -> str:
    content = f"{{%- if m.content is string %}}{{{{ m.content }}}}{{%- else %}}{parts}{{%- endif %}}"
    return (before + ONE + content + END).replace("IMAGE", f"'{SHOWN}'")


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (template_of(PARTS.replace("IMAGE", "IMAGE * 2")), "prints 6 placeholders for 3 images"),
        (template_of(PARTS.replace("in m.content", "in m.content | reverse")), "in another order than they are given"),
        (
            template_of(
                "{%- for p in m.content %}{{ p.text }}{%- endfor %}",
                "{%- for m in messages %}{%- for p in m.content if p.type == 'image' %}IMAGE{%- endfor %}{%- endfor %}",
            ),
            "in another order than they are given",
        ),
    ],
    ids=["twice", "backwards", "all in front"],
)
async def test_a_template_that_loses_or_reorders_images_is_refused_for_images(
    client: EngineRecorder, tiny: TinyModel, template: str, reason: str
) -> None:
    conv = conversation(client, tiny, chat_template=template)
    await conv.turn(TurnRequest(messages=[user("no image")]))
    asked = len(client.calls)
    with pytest.raises(MediaError, match=reason):
        await conv.turn(TurnRequest(messages=[user("see", RED)]))
    assert len(client.calls) == asked


@pytest.mark.parametrize("kind", ["video", "audio"])
async def test_video_and_audio_are_refused_with_the_reason(client: EngineRecorder, tiny: TinyModel, kind: str) -> None:
    conv = conversation(client, tiny)
    message = {"role": "user", "content": [{kind: {"format": "x", "source": {"bytes": b"x"}}}]}
    with pytest.raises(MessageConversionError, match="tokenises the ids again"):
        await conv.turn(TurnRequest(messages=[message]))  # type: ignore[list-item]
    with pytest.raises(ValueError, match="tokenises them again"):
        conv.update_config(request_fields={f"{kind}_data": ["x"]})
    assert client.calls == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (RED, None),
        (RED[:60], "image file is truncated"),
        (b"<html>404</html>", "it is of no known format"),
        (b"<svg/>", "it is of no known format"),
        (b"", "it is of no known format"),
        (png((1, 2, 3), (3000, 2)), "3000 x 2 pixels is too elongated"),
    ],
    ids=["good", "truncated", "HTML", "SVG", "empty", "elongated"],
)
async def test_an_image_that_cannot_be_shown_is_reported_and_the_agent_goes_on(client, tiny, data, words) -> None:
    @tool
    def look() -> dict[str, Any]:
        """Look."""
        return {"status": "success", "content": [{"text": "plot:"}, image(data)]}

    client.script = ['<tool_call>{"name": "look", "arguments": {}}</tool_call>', "Done."]
    model = SGLangModel(client=client, tokenizer=tiny.tokenizer, sampling_params=LONG)
    agent = Agent(model=model, tools=[look], callback_handler=None)
    assert str(await agent.invoke_async("go")).strip() == "Done."
    text, shown = agent.messages[2]["content"][0]["toolResult"]["content"]
    assert text == {"text": "plot:"} and len(client.calls) == 2
    assert (shown == image(data)) if words is None else (words in shown["text"] and "0x" not in shown["text"])
    client.assert_extended()


async def test_an_image_that_the_template_cannot_place_in_a_result_is_reported(client, tiny) -> None:
    tokenizer = make_tiny_vision_model().tokenizer
    tokenizer.chat_template = "{% for m in messages %}{{ m.content if m.content is string else '' }}{% endfor %}"
    conv = Conversation(client=client, tokenizer=tokenizer)
    assert "images cannot be exact" in (conv.find_problem(EncodedImage(RED), role="tool") or "")
