"""The forest: which path a call extends, and what is exported."""

from __future__ import annotations

import copy
import pickle
from array import array
from dataclasses import replace
from typing import Any

import pytest
from provider_support import user

from strands_sglang.conversation.history_reader import StrandsReader
from strands_sglang.conversation.messages import read_message
from strands_sglang.exceptions import TrajectoryError
from strands_sglang.fast_paths import FastPath
from strands_sglang.trajectory import (
    CallOrigin,
    Completion,
    Finish,
    FinishType,
    Location,
    ToolCall,
    TrajectoryForest,
    Turn,
    pack_ids,
)

CONTEXT = b"system and tools"


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
        self.forest = TrajectoryForest(has_memory=FastPath.HISTORY_MEMORY.is_on)
        self._reader = StrandsReader()
        self._next = 0

    def locate(self, history: list[Any], context: bytes = CONTEXT, **caller: Any) -> Location:
        return self.forest.locate(context, self._reader.read(history), CallOrigin(**caller))

    def ids(self, count: int) -> array[int]:
        self._next += count
        return pack_ids(list(range(self._next - count, self._next)))

    def call(
        self,
        history: list[dict[str, Any]],
        text: str = "",
        *call_ids: str,
        reasoning: str = "",
        context: bytes = CONTEXT,
        **caller: Any,
    ) -> Turn:
        return self.commit(self.locate(history, context, **caller), text, *call_ids, reasoning=reasoning)

    def commit(self, location: Location, text: str = "", *call_ids: str, reasoning: str = "") -> Turn:
        return self.forest.commit(
            location,
            prompt_ids=self.ids(3),
            completion=Completion(
                output_ids=self.ids(2), output_logprobs=array("d", [-0.5, -1.5]), finish=Finish(type=FinishType.STOP)
            ),
            reply=read_message(answer(text, *call_ids, reasoning=reasoning)),
            calls=[ToolCall(id=call_id, name="f") for call_id in call_ids],
        )


REWRITTEN = answer("", "c1", reasoning="hm")
REWRITTEN["content"][-1]["toolUse"].update(name="INVALID_TOOL_NAME", input={"other": 1})
THOUGHT: dict[str, Any] = {"text": "a", "reasoning": "hm"}


@pytest.mark.parametrize(
    ("reply", "calls", "seen", "is_same"),
    [
        ({"text": "  ", "reasoning": "hm\n"}, ["c1"], REWRITTEN, True),  # the SDK rewrites arguments and names
        ({}, [], answer("[blank text]"), True),  # the SDK's words for an empty reply
        (THOUGHT, [], answer("a"), True),  # a client may leave reasoning out
        (THOUGHT, [], answer("a", reasoning="ha"), False),  # but not change it
        ({}, ["c1", "c2"], answer("", "x1", "x2"), True),  # a client may give calls ids of its own
        ({}, ["c1", "c2"], answer("", "c2", "c1"), False),
    ],
)
def test_a_reply_is_recognised_by_what_comes_back_of_it(
    reply: dict[str, Any], calls: list[str], seen: dict[str, Any], is_same: bool
) -> None:
    episode = Episode()
    first = episode.call([user("q")], reply.get("text", ""), *calls, reasoning=reply.get("reasoning", ""))
    assert episode.locate([user("q"), seen, user("go on")]).parent is (first if is_same else None)


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        ([user("q"), answer("a"), user("next")], None),
        ([user("other")], "first"),
        ([user("summary"), user("next")], "first"),
        ([user("other"), answer("a"), user("next")], "history"),
        ([user("q"), answer("edited"), user("next")], "edited"),
        ([user("q"), answer("a", "c9"), result("c9")], "edited"),
        ([user("q"), answer("a", reasoning="new"), user("next")], "edited"),
        ([answer("a"), user("next")], "history"),
        ([user("q"), answer("a"), user("next"), answer("never sampled"), user("more")], "history"),
    ],
)
def test_a_rewritten_history_starts_a_new_root_for_a_reason(history: list[dict[str, Any]], reason: str | None) -> None:
    episode = Episode()
    episode.call([user("q")], "a")
    location = episode.locate(history)
    assert (location.parent is None, location.first_new == 0, location.reason) == (bool(reason), bool(reason), reason)
    assert episode.locate([user("q"), answer("a"), user("next")], b"other tools").reason == "context"


def test_the_same_input_gives_a_sibling_and_the_earlier_sample_is_discarded() -> None:
    episode = Episode()
    history = [user("q"), answer("a"), user("next")]
    first = episode.call([user("q")], "a")
    thrown_away = episode.call(history, "bad", attempt="cycle")
    used = episode.call(history, "good", attempt="cycle")
    assert thrown_away.parent is used.parent is first
    kept, dropped = episode.forest.trajectories()
    assert (kept.turns, kept.trained, kept.is_discarded) == ((first, used), (True, True), False)
    assert (dropped.turns, dropped.trained, dropped.is_discarded) == ((first, thrown_away), (False, True), True)


def test_the_same_input_in_another_cycle_or_of_another_agent_discards_nothing() -> None:
    episode = Episode()
    for attempt, agent in (("one", None), ("two", None), ("two", "a"), ("two", "b")):
        episode.call([user("q")], "a", attempt=attempt, agent_id=agent)
    assert fates(episode) == [False] * 4


def test_a_discarded_sample_that_is_continued_after_all_counts_again() -> None:
    episode = Episode()
    first = episode.call([user("q")], "a", attempt="x")
    episode.call([user("q")], "b", attempt="x")
    again = episode.call([user("q"), answer("a"), user("next")], "c", attempt="y")
    assert again.parent is first
    flags = {trajectory.turns[0].index: trajectory.is_discarded for trajectory in episode.forest.trajectories()}
    assert flags == {0: False, 1: True}


def test_of_equal_samples_the_one_with_the_same_reasoning_or_the_latest_is_continued() -> None:
    episode = Episode()
    thoughtful = episode.call([user("q")], "same", reasoning="hm")
    episode.call([user("q")], "same")
    latest = episode.call([user("q")], "same")
    assert episode.locate([user("q"), answer("same"), user("next")]).parent is latest
    seen = answer("same", reasoning="hm")
    assert episode.locate([user("q"), seen, user("next")]).parent is thoughtful


def test_a_call_across_a_reset_is_dropped() -> None:
    episode = Episode()
    location = episode.locate([user("q")])
    episode.forest.reset()
    with pytest.raises(TrajectoryError, match="reset"):
        episode.commit(location)
    assert episode.forest.turns == ()


def test_call_ids_are_unique_and_avoid_those_of_a_supplied_history() -> None:
    forest = TrajectoryForest()
    forest.reserve_call_ids([read_message(answer("", "call00001"))])
    ids = [forest.next_call_id() for _ in range(3)]
    assert ids == ["call00000", "call00002", "call00003"]
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids)


# ---- agents -------------------------------------------------------------


def test_an_agent_extends_its_own_sample_among_equal_ones() -> None:
    episode = Episode()
    turns = [episode.call([user("q")], "yes", agent="judge", agent_id=str(i)) for i in range(5)]
    for i, turn in enumerate(turns):
        history = [user("q"), answer("yes"), user("sure?")]
        assert episode.locate(history, agent="judge", agent_id=str(i)).parent is turn


def test_an_agent_whose_answer_was_edited_does_not_take_another_ones() -> None:
    episode = Episode()
    episode.call([user("q")], "yes", agent="judge", agent_id="a")
    episode.call([user("q")], "no", agent="judge", agent_id="b")
    history = [user("q"), answer("yes"), user("sure?")]
    assert episode.locate(history, agent="judge", agent_id="b").parent is None


def test_another_agent_object_goes_on_where_only_one_can_be_meant() -> None:
    episode = Episode()
    first = episode.call([user("q")], "yes", agent="judge", agent_id="a")
    history = [user("q"), answer("yes"), user("sure?")]
    assert episode.locate(history, agent="judge", agent_id="new").parent is first
    assert episode.locate(history, agent="other", agent_id="new").parent is None
    episode.call([user("q")], "yes", agent="judge", agent_id="b")
    assert episode.locate(history, agent="judge", agent_id="newer").parent is None


def test_a_receipt_settles_which_of_equal_samples_is_meant() -> None:
    episode = Episode()
    first, _ = (episode.call([user("q")], "yes") for _ in range(2))
    history = [user("q"), replace(read_message(answer("yes")), receipt=first.index), user("sure?")]
    assert episode.locate(history).parent is first
    history[1] = replace(read_message(answer("edited")), receipt=first.index)
    assert episode.locate(history).parent is None


# ---- evidence -----------------------------------------------------------


def test_inputs_are_compared_as_the_template_prints_them() -> None:
    episode = Episode()
    episode.call([user("q")], "", "c1", "c2")
    results = [result("c1")["content"][0], result("c2")["content"][0]]
    history = [user("q"), answer("", "c1", "c2"), {"role": "user", "content": [*results, {"text": "a"}, {"text": "b"}]}]
    second = episode.call(history, "done")
    again = [*reversed(results), {"text": "a\nb"}, {"cachePoint": {"type": "default"}}]
    other = [*history[:2], {"role": "user", "content": again}, answer("done"), user("next")]
    assert episode.locate(other).parent is second


PICTURE = {"image": {"format": "png", "source": {"bytes": b"1"}}}


@pytest.mark.parametrize(
    ("block", "same", "other"),
    [
        ({"text": "a", **PICTURE}, [{"text": "a"}, PICTURE], [{"text": "a"}]),
        ({**PICTURE, "text": "a"}, [PICTURE, {"text": "a"}], [{"text": "a"}, PICTURE]),
        ({"text": "a", "cachePoint": {"type": "default"}}, [{"text": "a"}], []),
        ({**result("c1")["content"][0], "text": "a"}, [result("c1")["content"][0], {"text": "a"}], [{"text": "a"}]),
    ],
)
def test_every_key_of_a_block_counts_as_a_block_of_its_own(block: Any, same: list[Any], other: list[Any]) -> None:
    episode = Episode()
    done = episode.call([{"role": "user", "content": [{"text": "q"}, block]}], "done")

    def parent(content: list[Any]) -> Turn | None:
        history = [{"role": "user", "content": [{"text": "q"}, *content]}, answer("done"), user("next")]
        return episode.locate(history).parent

    assert parent(same) is done
    assert parent(other) is None
    seen = {"role": "assistant", "content": [{"text": "done", **PICTURE}]}
    assert episode.locate([user("q"), seen, user("next")]).parent is None


@pytest.mark.parametrize("has_memory", [True, False])
def test_of_equal_samples_the_one_that_a_history_went_on_from_is_continued(has_memory: bool) -> None:
    episode = Episode()
    episode.forest = TrajectoryForest(has_memory=has_memory)
    episode.call([user("q")], "same")
    episode.call([user("q")], "same")
    history = [user("q"), answer("same"), user("next")]
    second = episode.call(history, "same again")
    episode.call([user("q")], "same")
    assert episode.locate(history).parent is second.parent
    episode.call(history, "same again")
    longer = [*history, answer("same again"), user("on")]
    third = episode.call(longer, "end")
    for _ in range(2):
        episode.call(history, "same again")
        episode.call([user("q")], "same")
    assert episode.locate([*longer, answer("end"), user("?")]).parent is third
    assert {turn.parent for turn in episode.forest.turns if turn.reply.text == "same again"} == {second.parent}


# ---- used and discarded -------------------------------------------------


def fates(episode: Episode) -> list[bool]:
    """For every turn whether it is only held by discarded trajectories."""
    used = {turn.index for t in episode.forest.trajectories() if not t.is_discarded for turn in t.turns}
    return [turn.index not in used for turn in episode.forest.turns]


def test_asking_again_within_a_step_throws_the_earlier_sample_away_even_if_the_repeat_fails() -> None:
    episode = Episode()
    episode.call([user("q")], "a", attempt="x")
    episode.locate([user("q"), user("guidance")], attempt="x")
    assert fates(episode) == [True]
    assert episode.forest.current is None


def test_a_step_keeps_one_sample() -> None:
    episode = Episode()
    locations = [episode.locate([user("q")], attempt="x") for _ in range(2)]
    turns = [episode.commit(location, str(i)) for i, location in enumerate(locations)]
    assert fates(episode) == [False, False]  # nothing is known yet
    episode.forest.keep(turns[0])
    assert fates(episode) == [False, True]
    assert episode.forest.current is turns[0]
    episode.forest.discard(turns[0])  # it is in the agent's messages: that cannot be undone
    assert fates(episode) == [False, True]


def test_a_reply_in_a_trimmed_history_is_used() -> None:
    episode = Episode()
    kept = episode.call([user("q"), user("p")], "a")
    episode.forest.discard(kept)
    episode.locate([user("p"), answer("a"), user("next")])
    assert fates(episode) == [False]


def test_a_reply_that_was_not_delivered_whole_is_thrown_away_unless_it_comes_back() -> None:
    episode = Episode()
    turn = episode.call([user("q")], "a")
    with episode.forest.delivering(turn):
        assert fates(episode) == [True]
    assert fates(episode) == [False] and episode.forest.current is turn
    with pytest.raises(GeneratorExit), episode.forest.delivering(turn):
        raise GeneratorExit
    assert fates(episode) == [True] and episode.forest.current is None
    episode.locate([user("q"), answer("a"), user("next")])
    assert fates(episode) == [False]


def test_used_tokens_before_a_discarded_sample_are_exported_without_it() -> None:
    episode = Episode()
    first = episode.call([user("q")], "a")
    last = episode.call([user("q"), answer("a"), user("next")], "b")
    episode.forest.discard(last)
    used, discarded = episode.forest.trajectories()
    assert (used.turns, used.trained, used.is_discarded) == ((first,), (True,), False)
    assert (discarded.turns, discarded.trained, discarded.is_discarded) == ((first, last), (False, True), True)
    assert episode.forest.current is first


# ---- threads and copies -------------------------------------------------


def test_a_forest_is_not_copied() -> None:
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="take_snapshot"):
            copied(TrajectoryForest())  # type: ignore[operator]


# ---- arrays ---------------------------------------------------------------


def test_the_trajectory_with_the_current_turn_says_so() -> None:
    episode = Episode()
    episode.call([user("q")], "a")
    stem = [user("q"), answer("a")]
    episode.call([*stem, user("left")], "l")
    last = episode.call([*stem, user("right")], "r")
    assert [path.is_main for path in episode.forest.trajectories()] == [False, True]
    episode.forest.discard(last)  # the path goes on to be shown up to the turn before
    assert [path.is_main for path in episode.forest.trajectories()] == [True, False]
