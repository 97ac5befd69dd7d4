"""Images on a genuine SGLang server: it expands them as we do, turn by turn, and its log-probabilities replay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

import torch
from image_support import image, png, proof_pictures

from strands_env.training import samples_from_model
from strands_env.training.export import image_tensors
from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.backends import client_class
from strands_sglang.backends.engine import TinyModel, make_tiny_vision_model
from strands_sglang.conversation import Conversation, TurnRequest
from strands_sglang.exceptions import MediaError, SGLangDecodingError
from strands_sglang.trajectory.images import image_expander
from tests.integration.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


RED, TALL = png((200, 30, 60), (64, 48)), png((9, 99, 9), (84, 140))


class Shown(SGLangClient):
    """A client that asks for the prompt as the server used it, and keeps every call."""

    calls: list[tuple[list[int], dict[str, Any]]]

    async def ask(self, request: Any) -> Any:
        answer = await super().ask(replace(request, show_prompt=True))
        self.calls.append((request.prompt.tolist(), dict(answer.payload)))
        return answer


async def three_turns(client: SGLangClient, tiny: TinyModel, folder: Path) -> Conversation:
    sampling = {"max_new_tokens": 6, "ignore_eos": True}
    conv = Conversation(client=client, tokenizer=tiny.tokenizer, processor=folder, sampling_params=sampling)
    use = {"toolUse": {"toolUseId": "call00000", "name": "look", "input": {}}}
    shot = {"toolResult": {"toolUseId": "call00000", "status": "success", "content": [{"text": "screen"}, image(TALL)]}}
    messages: list[Any] = [
        {"role": "user", "content": [{"text": "two"}, image(RED), {"text": "and"}, image(TALL)]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [shot]},
    ]
    news = [{"text": "only text"}], [image(RED), {"text": "again"}]
    tools = [{"name": "look", "description": "Look.", "inputSchema": {"json": {"type": "object", "properties": {}}}}]
    for new in (*news, None):
        sampled = await conv.turn(TurnRequest(messages=messages, tools=tools))  # type: ignore[arg-type]
        if new is not None:
            answer = {"role": "assistant", "content": [{"text": sampled.reply.text}]}
            messages += [answer, {"role": "user", "content": list(new)}]
    return conv


async def live(url: str, tiny: TinyModel, folder: Path) -> None:
    async with Shown(url) as client:
        client.calls = []
        conv = await three_turns(client, tiny, folder)
        for (held, answer), (sent, later) in zip(client.calls, client.calls[1:], strict=False):
            path = held + answer["output_ids"]
            assert sent[: len(path)] == path
            # All but the new tokens comes from the cache, images included.
            assert later["meta_info"]["cached_tokens"] >= answer["meta_info"]["prompt_tokens"] - 1
        (trajectory,) = conv.trajectories
        shown = client.calls[-1][1]["prompt_token_ids"]
        assert trajectory.token_ids[: len(shown)] == shown
        start = trajectory.loss_mask.index(1)
        scored = await client.score(trajectory.token_ids, start=start, images=trajectory.media)
        for place in (place for place, mask in enumerate(trajectory.loss_mask) if mask):
            assert scored.logprobs[place - start] == pytest.approx(trajectory.logprobs[place], abs=1e-4)
        with pytest.raises(MediaError):  # refused before it is sent: one of these would hang the server
            text = "<|vision_start|><|image_pad|><|image_pad|><|vision_end|>"
            wrong = Conversation(client=client, tokenizer=tiny.tokenizer, processor=folder, control_tokens="allow")  # type: ignore[call-arg]
            await wrong.turn(TurnRequest(messages=[{"role": "user", "content": [{"text": text}, image(RED)]}]))
        assert await client.health()


async def replayed_samples(
    url: str, tokenizer: Any, model: Any, folder: Path, *, together: bool = True, temperature: float = 0.0
) -> dict[str, float]:
    """Largest difference between recorded log-probabilities and those of transformers: each picture, and all at once.

    What is replayed is the exported sample, with the pixels that a trainer gets.
    """
    pictures, expander = proof_pictures(), image_expander(folder)
    # A sampled placeholder would end the path; what the bias takes from the others is the same in the replay.
    bias = {str(token): -100.0 for token in expander.media_ids}
    sampling = {"max_new_tokens": 6, "ignore_eos": True, "temperature": temperature, "logit_bias": bias}
    differences = {}
    make_client, address = client_class(url)
    async with make_client(address) as client:
        shows = {name: [data] for name, data in pictures.items()} | ({"all": [*pictures.values()]} if together else {})
        for name, shown in shows.items():
            sampler = SGLangModel(client=client, tokenizer=tokenizer, processor=expander, sampling_params=sampling)
            messages: list[Any] = []
            for data in shown:
                messages.append({"role": "user", "content": [{"text": name}, image(data)]})
                sampled = await sampler.conversation.turn(TurnRequest(messages=messages))
                messages.append({"role": "assistant", "content": [{"text": sampled.reply.text}]})
            (sample,) = samples_from_model(sampler, reward=1.0, rollout_id=name, group_id="g")
            fed = image_tensors(sample, expander)
            row = torch.from_numpy(sample.token_ids.astype("int64"))[None]
            kinds = (row == expander.placeholder_id).int()
            with torch.no_grad():
                logits = model(input_ids=row, mm_token_type_ids=kinds, **fed).logits[0, :-1].float()
            logits[:, sorted(expander.media_ids)] -= 100.0
            expected = torch.log_softmax(logits, -1).gather(-1, row[0, 1:, None]).squeeze(-1)
            trained = torch.from_numpy(sample.loss_mask[1:].astype("bool"))
            assert int(trained.sum()) == 6 * len(shown)
            recorded = torch.tensor(sample.logprobs[1:])
            differences[name] = (recorded - expected)[trained].abs().max().item()
    return differences


async def test_images_on_a_genuine_server(start_sglang_cpu: Callable[..., str], tmp_path: Path) -> None:
    url = await asyncio.to_thread(start_sglang_cpu, "--vision", "qwen3_vl")
    tiny = make_tiny_vision_model(tmp_path, family="qwen3_vl")
    await live(url, tiny, tmp_path)
    differences = await replayed_samples(url, tiny.tokenizer, tiny.model, tmp_path)
    assert max(differences.values()) < 1e-4, differences


async def test_a_server_that_tokenises_again_is_exact_for_one_turn_and_refused_where_ids_change(
    start_sglang_cpu: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the other family, whose first turns show that its images are expanded and replayed as we do."""
    monkeypatch.setenv("SGLANG_MM_AVOID_RETOKENIZE", "0")
    url = await asyncio.to_thread(start_sglang_cpu, "--vision", "qwen2_5_vl")
    tiny = make_tiny_vision_model(tmp_path, family="qwen2_5_vl")
    differences = await replayed_samples(url, tiny.tokenizer, tiny.model, tmp_path, together=False)
    assert max(differences.values()) < 1e-4, differences
    async with SGLangClient(url) as client:
        conv = Conversation(client=client, tokenizer=tiny.tokenizer, processor=tmp_path)
        asked: list[Any] = [{"role": "user", "content": [image(RED)]}]
        # A sampled placeholder would end the path before the server is asked again.
        bias = {str(token): -100.0 for token in image_expander(tmp_path).media_ids}
        params = {"max_new_tokens": 12, "ignore_eos": True, "logit_bias": bias}
        for _ in range(20):  # random ids seldom survive decoding and encoding
            first = await conv.turn(TurnRequest(messages=asked, params=params))
            ids = list(first.turn.completion.output_ids)
            if tiny.tokenizer.encode(tiny.tokenizer.decode(ids), add_special_tokens=False) != ids:
                break
        else:
            pytest.fail("every reply survived decoding and encoding")
        reply: Any = {"role": "assistant", "content": [{"text": first.reply.text}]}
        more: Any = {"role": "user", "content": [{"text": "more"}, image(TALL)]}
        with pytest.raises(SGLangDecodingError, match="tokenised the prompt again"):
            await conv.turn(TurnRequest(messages=[*asked, reply, more], params={"max_new_tokens": 2}))


async def test_the_server_under_test_sees_the_images_as_we_do(server: Server, tokenizer: Any) -> None:
    """Ids and log-probabilities of a conversation with pictures; for `--sglang-base-url` of a vision model."""
    folder = Path(server.model_path)
    if not (folder / "config.json").is_file() or "vision_config" not in (folder / "config.json").read_text("utf-8"):
        pytest.skip("the server's model takes no images, or is not a folder on this machine")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    differences = await replayed_samples(server.address, tokenizer, model, folder, temperature=1.0)
    assert max(differences.values()) < 1e-4, differences
