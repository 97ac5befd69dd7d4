"""Health of rollouts: each check on sound and unsound rows, of every source, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strands_env.commands.cli import main
from strands_env.core import ErrorRecord, Phase, TerminationReason, TokenObservation, Trajectory
from strands_env.eval import EvalSample
from strands_env.eval.report import write_report
from strands_env.eval.report.health import CHECKS, IMPROBABLE, HealthRow, find_problems, read_rows, row_of
from tests.unit.eval_support import outcome, sample, with_tokens
from tests.unit.gateway_support import rig
from tests.unit.strands_env.commands.test_commands_runs import saved
from tests.unit.strands_env.eval.test_eval_report import LetterTokenizer, islands

RUN = 12
"""Samples of a run: enough that one of them is more than any share that is allowed."""


def made(index: int, reason: TerminationReason = TerminationReason.TASK_COMPLETE, text: str = "answer") -> EvalSample:
    one = sample(float(index % 2), index, prompt=f"p{index // 2}")
    one.step_result = outcome(float(index % 2), reason, text)
    with_tokens(one.step_result)
    return one


def run(spoil: Callable[[EvalSample], None], *sick: int, **options: Any) -> list[EvalSample]:
    samples = [made(index, **(options if index in sick else {})) for index in range(RUN)]
    for index in sick:
        spoil(samples[index])
    return samples


def nothing(one: EvalSample) -> None:
    pass


def calls(*results: str, tool: str = "search", same: bool = False) -> Callable[[EvalSample], None]:
    """Calls in front of the answer, with the status of each result."""

    def spoil(one: EvalSample) -> None:
        messages = one.step_result.observation.messages
        for place, status in enumerate(results):
            call = {"toolUseId": f"c{place}", "name": tool, "input": {"q": 0 if same else place}}
            result = {"toolUseId": f"c{place}", "status": status, "content": [{"text": "x"}]}
            messages[-1:-1] = [
                {"role": "assistant", "content": [{"toolUse": call}]},
                {"role": "user", "content": [{"toolResult": result}]},
            ]

    return spoil


def lost(one: EvalSample) -> None:
    one.aborted = True
    one.step_result.error = ErrorRecord(type="E", message="m", traceback="", where=Phase.MODEL)


def never_asked(one: EvalSample) -> None:
    one.step_result.observation.messages.clear()
    one.step_result.observation.metrics["model_calls"] = 0


def malformed(one: EvalSample) -> None:
    one.step_result.observation.metrics["parse_errors"] = 2


def equal(one: EvalSample) -> None:
    assert one.step_result.reward is not None
    one.step_result.reward.reward = 0.0


def tokens(*, logprob: float | None = -0.5, ids: tuple[int, ...] = (1, 2, 3)) -> Trajectory:
    mask, logprobs = [0, *[1] * (len(ids) - 1)], [None, logprob, *[-0.5] * (len(ids) - 2)]
    sequence = TokenObservation(token_ids=list(ids), prompt_length=1, loss_mask=mask, logprobs=logprobs)
    return Trajectory(agent_name="agent", tokens=sequence)


def paths(*trajectories: Trajectory) -> Callable[[EvalSample], None]:
    def spoil(one: EvalSample) -> None:
        one.step_result.trajectories = list(trajectories)

    return spoil


def cut(one: EvalSample) -> None:
    one.step_result.trajectories[0].finish_reason = "length"


LIMITED = TerminationReason.MAX_TOOL_ITERATIONS_REACHED
SICK: list[tuple[str, list[EvalSample], dict[str, int]]] = [
    ("no-call", run(never_asked, 3), {"": 1}),
    ("lost", run(lost, 3, 7, reason=TerminationReason.CONNECTION_ERROR), {"connection_error": 2}),
    ("ungraded", run(nothing, 3, reason=TerminationReason.REWARD_ERROR), {"reward_error": 1}),
    ("time-out", run(nothing, 3, 7, reason=TerminationReason.TASK_TIME_LIMIT_REACHED), {"task_time_limit_reached": 2}),
    ("cut", run(nothing, 3, 7, reason=TerminationReason.MAX_TOKENS_REACHED), {"max_tokens_reached": 2}),
    ("cut", run(cut, 3, 7), {"length": 2}),
    ("truncated", run(nothing, 3, 4, 5, reason=LIMITED), {"max_tool_iterations_reached": 3}),
    ("empty", run(nothing, 3, 7, text=" "), {"": 2}),
    ("loop", run(calls(*["success"] * 4, same=True), 3, 7), {"search": 2}),
    ("malformed", run(malformed, 3), {"": 2}),
    ("failing-tool", run(calls("error", "error"), 3), {"search": 2}),
    ("roots", run(paths(tokens(), tokens(ids=(9, 2, 3))), 3, 7), {"history": 2}),
    ("equal-rewards", run(equal, *range(RUN)), {"all 0": RUN // 2}),
    ("logprobs", run(paths(tokens(logprob=IMPROBABLE - 1)), 3, 7), {"impossible": 2}),
    ("logprobs", run(paths(tokens(logprob=None)), 3, 7), {"missing": 2}),
]


@pytest.mark.parametrize(("check", "samples", "kinds"), SICK, ids=[f"{n}-{row[0]}" for n, row in enumerate(SICK)])
def test_each_check_finds_what_is_unsound_and_where(check: str, samples: list[EvalSample], kinds: Any) -> None:
    findings, _ = find_problems([row_of(one) for one in samples])
    assert [finding.check for finding in findings] == [check]
    [finding] = findings
    assert finding.kinds == kinds
    if check != "equal-rewards":  # whose samples are groups
        assert finding.samples[0] == "p1/3"
    assert str(finding) and CHECKS[check].advice
    json.dumps(finding.to_dict())


@pytest.mark.parametrize(
    "spoil",
    [
        nothing,
        calls("success", "error"),  # a tool that fails at times
        calls(*["success"] * 3, same=True),  # not yet a loop
        paths(tokens(), tokens(ids=(1, 7))),  # a branch behind the prompt
        paths(),  # no token data
    ],
    ids=["plain", "failed-once", "three-alike", "branch", "no-tokens"],
)
def test_a_sound_run_has_no_finding(spoil: Callable[[EvalSample], None]) -> None:
    findings, checked = find_problems([row_of(one) for one in run(spoil, *range(RUN))])
    assert findings == [] and {"lost", "empty", "equal-rewards"} <= set(checked)


def test_a_share_that_is_allowed_is_no_finding_and_one_more_is() -> None:
    rows = [HealthRow(name=str(place)) for place in range(100)]
    for place, row in enumerate(rows):
        row.count("lost", {"aborted": place < 2})
    assert find_problems(rows)[0] == []
    rows[2].count("lost", {"aborted": 1})
    [finding] = find_problems(rows)[0]
    assert str(finding) == "3 of 100 rollouts were lost to infrastructure (aborted 3)"
    assert finding.samples == ["0", "1", "2"]


def test_only_drift_that_damages_text_counts() -> None:
    rows = [row_of(made(index), ["other-merge"]) for index in range(RUN)]
    assert find_problems(rows)[0] == []
    rows += [row_of(made(index), ["other-merge", "broken-utf8", "broken-utf8"]) for index in (20, 22)]
    [finding] = find_problems(rows)[0]
    assert (finding.check, finding.kinds, finding.samples) == ("drift", {"broken-utf8": 2}, ["p10/20", "p11/22"])


# ---- other sources ---------------------------------------------------------------------------------------------------


def test_exported_samples_have_rows(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    folder = saved(tmp_path / "run", *run(cut, 3, 7))
    assert main(["export", folder, "-o", str(tmp_path / "x.parquet")]) == 0
    findings, checked = find_problems(read_rows(tmp_path / "x.parquet"))
    assert [(finding.check, finding.kinds) for finding in findings] == [("cut", {"length": 2})]
    assert {"lost", "truncated", "roots", "logprobs", "equal-rewards"} <= set(checked) and "loop" not in checked


def path_of(session: str, **fields: Any) -> dict[str, Any]:
    row = {
        "session": session,
        "role": "main",
        "token_ids": [1, 2, 3],
        "loss_mask": [0, 1, 1],
        "logprobs": [None, -0.5, -0.5],
        "prompt_length": 1,
        "finish_reason": "stop",
        "is_discarded": False,
    }
    return {**row, **fields}


def counters(**counts: Any) -> dict[str, Any]:
    names = ("refused", "joined", "replayed", "undelivered", "malformed", "final")
    return {"requests": 3, "sampled": 3, "calls": 4, **dict.fromkeys(names, 0), "roots": {"first": 1}, **counts}


def call(place: int, error: str | None = None) -> dict[str, Any]:
    return {"id": f"call_{place}", "name": "search", "error": error}


@pytest.mark.parametrize(
    ("answer", "check", "count"),
    [
        ([path_of("a", finish_reason="length")], "cut", ({"length": 1}, 1)),
        ([path_of("a"), path_of("a", token_ids=[9, 2, 3])], "roots", ({"history": 1}, 1)),
        ([path_of("a"), path_of("a", token_ids=[9, 2, 3], is_discarded=True)], "roots", ({}, 1)),
        ([path_of("a"), path_of("a", token_ids=[9, 2, 3], role="subagent")], "roots", ({}, 1)),
        ([path_of("a", logprobs=[None, -0.5, None])], "logprobs", ({"missing": 1}, 2)),
        ({"sessions": [{"id": "a", "counters": counters(sampled=0)}]}, "no-call", ({"": 1}, 1)),
        ({"id": "a", "counters": counters(roots={"first": 1, "edited": 2})}, "roots", ({"edited": 2}, 1)),
        ({"id": "a", "counters": counters(malformed=1)}, "malformed", ({"": 1}, 5)),
        ({"id": "a", "counters": counters(refused=99, requests=102)}, "refused", ({"": 99}, 102)),
        ({"id": "a", "counters": counters(undelivered=2, replayed=1)}, "undelivered", ({"": 2}, 4)),
        ({"id": "a", "counters": counters(final=1)}, "truncated", ({"final answer": 1}, 1)),
        ({"id": "a", "error": "line 3: it is damaged"}, "damaged", ({"": 1}, 1)),
        (
            {"id": "a", "counters": {"sampled": 1, "malformed": 0, "calls": 0, "roots": {"first": 1}}},
            "refused",
            ({}, 0),
        ),
        ([path_of("a")], "cut", ({}, 1)),
        ([path_of("a", loss_mask=[0, 0, 0], output_mask=[0, 0, 0])], "no-call", ({"": 1}, 1)),
        ([path_of("a", loss_mask=[0, 0, 0], output_mask=[0, 1, 1])], "no-call", ({}, 1)),
        ([path_of("a", tool_calls=[call(1), call(2, "no JSON")])] * 2, "malformed", ({"": 1}, 2)),
        ([path_of("a", tool_calls=[call(1, "no JSON")])], "failing-tool", ({"search": 1}, 1)),
    ],
    ids=[
        "cut",
        "roots",
        "discarded",
        "sub-agent",
        "logprobs",
        "no-call",
        "edited",
        "malformed",
        "refused",
        "undelivered",
        "final",
        "damaged",
        "few-counters",
        "not-cut",
        "nothing-sampled",
        "passed",
        "calls",
        "tool",
    ],
)
def test_what_a_gateway_answers_has_rows(answer: Any, check: str, count: Any, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps(answer))
    [row] = read_rows(tmp_path / "x.json")
    assert (row.name, row.counts[check]) == ("a", count)
    assert "lost" not in row.counts  # a gateway does not know how a rollout ended


@pytest.mark.parametrize("is_listing", [False, True], ids=["rows", "listing"])
def test_sessions_of_one_task_are_a_group(is_listing: bool, tmp_path: Path) -> None:
    def labels(index: int) -> dict[str, Any]:
        return {"task": 7, "rollout": index}

    rows = [path_of(f"s{index}", reward=0.0, labels=labels(index)) for index in range(8)]
    listing = [
        {"id": f"s{index}", "labels": labels(index), "reward": {"reward": 0.0}, "counters": counters()}
        for index in range(8)
    ]
    (tmp_path / "x.json").write_text(json.dumps({"sessions": listing} if is_listing else rows))
    [finding] = find_problems(read_rows(tmp_path / "x.json"))[0]
    assert (finding.check, finding.kinds, finding.samples) == ("equal-rewards", {"all 0": 1}, ["7"])


def test_rows_without_a_malformed_call_say_nothing_of_tools(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps([path_of("a", tool_calls=[call(1)])]))
    checked = find_problems(read_rows(tmp_path / "x.json"))[1]
    assert "malformed" in checked and "failing-tool" not in checked


def test_a_damaged_session_is_a_finding(tmp_path: Path, capsys: Any) -> None:
    sessions = [{"id": "d", "error": "line 3: it is damaged"}, {"id": "a", "counters": counters()}]
    (tmp_path / "x.json").write_text(json.dumps({"sessions": sessions}))
    assert main(["health", str(tmp_path / "x.json")]) == 1
    shown = capsys.readouterr().out
    assert "1 of 2 sessions cannot be read\n               d\n               remove each with DELETE" in shown
    (tmp_path / "x.json").write_text(json.dumps({"sessions": sessions[1:]}))
    assert main(["health", str(tmp_path / "x.json")]) == 0
    assert "not checked" in capsys.readouterr().out


async def test_a_real_gateways_answers_have_rows(tmp_path: Path) -> None:
    async with rig(["one", "two"]) as r:
        await r.chat([{"role": "user", "content": "hello"}])
        await r.chat([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "another"},
                      {"role": "user", "content": "go on"}])  # fmt: skip
        for place in ("/sessions", f"/sessions/{r.session.id}", f"/sessions/{r.session.id}/trajectories"):
            (tmp_path / "x.json").write_text(json.dumps(await r.call("GET", place)))
            [row] = read_rows(tmp_path / "x.json")
            assert row.name == r.session.id and row.counts["roots"][0].keys() <= {"edited", "history"}
            assert sum(row.counts["roots"][0].values()) == 1


def test_a_log_of_slime_has_rows(tmp_path: Path) -> None:
    shown = [{"prompt": "2+2?", "response": text, "reward": 1.0} for text in ("4", "", " ")]
    metrics = {
        "rollouts": 8,
        "ended/task_complete": 0.25,
        "ended/unknown": 0.25,
        "ended/aborted": 0.25,
        "ended/max_tokens_reached": 0.25,
    }
    line = json.dumps({"rollout_id": 3, "metrics": metrics, "samples": shown})
    (tmp_path / "rollout.jsonl").write_text(f'{line}\n{{"rollout_id": 4, "metr')  # a step is being written
    findings, _ = find_problems(read_rows(tmp_path / "rollout.jsonl"))
    assert {finding.check: (finding.count, finding.of, finding.samples) for finding in findings} == {
        "lost": (2, 6, ["rollout 3"]),
        "cut": (2, 6, ["rollout 3"]),
        "empty": (2, 3, ["rollout 3/1", "rollout 3/2"]),
    }


# ---- the command and the report --------------------------------------------------------------------------------------


def test_the_command_names_samples_and_what_to_do_and_exits_with_1(tmp_path: Path, capsys: Any) -> None:
    folder = saved(tmp_path / "sick", *run(nothing, *range(1, 9), text=" "))
    assert main(["health", folder, "--tokenizer", "none"]) == 1
    output = capsys.readouterr().out
    assert "empty          8 of 12 rollouts end in an empty reply" in output
    assert "p0/1, p1/2, p1/3, p2/4, p2/5 and 3 more" in output and CHECKS["empty"].advice in output
    assert "not checked    " in output and "drift: these rows hold no data for that" in output
    assert main(["health", folder, "--tokenizer", "none", "--json"]) == 1
    [finding] = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["check"], finding["count"], len(finding["samples"])) == ("empty", 8, 8)


def test_a_healthy_run_exits_with_0(tmp_path: Path, capsys: Any) -> None:
    assert main(["health", saved(tmp_path, *run(nothing))]) == 0
    assert "healthy        " in capsys.readouterr().out


DEEP = "[" * 20_000


@pytest.mark.parametrize(
    ("name", "text", "status"),
    [
        ("x.json", "{}", 2),
        ("x.json", "no json", 2),
        ("x.json", "[]", 2),
        ("none", None, 2),
        ("x.jsonl", "{}\n", 3),
        ("x.json", DEEP, 2),
        ("x.jsonl", DEEP, 3),
        ("x.json", json.dumps([path_of("a", loss_mask=[0, 300, 1])]), 2),
        ("x.json", json.dumps([path_of("a", token_ids=[1, 10**12, 3])]), 2),
        ("x.json", json.dumps([path_of("a", reward="1")]), 2),
        ("x.json", json.dumps({"id": 7, "counters": counters()}), 2),
        ("x.json", json.dumps({"id": "a", "counters": counters(calls="4")}), 2),
        ("x.json", json.dumps({"error": {"message": "unknown session"}}), 2),
    ],
    ids=["no-session", "no-json", "no-rows", "missing", "no-run", "deep", "deep-lines", "mask", "token", "reward",
         "numeric-id", "counter", "error"],
)  # fmt: skip
def test_what_holds_no_rollouts_is_refused_in_one_sentence(
    name: str, text: str | None, status: int, tmp_path: Path, capsys: Any
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    assert main(["health", str(tmp_path / name)]) == status
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) <= 2
    assert "expected a gateway's GET /sessions" in said or (name != "x.json" or text == "[]")


async def test_the_state_log_of_a_session_is_refused_with_what_to_give(tmp_path: Path, capsys: Any) -> None:
    async with rig(["one"], state=tmp_path) as r:
        path = tmp_path / f"{r.session.id}.jsonl"
        assert main(["health", str(path)]) == 2
    shown = capsys.readouterr().err
    assert "state log of a gateway's session" in shown and "URL/sessions/ID/trajectories" in shown


def test_the_report_holds_the_findings(tmp_path: Path) -> None:
    folder = saved(tmp_path, *run(nothing, 3, 7, text=" "))
    written = write_report(folder, tmp_path / "r.html", tokenizer=LetterTokenizer())
    [finding] = islands(written.path)["overview"]["health"]
    assert finding["check"] == "empty" and finding["samples"] == ["p1/3", "p3/7"] and finding["advice"]


def test_a_tool_that_the_model_made_up_is_no_failing_tool() -> None:
    spec = {"type": "function", "function": {"name": "search", "description": "", "parameters": {}}}
    for tools, tool, failed in ((json.dumps([spec]), "google", {}), (json.dumps([spec]), "search", {"search": 1})):
        one = made(0)
        calls("error", tool=tool)(one)
        one.step_result.observation.tools = tools
        assert row_of(one).counts["failing-tool"] == (failed, 1)
