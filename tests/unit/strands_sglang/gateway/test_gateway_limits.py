"""Limits of a session: requests, time, tokens, parallel replies, and the final answer before the refusal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strands_sglang.exceptions import SGLangHTTPError
from strands_sglang.testing import Reply
from tests.provider_support import completion, tokenizer
from tests.unit.gateway_support import CALL, CHAT_TOOLS, Rig, rig, slow, trained_once, until

USER = {"role": "user", "content": "1+2?"}
RESULT = {"role": "tool", "content": "3"}


async def chat(r: Rig, messages: list[Any], *, status: int = 200, **more: Any) -> Any:
    """The message of an answer, or the error."""
    body = await r.chat(messages, status=status, **{"tools": CHAT_TOOLS, **more})
    return body["choices"][0]["message"] if status == 200 else body["error"]


async def loop(r: Rig, most: int) -> tuple[list[Any], Any]:
    """A program that goes on as long as it is given calls: its history and how it ended."""
    history: list[Any] = [USER]
    for _ in range(most):
        url, body = f"{r.session.base_url}/chat/completions", {"messages": history, "tools": CHAT_TOOLS}
        async with r.http.post(url, json=body, headers=r.headers) as response:
            answer = await response.json()
            if response.status != 200:
                return history, answer["error"]["code"]
        message = answer["choices"][0]["message"]
        history.append(message)
        if "tool_calls" not in message:
            return history, "answer"
        history += [{**RESULT, "tool_call_id": call["id"]} for call in message["tool_calls"]]
    return history, "endless"


async def test_without_a_final_answer_a_program_is_refused() -> None:
    async with rig(lambda *_: completion(CALL), limits={"max_requests": 3}) as r:
        history, end = await loop(r, 9)
        assert (end, r.session.counters.sampled, len(history)) == ("rollout_limit", 3, 7)


@pytest.mark.parametrize("limit", ["max_requests", "max_sampled_tokens", "max_seconds"])
async def test_the_final_answer_ends_a_program_and_no_more_is_sampled(limit: str) -> None:
    def policy(ids: list[int], _: Any) -> Reply:
        is_last = "last reply" in tokenizer().decode(ids[-200:])
        return completion(f"The answer is 3. {CALL}" if is_last else CALL)

    values = {"max_requests": 4, "max_sampled_tokens": 400, "max_seconds": 0.4}
    async with rig(policy, limits={limit: values[limit], "final_answer": True}) as r:
        history, end = await loop(r, 2000)
        assert end == "answer" and history[-1]["content"] == f"The answer is 3. {CALL}"
        counts = r.session.counters
        assert counts.final == 1 and counts.extended == counts.sampled - 1 == len(history) // 2 - 1
        assert r.session.conversation.forest.sampled_tokens <= 400 or limit != "max_sampled_tokens"
        if limit == "max_requests":
            assert counts.sampled == 4
        await chat(r, [*history, USER], status=400)
        refused = await chat(r, [USER], status=400)
        assert refused["code"] == "rollout_limit"
        assert r.session.counters.sampled == len(history) // 2 and trained_once(r.session)


async def test_the_words_of_the_final_answer_are_the_users() -> None:
    async with rig([completion("3.")], limits={"max_requests": 1, "final_answer": "Ende."}) as r:
        await chat(r, [USER])
        assert "Ende." in tokenizer().decode(r.prompts[0]) and r.session.counters.final == 1


async def test_a_final_answer_is_given_again_and_not_lost_to_a_failure() -> None:
    script = [SGLangHTTPError(500, "gone"), completion("3.")]
    async with rig(script, limits={"max_requests": 1, "final_answer": True}) as r:
        await chat(r, [USER], status=503)
        first = await chat(r, [USER], headers={"x-stainless-retry-count": "1"})
        again = await chat(r, [USER], headers={"x-stainless-retry-count": "2"})
        assert first == again and r.session.counters.replayed == 1 and len(r.prompts) == 2
        await chat(r, [USER], status=400)


async def test_the_final_answer_is_the_main_agents() -> None:
    async with rig([completion(CALL), completion("3.")], limits={"max_requests": 2, "final_answer": True}) as r:
        first = await chat(r, [USER])
        for sub in ("a", "b"):  # many sub-agents do not take it, nor get one each
            await chat(r, [USER], status=400, headers={"x-claude-code-agent-id": sub})
        await chat(r, [{"role": "user", "content": "Title?"}], status=400, tools=[])
        result = {**RESULT, "tool_call_id": first["tool_calls"][0]["id"]}
        assert (await chat(r, [USER, first, result]))["content"] == "3."
        assert r.session.counters.final == 1


async def test_repeats_at_the_limit_share_the_final_answer_and_siblings_are_refused() -> None:
    async with rig([slow("3.")], limits={"max_requests": 1, "final_answer": True}) as r:
        marked = {"Idempotency-Key": "once"}
        answers = asyncio.gather(*(chat(r, [USER], headers=marked) for _ in range(5)))
        await until(lambda: r.prompts)
        assert (await chat(r, [USER], status=400))["code"] == "rollout_limit"
        assert len(r.prompts) == 1 and {answer["content"] for answer in await answers} == {"3."}


async def test_time_ends_a_reply_in_flight_and_leaves_no_trace() -> None:
    async with rig([slow("3.", 30)], limits={"max_seconds": 0.2}) as r:
        assert (await chat(r, [USER], status=400))["code"] == "rollout_limit"
        assert (await chat(r, [USER], status=400))["code"] == "rollout_limit"
        assert len(r.prompts) == 1 and not r.session.conversation.forest.turns
        assert r.session.to_json()["in_flight"] == 0


async def test_a_client_that_leaves_the_queue_leaves_nothing() -> None:
    async with rig([slow("3.", 1.5), completion("4.")], limits={"max_parallel": 1}) as r:
        first = asyncio.create_task(chat(r, [USER]))
        await until(lambda: r.prompts)
        waiting = asyncio.create_task(chat(r, [{"role": "user", "content": "2?"}]))
        await asyncio.sleep(0.05)
        waiting.cancel()
        assert (await first)["content"] == "3."
        assert r.client.max_in_flight == 1
        assert (await chat(r, [{"role": "user", "content": "3?"}]))["content"] == "4."
        assert r.session.counters.sampled == 2 and r.session.to_json()["in_flight"] == 0


@pytest.mark.parametrize(
    "limits",
    [
        {"max_seconds": 0}, {"max_seconds": True}, {"max_seconds": float("nan")}, {"max_parallel": 0},
        {"max_parallel": "2"}, {"final_answer": 5}, {"final_answer": " "}, {"max_sampled_tokens": 0},
    ],
)  # fmt: skip
async def test_wrong_limits_are_refused_with_their_name(limits: Any) -> None:
    async with rig([]) as r:
        with pytest.raises(ValueError, match=str(next(iter(limits)))):
            r.gateway.open(limits=limits)


async def test_opencodes_sub_agents_are_labelled_by_their_session() -> None:
    async with rig([completion("3.")] * 3) as r:
        await chat(r, [USER], headers={"x-session-affinity": "ses_main", "x-session-id": "ses_main"})
        for sub in ("ses_a", "ses_b"):
            await chat(r, [USER], headers={"x-session-affinity": sub, "x-parent-session-id": "ses_main"})
        assert [turn.agent for turn in r.session.conversation.forest.turns] == [None, "ses_a", "ses_b"]


async def test_a_header_that_is_too_long_is_refused_in_json() -> None:
    async with rig([]) as r:
        told = await r.call("GET", "/health", headers={"x-note": "a" * 10_000}, status=431)
        assert "longer than 8190 bytes" in told["error"]["message"]
