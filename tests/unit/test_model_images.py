"""Images in a conversation: one placeholder is held and sent, the expanded view is what is counted and trained."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

import torch
from image_support import engine_of, image, png
from PIL import Image
from strands import Agent, tool

from strands_sglang import SGLangModel
from strands_sglang.backends.engine import EmbeddedEngine, TinyModel, make_tiny_vision_model
from strands_sglang.conversation import Conversation, TurnRequest
from strands_sglang.exceptions import MediaError, MessageConversionError, SGLangDecodingError
from strands_sglang.trajectory.media import EnteredImage
from tests.servers.engine_server import generate

SAMPLING = {"max_new_tokens": 5, "ignore_eos": True, "sampling_seed": 3}


RED, BLUE, TALL = png((200, 30, 60)), png((5, 3, 160)), png((9, 99, 9), (84, 140))


def user(*blocks: str | bytes) -> dict[str, Any]:
    return {"role": "user", "content": [{"text": b} if isinstance(b, str) else image(b) for b in blocks]}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"text": text}]}


class Recorder:
    """An engine behind a client that keeps what was asked and answered."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = engine
        self.image_expander = engine.image_expander
        self.calls: list[tuple[list[int], dict[str, Any], dict[str, Any]]] = []
        self.change: Any = lambda answer: answer

    async def generate(self, input_ids: list[int], **fields: Any) -> dict[str, Any]:
        answer = self.change(await generate(self.engine, input_ids, **fields))
        self.calls.append((list(input_ids), fields, answer))
        return answer


@pytest.fixture(scope="module")
def tiny() -> TinyModel:
    return make_tiny_vision_model()


@pytest.fixture
async def client(tiny: TinyModel) -> AsyncIterator[Recorder]:
    async with engine_of(tiny) as engine:
        yield Recorder(engine)


def conversation(client: Recorder, tiny: TinyModel, **options: Any) -> Conversation:
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
    for (held, _, answer), (sent, _, _) in zip(client.calls, client.calls[1:], strict=False):
        path = held + answer["output_ids"]
        assert sent[: len(path)] == path
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

    row = torch.tensor([tokens.token_ids])
    pictures = [Image.open(io.BytesIO(data)) for data in (RED, TALL, BLUE, RED)]
    fed = tiny.image_processor(images=pictures, return_tensors="pt")
    assert [medium.grid for medium in trajectory.media] == [tuple(grid) for grid in fed["image_grid_thw"].tolist()]
    with torch.no_grad():
        logits = tiny.model(input_ids=row, mm_token_type_ids=(row == placeholder).int(), **fed).logits[0]
    expected = torch.log_softmax(logits.float(), dim=-1)
    compared = 0
    for place, (token, logprob, trained) in enumerate(
        zip(tokens.token_ids, tokens.logprobs, tokens.loss_mask, strict=True)
    ):
        if trained:
            assert logprob is not None
            assert logprob == pytest.approx(float(expected[place - 1, token]), abs=1e-4)
            compared += 1
        elif token == placeholder:
            assert logprob is None
    assert compared == 15


async def test_images_of_tool_results_are_sent_in_the_order_of_their_calls(client: Recorder, tiny: TinyModel) -> None:
    conv = conversation(client, tiny)
    use = [{"toolUse": {"toolUseId": f"call0000{i}", "name": "look", "input": {}}} for i in range(2)]
    done = [
        {"toolResult": {"toolUseId": f"call0000{i}", "status": "success", "content": [{"text": str(i)}, image(data)]}}
        for i, data in ((1, BLUE), (0, TALL))  # in the order of their completion
    ]
    messages: list[Any] = [user("look twice"), {"role": "assistant", "content": use}, {"role": "user", "content": done}]
    tools = [{"name": "look", "description": "Look.", "inputSchema": {"json": {"type": "object", "properties": {}}}}]
    await conv.turn(TurnRequest(messages=messages, tools=tools))  # type: ignore[arg-type]
    (trajectory,) = conv.trajectories
    assert trajectory.images == [client.image_expander.enter(data).data for data in (TALL, BLUE)]  # type: ignore[union-attr]
    assert trajectory.media[0].length > trajectory.media[1].length


async def test_an_agent_with_a_tool_that_takes_screenshots(client: Recorder, tiny: TinyModel) -> None:
    @tool
    def screenshot() -> dict[str, Any]:
        """Take a screenshot."""
        return {"status": "success", "content": [{"text": "the screen"}, image(TALL)]}

    call = '<tool_call>{"name": "screenshot", "arguments": {}}</tool_call><|im_end|>'
    first = tiny.tokenizer.encode(call)
    sampled = iter([first, tiny.tokenizer.encode("a window<|im_end|>")])

    def scripted(answer: dict[str, Any]) -> dict[str, Any]:
        if (ids := next(sampled, None)) is not None:
            meta = answer["meta_info"]
            answer = {**answer, "output_ids": ids, "meta_info": {**meta, "completion_tokens": len(ids)}}
            answer["meta_info"]["output_token_logprobs"] = [[-1.0, token, None] for token in ids]
            answer["meta_info"]["finish_reason"] = {"type": "stop", "matched": ids[-1]}
        return answer

    client.change = scripted
    sampling = {**SAMPLING, "max_new_tokens": 40}
    model = SGLangModel(client=client, tokenizer=tiny.tokenizer, sampling_params=sampling)
    await Agent(model=model, tools=[screenshot], callback_handler=None).invoke_async("what is on the screen?")
    (trajectory,) = model.trajectories
    assert len(trajectory.media) == 1
    assert len(client.calls) == 2 and client.calls[1][1]["image_data"] == trajectory.images


async def test_budgets_count_expanded_tokens(client: Recorder, tiny: TinyModel) -> None:
    conv = conversation(client, tiny, return_prompt_logprobs=True)
    sampled = await conv.turn(TurnRequest(messages=[user("see", RED)]))
    (ids, fields, answer) = client.calls[0]
    assert sampled.prompt_length == answer["meta_info"]["prompt_tokens"] == len(ids) + 19
    assert fields["logprob_start_len"] == 0
    assert conv.count_tokens([user("see", RED)]) >= 0
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


async def test_the_first_request_with_an_image_proves_the_ids(client: Recorder, tiny: TinyModel) -> None:
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


async def test_a_sampled_placeholder_closes_its_path(client: Recorder, tiny: TinyModel) -> None:
    placeholder = client.image_expander.placeholder_id  # type: ignore[union-attr]
    conv = conversation(client, tiny)
    params = {"logit_bias": {str(placeholder): 100.0}, "max_new_tokens": 2}
    first = await conv.turn(TurnRequest(messages=[user("see", RED)], params=params))
    assert first.turn.completion.output_ids.tolist() == [placeholder] * 2
    asked = len(client.calls)
    with pytest.raises(MediaError, match="cannot be extended"):
        await conv.turn(TurnRequest(messages=[user("see", RED), said(first.reply.text), user("go on")]))
    assert len(client.calls) == asked and len(conv.forest.turns) == 1


class TwoPlaceholders:
    """An expander whose placeholder the text spells."""

    fingerprint = "test"

    def __init__(self, placeholder_id: int) -> None:
        self.placeholder_id = placeholder_id
        self.media_ids = frozenset({placeholder_id})

    def enter(self, image: bytes, **options: Any) -> EnteredImage:
        raise AssertionError("not reached")


async def test_placeholders_and_images_that_do_not_agree_never_reach_the_server(client, tiny):
    bang = tiny.tokenizer.encode("!")[0]
    conv = conversation(client, tiny, processor=TwoPlaceholders(bang))
    with pytest.raises(MediaError, match="1 image placeholders for 0 images"):
        await conv.turn(TurnRequest(messages=[user("hello!")]))
    blind = Conversation(client=_Blind(client), tokenizer=tiny.tokenizer)
    with pytest.raises(MediaError, match="was given no processor"):
        await blind.turn(TurnRequest(messages=[user("see", RED)]))
    broken = conversation(client, tiny)
    with pytest.raises(MediaError, match="cannot be processed"):
        await broken.turn(TurnRequest(messages=[user("see", b"no image")]))
    assert client.calls == []


class _Blind:
    def __init__(self, client: Recorder) -> None:
        self._client = client

    async def generate(self, input_ids: list[int], **fields: Any) -> dict[str, Any]:
        return await self._client.generate(input_ids, **fields)


async def test_a_text_that_spells_the_placeholder_is_text(client: Recorder, tiny: TinyModel) -> None:
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
    enter = client.image_expander.enter  # type: ignore[union-attr]

    def noted(data: bytes, **options: Any) -> Any:
        seen.append(threading.get_ident())
        return enter(data, **options)

    client.image_expander.enter = noted  # type: ignore[union-attr, method-assign]
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
    client: Recorder, tiny: TinyModel, template: str, reason: str
) -> None:
    conv = conversation(client, tiny, chat_template=template)
    await conv.turn(TurnRequest(messages=[user("no image")]))
    asked = len(client.calls)
    with pytest.raises(MediaError, match=reason):
        await conv.turn(TurnRequest(messages=[user("see", RED)]))
    assert len(client.calls) == asked


async def test_a_template_that_numbers_images_goes_on_counting(client: Recorder, tiny: TinyModel) -> None:
    numbered = "{%- set count = namespace(value=0) %}" + template_of(PARTS).replace(
        f"{{{{ '{SHOWN}' if p.type == 'image' else p.text }}}}", "NUMBERED"
    ).replace(
        "NUMBERED",
        "{%- if p.type == 'image' %}{%- set count.value = count.value + 1 %}Picture {{ count.value }}: "
        f"{SHOWN}{{%- else %}}{{{{ p.text }}}}{{%- endif %}}",
    )
    conv = conversation(client, tiny, chat_template=numbered)
    await talk(conv, user("see", RED, "and", BLUE), user("and", TALL))
    shown = tiny.tokenizer.decode(client.calls[-1][0])
    assert [shown.count(f"Picture {n}: ") for n in (1, 2, 3, 4)] == [1, 1, 1, 0]


@pytest.mark.parametrize("kind", ["video", "audio"])
async def test_video_and_audio_are_refused_with_the_reason(client: Recorder, tiny: TinyModel, kind: str) -> None:
    conv = conversation(client, tiny)
    message = {"role": "user", "content": [{kind: {"format": "x", "source": {"bytes": b"x"}}}]}
    with pytest.raises(MessageConversionError, match="tokenises the ids again"):
        await conv.turn(TurnRequest(messages=[message]))  # type: ignore[list-item]
    with pytest.raises(ValueError, match="tokenises them again"):
        conv.update_config(request_fields={f"{kind}_data": ["x"]})
    assert client.calls == []
