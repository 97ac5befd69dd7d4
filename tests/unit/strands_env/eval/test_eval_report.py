"""The report's file, without a browser; `tests/integration/test_report_browser.py` looks at it in one."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strands_env.commands.cli import main
from strands_env.core import TokenObservation, Trajectory
from strands_env.eval import Evaluator, ScoreTable, StoreError, read_results, report
from strands_env.eval.drift import DriftKind
from strands_env.eval.metrics import flat_metrics, summarize
from strands_env.eval.metrics.interval import mean_interval
from strands_env.eval.report import write_report
from strands_env.eval.report.details import TokenTexts, branches, details, reasons_of
from strands_env.eval.report.run_page import _running_mean
from strands_env.eval.store import ResultLog, RunConfig, StorePaths
from strands_sglang.trajectory.media import PlacedMedium
from tests.unit.eval_support import FakeEnv, sample, tasks, with_tokens


class LetterTokenizer:
    def decode(self, ids, **options):
        return "".join(chr(96 + token) for token in ids)

    def encode(self, text, **options):
        return [ord(letter) - 96 for letter in text]


def write(folder: Path, *samples) -> Path:
    paths = StorePaths.of(folder)
    RunConfig(paths.run, {"benchmark": "<b>bench</b>"}).check(has_results=False)
    log = ResultLog(paths)
    log.append(list(samples))
    log.close()
    return folder


def islands(path: Path) -> dict[str, dict]:
    found = re.findall(r'<script type="text/plain" id="([^"]+)">([A-Za-z0-9+/=]+)</script>', path.read_text())
    return {name: json.loads(gzip.decompress(base64.b64decode(data))) for name, data in found}


def with_token_data(index: int = 0):
    made = sample(1.0, index)
    with_tokens(made.step_result)
    return made


def test_it_holds_every_sample_and_the_numbers(tmp_path):
    made = sample(0.0, prompt="b")
    made.step_result.observation.metrics["rate"] = float("nan")
    write(tmp_path, made, sample(None, prompt="a"), sample(1.0, 1, prompt="b"))
    result = write_report(tmp_path, tmp_path / "r.html", tokenizer_note="no tokenizer")
    data = islands(result.path)
    overview = data["overview"]
    assert result.samples == 3
    # In the order of the samples, for the places of their tasks were not recorded.
    assert [(name, first, count) for name, _, _, first, count in overview["prompts"]] == [("b", 0, 2), ("a", 2, 1)]
    assert overview["distribution"] == {"values": [0.0, 1.0], "counts": [1, 1]}
    assert overview["samples"][1] == [0.0, 1.0, None]
    assert overview["summary"]["mean_reward"]["value"] == 0.5
    assert overview["run"]["config"] == {"benchmark": "<b>bench</b>"}
    assert (overview["has_texts"], overview["tokenizer_note"]) == (False, "no tokenizer")
    assert len(data["chunk-0"]["samples"]) == 3
    assert data["chunk-0"]["samples"][0]["metrics"]["rate"] == "nan"


def test_a_sample_begins_with_what_the_model_saw_before_it(tmp_path, capsys):
    made = sample(1.0)
    made.action.task_context.conversation_history = [{"role": "user", "content": [{"text": "an earlier question"}]}]
    config = RunConfig(write(tmp_path, made) / "results.run.json", {"benchmark": "<b>bench</b>"})
    config.check_environment({"system_prompt": "Be brief."})
    report = write_report(tmp_path, tmp_path / "r.html")
    messages = islands(report.path)["chunk-0"]["samples"][0]["messages"]
    shown = [(message["role"], message["blocks"][0]["text"]) for message in messages]
    assert shown[:2] == [("system", "Be brief."), ("user, given by the task", "an earlier question")]
    assert [role for role, _ in shown[2:]] == ["user", "assistant"]
    assert main(["report", str(tmp_path), "p/0"]) == 0
    assert "-- system\n   Be brief.\n-- user, given by the task\n   an earlier" in capsys.readouterr().out


def test_first_prompt_is_the_environments_own_agents():
    def spoken(agent: str, prompt: str, *, is_main: bool = False) -> Trajectory:
        ids = [ord(letter) - 96 for letter in prompt] + [1]
        tokens = TokenObservation(token_ids=ids, prompt_length=len(prompt), loss_mask=[0] * len(prompt) + [1])
        return Trajectory(agent_name=agent, tokens=tokens, is_main=is_main)

    made = sample(1.0)
    made.step_result.trajectories = [spoken("user", "buy"), spoken("agent", "sell", is_main=True)]
    shown = details(made, TokenTexts(LetterTokenizer(), 1000), {})
    assert (shown["main"], shown["prompt"]) == (1, "sell")


def test_what_an_environment_composed_is_shown_in_place_of_the_task(tmp_path, capsys):
    made = sample(1.0)
    seen = made.step_result.observation
    seen.system_prompt, seen.history = "Play chess.", [{"role": "assistant", "content": [{"text": "Your move?"}]}]
    shown = details(made, TokenTexts(None, 0), {}, "Be brief.")["messages"]
    texts = [(message["role"], message["blocks"][0]["text"]) for message in shown]
    assert texts[:2] == [("system", "Play chess."), ("assistant, given by the environment", "Your move?")]
    assert main(["report", str(write(tmp_path, made)), f"{made.prompt_id}/{made.index}"]) == 0
    assert "-- system\n   Play chess.\n-- assistant, given by the environment\n   Your" in capsys.readouterr().out
    seen.messages, seen.system_prompt, seen.history = [], None, None
    (message,) = details(made, TokenTexts(None, 0), {})["messages"]
    assert message["role"] == "the task, which no model was given"


def test_nothing_outside_is_loaded_and_texts_are_escaped_and_a_failure_leaves_no_half_file(tmp_path):
    hostile = with_token_data()
    hostile.step_result.observation.messages[1]["content"] = [{"text": "</script><script>alert(1)</script>"}]
    text = write_report(write(tmp_path, hostile), tmp_path / "r.html").path.read_text()
    assert "alert(1)" not in text
    assert "<b>bench" not in text and "&lt;b&gt;bench" in text
    assert "default-src 'none'" in text
    assert not re.search(r"(?:src|href)=[\"']?https?:", text)
    script = re.search(r"<script>(.*)</script>", text, re.DOTALL).group(1)
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in text  # the one the policy names
    results = tmp_path / "results.jsonl"
    results.write_bytes(results.read_bytes().replace(b'"sequences":["', b'"sequences":["A'))
    with pytest.raises(StoreError, match=r"line 1 .* damaged"):
        write_report(tmp_path, tmp_path / "other.html")
    assert [path.name for path in tmp_path.glob("*html*")] == ["r.html"]


def test_with_a_tokenizer_tokens_have_texts_and_drift_and_those_beyond_the_budget_are_counted(tmp_path):
    write(tmp_path, *(with_token_data(index) for index in range(3)))
    report = write_report(tmp_path, tmp_path / "r.html", tokenizer=LetterTokenizer(), token_budget=9)
    chunk = islands(report.path)["chunk-0"]
    trajectory = chunk["samples"][0]["trajectories"][0]
    assert trajectory["ids"] == [1, 2, 3, 4]
    assert chunk["vocabulary"] == {"1": "a", "2": "b", "3": "c", "4": "d"}
    assert (trajectory["drift"], trajectory["trained"], trajectory["logprobs"]) == ([], [[2, 4]], [[2, [-0.25, -1.5]]])
    assert ["trajectories" in item for item in chunk["samples"]] == [True, True, False]
    assert (report.tokens_left_out, chunk["samples"][2]["tokens_left_out"]) == (1, 4)


def in_node(*names: str, shown: str) -> Any:
    """What an expression gives where these assets are loaded, and elements are plain objects."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js")
    stubs = "const begin = () => {}, whole = String, words = String, short = String;"
    stubs += "const s = (tag, props, ...inner) => ({ tag, props, inner });"
    assets = [(Path(report.__file__).parent / "assets" / name).read_text() for name in names]
    code = "\n".join([stubs, *assets, f"console.log(JSON.stringify({shown}));"])
    return json.loads(subprocess.run([node, "-e", code], capture_output=True, text=True, check=True).stdout)


def test_a_link_names_a_sample_as_the_program_does():
    data = {"prompts": [["a", "", "", 0, 2], ["a/0", "", "", 2, 1], ["50%", "", "", 3, 1]], "samples": [[0, 3, 0, 0]]}
    links = ["", "#a", "#a/3", "#a%2F3", "#a/0", "#a/9", "#50%", "#50%25/0", "#2", "#4", "#zz"]
    found = in_node("app.js", shown=f"{json.dumps(links)}.map((link) => placeOf({json.dumps(data)}, link))")
    assert found == [-1, 0, 1, 1, 0, -1, 3, 3, 2, -1, -1]


@pytest.mark.parametrize("count", [1, 3, 7, 13, 99, 1234])
def test_no_bar_is_higher_than_its_axis(count):
    parts = in_node(
        "charts.js", shown=f"histogramSvg({{ values: [0, 1], counts: [{count}, 1] }}, '', 520).inner.flat(3)"
    )
    top = min(part["props"]["y1"] for part in parts if part and part["tag"] == "line")
    assert top <= min(part["props"]["y"] for part in parts if part and part["tag"] == "rect")


def test_kinds_of_drift_are_explained():
    assert set(in_node("app.js", shown="DRIFT_KINDS")) == set(DriftKind)


def test_branches_share_prefixes():
    forest = branches([np.array(path) for path in ([1, 2, 3, 4], [1, 2, 5], [9], [1, 2])])
    assert [(node["start"], node["end"], node["paths"]) for node in forest] == [(0, 2, [0, 1, 3]), (0, 1, [2])]
    children = forest[0]["children"]
    assert [(node["start"], node["end"], node["path"]) for node in children] == [(2, 4, 0), (2, 3, 1)]


def test_the_band_of_the_running_mean_takes_prompts_as_the_unit():
    rewards = {"a": 1.0, "b": 0.0, "c": 1.0, "d": 0.0}
    once = ScoreTable.from_samples((name, sample(value, prompt=name)) for name, value in rewards.items())
    often = ScoreTable.from_samples(
        (name, sample(value, i, prompt=name)) for i in range(50) for name, value in rewards.items()
    )
    assert _running_mean(once)[-1][1:] == _running_mean(often)[-1][1:]
    assert _running_mean(once)[-1][2] == pytest.approx(mean_interval(list(rewards.values())).low, abs=1e-5)
    assert _running_mean(once)[0] == [1, 1.0, 0.025, 1.0]  # of a single prompt too, as its summary says
    often.add("b", sample(None, prompt="b"))
    often.add("b", sample(0.0, prompt="b"))
    assert _running_mean(often)[-1][:2] == [201, 0.5]


def test_the_curve_ends_in_the_interval_of_the_summary():
    rewards = {"a": [2.0, 0.0], "b": [0.0, 0.1], "c": [1.0, 0.0], "d": [0.5]}
    table = ScoreTable.from_samples(
        (name, sample(value, i, prompt=name)) for name, values in rewards.items() for i, value in enumerate(values)
    )
    summary, metrics = summarize(table).mean_reward, flat_metrics(table)
    assert _running_mean(table)[-1] == pytest.approx([7, summary.value, summary.low, summary.high], abs=1e-5)
    assert (metrics["mean_reward_low"], metrics["mean_reward_high"]) == (summary.low, summary.high)


def test_the_header_says_model_sampling_and_time_also_of_an_empty_run(tmp_path):
    paths = StorePaths.of(tmp_path)
    config = RunConfig(paths.run, {"model": {"model_id": "m", "sampling_params": {"temperature": 1.0, "top_p": None}}})
    config.check(has_results=False)
    config.spend(12.5)
    ResultLog(paths).close()
    overview = islands(write_report(tmp_path, tmp_path / "r.html").path)["overview"]
    header = overview["header"]
    assert (header["model"], header["sampling"], header["wall_s"]) == ("m", {"temperature": 1.0}, 12.5)
    assert header["started"]
    assert overview["prompts"] == overview["running"] == []


def test_reasons_of_a_score_are_its_short_values_the_telling_ones_first():
    info = {
        "truth": 4,
        "ground_truth": "4",
        "judgment": {"verdict": "incorrect", "long": "x" * 1000},
        "reason": "no_match",
        "none": None,
    }
    assert reasons_of(info) == [["judgment.verdict", "incorrect"], ["reason", "no_match"], ["truth", "4"]]


def test_runs_of_a_folder_are_the_steps_of_a_training(tmp_path, capsys):
    for step, reward in ((2, 0.5), (10, 1.0), (1, 0.0)):
        write(tmp_path / f"step-{step}", sample(reward, prompt="p"), sample(None, 1, prompt="p"))
    assert main(["report", str(tmp_path), "--tokenizer", "none"]) == 0
    data = islands(tmp_path / "training.html")
    assert [(step["step"], step["reward"]) for step in data["overview"]["steps"]] == [(1, 0.0), (2, 0.5), (10, 1.0)]
    [prompt] = data["overview"]["prompts"]
    assert prompt["rewards"] == {"1": [0.0, None], "2": [0.5, None], "10": [1.0, None]}
    assert data["chunk-0"][0]["10"] == [[1.0, "answer"], [None, "answer"]]


@pytest.mark.parametrize("names", [("first", "second"), ("step-1", "eval-2"), ("alone",)])
def test_unrelated_runs_are_no_training(names, tmp_path, capsys):
    for name in names:
        write(tmp_path / name, sample(1.0))
    assert main(["report", str(tmp_path), "--tokenizer", "none"]) == 2
    error = capsys.readouterr().err
    assert all(name in error for name in names) and not (tmp_path / "training.html").exists()


def test_a_log_of_slime_is_a_training_too(tmp_path, capsys):
    shown = {"prompt": "2+2?", "response": "4", "reward": 1.0, "label": "4"}
    rows = [{"rollout_id": step, "metrics": {"reward": 0.5, "rollouts": 4, "response_tokens": 9.0,
             "ended/max_tokens_reached": 0.25}, "samples": [shown]} for step in (0, 1)]  # fmt: skip
    log = tmp_path / "rollout.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"rollout_id": 2, "metr')
    assert main(["report", str(log)]) == 0
    overview = islands(tmp_path / "training.html")["overview"]
    assert [(step["step"], step["reward"], step["truncated"]) for step in overview["steps"]] == [
        (0, 0.5, 0.25),
        (1, 0.5, 0.25),
    ]
    assert overview["prompts"][0]["rewards"] == {"0": [1.0], "1": [1.0]}


def test_images_stand_in_messages_and_tokens_once_each_and_their_runs_are_one_token_of_the_prompt(
    tmp_path, monkeypatch
):
    made = with_token_data()
    url = "data:image/png;base64,QUJD"
    medium = PlacedMedium(data=url, digest="d", processor="p", grid=(1, 2, 4), offset=0, length=2)
    made.step_result.trajectories[0].media.append(medium)
    image = {"image": {"format": "png", "source": {"bytes": b"ABC"}}}
    result = {"toolResult": {"toolUseId": "1", "status": "success", "content": [image]}}
    made.step_result.observation.messages[:0] = [{"role": "user", "content": [image, result]}]
    write(tmp_path, made)

    report = write_report(tmp_path, tmp_path / "r.html", tokenizer=LetterTokenizer())
    shown = islands(report.path)["chunk-0"]["samples"][0]
    assert shown["images"] == [url]
    block, result = shown["messages"][0]["blocks"]
    assert block["image"] == result["blocks"][0]["image"] == 0
    assert shown["trajectories"][0]["media"] == [[0, 2, 0]]
    assert shown["prompt"] == "a"
    monkeypatch.setattr("strands_env.eval.report.details.MAX_IMAGES", 3)
    report = write_report(tmp_path, tmp_path / "r.html")
    shown = islands(report.path)["chunk-0"]["samples"][0]
    assert shown["images"] == [] and shown["messages"][0]["blocks"][0]["image"] is None


async def test_prompts_stand_in_the_order_of_the_tasks_whatever_was_finished_first(tmp_path, capsys):
    class Later(FakeEnv):
        async def step(self, action, **options):
            await asyncio.sleep(0.05 if action.task_context.id.startswith("p0") else 0)
            return await super().step(action, **options)

    await Evaluator(Later, output_path=tmp_path / "my-run", max_concurrency=4).run(tasks(4))
    finished = [found.prompt_id for found in read_results(tmp_path / "my-run")]
    assert finished[0] != finished[-1] == "p0"
    overview = islands(write_report(tmp_path / "my-run", tmp_path / "r.html").path)["overview"]
    assert [prompt[0] for prompt in overview["prompts"]] == ["p0", "p1", "p2", "p3"]
    assert overview["title"] == "my-run"  # no benchmark was named
    run = str(tmp_path / "my-run")
    assert main(["report", run, "--text", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["prompts_shown"]
    assert [prompt["prompt"] for prompt in shown] == ["p0", "p1", "p2", "p3"]
