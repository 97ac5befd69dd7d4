"""The cost of a turn and of a sample, counted: calls, allocated bytes, encoded text. A regression shows on any machine.

Two conversations are alike but for their length, about 3k and 90k tokens in turns of equal size. The same turn is added
to each, and everything that Python does in our code meanwhile is counted. Times are for `benchmarks/`.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import orjson
import pytest
from strands import tool

import strands_sglang
from strands_env.core import Action, Environment
from strands_env.eval import Evaluator
from strands_env.eval.store import ResultLog, StorePaths
from strands_env.training.sample import TrainingSample
from strands_env.training.slime.live_rollout import Episode as SlimeEpisode
from strands_env.training.slime.live_rollout import RolloutBackend
from strands_env.training.slime.rows import put, token_fields
from strands_env.training.slime.settings import RolloutCall
from strands_sglang import SGLangModel
from strands_sglang.backends import Backend, GenerateAnswer, GenerateRequest
from strands_sglang.backends.http import call as call_module
from strands_sglang.backends.http.call import GenerateCall, write_prompt
from strands_sglang.backends.sglang.answer import read_answer
from strands_sglang.backends.sglang.client import SGLangClient
from strands_sglang.backends.sglang.request import wire_fields
from strands_sglang.conversation import Conversation, TurnRequest, cancellation
from strands_sglang.exceptions import BackendRequestError
from strands_sglang.testing import HTTPResponse, MockTransport
from strands_sglang.tokenizer import TokenizerAdapter
from tests.provider_support import call, completion, tokenizer
from tests.unit.eval_support import FakeEnv, outcome, sample, tasks

SOURCE = str(Path(strands_sglang.__file__).parents[1])
TURN_TOKENS = 750
TOOL = {
    "name": "add",
    "description": "Add two numbers.",
    "inputSchema": {
        "json": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


class PostingClient(Backend):
    """Does what the HTTP client does up to the socket, and answers with the same call each time."""

    def __init__(self, turns: int = sys.maxsize) -> None:
        self._turns = turns
        self.bodies: list[int] = []
        self.on_call: Any = None
        ids = [completion(text).ids for text in (call(1, 2), "done")]
        self._payloads = [orjson.dumps(_payload(each)) for each in ids]

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        sent = GenerateCall(request, {**wire_fields(request), "stream": False}, SGLangClient.server.wire_names)
        self.bodies.append(len(sent.body("0" * 32, write_prompt(request))))
        payload = orjson.loads(self._payloads[len(self.bodies) >= self._turns])
        payload["meta_info"]["id"] = f"{len(self.bodies):032x}"
        if self.on_call is not None:
            self.on_call()
        return read_answer(payload, vocab_size=request.vocab_size, max_new_tokens=request.max_new_tokens)


def _payload(ids: Any) -> dict[str, Any]:
    meta = {
        "finish_reason": {"type": "stop", "matched": ids[-1]},
        "completion_tokens": len(ids),
        "output_token_logprobs": [[-0.5, token, None] for token in ids],
    }
    return {"text": "", "output_ids": list(ids), "meta_info": meta}


@dataclass
class Work:
    """The counts of one turn.

    Attributes:
        calls: Calls made by our code, by name of what was called.
        templates: Calls in jinja2 or in the code of a template.
        peak: Bytes allocated at the highest point, beyond what was held before.
        kept: Bytes still held afterwards.
        encoded: Characters given to the tokenizer.
        dumped: Bytes of JSON written.
        body: Bytes of the request.
        held: Tokens of the path before the turn.
    """

    calls: Counter[str] = field(default_factory=Counter)
    templates: int = 0
    peak: int = 0
    kept: int = 0
    encoded: int = 0
    dumped: int = 0
    body: int = 0
    held: int = 0

    def note(self, frame: Any, event: str, arg: Any) -> None:
        """A profile function."""
        code = frame.f_code
        if event == "call":
            if code.co_filename == "<template>" or frame.f_globals.get("__name__", "").startswith("jinja2"):
                self.templates += 1
            if code.co_filename.startswith(SOURCE):
                self.calls[code.co_qualname] += 1
        elif event == "c_call" and code.co_filename.startswith(SOURCE):
            self.calls[arg.__qualname__] += 1


class SlimeSample(SimpleNamespace):
    """Any object with a class of statuses."""

    class Status:
        COMPLETED = "completed"


def slimes_call() -> RolloutCall:
    """A call of slime without limits but one."""
    args = SimpleNamespace(strands_env_factory="unused", strands_env_max_sampled_tokens=1_000_000)
    return RolloutCall(args, SimpleNamespace(), {}, evaluation=False, state=SimpleNamespace())


class Episode:
    """A conversation that is driven turn by turn, without the SDK."""

    def __init__(self, turns: int, *, by_slime: bool = False) -> None:
        self.client = PostingClient()
        backend: Backend = self.client
        options: dict[str, Any] = {}
        if by_slime:
            running = SlimeEpisode(call=slimes_call())
            backend, options = RolloutBackend(self.client, running), {"max_response_tokens": 500_000}
        self.conversation = Conversation(client=backend, tokenizer=tokenizer(), **options)
        self.messages: list[Any] = [{"role": "user", "content": [{"text": "Add numbers."}]}]
        pieces = tokenizer().encode("the answer is in the book of numbers ", add_special_tokens=False)
        self.result = "the answer is in the book of numbers " * (TURN_TOKENS // len(pieces))
        for _ in range(turns):
            self.turn()

    def turn(self) -> None:
        """One turn, and the result of the tool that it calls."""
        step = self.conversation.turn(TurnRequest(messages=self.messages, tools=[TOOL]))
        try:
            step.send(None)
        except StopIteration as stop:
            reply = stop.value.reply
        else:
            raise AssertionError("the turn waited for something")
        uses = [{"toolUse": {"toolUseId": c.id, "name": c.name, "input": c.input}} for c in reply.calls]
        results = [
            {"toolResult": {"toolUseId": c.id, "status": "success", "content": [{"text": self.result}]}}
            for c in reply.calls
        ]
        self.messages.append({"role": "assistant", "content": uses})
        self.messages.append({"role": "user", "content": results})


@cache
def work_at(turns: int, *, by_slime: bool = False) -> Work:
    """The work of one more turn after so many."""
    episode, work = Episode(turns, by_slime=by_slime), Work()
    work.held = len(episode.conversation.rollout)
    with pytest.MonkeyPatch.context() as patch:
        encode = TokenizerAdapter.encode

        def counted_encode(self: Any, text: str, *args: Any) -> array[int]:
            work.encoded += len(text)
            return encode(self, text, *args)

        class CountedJson:
            def __getattr__(self, name: str) -> Any:
                return getattr(orjson, name)

            def dumps(self, *args: Any, **options: Any) -> bytes:
                written = orjson.dumps(*args, **options)
                work.dumped += len(written)
                return written

        patch.setattr(TokenizerAdapter, "encode", counted_encode)
        patch.setattr(call_module, "orjson", CountedJson())
        sys.setprofile(work.note)
        try:
            episode.turn()
        finally:
            sys.setprofile(None)
    work.body = episode.client.bodies[-1]
    tracemalloc.start()
    try:
        episode.turn()  # what is replaced by a later turn is traced from here on
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        episode.turn()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    work.kept, work.peak = after - before, peak - before
    return work


def environment_calls(turns: int) -> Work:
    """The work of the last turn but one of an episode of an environment, between two requests."""
    client, work = PostingClient(turns), Work()

    @tool
    async def add(a: int, b: int) -> str:
        """Add two numbers."""
        return "the answer is in the book of numbers"

    class Env(Environment):
        def get_tools(self) -> list[Any]:
            return [add]

    def on_call() -> None:
        sys.setprofile(work.note if len(client.bodies) == turns - 1 else None)

    client.on_call = on_call
    env = Env(model_factory=lambda: SGLangModel(client=client, tokenizer=tokenizer()))
    try:
        # The watcher of cancel signals looks every 50 ms, whatever a turn does; here its timer never fires.
        with patch.object(cancellation, "POLL_INTERVAL", 3600.0):
            result = asyncio.run(env.rollout(Action(message="Add numbers.")))
    finally:
        sys.setprofile(None)
    assert result.error is None and len(client.bodies) == turns
    return work


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Calls of functions of ours, and of pydantic's that are written in Python, by name."""
    calls: Counter[str] = Counter()

    def note(frame: Any, event: str, arg: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and (file.startswith(SOURCE) or "/pydantic/" in file):
            calls[frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def evaluator_calls(samples: int) -> Counter[str]:
    """The work of an evaluation on the event loop: all but the file."""
    result, given = outcome(), tasks(samples)
    evaluator = Evaluator(lambda: FakeEnv(lambda action: result), max_concurrency=4, output_path=None)
    with counted_calls() as calls:
        asyncio.run(evaluator.run(given))
    return calls


def saving_calls(samples: int, folder: Path) -> Counter[str]:
    """The work of the results file for one batch."""
    made = [sample(1.0, index) for index in range(samples)]
    log = ResultLog(StorePaths.of(folder), fsync_interval=None)
    with counted_calls() as calls:
        log.append(made)
    log.close()
    return calls


SHORT, LONG = 4, 120  # turns: about 3k and 90k tokens
HISTORY_CALLS_A_TURN = 6
"""Calls for every earlier turn: whether its reply needs the SDK's normalisation."""


def test_the_lengths_are_what_they_are_said_to_be() -> None:
    assert 2_500 <= work_at(SHORT).held <= 3_500
    assert 85_000 <= work_at(LONG).held <= 95_000


def test_a_turn_makes_the_same_calls_whatever_the_length() -> None:
    assert work_at(LONG).calls == work_at(SHORT).calls


def test_calls_of_a_turn_stay_bounded() -> None:
    """693 when this was written; each costs 0.1 to 0.5 microseconds, and more once caches are cold."""
    assert sum(work_at(LONG).calls.values()) <= 705


def test_sampling_parameters_are_checked_once_and_again_when_they_change() -> None:
    episode = Episode(1)
    episode.conversation.update_config(sampling_params={"temperature": 1, "stop": ["a"]})
    with patch.object(episode.client, "check_sampling_params", wraps=episode.client.check_sampling_params) as check:
        for _ in range(3):
            episode.turn()
        params = episode.conversation.config["sampling_params"]
        params["stop"].append("b")
        episode.turn()
        assert check.call_count == 2
        params["temperature"] = True  # equal to what was checked
        with pytest.raises(BackendRequestError, match="temperature"):
            episode.turn()


SLIME_CALLS_A_TURN = 20
"""Calls that slime's control adds to a turn, those of our code below it included; 17 when this was written."""


def test_a_turn_under_slime_costs_little_more_whatever_the_length() -> None:
    plain, short, long = work_at(LONG), work_at(SHORT, by_slime=True), work_at(LONG, by_slime=True)
    assert long.calls == short.calls
    assert sum(long.calls.values()) - sum(plain.calls.values()) <= SLIME_CALLS_A_TURN
    assert long.dumped <= plain.dumped + 64 and long.encoded == plain.encoded
    assert long.peak <= 1.1 * plain.peak


def test_filling_a_slime_sample_makes_no_object_for_a_token_without_loss() -> None:
    """Python objects for the ids alone: a list of ids (8 bytes each and 32 for the number), of the mask (8), of
    log-probabilities (8; and 24 for those of trained tokens, one in ten here), and a slice for the text (8)."""
    count = 50_000
    mask = np.tile(np.repeat(np.array([0, 1], dtype=np.uint8), [90, 10]), count // 100)
    source = TrainingSample(
        token_ids=np.arange(1000, 1000 + count, dtype=np.int32),
        prompt_length=50,
        loss_mask=mask,
        logprobs=np.where(mask, -0.5, np.nan),
    )
    target = SlimeSample()
    tracemalloc.start()
    try:
        put(target, [token_fields(slimes_call(), source)])
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert target.tokens == source.token_ids.tolist() and target.loss_mask == mask[50:].tolist()
    assert target.rollout_log_probs == np.where(mask, -0.5, 0.0)[50:].tolist()
    assert kept <= 60 * count and peak <= 75 * count


def test_a_turn_renders_its_step_once_whatever_the_length() -> None:
    assert work_at(LONG).calls["ChatTemplate.render_as_given"] == 1
    assert work_at(LONG).templates == work_at(SHORT).templates


def test_only_new_text_is_encoded() -> None:
    assert work_at(LONG).encoded == work_at(SHORT).encoded
    assert work_at(LONG).encoded < 2_000


def test_ids_of_held_turns_are_not_written_as_json_again() -> None:
    assert work_at(LONG).dumped <= work_at(SHORT).dumped + 16  # numbers may have more digits
    assert work_at(LONG).dumped < 3_200 < work_at(LONG).body / 50


def test_memory_of_a_turn_grows_by_copies_of_the_ids_and_of_the_body() -> None:
    """Three of the ids (4 bytes each) and two of their text. An object for every held token would add 36 bytes."""
    short, long = work_at(SHORT), work_at(LONG)
    assert long.peak - short.peak <= 22 * (long.held - short.held)


def test_what_a_turn_leaves_behind_does_not_grow() -> None:
    """Beside the ids and log-probabilities of the turn: its text in the history."""
    assert work_at(LONG).kept <= 1.5 * work_at(SHORT).kept


@pytest.mark.parametrize("goes_on", [False, True], ids=["its model goes", "its model is reset"])
async def test_a_client_keeps_nothing_of_an_episode_that_ended(goes_on: bool) -> None:
    answer = HTTPResponse.from_json(_payload(completion("done").ids))
    text = "the answer is in the book of numbers " * 500
    transport = MockTransport(lambda _: answer)
    gc.freeze()  # the collections below are about the episodes alone
    async with SGLangClient("http://server", transport=transport) as client:
        new = partial(Conversation, client=client, tokenizer=tokenizer(), vocab_size=1_000_000)
        kept, conversation = [], new(context_window_limit=1_000_000)
        tracemalloc.start()
        try:
            for _ in range(12):
                await conversation.turn(TurnRequest(messages=[{"role": "user", "content": [{"text": text}]}]))
                if goes_on:
                    conversation.reset()
                else:
                    conversation = new(context_window_limit=1_000_000)
                transport.requests.clear()
                gc.collect()
                kept.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    assert kept[-1] - kept[3] <= 10_000  # of eight prompts of 37,000 bytes each


def test_a_turn_of_an_environment_costs_little_for_each_earlier_turn() -> None:
    short, long = 10, 60
    before, after = environment_calls(short), environment_calls(long)
    assert before.templates == after.templates
    growth = sum(after.calls.values()) - sum(before.calls.values())
    assert growth <= HISTORY_CALLS_A_TURN * (long - short)


def growth(few: Counter[str], many: Counter[str], samples: int) -> dict[str, float]:
    """Calls for each further sample, by name."""
    return {name: (calls - few[name]) / samples for name, calls in many.items() if calls > few[name]}


def test_calls_of_a_sample_stay_bounded() -> None:
    """104 on Python 3.11 and 90 on 3.12 when this was written; more than 140 with models copied by pydantic."""
    calls = growth(evaluator_calls(20), evaluator_calls(60), 40)
    assert sum(calls.values()) <= 110
    assert not {"BaseModel.model_copy", "BaseModel.model_dump"} & calls.keys()


def test_calls_to_save_a_sample_stay_bounded(tmp_path: Path) -> None:
    """23 when this was written; 77 with a look at every part of the messages, and with longer messages more."""
    calls = growth(saving_calls(20, tmp_path / "few"), saving_calls(60, tmp_path / "many"), 40)
    assert sum(calls.values()) <= 26
