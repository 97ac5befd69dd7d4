"""Results as notebooks show them."""

from __future__ import annotations

import copy
import pickle
from html.parser import HTMLParser

import pytest

from strands_env.core import TokenObservation, Trajectory
from strands_env.eval import SavedRun
from strands_env.eval.store import ResultLog, StorePaths
from tests.unit.eval_support import outcome, sample, with_tokens

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror='alert(1)'>&amp;"


class HostileTokenizer:
    def decode(self, ids, **options):
        return HOSTILE * len(ids)


class Shown(HTMLParser):
    """The tags, their attributes, and the text of a fragment whose tags are closed in order."""

    def __init__(self, fragment: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], "", []
        self.feed(fragment)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("tokenizer", [None, HostileTokenizer()])
def test_a_result_is_shown_and_nothing_in_it_is_run(tokenizer):
    result = with_tokens(outcome(1.0, text=HOSTILE))
    result.trajectories[0].tokenizer = tokenizer
    result.trajectories[0].agent_name = HOSTILE
    result.observation.messages[1:1] = [
        {"role": "assistant", "content": [{"toolUse": {"name": HOSTILE, "input": {"x": HOSTILE}, "toolUseId": "1"}}]},
        {
            "role": "user",
            "content": [
                {"toolResult": {"toolUseId": "1", "content": [{"text": HOSTILE}]}},
            ],
        },
        {"role": HOSTILE, "content": [{"image": {"source": {"bytes": b"1"}}}, {}]},
    ]
    shown = Shown(result._repr_html_())
    assert set(shown.tags) <= {"div", "b", "i", "span", "pre", "details", "summary"}
    assert {name for name, _ in shown.attributes} == {"style", "title"}
    assert shown.text.count(HOSTILE) >= 5 and "reward 1" in shown.text and "2 with loss" in shown.text
    titles = [value for name, value in shown.attributes if name == "title"]
    assert titles == ["id 3, log-probability -0.250", "id 4, log-probability -1.500"]


def test_a_failure_a_path_without_logprobs_and_an_empty_one_are_shown():
    result = outcome(None)
    assert "reward –" in Shown(result._repr_html_()).text
    tokens = TokenObservation(token_ids=[7, 8], prompt_length=1, loss_mask=[0, 1], logprobs=[None, None])
    assert ("title", "id 8") in Shown(Trajectory(tokens=tokens)._repr_html_()).attributes
    empty = TokenObservation(token_ids=[], prompt_length=0, loss_mask=[], logprobs=[])
    assert "0 tokens" in Shown(Trajectory(tokens=empty)._repr_html_()).text


def test_a_long_path_shows_its_end():
    ids = list(range(5000))
    tokens = TokenObservation(token_ids=ids, prompt_length=1, loss_mask=[0, *[1] * 4999], logprobs=[None] * 5000)
    shown = Shown(Trajectory(tokens=tokens)._repr_html_())
    assert "(2,999 tokens before)" in shown.text and shown.attributes[-2][1] != "id 0"
    assert shown.tags.count("span") == 2001


def test_the_tokenizer_of_a_trajectory_is_in_no_copy_and_no_file():
    trajectory = with_tokens(outcome()).trajectories[0]
    trajectory.tokenizer = lambda: None  # cannot be pickled
    for other in (pickle.loads(pickle.dumps(trajectory)), copy.deepcopy(trajectory)):
        assert other == trajectory and other.tokenizer is None
    assert "tokenizer" not in trajectory.to_dict()


def test_a_run_is_shown_by_prompt(tmp_path):
    log = ResultLog(StorePaths.of(tmp_path))
    log.append([sample(1.0, prompt=HOSTILE), sample(0.0, 1, prompt=HOSTILE), sample(None, prompt="q")])
    log.close()
    shown = Shown(SavedRun.of(tmp_path)._repr_html_())
    assert HOSTILE in shown.text and "0.500" in shown.text and "3 samples" in shown.text
    assert set(shown.tags) <= {"div", "b", "table", "thead", "tbody", "tr", "th", "td"}
