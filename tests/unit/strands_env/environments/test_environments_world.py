"""A generated world in a sandbox: its endpoints as tools, its database afresh, its verifier apart from both."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from strands_env.core import Action, TaskContext
from strands_env.environments import AgentWorldModelEnv
from strands_env.sandbox import BubblewrapSandbox
from strands_env.testing import ScriptedModel, call
from tests.unit.sandbox_support import requires_isolation

pytestmark = requires_isolation

WORLD = '''
import os
from contextlib import asynccontextmanager
from typing import Optional
from fastapi import FastAPI, HTTPException, Query
from pydantic import BaseModel
from sqlalchemy import create_engine

engine = create_engine("sqlite:///shop.db", connect_args={"check_same_thread": False})
state = {}

@asynccontextmanager
async def lifespan(app):
    state["open"] = True
    yield

app = FastAPI(lifespan=lifespan)

class Item(BaseModel):
    name: str
    price: float
    gift: Optional[bool] = None

@app.post("/carts/{cart}/items", operation_id="add_item", summary="Put an item into a cart.")
def add_item(cart: int, item: Item, count: int = Query(1, description="How many.")):
    """Prices are in euros."""
    print("a world may print", item)
    with engine.connect() as db:
        db.execute("insert into items values (?, ?, ?, ?)", (cart, item.name, item.price, count))
    return {"name": item.name, "open": state["open"]}

@app.get("/carts/{cart}", operation_id="get_cart")
async def get_cart(cart: int):
    with engine.connect() as db:
        rows = db.execute("select name, price * count from items where cart = ?", (cart,)).fetchall()
    if not rows:
        raise HTTPException(404, "no such cart: {number}")
    return {"total": sum(row[1] for row in rows)}

@app.get("/crash", operation_id="crash")
def crash():
    raise ValueError("broken")

@app.get("/end", operation_id="end")
def end():
    os._exit(3)

@app.get("/hang", operation_id="hang")
async def hang():
    while True: pass
'''
"""As the data set's code is written."""

SQLALCHEMY = """
import sqlite3

class Engine:
    def __init__(self, path): self.path = path
    def connect(self): return sqlite3.connect(self.path)

def create_engine(url, connect_args=None): return Engine(url.removeprefix("sqlite:///"))
"""
"""Stands in for the package, of which a world of this size needs a connection."""

VERIFIER = """
import os

def verify_task_completion(initial_db_path, final_db_path, final_answer=None):
    print("a verifier may print")
    before, after = (sqlite3.connect(path).execute("select count(*) from items").fetchone()[0]
                     for path in (initial_db_path, final_db_path))
    assert not os.path.exists("world.py")
    is_right = (before, after) == (1, 2) and "5.0" in final_answer
    return {"result": "complete" if is_right else "others", "rows": [before, after]}
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "gen_envs.jsonl").write_text(json.dumps({"scenario": "The Shop #1", "full_code": WORLD}) + "\n")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sqlalchemy.py").write_text(SQLALCHEMY)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.executescript("create table items (cart, name, price, count); insert into items values (1, 'tea', 2, 1);")
    return tmp_path


def world(files: Path, *replies: Any, **options: Any) -> AgentWorldModelEnv:
    sandbox = BubblewrapSandbox(python=sys.executable, packages=[files / "site"])
    return AgentWorldModelEnv(
        model_factory=lambda: ScriptedModel(list(replies)),
        envs_path=files / "gen_envs.jsonl",
        sandbox=sandbox,
        **options,
    )


def task(files: Path, **fields: Any) -> Action:
    given = {"scenario": "the_shop_1", "verify_code": VERIFIER, "initial_db_path": str(files / "shop.db"), **fields}
    return Action(message="Buy a cake for 3 euros, and name the total of cart 1.", task_context=TaskContext(**given))


def results(result: Any) -> list[tuple[str, str]]:
    blocks = [block.get("toolResult") for message in result.observation.messages for block in message["content"]]
    return [(block["status"], block["content"][0]["text"]) for block in blocks if block]


async def test_a_task_is_done_with_the_worlds_tools_and_verified(files: Path) -> None:
    add = call("add_item", cart=1, name="cake {number}", price=1.5, count=2, gift=True)
    env = world(files, add, call("get_cart", cart=1), "The total is 5.0.")
    result = await env.rollout(task(files))
    assert results(result) == [
        ("success", '{\n  "name": "cake {number}",\n  "open": true\n}'),
        ("success", '{\n  "total": 5.0\n}'),
    ]
    assert result.reward.reward == 1.0
    assert result.reward.info["verification_result"] == {"result": "complete", "rows": [1, 2]}
    again = await env.rollout(task(files))  # a database of its own, so this answer is wrong no more than the first
    assert again.reward == result.reward
    with closing(sqlite3.connect(files / "shop.db")) as db:
        assert db.execute("select count(*) from items").fetchone() == (1,)


async def test_what_the_world_refuses_is_an_error_that_the_model_sees(files: Path) -> None:
    calls = [call("get_cart", cart=7), call("get_cart", cart="x"), call("crash"), call("get_cart", cart=1)]
    result = await world(files, *calls, "2.0").rollout(task(files))
    missing, wrong, crashed, alive = results(result)
    refused = 'Error calling get_cart. Status code: 404. Response: {"detail":"no such cart: {number}"}'
    assert missing == ("error", refused)
    assert "Status code: 422" in wrong[1]
    assert crashed == ("error", "Error calling crash. Status code: 500. Response: Internal Server Error")
    assert alive == ("success", '{\n  "total": 2\n}')
    assert result.reward.reward == 0.0


async def test_tools_are_declared_as_their_endpoints_and_one_that_hangs_is_an_error(files: Path) -> None:
    env = world(files, mcp_timeout=0.5)
    try:
        await env.reset(task(files))
        declared = {tool.tool_name: tool.tool_spec for tool in env.get_tools()}
        hung = await env.call("hang", {})
        env.mcp_timeout = 60.0
        alive = await env.call("get_cart", {"cart": 1})
    finally:
        await env.cleanup()
    assert set(declared) == {"add_item", "get_cart", "crash", "end", "hang"}
    assert declared["add_item"]["description"] == "Put an item into a cart.\n\nPrices are in euros."
    schema = declared["add_item"]["inputSchema"]["json"]
    assert set(schema["properties"]) == {"cart", "count", "name", "price", "gift"}
    assert sorted(schema["required"]) == ["cart", "name", "price"]
    assert schema["properties"]["count"]["description"] == "How many."
    assert schema["properties"]["price"]["type"] == "number"
    assert hung["is_error"]
    assert "time limit" in hung["text"]
    assert json.loads(alive["text"]) == {"total": 2}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scenario": "another"}, "has no world 'another'"),
        ({"initial_db_path": None}, r"missing: \['initial_db_path'\]"),
    ],
)
async def test_a_task_that_has_no_world_is_refused(files: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        await world(files).reset(task(files, **fields))


async def test_a_world_that_does_not_start_says_why(files: Path) -> None:
    (files / "site" / "sqlalchemy.py").unlink()
    result = await world(files, "5.0").rollout(task(files))
    assert "'the_shop_1' does not start in its sandbox, whose interpreter needs fastapi" in result.error.message
    assert "sqlalchemy" in result.error.message


async def test_an_episode_whose_world_ended_or_gave_no_verdict_has_no_reward(files: Path) -> None:
    result = await world(files, call("end"), "5.0").rollout(task(files))
    assert (result.termination_reason, result.reward) == ("tool_error", None)
    assert "the world ended during a call of end" in result.error.message
    result = await world(files, "5.0").rollout(task(files, verify_code="def verify_task_completion(**_): 1 / 0"))
    assert (result.termination_reason, result.reward) == ("reward_error", None)
    assert "gave no verdict: " in result.error.message and "ZeroDivisionError" in result.error.message
