"""Rewards by wire: who may set them, what is refused, until when they change, and where they are kept."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.exceptions import StrandsSGLangError
from tests.provider_support import completion
from tests.unit.gateway_support import Rig, rig, until

USER = {"role": "user", "content": "Hi"}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def reward(r: Rig, body: Any, *, status: int = 200, key: str | None = None) -> Any:
    headers = bearer(r.session.reward_key if key is None else key) if key != "" else {}
    return await r.call("POST", f"/s/{r.session.id}/reward", json=body, headers=headers, status=status)


async def test_a_reward_is_kept_for_the_whole_and_for_turns_and_is_in_the_rows() -> None:
    async with rig([completion("Hello."), completion("Bye."), completion("Else.")]) as r:
        first = await r.chat([USER])
        history = [USER, first["choices"][0]["message"], USER]
        second = await r.messages(history)
        await r.chat([{"role": "user", "content": "Another"}])
        told = await reward(r, {"reward": 1, "turns": {"0": -0.5, second["id"]: 2}, "info": {"tests": [3, None]}})
        assert told == {"id": r.session.id, "reward": 1.0, "turns": {"0": -0.5, "1": 2.0}, "info": {"tests": [3, None]}}
        assert (await r.call("GET", f"/sessions/{r.session.id}"))["reward"]["turns"] == {"0": -0.5, "1": 2.0}
        rows = await r.call("GET", f"/sessions/{r.session.id}/trajectories")
        assert [(row["reward"], row["turns"], row["turn_rewards"], row["reward_info"]) for row in rows] == [
            (1.0, [0, 1], [-0.5, 2.0], {"tests": [3, None]}), (1.0, [2], [None], {"tests": [3, None]}),
        ]  # fmt: skip
        twice = await reward(r, {"reward": 1, "turns": {"1": 0, second["id"]: 0}}, status=400)
        assert "turn 1 twice" in twice["error"]["message"]
        # One for each turn, and a new body is the whole reward.
        await reward(r, {"reward": None, "turns": [None, 0, 7]})
        assert r.session.reward is not None
        assert (r.session.reward.value, r.session.reward.turns, r.session.reward.info) == (None, {1: 0.0, 2: 7.0}, {})


async def test_the_keys_of_agents_and_of_other_sessions_set_no_reward() -> None:
    for admin_key in (None, "admin"):
        async with rig([], admin_key=admin_key) as r:
            other, admin = r.gateway.open(), bearer(admin_key or "")
            for key, status in (
                (r.session.key, 403), (other.key, 401), (other.reward_key, 401), ("", 401), ("wrong", 401),
            ):  # fmt: skip
                told = await reward(r, {"reward": 1}, key=key, status=status)
                assert "send" in told["error"]["message"]
                path = f"/sessions/{r.session.id}/close"  # the admin key is needed first, if there is one
                headers = bearer(key) if key else {}
                await r.call("POST", path, json={"reward": 1}, headers=headers, status=401 if admin_key else status)
            assert r.session.reward is None and not r.session.is_sealed
            path = f"/s/{r.session.id}/reward"
            for prefix in ("/v1", ""):  # nor does the session of the key stand for that of the path
                await r.call("POST", f"{prefix}/reward", json={"reward": 1}, headers=r.headers, status=404)
            if admin_key:
                await r.call("POST", path, json={"reward": 1}, headers=admin)
                await r.call("POST", "/s/unknown/reward", json={"reward": 1}, headers=admin, status=404)
            await reward(r, {"reward": 1}, key=r.session.reward_key)
            await r.call("POST", "/s/unknown/reward", json={"reward": 1}, headers=bearer(other.reward_key), status=401)
            await r.chat([USER], headers=bearer(r.session.reward_key), status=401)  # and it opens nothing else
            await r.gateway.delete(r.session)
            await reward(r, {"reward": 1}, status=401)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"reward": NaN}', "JSON"), ('{"reward": 1e999}', "JSON"), ('{"reward": -Infinity}', "JSON"),
        ('{"reward": "1"}', "finite number"), ('{"reward": true}', "finite number"), ('{"reward": [1]}', "finite"),
        ('{"reward": 1' + "0" * 400 + "}", "finite number"), ("{}", "reward is missing"), ("[1]", "object"),
        ('{"reward": 1, "turn": {}}', "unknown fields"), ('{"reward": 1, "reward": 2}', "JSON"),
        ('{"reward": 1, "turns": {"1": 0}}', "index of a sampled turn"), ('{"reward": 1, "turns": [0, 0]}', "index of"),
        ('{"reward": 1, "turns": {"-1": 0}}', "index of"), ('{"reward": 1, "turns": {"0": "1"}}', "finite number"),
        ('{"reward": 1, "turns": {"0": null}}', "finite number"), ('{"reward": 1, "turns": [true]}', "finite number"),
        ('{"reward": 1, "turns": {"00": 1}}', "index of"), ('{"reward": 1, "turns": "0"}', "object or a list"),
        ('{"reward": 1, "turns": false}', "object or a list"),
        ('{"reward": 1, "turns": {"chatcmpl-0123456789abcdef01234567": 1}}', "index of"),
        ('{"reward": 1, "info": [1]}', "mapping"), ('{"reward": 1, "info": 0}', "mapping"),
        ('{"reward": 1, "info": {"a": "' + "x" * 70_000 + '"}}', "more than 65536"),
    ],
    ids=range(24),
)  # fmt: skip
async def test_wrong_rewards_are_refused_and_change_nothing(body: str, words: str) -> None:
    async with rig([completion("Hello.")], max_body=100_000) as r:
        await r.chat([USER])
        await reward(r, {"reward": 0.5})
        headers = {**bearer(r.session.reward_key), "Content-Type": "application/json"}
        for path in (f"/s/{r.session.id}/reward", f"/sessions/{r.session.id}/close"):
            if "close" in path and body == "{}":
                continue
            told = await r.call("POST", path, data=body, headers=headers, status=400)
            assert words in told["error"]["message"] and len(told["error"]["message"]) < 300
        await r.call("POST", path, data=b"0" * 200_000, headers=headers, status=413)
        assert r.session.reward is not None and r.session.reward.value == 0.5 and not r.session.is_sealed


async def test_a_reward_changes_until_it_is_exported_and_repeats_are_taken_ever_after() -> None:
    async with rig([completion("Hello.")]) as r:
        one, two = f"/sessions/{r.session.id}", {"reward": 2, "info": {"by": "tests"}}
        for value in (1, 1, 2):
            assert (await reward(r, {"reward": value}))["reward"] == value
        await r.call("GET", f"{one}/trajectories")  # of an open session: a look
        await reward(r, two)
        await r.call("POST", f"{one}/close", json={})  # it may be graded after that
        await reward(r, {"reward": 1})
        await reward(r, two)
        await r.call("GET", f"{one}/trajectories")
        told = await reward(r, {"reward": 1}, status=409)
        assert told["error"]["code"] == "reward_final" and "has been exported" in told["error"]["message"]
        await reward(r, two)
        with pytest.raises(StrandsSGLangError, match="has been exported"):
            r.session.set_reward(1.0)


async def test_a_reward_that_comes_with_the_close_is_final_and_one_for_an_idle_session_comes_through() -> None:
    async with rig([completion("Hello.")], session_ttl=0.02) as r:
        await until(lambda: r.session.is_sealed)
        await reward(r, {"reward": 0.25})
        headers, path = bearer(r.session.reward_key), f"/sessions/{r.session.id}/close"
        for _ in range(2):
            closed = await r.call("POST", path, json={"reward": 1}, headers=headers)
            assert closed["closed"] and closed["reward"]["reward"] == 1.0
        await r.call("POST", path, json={"reward": 2}, headers=headers, status=409)
        assert (await r.call("POST", path))["reward"]["reward"] == 1.0


async def test_a_reward_is_set_in_process_with_any_real_number() -> None:
    numpy = pytest.importorskip("numpy")
    async with rig([completion("Hello.")]) as r:
        await r.chat([USER])
        held = r.session.set_reward(numpy.float32(0.5), turns={0: 1}, info={"judge": "tests"})
        assert held == r.session.reward and held.to_json() == {
            "reward": 0.5, "turns": {"0": 1.0}, "info": {"judge": "tests"},
        }  # fmt: skip
        for wrong in ({"value": float("nan")}, {"value": True}, {"value": 1.0, "info": {"a": object()}}):
            with pytest.raises(ValueError, match=r"finite number|JSON values"):
                r.session.set_reward(**wrong)


async def test_a_full_folder_refuses_rewards_and_closes_which_then_change_nothing(tmp_path: Path) -> None:
    async with rig([completion("Hello.")], state=tmp_path / "state", session_ttl=0.02) as r:
        one, two = f"/sessions/{r.session.id}", bearer(r.session.reward_key)
        folder = r.gateway.sessions.folder
        assert folder is not None
        r.session.last_used += 1000  # the sweep closes it later
        await reward(r, {"reward": 0.25})
        limit, folder.limit = folder.limit, folder.size
        await reward(r, {"reward": -1}, status=507)
        await r.call("POST", f"{one}/close", json={"reward": 1}, headers=two, status=507)
        told = await r.call("POST", f"{one}/close", status=507)
        assert told["error"]["code"] == "state_full"
        r.session.last_used -= 2000
        await asyncio.sleep(0.02)  # the sweep is refused, too
        shutil.copytree(tmp_path / "state", tmp_path / "killed")
        held = await r.call("GET", one)
        assert (held["reward"]["reward"], held["closed"]) == (0.25, False)
        folder.limit = limit
        await r.call("POST", f"{one}/close", json={"reward": 1}, headers=two)
    for name, expected in (("killed", (0.25, False, False)), ("state", (1.0, True, True))):
        async with rig([], state=tmp_path / name) as later:
            session = later.gateway.sessions[r.session.id]
            assert session.reward is not None
            assert (session.reward.value, session.is_sealed, session.is_reward_final) == expected


async def test_a_reward_that_was_exported_is_final_after_a_restart_too(tmp_path: Any) -> None:
    async with rig([completion("Hello.")], state=tmp_path) as r:
        await r.chat([USER])
        await reward(r, {"reward": 1, "turns": [1]})
        await r.session.close()
        await r.call("GET", f"/sessions/{r.session.id}/trajectories?agent=main")  # a part: the log stays
        name = r.session.id
    async with rig([], state=tmp_path) as r:
        r.session = r.gateway.sessions[name]
        assert r.session.reward is not None and r.session.reward.turns == {0: 1.0}
        await reward(r, {"reward": 2}, status=409)
