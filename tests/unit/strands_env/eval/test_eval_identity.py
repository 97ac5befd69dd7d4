"""A task's identity is its content: the same in every process, for any Python value."""

from __future__ import annotations

import datetime
import decimal
import enum
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from strands_env.core import Action, TaskContext
from strands_env.core.jsonable import canonical, differences, digest, name_of, plain
from strands_env.eval import Evaluator, read_results
from strands_env.eval.errors import DatasetError
from strands_env.eval.run.tasks import TaskNamer, task_digest
from tests.unit.eval_support import FakeEnv, task


class Colour(enum.Enum):
    RED = 1


@dataclass
class Point:
    x: int


VALUES = {
    "set": {"a", "b"},
    "frozenset": frozenset([1, "x"]),
    "bytes": b"\xff",
    "array": np.arange(3),
    "scalar": np.float32(1.5),
    "big": 2**70,
    "surrogate": "\ud800",
    "surrogate_key": {"\ud800": 1},
    "inf": float("inf"),
    "date": datetime.datetime(2026, 1, 1),
    "decimal": decimal.Decimal("1.1"),
    "path": Path("a"),
    "complex": 1j,
    "enum": Colour.RED,
    "dataclass": Point(1),
    "nested": {1: {(1, 2): [np.int64(3)]}},
}


@pytest.mark.parametrize("name", VALUES)
async def test_ordinary_values_are_known_again(name, tmp_path):
    assert task_digest(task("t", held=VALUES[name])) != task_digest(task("t", held=None))
    await Evaluator(FakeEnv, output_path=tmp_path).run([task("t", held=VALUES[name])])
    FakeEnv.forget()
    await Evaluator(FakeEnv, output_path=tmp_path, keep_results=False).run([task("t", held=VALUES[name])])
    assert FakeEnv.cleanups == 0
    assert len(list(read_results(tmp_path))) == 1


JSON = {
    "text": "what is \u4f60\u597d?",
    "numbers": [0, -1, 2**63, 1.5, True, None],
    "nested": {"b": {"\u00e9": []}, "a": [{}]},
}


@pytest.mark.parametrize("value", [*VALUES.values(), *JSON.values()], ids=[*VALUES, *JSON])
@pytest.mark.parametrize("id_given", [True, False])
def test_what_is_json_already_has_the_digest_of_its_dump(value, id_given):
    action = task("t", held=value) if id_given else Action(message="m", task_context=TaskContext(held=value))
    dumped = action.model_dump(exclude=None if id_given else {"task_context": {"id"}})
    assert task_digest(action) == digest(canonical(plain(dumped, "action")))


def test_digests_are_those_of_saved_runs_in_every_process():
    assert task_digest(task("t", ground_truth="4", held=[1, {"k": None}])) == "e8cfab1b936d570080435680570ccc2e"
    # Hashes of texts, and so the order of a set, differ from process to process.
    assert task_digest(task("t", held={str(i) for i in range(50)})) == "6398b2b0f60eead99900a9c34d4d1b1e"


@pytest.mark.parametrize("value", [object(), lambda: 1, (i for i in range(3))], ids=["object", "function", "generator"])
def test_what_has_no_content_is_refused_by_name(value):
    with pytest.raises(DatasetError, match=r"the task 'odd' .*action\.task_context\.parts\.held\[1\] is .*<"):
        task_digest(task("odd", parts={"held": [1, value]}))
    with pytest.raises(DatasetError, match="with the message 'what is it'"):
        task_digest(Action(message="what is it", task_context=TaskContext(held=value)))


def cycle() -> list:
    made: list = []
    made.append(made)
    return made


@pytest.mark.parametrize(
    "value", [MappingProxyType({"k": 1}), memoryview(b"ab"), cycle()], ids=["mapping", "memory", "cycle"]
)
async def test_a_task_that_cannot_be_copied_or_told_is_named(value):
    with pytest.raises(DatasetError, match=r"the task 'odd(_0)?' cannot"):
        await Evaluator(FakeEnv, output_path=None).run([task("odd", held=value)])


def test_ids_never_collide_whatever_the_user_gives():
    namer = TaskNamer()
    made = [namer.name(task(name)).id for name in ("a", "a#2", "a", "a", "a#2", "a#2#2")]
    assert len(set(made)) == len(made)
    assert made[:3] == ["a", "a#2", "a#3"]


def test_float_and_text_forms_are_apart():
    values = [None, float("nan"), float("inf"), float("-inf"), "nan", 0, b"", "", [], {}, set()]
    assert len({canonical(plain(value)) for value in values}) == len(values)


def make(first, second=None):
    return None


def test_names_tell_arguments_of_partials_and_models_by_their_configuration():
    def factory():
        return None

    factory.config = {"temperature": 0.5}
    assert name_of(partial(make, {"b", "a"})) == f'{__name__}.make({{"set":["a","b"]}})'
    assert name_of(partial(partial(make, 1), second=factory)).endswith('factory {"temperature":0.5})')
    assert name_of(partial(make, "x" * 999 + "a")) != name_of(partial(make, "x" * 999 + "b"))


def connect(url, hf_token=None, headers=None):
    return None


@pytest.mark.parametrize(
    "made",
    [
        partial(connect, "u", hf_token="s3cret"),
        partial(connect, "u", "s3cret"),
        partial(connect, headers={"Authorization": "Bearer s3cret"}),
        partial(connect, headers={"deep": [{"x-api-key": "s3cret"}]}),
        partial(connect, {"token": "s3cret", "call": make, "api_key": "s3cret"}),
        partial(connect, {"pwd": "s3cret", "private-key": "s3cret", "dbPasswd": "s3cret"}),
    ],
    ids=range(6),
)
def test_secrets_are_left_out_of_names_and_what_only_sounds_like_one_is_not(made):
    assert "s3cret" not in name_of(made)
    only_sounds = {"max_tokens": 17, "eos_token": "end-of-it"}
    assert name_of(partial(make, only_sounds)).endswith('({"eos_token":"end-of-it","max_tokens":17})')


def test_one_argument_without_content_hides_no_other():
    one, other = (name_of(partial(make, {"p": p, "reward": make, "in": [{make}]})) for p in "AB")
    assert one == other.replace('"B"', '"A"') != other
    assert f'"reward":"{__name__}.make"' in one
    assert name_of(partial(make, {7: make})).endswith(f'{{"object":[[7,"{__name__}.make"]]}})')


def test_of_long_values_the_part_that_differs_is_shown():
    [(name, *parts)] = differences({"prompt": "x" * 999 + "old" + "y" * 999}, {"prompt": "x" * 999 + "new"})
    assert name == "prompt" and "old" in parts[0] and "new" in parts[1] and max(map(len, parts)) < 200


async def test_tasks_that_share_an_id_are_announced(caplog):
    evaluator = Evaluator(FakeEnv, output_path=None)
    await evaluator.run([task("a"), task("b"), task("a"), task("a")])
    assert evaluator.note == "2 tasks have the id of another one, and count as a#2, a#3"
    assert evaluator.note in caplog.text
    await evaluator.run([task("a"), task("b")])
    assert evaluator.note is None
