"""Our functions plugged into slime's own code: data source, rollout, worker, abort, down to the split of a batch."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import re
import types
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from provider_support import Replay, call, completion, tokenizer
from slime_support import PARAMS, begin_process

from strands_env.core import Action, TaskContext
from strands_env.training import driver, slime
from strands_env.training.formats import PromptRecord, draw_rows, prompt_rows, write_rows
from strands_env.training.slime import hooks
from strands_sglang.backends import Backend, Capabilities, GenerateAnswer, GenerateRequest, PromptScoring, ScoredPrompt
from strands_sglang.exceptions import BackendConnectionError
from strands_sglang.trajectory import Finish, FinishType
from tests.conftest import ROOT
from tests.real_slime import (
    OURS,
    Router,
    Run,
    check_ranks,
    package,
    requires_slime,
    slime_imported,
)

pytestmark = requires_slime
for needed in ("torch", "transformers", "ray"):
    package(needed, f"slime imports {needed}, which is not installed")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """slime can be imported, and this is its `hf_checkpoint`: a tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer().save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    with slime_imported():
        yield folder


@pytest.fixture
def run(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Any]:
    """Makes a `Run`."""
    monkeypatch.setattr(importlib.import_module("ray"), "put", lambda value, **_: value)
    monkeypatch.setattr(driver, "RETRY_PAUSE", 0.0)
    begin_process()
    with Router() as router:
        yield lambda *flags, **more: Run(checkpoint, tmp_path, router, *flags, **more)
        importlib.import_module("slime.rollout.fully_async_rollout")._stop_global_worker()


MODES: dict[str, tuple[list[str], dict[str, Any], int]] = {
    "plain": ([], {}, 4),
    "fan-out": ([], {"strands_env_fanout": True, "strands_env_options": {"two_paths": True}}, 8),
    "fan-out by default": ([], {"strands_env_options": {"two_paths": True}}, 8),
    "one of two paths": ([], {"strands_env_fanout": False, "strands_env_options": {"two_paths": True}}, 4),
    "one of two paths, partial": (["--partial-rollout"], {"strands_env_options": {"two_paths": True}}, 4),
    "one of two paths, group rewards": (
        ["--group-rm"],
        {
            "strands_env_reward": f"{__name__}.scored",
            "strands_env_options": {"two_paths": True, "unscored": True},
        },
        4,
    ),
    "one of two paths, fully asynchronous": (
        ["--rollout-function-path", "slime.rollout.fully_async_rollout.generate_rollout_fully_async"],
        {"strands_env_options": {"two_paths": True}},
        4,
    ),
    "partial": (["--partial-rollout"], {}, 4),
    "off-policy masks": (["--partial-rollout", "--mask-offpolicy-in-partial-rollout"], {}, 4),
    "experts and top-p": (["--use-rollout-routing-replay", "--rollout-top-p", "0.9"], {}, 4),
    "group rewards": (
        ["--group-rm"],
        {"strands_env_reward": f"{__name__}.scored", "strands_env_options": {"unscored": True}},
        4,
    ),
    "reward of slime's own scorer": (
        [],
        {"strands_env_reward": f"{__name__}.scored", "strands_env_options": {"unscored": True}},
        4,
    ),
    "keyed rewards": (["--reward-key", "score", "--log-reward-category", "kind"], {}, 4),
    "dynamic filter": (["--dynamic-sampling-filter-path", f"{OURS}.check_reward_nonzero_std"], {}, 4),
    "dynamic batches": (["--use-dynamic-batch-size", "--max-tokens-per-gpu", "64"], {}, 4),
    "fully asynchronous": (
        ["--rollout-function-path", "slime.rollout.fully_async_rollout.generate_rollout_fully_async"],
        {},
        4,
    ),
}


def scored(action: Any, result: Any) -> float:
    return float(int(action.task_context.id) % 2)


@pytest.mark.parametrize("mode", MODES)
def test_a_step_of_every_mode_trains_what_the_server_sent(run: Any, mode: str) -> None:
    flags, more, samples = MODES[mode]
    made = run(*flags, **more)
    ranks = made.step()
    check_ranks(ranks, made.router, samples=samples)
    raw = ranks[0]["raw_reward"]
    assert sorted(set(raw)) == [0.0, 1.0]
    advantages = [value for rank in ranks for value in rank["rewards"]]
    assert sum(advantages) == pytest.approx(0.0, abs=1e-4)
    assert max(advantages) > 0.5
    if mode == "experts and top-p":
        for experts, tokens in itertools.chain.from_iterable(
            zip(rank["rollout_routed_experts"], rank["tokens"], strict=True) for rank in ranks
        ):
            assert tuple(experts.shape) == (len(tokens) - 1, 2, 2)
            assert str(experts.dtype).endswith("int32")


def test_metrics_of_requests_and_caches_reach_slimes_log(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: dict[str, Any] = {}
    module = importlib.import_module("slime.observability.rollout_metrics")
    monkeypatch.setattr(module.logging_utils, "log", lambda args, values, step_key: logged.update(values))
    run().step()
    assert logged["perf/request/queue_time/mean"] == 0.25
    assert logged["rollout/prefix_cache_hit_rate"] > 0
    assert logged["perf/non_generation_time/mean"] > 0


def test_a_rollout_that_fails_once_is_tried_again(run: Any) -> None:
    made = run()
    made.router.fails = 2
    assert [sample.status.value for sample in made.samples()] == ["completed"] * 4


@pytest.mark.parametrize(
    ("flags", "more"),
    [
        ([], {}),
        (["--reward-key", "score", "--log-reward-category", "kind"], {}),
        (
            [
                *("--custom-reward-post-process-path", "slime.rollout.on_policy_distillation.post_process_rewards"),
                *("--custom-rm-path", f"{__name__}.teacher"),
            ],
            {},
        ),
        (["--use-rollout-routing-replay", "--rollout-top-p", "0.9"], {}),
    ],
    ids=["plain", "keys", "distillation", "experts and top-p"],
)
def test_a_failed_rollout_is_carried_and_trains_nothing(run: Any, flags: list[str], more: dict[str, Any]) -> None:
    made = run(*flags, strands_env_retries=0, **more)
    made.router.fails = 1
    ranks = made.step()
    assert sorted(sum(mask.tolist()) > 0 for rank in ranks for mask in rank["loss_masks"]) == [False, True, True, True]
    # The divisor of the loss is the number of rollouts, failed ones too (docs/training.md).
    assert ranks[0]["global_batch_sizes"] == [4]


async def teacher(args: Any, sample: Any, **kwargs: Any) -> Any:
    """The answer of a teacher's server."""
    scores = [[-0.5, token, None] for token in sample.tokens]
    return {"meta_info": {"input_token_logprobs": scores, "id": sample.index}}


def test_an_evaluation_survives_a_failure_and_keys(run: Any, tmp_path: Path) -> None:
    made = run("--reward-key", "score", "--eval-reward-key", "accuracy", strands_env_retries=0)
    config = importlib.import_module("slime.utils.eval_config").EvalDatasetConfig
    made.args.eval_datasets = [config(name="sums", path=made.args.prompt_data, n_samples_per_eval_prompt=1)]
    for name in ("input_key", "label_key"):
        setattr(made.args.eval_datasets[0], name, name.partition("_")[0].replace("input", "prompt"))
    made.args.eval_datasets[0].max_response_len = 400
    made.args.eval_datasets[0].temperature = made.args.eval_datasets[0].top_p = 1.0
    made.args.eval_datasets[0].top_k = -1
    made.router.fails = 1
    made.manager.eval(0)
    assert (tmp_path / "log" / "eval_sums.jsonl").exists()


def test_saved_rollouts_are_loaded_again(run: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "rollout_{rollout_id}.pt")
    made = run("--save-debug-rollout-data", path)
    first = made.step()
    made.args.load_debug_rollout_data = path
    second = made.step()
    same = ("tokens", "loss_masks", "rollout_log_probs")
    assert [[t.tolist() for t in rank[key]] for rank in first for key in same] == [
        [t.tolist() for t in rank[key]] for rank in second for key in same
    ]


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ([], {}),
        (["--partial-rollout"], {}),
        (["--partial-rollout", "--mask-offpolicy-in-partial-rollout"], {"strands_env_options": {"two_paths": True}}),
    ],
    ids=["thrown away", "partial", "two paths, off-policy masks"],
)
def test_what_slime_aborts_is_put_back_and_goes_on(run, flags, options):
    made = run("--over-sampling-batch-size", "4", *flags, **options)
    partial = bool(flags)
    # The second turn of two groups lasts until slime has the other two, and aborts it.
    made.router.hangs = lambda text: "<tool_response>" in text and bool(re.search(r"\([23]\)", text))
    data, aborted = importlib.import_module("slime.utils.async_utils").run(
        importlib.import_module("slime.rollout.sglang_rollout").generate_rollout_async(
            made.args, 0, made.manager.data_source.get_samples
        )
    )
    assert len(data.samples) == 2
    assert [sample.status.value for group in aborted for sample in group] == ["aborted"] * (4 if partial else 0)
    assert all(sum(sample.loss_mask) > 0 for group in aborted for sample in group)  # what the first turn sampled
    made.router.hangs = None
    made.manager.data_source.add_samples(aborted)
    check = made.step(1)
    check_ranks(check, made.router, samples=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strands_env_factory": "no.such.thing"}, "cannot import 'no.such.thing'"),
        ({"strands_env_options": {"unscored": True}}, "nothing scores this rollout"),  # and no strands_env_reward
        ({"strands_env_fanout": True}, "the fully asynchronous worker takes one sample"),
    ],
)
def test_a_wrong_configuration_ends_a_fully_asynchronous_run(run: Any, options: dict[str, Any], message: str) -> None:
    path = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"
    made = run("--rollout-function-path", path, **options)
    with pytest.raises(ValueError, match=f"SlimeConfigError: .*{message}"):
        made.step()


def test_a_group_that_finished_while_slime_stopped_is_kept_whole(run: Any) -> None:
    """slime puts finished rollouts back beside aborted ones, and asks for all of the group again."""
    made = run("--partial-rollout", strands_env_options={"two_paths": True})
    rollout = importlib.import_module("slime.rollout.sglang_rollout")
    (group,) = made.manager.data_source.get_samples(1)
    run_async = importlib.import_module("slime.utils.async_utils").run

    async def one_of_each() -> Any:
        params = rollout.GenerateState(made.args).sampling_params
        done = await rollout.generate_and_rm(made.args, group[0], dict(params))
        group[1].status = type(group[1]).Status.ABORTED
        return [done, group[1]]

    mixed = run_async(one_of_each())
    assert [mixed[0].status.value, mixed[0].index] == ["completed", group[0].index]
    assert mixed[0].response and "start_rollout_id" not in mixed[0].metadata  # what slime's `abort` reads
    mixed[0].metadata["start_rollout_id"] = 0
    tokens = mixed[0].tokens
    made.manager.data_source.add_samples([mixed])
    again = made.manager.data_source.get_samples(1)
    params = rollout.GenerateState(made.args).sampling_params
    (first, second) = run_async(rollout.generate_and_rm_group(made.args, again[0], dict(params)))
    assert first.tokens == tokens and second.status.value == "completed"


async def test_slimes_own_example_runs_unchanged(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`examples/strands_sglang` of slime, written for strands-sglang 0.4.2."""
    package("pylatexenc", "slime's reward imports pylatexenc, which is not installed")
    torch = importlib.import_module("torch")
    args = types.SimpleNamespace(partial_rollout=False)
    python = '<tool_call>{"name": "execute_python_code", "arguments": {"code": "print(1 + 2)"}}</tool_call>'
    client = Replay([completion(python), completion("It is \\boxed{3}.")])
    example = importlib.import_module("examples.strands_sglang.generate_with_strands")
    cls = importlib.import_module("slime.utils.types").Sample
    monkeypatch.setattr(example, "get_client_from_slime_args", lambda args, timeout: client)
    monkeypatch.setattr(example, "GenerateState", lambda args: types.SimpleNamespace(tokenizer=tokenizer()))
    sample = cls(prompt="What is 1 + 2?", label="3")
    assert await example.generate(args, sample, dict(PARAMS)) is sample
    assert sample.status == cls.Status.COMPLETED
    assert sample.response_length == len(sample.loss_mask) == len(sample.rollout_log_probs) < len(sample.tokens)
    assert torch.tensor(sample.rollout_log_probs, dtype=torch.float32).isfinite().all()
    assert (sample.tool_iters, sample.tool_calls) == (1, 1)
    assert await example.reward_func(args, sample) == 1.0


# ---- a teacher, and the prompts of a run before ----------------------------------------------------------------------


class Teacher(Backend):
    """Scores every token with minus its id; gone for sequences of which a test says so."""

    capabilities = Capabilities(prompt_scoring=PromptScoring.CACHED)

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.failures = itertools.repeat(False)
        self.gaps = itertools.repeat(False)

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        if next(self.failures):
            raise BackendConnectionError("the teacher is gone")
        ids = array("i", request.prompt.tolist()[request.score_from :])
        logprobs = array("d", [-float(token) for token in ids])
        if next(self.gaps):
            logprobs[0] = math.nan
        scored = ScoredPrompt(ids=ids, logprobs=logprobs)
        return GenerateAnswer(output_ids=array("i", [1]), finish=Finish(type=FinishType.LENGTH), scored_prompt=scored)


OPD = ["--use-opd", "--opd-type", "sglang", "--rm-url", "http://teacher:30000/generate"]
HOOK = ["--rollout-sample-hook-path", f"{OURS}.teacher_log_probs"]


def test_slime_gets_the_teachers_log_probabilities_beside_the_rewards(run: Any, monkeypatch: Any) -> None:
    teacher, asked = Teacher(tokenizer()), []
    monkeypatch.setattr(hooks, "get_client", lambda url: asked.append(url) or teacher)
    teacher.failures = iter([False, True, *[False] * 20])
    made = run(*OPD, *HOOK, strands_env_options={"two_paths": True})
    ranks = made.step()
    rows = [
        (tokens.tolist()[-length:], mask.tolist(), taught.tolist())
        for rank in ranks
        for tokens, length, mask, taught in zip(
            rank["tokens"],
            rank["response_lengths"],
            rank["loss_masks"],
            rank["teacher_log_probs"],
            strict=True,
        )
    ]
    assert asked == ["http://teacher:30000"] * len(rows) and len(rows) == 8
    untaught = [row for row in rows if not any(row[2])]
    assert len(untaught) == 1 and not any(untaught[0][1])
    for response, _, taught in (row for row in rows if row is not untaught[0]):
        assert taught == [-float(token) for token in response]


def test_a_sample_of_which_the_teacher_left_out_a_token_is_removed(run: Any, monkeypatch: Any) -> None:
    teacher = Teacher(tokenizer())
    teacher.gaps = iter([True, *[False] * 20])
    monkeypatch.setattr(hooks, "get_client", lambda url: teacher)
    ranks = run(*OPD, *HOOK).step()
    taught = [values for rank in ranks for values in rank["teacher_log_probs"]]
    assert all(math.isfinite(value) for values in taught for value in values)
    masks = [mask for rank in ranks for mask in rank["loss_masks"]]
    assert [any(values) for values in taught] == [any(mask) for mask in masks]
    assert sum(not any(mask) for mask in masks) == 1


def test_a_teacher_with_another_vocabulary_ends_the_run(run: Any, monkeypatch: Any) -> None:
    teacher = Teacher(types.SimpleNamespace(get_vocab=lambda: {"another": 0}))
    monkeypatch.setattr(hooks, "get_client", lambda url: teacher)
    made = run(*OPD, *HOOK)
    with pytest.raises(slime.SlimeConfigError, match="not that of the model that sampled"):
        made.step()


def test_slime_draws_the_prompts_of_a_run_before(run: Any, tmp_path: Path) -> None:
    context = TaskContext(ground_truth="3", topic="sums", rollout_seed=7)
    actions = [Action(message=f"What is {n}?", task_context=context) for n in "ab"]
    records = [
        PromptRecord(prompt_id=action.text, action=action, passed=passed, measured=4)
        for action, passed in zip(actions, (2, 4), strict=True)
    ]
    rows = draw_rows(prompt_rows(records), 14)
    write_rows(iter(rows), tmp_path / "next.jsonl")
    made = run("--prompt-data", str(tmp_path / "next.jsonl"), "--rollout-shuffle")
    assert len(made.manager.data_source) == 14
    samples = [group[0] for group in made.manager.data_source.get_samples(14)]
    counts = Counter(sample.prompt for sample in samples)
    assert counts["What is a?"] > counts["What is b?"] > 0  # 9/42 and 5/42 of what the weights say
    assert all((sample.label, sample.metadata) == ("3", {"topic": "sums"}) for sample in samples)
    check_ranks(made.step(), made.router, samples=4)


def test_the_function_of_the_documentation_trains_what_was_sampled(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The `generate` of docs/slime.md, as slime imports and calls it."""
    page = (ROOT / "docs" / "slime.md").read_text(encoding="utf-8")
    source = page.partition('title="my_rollout.py"\n')[2].partition("```")[0]
    calculator = "from strands_env.tools import calculator"
    assert calculator in source
    (tmp_path / "my_rollout.py").write_text(
        source.replace(calculator, "from provider_support import add as calculator")
    )
    monkeypatch.syspath_prepend(tmp_path)
    made = run(
        *("--custom-generate-function-path", "my_rollout.generate"),
        *("--custom-rm-path", "my_rollout.reward_func"),
    )

    ranks = made.step()

    assert sum(len(rank["tokens"]) for rank in ranks) == 4
    for rank in ranks:
        for tokens, mask, logprobs in zip(rank["tokens"], rank["loss_masks"], rank["rollout_log_probs"], strict=True):
            response = zip(tokens[-len(mask) :].tolist(), logprobs.tolist(), mask.tolist(), strict=True)
            trained = [(token, value) for token, value, one in response if one]
            assert trained and set(trained) <= made.router.sent
    assert made.router.requests == 8  # four rollouts of a call and an answer
    assert [sample.reward for sample in made.samples(1)] == [1.0] * 4


@pytest.mark.parametrize("arm", ["exact", "retokenized"])
def test_both_arms_of_the_example_log_what_was_sampled(
    run: Any, arm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One holds the tokens that were sampled, the other goes by text all the way; both count the same drift."""
    monkeypatch.syspath_prepend(ROOT / "examples" / "slime")
    function = "retokenized.generate" if arm == "retokenized" else f"{OURS}.generate"
    made = run(
        *("--custom-generate-function-path", function),
        *("--custom-rollout-log-function-path", "retokenized.log_rollout"),
    )
    prompts: list[list[int]] = []
    reply = made.router._reply
    monkeypatch.setattr(made.router, "_reply", lambda ids: prompts.append(ids) or reply(ids))

    ranks = made.step()

    (line,) = [json.loads(each) for each in (tmp_path / "log" / "drift.jsonl").read_text().splitlines()]
    # The router's model writes its call letter by letter, which no tokenizer would.
    assert line["rollouts_with_drift"] == 1.0 and line["tokens_changed"] > 0
    trained = sum(int(mask.sum()) for rank in ranks for mask in rank["loss_masks"])
    assert trained == line["tokens_trained"]
    as_text = [ids == encode(tokenizer().decode(ids)) for ids in prompts]
    assert len(as_text) == 8
    if arm == "exact":
        check_ranks(ranks, made.router, samples=4)
        assert line["tokens_trained"] == line["tokens_sampled"] and line["rollouts_of_other_tokens"] == 0.0
        assert as_text.count(False) == 4  # the second prompt of each goes on from the letters
        return
    assert all(as_text)  # rendered from text, and encoded in one piece
    assert line["tokens_trained"] < line["tokens_sampled"] and line["rollouts_of_other_tokens"] == 1.0
    assert sorted(ranks[0]["raw_reward"]) == [0.0, 0.0, 1.0, 1.0]
    assert all("rollout_log_probs" not in rank for rank in ranks)
    for rank in ranks:
        for tokens, mask in zip(rank["tokens"], rank["loss_masks"], strict=True):
            assert tokens.tolist() == encode(tokenizer().decode(tokens.tolist()))
            said = [token for token, one in zip(tokens[-len(mask) :].tolist(), mask.tolist(), strict=True) if one]
            assert tokenizer().decode(said) == f"{call(1, 2)}<|im_end|>It is 3.<|im_end|>"


def encode(text: str) -> list[int]:
    return list(tokenizer().encode(text, add_special_tokens=False))


@pytest.mark.parametrize("function", [f"{OURS}.generate", "retokenized.generate"])
def test_both_arms_have_one_budget_for_the_whole_response(
    run: Any, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the call and its result have added to the prompt is taken off what the answer may have."""
    monkeypatch.syspath_prepend(ROOT / "examples" / "slime")
    made = run("--custom-generate-function-path", function, "--rollout-max-response-len", "400")
    asked: list[tuple[int, int]] = []
    meta = made.router._meta

    def watched(body: dict[str, Any], reply: Any) -> Any:
        asked.append((len(body["input_ids"]), body["sampling_params"]["max_new_tokens"]))
        return meta(body, reply)

    monkeypatch.setattr(made.router, "_meta", watched)
    made.samples()
    first = min(asked)[0]
    assert len(asked) == 8
    assert [room for _, room in asked] == [400 - (length - first) for length, _ in asked]


def test_a_rollout_of_the_other_arm_that_fails_is_carried_without_loss(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples" / "slime")
    made = run("--custom-generate-function-path", "retokenized.generate", strands_env_retries=0)
    made.router.fails = 1
    ranks = made.step()
    assert sorted(sum(mask.tolist()) > 0 for rank in ranks for mask in rank["loss_masks"]) == [False, True, True, True]
    assert all("rollout_log_probs" not in rank for rank in ranks)


@pytest.mark.parametrize("option", [["--use-tis"], ["--rollout-top-p", "0.9"], ["--partial-rollout"]])
def test_the_other_arm_refuses_what_needs_the_sampled_tokens(
    run: Any, option: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples" / "slime")
    made = run("--custom-generate-function-path", "retokenized.generate", *option)
    with pytest.raises(ValueError, match=f"{option[0]} needs the tokens that were sampled"):
        made.step()
