"""The forest: which path a call extends, and what is exported."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from strands_sglang.exceptions import TrajectoryError
from strands_sglang.trajectory import (
    CallRecord,
    Completion,
    Finish,
    FinishType,
    TrajectoryForest,
    Turn,
    pack_ids,
    reply_digest,
)

CONTEXT = b"system and tools"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"text": text}]}


def result(call_id: str, text: str = "ok") -> dict[str, Any]:
    content = {"toolUseId": call_id, "status": "success", "content": [{"text": text}]}
    return {"role": "user", "content": [{"toolResult": content}]}


def answer(text: str = "", *call_ids: str, reasoning: str = "") -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    if reasoning:
        blocks.append({"reasoningContent": {"reasoningText": {"text": reasoning}}})
    if text:
        blocks.append({"text": text})
    blocks += [{"toolUse": {"toolUseId": call_id, "name": "f", "input": {}}} for call_id in call_ids]
    return {"role": "assistant", "content": blocks}


class Episode:
    """Plays model calls against a forest; ids count up so that every token is unique."""

    def __init__(self) -> None:
        self.forest = TrajectoryForest()
        self._next = 0

    def ids(self, count: int) -> array[int]:
        self._next += count
        return pack_ids(range(self._next - count, self._next))

    def call(
        self,
        history: list[dict[str, Any]],
        text: str = "",
        *call_ids: str,
        reasoning: str = "",
        attempt: str | None = None,
        context: bytes = CONTEXT,
    ) -> Turn:
        location = self.forest.locate(context, history)
        return self.forest.commit(
            location,
            prompt_ids=self.ids(3),
            completion=Completion(
                output_ids=self.ids(2), output_logprobs=array("d", [-0.5, -1.5]), finish=Finish(type=FinishType.STOP)
            ),
            reply=reply_digest(call_ids=call_ids, text=text, reasoning=reasoning),
            calls=[CallRecord(id=call_id, name="f") for call_id in call_ids],
            attempt=attempt,
        )


def test_new_messages_after_a_sampled_turn_extend_it() -> None:
    episode = Episode()
    history = [user("q")]
    first = episode.call(history, "", "c1")
    history += [answer("", "c1"), result("c1")]
    location = episode.forest.locate(CONTEXT, history)
    assert location.parent is first
    assert location.first_new == 2


def test_the_sdk_may_rewrite_arguments_names_and_blank_text() -> None:
    episode = Episode()
    first = episode.call([user("q")], "  ", "c1", reasoning="hm\n")
    rewritten = answer("", "c1", reasoning="hm")
    rewritten["content"][-1]["toolUse"].update(name="INVALID_TOOL_NAME", input={"other": 1})
    assert episode.forest.locate(CONTEXT, [user("q"), rewritten, result("c1")]).parent is first


def test_blank_text_stands_for_an_empty_reply() -> None:
    episode = Episode()
    first = episode.call([user("q")], "")
    history = [user("q"), answer("[blank text]"), user("go on")]
    assert episode.forest.locate(CONTEXT, history).parent is first


@pytest.mark.parametrize(
    "history",
    [
        [user("other"), answer("a"), user("next")],
        [user("q"), answer("edited"), user("next")],
        [user("q"), answer("a", "c9"), result("c9")],
        [user("q"), answer("a", reasoning="new"), user("next")],
        [answer("a"), user("next")],
        [user("summary"), user("next")],
        [user("q"), answer("a"), user("next"), answer("never sampled"), user("more")],
    ],
    ids=["first message", "text", "calls", "reasoning", "trimmed", "summarised", "foreign turn"],
)
def test_a_rewritten_history_starts_a_new_root(history: list[dict[str, Any]]) -> None:
    episode = Episode()
    episode.call([user("q")], "a")
    location = episode.forest.locate(CONTEXT, history)
    assert location.parent is None
    assert location.first_new == 0


def test_another_context_starts_a_new_root() -> None:
    episode = Episode()
    episode.call([user("q")], "a")
    assert episode.forest.locate(b"other tools", [user("q"), answer("a"), user("next")]).parent is None


def test_a_root_from_a_rewritten_history_is_extended_in_its_turn() -> None:
    episode = Episode()
    episode.call([user("q")], "a")
    rewritten = [user("summary of q and a"), user("next")]
    root = episode.call(rewritten, "b")
    assert root.parent is None
    assert episode.forest.locate(CONTEXT, [*rewritten, answer("b"), user("more")]).parent is root


def test_the_same_input_gives_a_sibling_and_the_earlier_sample_is_discarded() -> None:
    episode = Episode()
    history = [user("q"), answer("a"), user("next")]
    first = episode.call([user("q")], "a")
    thrown_away = episode.call(history, "bad", attempt="cycle")
    used = episode.call(history, "good", attempt="cycle")
    assert thrown_away.parent is used.parent is first
    kept, dropped = episode.forest.trajectories()
    assert (kept.turns[-1], kept.is_discarded) == (used, False)
    assert (dropped.turns[-1], dropped.is_discarded) == (thrown_away, True)


def test_the_same_input_in_another_cycle_discards_nothing() -> None:
    episode = Episode()
    episode.call([user("q")], "a", attempt="one")
    episode.call([user("q")], "a", attempt="two")
    assert [trajectory.is_discarded for trajectory in episode.forest.trajectories()] == [False, False]


def test_a_discarded_sample_that_is_continued_after_all_counts_again() -> None:
    episode = Episode()
    first = episode.call([user("q")], "a")
    episode.call([user("q")], "b")
    again = episode.call([user("q"), answer("a"), user("next")], "c")
    assert again.parent is first
    flags = {trajectory.turns[0].index: trajectory.is_discarded for trajectory in episode.forest.trajectories()}
    assert flags == {0: False, 1: False}


def test_of_equal_samples_the_latest_is_continued() -> None:
    episode = Episode()
    episode.call([user("q")], "same")
    latest = episode.call([user("q")], "same")
    assert episode.forest.locate(CONTEXT, [user("q"), answer("same"), user("next")]).parent is latest


def test_every_sampled_token_is_trained_in_exactly_one_trajectory() -> None:
    episode = Episode()
    episode.call([user("q")], "a")
    stem = [user("q"), answer("a")]
    episode.call([*stem, user("left")], "l1", attempt="x")
    episode.call([*stem, user("right")], "r1")
    episode.call([*stem, user("right"), answer("r1"), user("on")], "r2")
    episode.call([*stem, user("left")], "l2", attempt="x")
    trained: list[int] = []
    for trajectory in episode.forest.trajectories():
        pairs = zip(trajectory.token_ids, trajectory.loss_mask, trajectory.output_mask, strict=True)
        for token, loss, output in pairs:
            assert output or not loss
            trained += [token] * loss
    sampled = [token for turn in episode.forest.turns for token in turn.completion.output_ids]
    assert sorted(trained) == sorted(sampled)


def test_leaving_out_discarded_samples_loses_no_used_token() -> None:
    episode = Episode()
    episode.call([user("q")], "a")
    stem = [user("q"), answer("a")]
    bad = episode.call([*stem, user("next")], "bad", attempt="x")
    episode.call([*stem, user("next")], "good", attempt="x")
    used = [t for t in episode.forest.trajectories() if not t.is_discarded]
    trained = {token for t in used for token, loss in zip(t.token_ids, t.loss_mask, strict=True) if loss}
    sampled = {token for turn in episode.forest.turns for token in turn.completion.output_ids}
    assert trained == sampled - set(bad.completion.output_ids)


def test_a_call_across_a_reset_is_dropped() -> None:
    episode = Episode()
    location = episode.forest.locate(CONTEXT, [user("q")])
    episode.forest.reset()
    with pytest.raises(TrajectoryError, match="reset"):
        episode.forest.commit(
            location,
            prompt_ids=pack_ids([1]),
            completion=Completion(output_ids=pack_ids([2]), output_logprobs=None, finish=Finish(type=FinishType.STOP)),
            reply=b"",
        )
    assert episode.forest.turns == ()


def test_call_ids_are_unique_and_avoid_those_of_a_supplied_history() -> None:
    forest = TrajectoryForest()
    forest.reserve_call_ids([answer("", "call00001")])
    ids = [forest.next_call_id() for _ in range(3)]
    assert ids == ["call00000", "call00002", "call00003"]
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids)


def test_messages_with_bytes_and_lone_surrogates_can_be_located() -> None:
    episode = Episode()
    image = {"role": "user", "content": [{"image": {"format": "png", "source": {"bytes": b"\x00\xff"}}}]}
    other = {"role": "user", "content": [{"image": {"format": "png", "source": {"bytes": b"\x00\xfe"}}}]}
    episode.call([image, user("\ud800")], "a")
    assert episode.forest.locate(CONTEXT, [image, user("\ud800"), answer("a"), user("n")]).parent is not None
    assert episode.forest.locate(CONTEXT, [other, user("\ud800"), answer("a"), user("n")]).parent is None
