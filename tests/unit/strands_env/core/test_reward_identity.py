"""The identity of a reward: two that may score differently differ, or say that they cannot be compared."""

from __future__ import annotations

import copy
import json
import math
import pickle
import re
import secrets
import subprocess
import sys
from dataclasses import dataclass, field
from functools import lru_cache, partial, wraps
from importlib import import_module, reload
from typing import Any

import pytest

from strands_env.core import Environment, RewardFunction, RewardResult
from strands_env.core.identity import identify_reward
from strands_env.core.scoring import as_reward_function
from strands_env.eval import ConfigMismatchError, Evaluator
from strands_env.rewards import CorrectnessJudgeReward, ExactMatchReward, NumberReward, WeightedReward
from strands_env.testing import ScriptedModel
from tests.unit.eval_support import tasks


class Drawing(RewardFunction):
    """Draws a value in its constructor and counts its calls."""

    def __init__(self, right: float = 1.0, *, words: Any = ()) -> None:
        self.salt, self.calls, self.threshold = secrets.token_hex(), 0, right
        self.table = {"words": list(words)}

    def configure(self, threshold: float) -> Drawing:
        self.threshold = threshold
        return self

    def add(self, word: str) -> Drawing:
        self.table["words"].append(word)
        return self

    async def compute(self, action: Any, step_result: Any) -> RewardResult:
        return RewardResult(reward=self.threshold)


class Narrow(Drawing):
    def __init__(self, right: float) -> None:
        super().__init__(1.0)  # the outermost call counts


@dataclass
class Fields(RewardFunction):
    right: float

    async def compute(self, action: Any, step_result: Any) -> RewardResult:
        return RewardResult(reward=self.right)


@dataclass
class Drawn(Fields):
    drawn: str = field(default_factory=secrets.token_hex, init=False)


class Own(Drawing):
    def identity(self) -> Any:
        return {"threshold": self.threshold}


class Duck:
    def __init__(self, right: float) -> None:
        self.right = right

    def __call__(self, action: Any, step_result: Any) -> float:
        return self.right


def scaled(action: Any, step_result: Any, right: float = 0.0) -> float:
    return right


def closing(held: Any) -> Any:
    @wraps(scaled)
    def reward(action: Any, step_result: Any) -> Any:
        return held if step_result else reward  # holds itself

    return reward


def defaulting(right: float) -> Any:
    return lambda action, step_result, right=right: right


def halves(right: float) -> Any:
    if right == 1.0:
        return lambda action, step_result: 1.0
    return lambda action, step_result: 0.5


KNOWN = {
    "an argument beside what a constructor draws": Drawing,
    "an argument that a base never sees": Narrow,
    "infinity and nothing": lambda right: Drawing(words=[math.inf if right == 1.0 else None]),
    "keys of two types": lambda right: Drawing(words=[{1: right, "1": 0.5}]),
    "a compiled expression": lambda right: Drawing(words=[re.compile("a", re.I if right == 1.0 else 0)]),
    "a field": Fields,
    "an object's class": lambda right: Drawing(words=[NumberReward() if right == 1.0 else ExactMatchReward()]),
    "a part": lambda right: WeightedReward({"one": (Drawing(right), 1.0)}),
    "a wrapped function": lambda right: as_reward_function(partial(scaled, right=right)),
    "a long table": lambda right: Drawing(words=[f"{right}"] * 5000),
    "an argument of a partial": lambda right: partial(scaled, right=right),
    "a default": defaulting,
    "what a closure holds": closing,
    "a function that a closure holds": lambda right: closing(partial(scaled, right=right)),
    "the text of a lambda": halves,
    "a method of a table": lambda right: {"right": right}.get,
    "a cached function": lambda right: lru_cache(partial(scaled, right=right)),
    "a bound method": lambda right: Drawing(right).compute,
    "a copy": lambda right: copy.deepcopy(Drawing(right)),
    "one that was pickled": lambda right: pickle.loads(pickle.dumps(Drawing(right, words=[Fields(right)]))),
    "its own identity": lambda right: Own().configure(right),
    "a judge": lambda right: CorrectnessJudgeReward(ScriptedModel(["1"]), default_reward=right),
}  # fmt: skip


@pytest.mark.parametrize("case", KNOWN)
def test_a_known_reward_is_the_same_in_every_process_and_differs_by_what_it_is_given(case: str) -> None:
    one, again, other = (identify_reward(KNOWN[case](right)) for right in (1.0, 1.0, 0.5))
    assert one == again != other
    assert not one["unknown"] and " at 0x" not in repr(one) and len(json.dumps(one)) < 1500


UNKNOWN = {
    "set after its constructor": (lambda: Drawing().configure(0.9), "attributes threshold of .*Drawing, set after"),
    "in a container": (
        lambda: [each := Drawing(), each.table["words"].append("a")][0],
        "attributes table of .*Drawing",
    ),
    "in a part": (lambda: WeightedReward({"a": (Drawing().configure(0.9), 1.0)}), "attributes threshold of .*Drawing"),
    "a field that is no argument": (lambda: Drawn(0.9), "attributes drawn of .*Drawn"),
    "no reward function": (lambda: Duck(0.9), "the state of .*Duck"),
    "an object of an argument": (lambda: Drawing(words=[Duck(0.9)]), "the state of .*Duck"),
    "an object of a closure": (lambda: closing(Duck(0.9)), "the state of .*Duck"),
    "a built-in object": (lambda: closing(iter([1])), "the state of builtins.list_iterator"),
    "several lambdas": (lambda: [lambda a, r: 1.0, lambda a, r: 0.5][0], "the source of .*<lambda>"),
    "no source": (lambda: eval("lambda action, step_result: 1.0"), "the source of .*<lambda>"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_state_that_cannot_be_compared_is_named(case: str) -> None:
    make, named = UNKNOWN[case]
    found = identify_reward(make())
    assert len(found["unknown"]) == 1 and re.search(named, found["unknown"][0]), found["unknown"]
    assert found == identify_reward(make())


def test_the_whole_module_counts_without_comments_docstrings_and_the_program_in_it(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    code = "LIMIT = 1\ndef reward(action, step_result):\n    return LIMIT\n"
    same = f'"""Text."""\n# text\n{code}\nif __name__ == "__main__":\n    print(3)\n'
    found = []
    for text in (code, same, code.replace("1", "20")):
        (tmp_path / "own_reward.py").write_text(text)
        found.append(identify_reward(reload(import_module("own_reward")).reward))
    assert found[0] == found[1] != found[2] and list(found[0]["code"]) == ["own_reward"]


def test_a_constructor_says_what_is_wrong_with_a_call_in_its_own_words() -> None:
    with pytest.raises(TypeError, match=r"Drawing.__init__\(\) got an unexpected keyword argument 'wrong'"):
        Drawing(wrong=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"identity\(\) of .*Own.threshold is .*, which has no comparable content"):
        identify_reward(Own(object()))  # type: ignore[arg-type]


async def run(reward: Any, path: Any, count: int, **options: Any) -> None:
    def make() -> Environment:
        return Environment(model_factory=lambda: ScriptedModel(["ok"]), reward_fn=reward)

    await Evaluator(make, output_path=path, **options).run(tasks(count))


@pytest.mark.parametrize(
    ("first", "second"),
    [(Own().configure(0.9), Own().configure(0.5)), (closing(0.9), closing(0.5))],
    ids=["identity", "closure"],
)
async def test_a_run_goes_on_with_the_same_reward_alone(first, second, tmp_path, caplog) -> None:
    await run(first, tmp_path, 1)
    await run(first, tmp_path, 2)
    for count in (2, 3):  # all samples are there, and one is to be run
        with pytest.raises(ConfigMismatchError, match=r"environment.reward.*: 0.9 in the file, now 0.5"):
            await run(second, tmp_path, count)
    assert "not compared" not in caplog.text


async def test_a_reward_of_unknown_state_is_resumed_and_says_so_once_a_run(tmp_path, caplog) -> None:
    await run(Drawing().configure(0.9), tmp_path, 1)
    assert caplog.text.count("| not compared on resume: give the reward a method identity(self)") == 1
    caplog.clear()
    await run(Drawing(), tmp_path, 2)  # known now, so nothing is said
    await run(Drawing().configure(0.5), tmp_path, 3)
    assert caplog.text.count("not compared") == 1 and "attributes threshold of" in caplog.text


@pytest.mark.parametrize("older", [{"options": {"right": 1.0}, "code": "0123"}, None])
async def test_an_identity_that_an_older_version_saved_is_resumed_and_says_so_once(older, tmp_path, caplog) -> None:
    await run(Drawing(), tmp_path, 1)
    path = tmp_path / "results.run.json"
    document = json.loads(path.read_text())
    assert document["environment"].pop("reward")["unknown"] == []
    if older is not None:
        document["environment"]["reward"] = older
    path.write_text(json.dumps(document))
    await run(Drawing(0.5), tmp_path, 3)
    assert caplog.text.count("unknown=<the identity that an older version saved> | not compared on resume") == 1
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) >= 3


def test_another_process_finds_the_same_identity() -> None:
    ask = f"from {__name__} import *; print(json.dumps(identify_reward(Drawing(words={{'a', 'b'}}))))"
    found = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout
    assert json.loads(found) == identify_reward(Drawing(words={"b", "a"}))
