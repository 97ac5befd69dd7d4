"""The pieces of `examples/tito_vs_retokenized` that its claim rests on."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "tito_vs_retokenized"


@pytest.fixture(scope="module")
def example() -> Any:
    """The modules of the example, which import each other by name."""
    import importlib

    sys.path.insert(0, str(EXAMPLE))
    try:
        yield {name: importlib.import_module(name) for name in ("task", "rollouts", "grpo", "store", "report", "run")}
    finally:
        sys.path.remove(str(EXAMPLE))


@pytest.fixture(scope="module")
def tokenizer(example: Any) -> Any:
    return example["task"].make_tokenizer(400)


def sample_of(example: Any, tokenizer: Any, dropout: float, seed: int = 0) -> Any:
    """A conversation with its model turns tokenised with that dropout."""
    from strands_env.training import TrainingSample

    task = example["task"]
    rng = random.Random(seed)
    noisy = task.DropoutTokenizer(tokenizer, dropout, rng)
    ids: list[int] = []
    mask: list[int] = []
    for text, sampled in task.conversation(task.make_problem(rng)):
        piece = noisy.encode(text) if sampled else tokenizer.encode(text, add_special_tokens=False)
        ids += piece
        mask += [int(sampled)] * len(piece)
    return TrainingSample(
        token_ids=np.array(ids, dtype=np.int32),
        prompt_length=mask.index(1),
        loss_mask=np.array(mask, dtype=np.uint8),
        logprobs=np.where(np.array(mask) == 1, -1.0, np.nan),
        reward=1.0,
    )


def test_dropout_gives_other_tokens_of_the_same_text_and_is_seeded(example: Any, tokenizer: Any) -> None:
    noisy = [sample_of(example, tokenizer, 0.3, seed=1).token_ids.tolist() for _ in range(2)]
    exact = sample_of(example, tokenizer, 0.0, seed=1).token_ids.tolist()
    assert noisy[0] == noisy[1] != exact
    plain = example["task"].conversation(example["task"].make_problem(random.Random(1)))
    assert exact == [i for text, _ in plain for i in tokenizer.encode(text, add_special_tokens=False)]


def test_retokenising_what_a_tokenizer_would_write_changes_nothing(example: Any, tokenizer: Any) -> None:
    sample = sample_of(example, tokenizer, 0.0)
    again = example["rollouts"].retokenized(sample, tokenizer)
    assert again.token_ids.tolist() == sample.token_ids.tolist()
    assert again.loss_mask.tolist() == sample.loss_mask.tolist()
    assert again.prompt_length == sample.prompt_length


def test_retokenising_a_drifted_rollout_keeps_the_text_and_loses_the_tokens(example: Any, tokenizer: Any) -> None:
    sample = sample_of(example, tokenizer, 0.3)
    again = example["rollouts"].retokenized(sample, tokenizer)
    assert tokenizer.decode(again.token_ids.tolist()) == tokenizer.decode(sample.token_ids.tolist())
    assert again.token_ids.tolist() != sample.token_ids.tolist()
    assert again.logprobs is None
    trained = [ids[mask == 1].tolist() for ids, mask in ((s.token_ids, s.loss_mask) for s in (sample, again))]
    assert tokenizer.decode(trained[0]) == tokenizer.decode(trained[1])


def test_messages_printed_again_are_what_a_tokenizer_would_write(example: Any, tokenizer: Any) -> None:
    rollouts, sample = example["rollouts"], sample_of(example, tokenizer, 0.0)
    problem = example["task"].make_problem(random.Random(0))
    call = {"name": "calculator", "arguments": json.dumps({"expression": problem.expression})}
    messages = [
        {"role": "user", "content": problem.expression},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
        {"role": "tool", "content": problem.answer},
        {"role": "assistant", "content": problem.answer},
    ]
    rollout = rollouts.Rollout(sample=sample, messages=messages, called=True, answered=True, drifted_tokens=0)
    again = rollouts.through_chat(rollout, tokenizer)
    text = tokenizer.decode(again.token_ids)
    assert text.removesuffix("\n") == tokenizer.decode(sample.token_ids)
    assert tokenizer.decode(again.token_ids[again.loss_mask == 1]) == tokenizer.decode(
        sample.token_ids[sample.loss_mask == 1]
    )
    drifted = sample_of(example, tokenizer, 0.3)
    assert len(drifted) > len(again.token_ids) - 2


def test_the_correction_weights_what_the_policy_would_rarely_say(example: Any, tokenizer: Any) -> None:
    from dataclasses import replace

    import torch

    grpo, rollouts = example["grpo"], example["rollouts"]
    sampled = [
        replace(sample_of(example, tokenizer, 0.3, seed), reward=float(seed), group_id="g", rollout_id=str(seed))
        for seed in range(2)
    ]
    trained = [rollouts.retokenized(sample, tokenizer) for sample in sampled]
    weights = []
    # The control trains what was sampled with the weights of the corrected arm.
    for samples, weighed in ((trained, None), (trained, trained), (sampled, trained)):
        model = example["task"].make_model(tokenizer, 0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = grpo.update(model, optimizer, samples, sampled, pad=0, weighed=weighed)
        weights.append(found.weight)
    assert weights[0] == 1.0
    assert weights[1] < 1e-6  # a random model gives the recorded -1 a token to nothing
    assert weights[2] == pytest.approx(weights[1], rel=1e-3)


@pytest.fixture
def experiment(example: Any, tmp_path: Path) -> Any:
    """Makes experiments of two small steps whose supervision is done already."""
    run, store = example["run"], example["store"]

    def make(name: str, steps: int = 2) -> Any:
        from dataclasses import asdict

        settings = run.Settings(steps=steps, problems=2, samples=2, evaluation=4, vocabulary=400)
        made = run.Experiment(store.Store(tmp_path / name, asdict(settings)), settings)
        if made.store.load("start_dropout0.3_seed0") is None:
            model = example["task"].make_model(made.tokenizer, 0)
            before = {"reward": 0.0, "called": 0.0}
            made.store.save("start_dropout0.3_seed0", {"model": model.state_dict(), "before": before})
        return made

    return make


async def test_a_stopped_run_goes_on_to_the_same_result(example, experiment, tmp_path, monkeypatch):
    run = example["run"]
    one = run.Run(seed=0, arm="re-tokenised", dropout=0.3, rate=4e-4)
    await experiment("whole").make(one)
    stopped = experiment("stopped")
    checks = iter([None, run.OutOfTime()])

    def check() -> None:
        if (error := next(checks)) is not None:
            raise error

    monkeypatch.setattr(stopped, "_check_time", check)
    with pytest.raises(run.OutOfTime):
        await stopped.make(one)
    assert len(stopped.store.load(one.name)["curves"]) == 1
    assert not stopped.store.is_done(one.name, 2)
    await experiment("stopped").make(one)
    results = [example["report"].pack(tmp_path / name) for name in ("whole", "stopped")]
    assert results[0] == results[1]
    assert len(results[0]["runs"][0]["curves"]["reward"]) == 2


async def test_a_rollout_through_the_gateway_holds_exact_tokens_and_the_clients_messages(example, experiment):
    run, task = example["run"], example["task"]
    made = experiment("gateway")
    problem = task.make_problem(random.Random(0))
    async with made._engine(made._new_model(0), "step-0") as engine:
        (found,) = await example["rollouts"].collect(engine, [problem], samples_per_problem=1, seed="any", gateway=True)
    assert found.messages[0] == {"role": "user", "content": problem.expression}
    assert found.sample.trained_tokens > 0
    assert found.sample.logprobs is not None
    assert run.trained_by(run.GATEWAY, found, made.tokenizer).logprobs is None


def results(seeds: list[int], arms: tuple[str, ...] = ("token-exact", "re-tokenised", "chat text")) -> dict[str, Any]:
    """The data that `report.py` packs, of two steps."""
    names = ("reward", "drift", "drifted_tokens", "sequence_gap", "max_token_gap", "k3", "gradient_norm")
    return {
        "settings": {},
        "runs": [
            {
                "seed": seed,
                "arm": arm,
                "dropout": 0.3,
                "rate": 4e-4,
                "before": {"reward": 0.25, "called": 0.25},
                "after": {"reward": (0.5 + seed / 10) if arm == "token-exact" else seed / 20, "called": 0.5},
                "curves": {name: [0.5, 0.5] for name in names},
            }
            for seed in seeds
            for arm in arms
        ],
    }


def test_the_report_has_the_intervals_a_row_a_seed_and_the_power(example: Any) -> None:
    table = example["report"].tables(results([0, 1, 2]))
    assert "| held-out reward after | 0.600 ± 0.248 | 0.050 ± 0.124 | 0.050 ± 0.124 | 0.550 ± 0.124 |" in table
    assert "Mean over the 3 seeds [0, 1, 2] ±" in table
    assert "| 2 | 0.25 | 0.70 | 0.10 | 0.10 |" in table
    assert "p = 0.25, where 3 seeds can give at least 0.25" in table
    assert "nan" not in example["report"].tables(results([4]))
    half = results([0, 1, 2])
    half["runs"].pop()
    assert "Both values of the seeds [0, 1], without confidence intervals" in example["report"].tables(half)


def test_other_strengths_and_rates_have_tables_of_their_own(example: Any) -> None:
    made = results([0, 1])
    for change in ({"dropout": 0.1}, {"rate": 1e-3}):
        made["runs"] += [run | change for run in results([0, 1], ("token-exact", "re-tokenised"))["runs"]]
    table = example["report"].tables(made)
    after = "0.250, 0.250 | 0.500, 0.600 | 0.000, 0.050 | 0.500, 0.550 |"
    assert f"| 0.1 | 2 | 0.500, 0.500 | 0.500, 0.500 | {after} 0.5 | 2 |" in table
    assert f"| 0.001 | 2 | {after} 0.000, 0.000 | 0.000, 0.000 |" in table
    assert "Each arm's best rate is chosen over the seeds [0, 1]" in table
    assert "Best against best over 2 seeds: token-exact 0.500, 0.600 at 0.0004, re-tokenised" in table
    # More seeds of each arm's best rate alone are compared too.
    made["runs"] += results([2, 3], ("token-exact", "re-tokenised"))["runs"]
    assert "Best against best over 4 seeds: token-exact 0.650 ± 0.205" in example["report"].tables(made)


def test_runs_made_again_are_compared_step_by_step(example: Any) -> None:
    first, again = results([0]), results([0])
    again["runs"][1]["curves"]["reward"] = [0.5, 0.6]
    table = example["report"].compare_runs(first, again)
    assert "| token-exact, dropout 0.3, rate 0.0004, seed 0 | 2 of 2 | 0.500 | 0.500 |" in table
    assert "| re-tokenised, dropout 0.3, rate 0.0004, seed 0 | 1 of 2 | 0.000 | 0.000 |" in table


def test_power_and_the_sign_flip_test_are_those_of_the_textbook(example: Any) -> None:
    report = example["report"]
    assert report.power(0.0, 1.0, 8) == pytest.approx(0.05, abs=0.01)
    assert report.power(1.0, 1.0, 10) == pytest.approx(0.803, abs=0.02)  # one-sample t, d = 1, n = 10
    assert report.needed(1.0, 1.0) in ("9", "10", "11")
    assert report.needed(0.01, 1.0, most=5) == "more than 5"
    assert report.sign_flip([1.0, 2.0, 3.0]) == 0.25
    assert report.sign_flip([1.0, -1.0]) == 1.0
    assert report.interval([1.0, 2.0, 3.0]) == (2.0, pytest.approx(4.303 / 3**0.5, rel=1e-3))
