"""Commands on saved runs: rescore, export, report --verify, drift, watch."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace

import pytest

from strands_env.commands import report_text
from strands_env.commands.cli import main
from strands_env.core import (
    Action,
    Environment,
    ErrorRecord,
    Phase,
    StepResult,
    TaskContext,
    TokenObservation,
    Trajectory,
)
from strands_env.eval import EvalSample, Evaluator, read_results
from strands_env.eval.drift import DriftTotals
from strands_env.eval.report.live import Follower
from strands_env.eval.saved import SavedRun
from strands_env.eval.store import ResultLog, RunConfig, StorePaths
from strands_env.testing import ScriptedModel
from strands_env.training.formats import PromptRecord, prompt_rows, write_prompts
from strands_sglang.__main__ import main as sglang_main
from strands_sglang.exceptions import MessageConversionError
from tests.unit.eval_hooks import three_tasks
from tests.unit.eval_support import sample, with_tokens
from tests.unit.strands_env.commands.test_eval_cli import FAST, HOOKS, evaluate, run_mine


def right(action, result: StepResult) -> float:
    return float(action.task_context.ground_truth == "1")


def good(action, result: StepResult) -> str:
    return "good"


def one(action, result: StepResult) -> float:
    return 1.0


TOOLS = '[{"type":"function","function":{"name":"add","description":"Add.","parameters":{"type":"object"}}}]'


def saved(folder, *samples: EvalSample, sampling: dict | None = None):
    paths = StorePaths.of(folder)
    model = {"sampling_params": sampling or {}}
    RunConfig(paths.run, {"benchmark": "made", "model": model}).check(has_results=False)
    log = ResultLog(paths)
    log.append(list(samples))
    log.close()
    return str(folder)


def sampled(reward: float | None, index: int = 0, prompt: str = "p") -> EvalSample:
    made = sample(reward, index, prompt=prompt)
    with_tokens(made.step_result)
    return made


# ---- rescore --------------------------------------------------------------------------------------------------------


def test_rescoring_gives_new_rewards_and_keeps_the_old_ones(tmp_path, capsys):
    assert run_mine(tmp_path / "a", "-n", "2") == 0
    capsys.readouterr()
    assert main(["rescore", str(tmp_path / "a"), "--reward", f"{__name__}:right", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["changed"], shown["before"]["mean_reward"]["value"]) == (4, 1.0)
    assert shown["mean_reward"]["value"] == pytest.approx(1 / 3)
    new = list(read_results(tmp_path / "a-rescored", with_tokens=True))
    assert {item.step_result.reward.info["previous_reward"] for item in new} == {1.0}
    assert all(item.step_result.observation.tokens is not None for item in new)
    assert {item.reward for item in read_results(tmp_path / "a")} == {1.0}
    assert run_mine(tmp_path / "a-rescored", "-n", "2", "--resume") == 3  # it is no longer what it was
    assert "rescored" in capsys.readouterr().err


def test_a_broken_reward_is_mended_without_sampling_again(tmp_path, capsys):
    options = ["--env", HOOKS, "--reward", f"{__name__}:good", *FAST, "-o", str(tmp_path / "a")]
    assert evaluate(f"{HOOKS}:three_tasks", *options) == 2
    assert "got 'good'" in capsys.readouterr().err
    assert main(["rescore", str(tmp_path / "a"), "-q", "-o", str(tmp_path / "b"), "--reward", f"{__name__}:one"]) == 0
    [new, *_] = read_results(tmp_path / "b")
    assert (new.reward, new.step_result.error, new.step_result.termination_reason) == (1.0, None, "task_complete")


def left(action, result: StepResult) -> float:
    result.state["sold"] += 1  # of a copy
    return result.state["sold"] / 4


def test_rescoring_judges_the_world_that_the_agent_left(tmp_path):
    made = sampled(1.0)
    made.step_result.state = {"sold": 1, "of": [[1, "lamp"]]}
    assert main(["rescore", saved(tmp_path / "a", made), "-q", "--reward", f"{__name__}:left"]) == 0
    [new] = read_results(tmp_path / "a-rescored")
    assert (new.reward, new.step_result.state) == (0.5, {"sold": 1, "of": [[1, "lamp"]]})


def test_rescoring_with_the_environment_of_the_run_makes_no_model(tmp_path, monkeypatch):
    from strands_env.commands.recipe import factories

    assert run_mine(tmp_path / "a", "--env-config", '{"reward": 0.25}') == 0
    monkeypatch.setattr(factories, "make_model_factory", lambda *options: pytest.fail("a model was made"))
    assert main(["rescore", str(tmp_path / "a"), "-q", "-o", str(tmp_path / "b")]) == 0
    assert [item.reward for item in read_results(tmp_path / "b")] == [0.25] * 3


# ---- export ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def graded(tmp_path):
    """One prompt with rewards 0 and 1, one with 1 and 1, one sample without reward."""
    rewards = [(1.0, 0, "a"), (0.0, 1, "a"), (1.0, 0, "b"), (1.0, 1, "b"), (None, 0, "c")]
    return saved(tmp_path / "run", *(sampled(reward, index, prompt) for reward, index, prompt in rewards))


def rows(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_sft_rows_have_exact_ids_labels_messages_and_tools(tmp_path, capsys):
    rich, plain = sampled(1.0), sampled(1.0, 1)
    seen = rich.step_result.observation
    seen.tools, seen.system_prompt = TOOLS, "Be brief."
    seen.history = [
        {"role": "user", "content": [{"text": "example"}]},
        {"role": "assistant", "content": [{"text": "its answer"}]},
    ]
    run, target = saved(tmp_path / "run", rich, plain, sampled(None, 2)), tmp_path / "x.jsonl"
    assert main(["export", run, "-o", str(target), "--format", "sft"]) == 0
    assert "2 rows" in (out := capsys.readouterr().out) and "left out    1 without a reward" in out
    first, second = rows(target)
    assert (first["input_ids"], first["labels"]) == ([1, 2, 3, 4], [-100, -100, 3, 4])
    assert (first["prompt_id"], first["reward"], first["tools"], second["tools"]) == ("p", 1.0, TOOLS, None)
    contents = [message["content"] for message in first["messages"]]
    assert contents == ["Be brief.", "example", "its answer", "question", "answer"]
    assert second["messages"] == [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]


def test_a_rescored_run_keeps_its_tools(tmp_path):
    made = sampled(1.0)
    made.step_result.observation.tools = TOOLS
    run, new = saved(tmp_path / "run", made), tmp_path / "new"
    assert main(["rescore", run, "-q", "-o", str(new), "--reward", f"{__name__}:one"]) == 0
    assert next(read_results(new, with_tokens=True)).step_result.observation.tools == TOOLS


@pytest.mark.parametrize(
    ("options", "count"), [(["--min-reward", "1"], 3), (["--max-reward", "0.5"], 1), (["--mixed"], 2)]
)
def test_filters(options, count, graded, tmp_path):
    assert main(["export", graded, "-o", str(tmp_path / "x.jsonl"), "--format", "sft", *options]) == 0
    assert len(rows(tmp_path / "x.jsonl")) == count


def test_an_export_is_not_overwritten_unasked(graded, tmp_path, capsys):
    target = tmp_path / "o.jsonl"
    target.write_text("mine")
    assert main(["export", graded, "--format", "sft", "-o", str(target)]) == 2
    assert "--overwrite" in capsys.readouterr().err and target.read_text() == "mine"
    assert main(["export", graded, "--format", "sft", "-o", str(target), "--overwrite"]) == 0
    assert target.read_text() != "mine"


def test_the_neutral_file_is_what_load_samples_reads(graded, tmp_path):
    pytest.importorskip("pyarrow")
    from strands_env.training import load_samples

    assert main(["export", graded, "-o", str(tmp_path / "x.parquet")]) == 0
    loaded = load_samples(tmp_path / "x.parquet")
    assert [item.group_id for item in loaded] == ["a", "a", "b", "b"]
    first, second, *alike = (item.metadata["advantage"] for item in loaded)
    assert first == -second > 0 and alike == [0.0, 0.0]


# ---- prompts --------------------------------------------------------------------------------------------------------


def prompts(run, target, *options):
    assert main(["export", run, "--format", "prompts", "-o", str(target), "--overwrite", *options]) == 0
    return rows(target)


GOLDS = ["2024-05-01", 2**53 + 1, 2**64 + 1, 0.5, "0.5", True, None, ["x", {"a": 1}]]


@pytest.mark.parametrize("reader", ["pyarrow.parquet", "datasets"])
@pytest.mark.parametrize("chat", [False, True])
def test_labels_come_back_from_parquet_as_they_were(reader, chat, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    module = pytest.importorskip(reader)
    history = [{"role": "user", "content": [{"text": "Hi"}]}, {"role": "assistant", "content": [{"text": "Hello."}]}]
    contexts = [
        TaskContext(ground_truth=gold, due="2024-05-01", n=gold, conversation_history=history * chat) for gold in GOLDS
    ]
    records = [PromptRecord(prompt_id=c.id, action=Action(message="q?", task_context=c)) for c in contexts]
    rows, path = prompt_rows(records), tmp_path / "prompts.parquet"
    assert write_prompts(rows, path) == len(GOLDS)
    if reader == "datasets":
        read = list(
            module.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
        )
    else:
        read = module.read_table(path).to_pylist()
    assert [{**row, **{name: json.loads(row[name]) for name in ("label", "metadata")}} for row in read] == rows
    assert [type(json.loads(row["label"])) for row in read] == [type(gold) for gold in GOLDS]


def test_messages_that_parquet_would_lose_are_refused(tmp_path):
    pytest.importorskip("pyarrow")
    call = {"toolUse": {"toolUseId": "c", "name": "f", "input": {"due": "2024-05-01"}}}
    result = {"toolResult": {"toolUseId": "c", "status": "success", "content": [{"text": "x"}]}}
    history = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    action = Action(message="q?", task_context=TaskContext(conversation_history=history))
    with pytest.raises(MessageConversionError, match=r"write \.jsonl"):
        write_prompts(prompt_rows([PromptRecord(prompt_id="p", action=action)]), tmp_path / "p.parquet")
    assert list(tmp_path.iterdir()) == []


def test_prompts_have_pass_rates_of_measured_rollouts_alone(graded, tmp_path):
    found = {row["prompt_id"]: row for row in prompts(graded, tmp_path / "p.jsonl")}
    assert {name: (row["passed"], row["measured"]) for name, row in found.items()} == {
        "a": (1, 2),
        "b": (2, 2),
        "c": (0, 0),
    }
    assert [found[name]["pass_rate"] for name in "abc"] == [0.5, 1.0, None]
    # Beta(2, 2), Beta(3, 1), Beta(1, 1): 4/20, 3/20 and 1/6, with mean 1.
    weights = [found[name]["weight"] for name in "abc"]
    assert weights == pytest.approx([value * 3 / (0.2 + 0.15 + 1 / 6) for value in (0.2, 0.15, 1 / 6)])
    (only,) = prompts(graded, tmp_path / "p.jsonl", "--between", "0.1", "0.9")
    assert (only["prompt_id"], only["weight"]) == ("a", 1.0)


def test_a_draw_has_each_prompt_as_often_as_its_weight_says(graded, tmp_path):
    found = prompts(graded, tmp_path / "p.jsonl", "--draw", "1000", "--seed", "4")
    counts = Counter(row["prompt_id"] for row in found)
    weights = {row["prompt_id"]: row["weight"] for row in found}
    assert len(found) == 1000
    assert all(abs(counts[name] - 1000 * weight / 3) <= 1 for name, weight in weights.items())
    assert found == prompts(graded, tmp_path / "q.jsonl", "--draw", "1000", "--seed", "4")
    assert found != prompts(graded, tmp_path / "q.jsonl", "--draw", "1000", "--seed", "5")


def test_no_prompt_between_the_bounds_is_said(graded, tmp_path, capsys):
    target = tmp_path / "p.jsonl"
    assert main(["export", graded, "--format", "prompts", "-o", str(target), "--between", "0.1", "0.2"]) == 2
    assert "no prompt of the run has such a pass rate" in capsys.readouterr().err and not target.exists()


# ---- verify ---------------------------------------------------------------------------------------------------------


def test_a_whole_run_and_a_damaged_one(graded, tmp_path, capsys):
    assert main(["report", graded, "--verify"]) == 0
    assert "files       whole" in capsys.readouterr().out
    results = tmp_path / "run" / "results.jsonl"
    results.write_bytes(results.read_bytes().replace(b'"sequences":["', b'"sequences":["A', 1))
    assert main(["report", graded, "--verify", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["files"]["is_intact"] is False


class Scorer:
    """Says that every token has log-probability -1."""

    def __init__(self, *, is_up: bool = True, vocabulary: int | None = 1000) -> None:
        self.is_up, self.vocabulary = is_up, vocabulary

    async def generate(self, ids, *, logprob_start_len, **fields):
        assert self.vocabulary == 1000, "sent"
        assert fields["sampling_params"]["max_new_tokens"] == 1
        scored = [[None if place == logprob_start_len else -1.0, token, None] for place, token in enumerate(ids)]
        meta = {"finish_reason": {"type": "length"}, "output_token_logprobs": [[-1.0, 1, None]]}
        return {"output_ids": [1], "meta_info": {**meta, "input_token_logprobs": scored[logprob_start_len:]}}

    def served_tokenizer(self, **options):
        pass

    async def health(self):
        return self.is_up

    async def vocab_size(self):
        return self.vocabulary

    async def get_model_info(self):
        return {"model_path": "org/other"}

    async def close(self):
        pass


@pytest.mark.parametrize(
    ("scorer", "status", "message"),
    [
        (Scorer(is_up=False), 1, "no server answers at 'http://x'"),
        # They would kill it.
        (Scorer(vocabulary=3), 2, "token ids beyond the server's 3, so the server has another model"),
        (Scorer(vocabulary=None), 2, "the server has the model 'org/other'"),
    ],
)
def test_a_server_that_cannot_score_the_run_is_named(scorer, status, message, graded, capsys, monkeypatch):
    monkeypatch.setattr(report_text, "client_class", lambda address: (lambda *_, **__: scorer, address))
    assert main(["report", graded, "--verify", "--server", "http://x"]) == status
    assert message in capsys.readouterr().err


def test_the_model_is_what_is_known_of_it(tmp_path):
    about = {"config": {"model": {"model_id": None, "backend": "sglang"}}, "environment": {"model": {"model_id": "m"}}}
    assert SavedRun(paths=StorePaths.of(tmp_path), document=about).model == {"backend": "sglang", "model_id": "m"}


def test_a_server_that_disagrees_is_measured(graded, capsys, monkeypatch):
    monkeypatch.setattr(report_text, "client_class", lambda address: (lambda *_, **__: Scorer(), address))
    assert main(["report", graded, "--verify", "--server", "http://x", "--max-kl", "0.01", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["mismatch"]
    assert (found["trajectories"], found["tokens"]) == (5, 10)
    assert found["max_abs_difference"] == 0.75
    # k3 of differences -0.75 and 0.5
    assert found["kl"] == pytest.approx(((2.718281828**-0.75 - 1 + 0.75) + (2.718281828**0.5 - 1 - 0.5)) / 2)
    worst = {"sample": "a/0", "position": 2, "token_id": 3, "recorded": -0.25, "scored": -1.0}
    assert found["worst"][0] == worst
    assert main(["report", graded, "--verify", "--server", "http://x"]) == 0
    assert "mismatch KL" in (out := capsys.readouterr().out) and "difference  mean 0.6" in out


def test_other_temperatures_are_not_compared(tmp_path, capsys):
    run = saved(tmp_path / "run", sampled(1.0), sampling={"temperature": 0.7})
    assert main(["report", run, "--verify", "--server", "http://x"]) == 2
    assert "sampled at temperature 0.7" in capsys.readouterr().err


# ---- drift ----------------------------------------------------------------------------------------------------------


class Letters:
    """Token 1 is `a`, ...; `ab` comes back as one token, 99."""

    def decode(self, ids, **options):
        return "".join("ab" if token == 99 else chr(96 + token) for token in ids)

    def encode(self, text, **options):
        return [99 if part == "\0" else ord(part) - 96 for part in text.replace("ab", "\0")]


def test_drift_counts_places_and_sampled_tokens():
    totals = DriftTotals(tokenizer=Letters(), max_examples=1)
    for name, ids, mask in (("one", [3, 1, 2, 3], [0, 0, 1, 1]), ("two", [3, 3], [0, 1])):
        totals.add(SimpleNamespace(token_ids=ids, output_mask=mask), name=name)
    assert (totals.trajectories, totals.changed_trajectories) == (2, 1)
    assert (totals.sampled_tokens, totals.changed_tokens, dict(totals.kinds)) == (3, 1, {"other-merge": 1})
    assert totals.to_dict()["examples"] == [
        {"name": "one", "start": 1, "kind": "other-merge", "sampled": ["a", "b"], "retokenized": ["ab"]}
    ]


def test_drift_of_a_run(tmp_path, capsys):
    assert run_mine(tmp_path) == 0
    capsys.readouterr()
    assert sglang_main(["drift", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["trajectories"], shown["changed_trajectories"]) == (3, 0)
    assert sglang_main(["drift", str(tmp_path)]) == 0
    assert "0 of 3 trajectories would change if their text were tokenised again: 0 of" in capsys.readouterr().out


def test_drift_without_tokens_or_tokenizer(tmp_path, capsys):
    assert run_mine(tmp_path / "a", "--no-tokens") == 0
    assert sglang_main(["drift", str(tmp_path / "a")]) == 2
    assert "holds no tokens" in capsys.readouterr().err
    assert sglang_main(["drift", saved(tmp_path / "b", sampled(1.0))]) == 2
    assert "name it with --tokenizer" in capsys.readouterr().err


# ---- watch ----------------------------------------------------------------------------------------------------------


def test_watching_reads_what_has_come_since(tmp_path):
    run = saved(tmp_path / "run", sampled(1.0), sampled(0.0, 1))
    follower = Follower(run)
    assert follower.read() == 2
    log = ResultLog(StorePaths.of(run))
    log.append([sampled(1.0, 2)])
    log.close()
    with StorePaths.of(run).results.open("ab") as file:
        file.write(b'{"id":"ab')  # a write under way
    assert follower.read() == 1
    shown = follower.to_dict()
    assert (shown["samples"], shown["scored"], shown["output_tokens"]) == (3, 3, 15.0)
    assert shown["latest"][0]["sample"] == "p/2"
    assert (follower.state.resumed, follower.state.done) == (2, 1)  # the speed is that of what came since


async def test_watch_ends_when_all_samples_are_there(tmp_path, capsys):
    def make():
        return Environment(model_factory=lambda: ScriptedModel(["1"]), reward_fn=lambda action, result: 1.0)

    await Evaluator(make, output_path=tmp_path, n_samples_per_prompt=4).run(three_tasks())
    assert main(["watch", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "12/12 samples, " in shown and "mean reward 1.000" in shown
    assert main(["watch", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["finished"] is True


def test_a_sample_that_is_not_there_is_answered_with_those_that_are(tmp_path, capsys):
    run = saved(tmp_path, sampled(1.0, prompt="q1"), sampled(1.0, 1, prompt="q1"), sampled(1.0, 9, prompt="q19"))
    assert main(["report", run, "q1/9"]) == 2
    error = capsys.readouterr().err
    assert "0, 1" in error and "q19" not in error
    assert main(["report", run, "p19"]) == 2
    assert "q19" in capsys.readouterr().err


def test_a_run_compared_with_itself_is_called_that(tmp_path, capsys):
    run = saved(tmp_path, sampled(1.0), sampled(0.0, prompt="q"))
    assert main(["compare", run, str(tmp_path / "results.jsonl")]) == 0
    assert "the same run" in capsys.readouterr().out


def test_a_trajectory_without_logprobs_is_skipped(tmp_path, capsys, monkeypatch):
    made = sample(1.0)
    tokens = TokenObservation(token_ids=[1, 2], prompt_length=1, loss_mask=[0, 1])
    made.step_result.trajectories = [Trajectory(agent_name="agent", tokens=tokens)]
    monkeypatch.setattr(report_text, "client_class", lambda address: (lambda *_, **__: Scorer(), address))
    assert main(["report", saved(tmp_path, made), "--server", "http://x"]) == 2
    assert "no log-probabilities were recorded" in capsys.readouterr().err


def test_a_sample_in_the_terminal_names_the_line_of_an_error(tmp_path, capsys):
    failed = sample(None, 0, prompt="p")
    failed.step_result.error = ErrorRecord(
        type="KeyError", message="'answer'", traceback="", where=Phase.REWARD, raised_at="mine.py:7, in score"
    )
    assert main(["report", saved(tmp_path, failed), "p/0"]) == 0
    assert "-- error in reward: KeyError: 'answer'\n   raised at mine.py:7, in score\n" in capsys.readouterr().out


def test_a_plain_address_is_of_the_kind_that_was_named(graded, capsys):
    server = ["--base-url", "http://127.0.0.1:9"]
    assert main(["report", graded, "--verify", *server, "--backend", "vllm"]) != 0
    assert "no vLLM server answers at 'http://127.0.0.1:9'" in capsys.readouterr().err
    assert main(["report", graded, "--verify", *server]) != 0
    assert "no SGLang server answers" in capsys.readouterr().err
