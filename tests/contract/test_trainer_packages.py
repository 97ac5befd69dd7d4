"""The adapters of other trainers against the trainers' own types, checks and advantage functions."""

from __future__ import annotations

import ast
import asyncio
import importlib
import logging
import sys
import types
import typing
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typing_extensions
from provider_support import add, call, completion, tokenizer

from strands_env.core import Environment, WeightVersionSpan
from strands_env.training import (
    RolloutTree,
    TrainingSample,
    areal,
    group_advantages,
    skyrl,
    tinker,
    verifiers,
    verl,
    weigh_rollouts,
)
from strands_env.training.export import WRITTEN_FOR
from tests.conftest import ROOT
from tests.contract.test_trainer_adapters import FAILED, SHORT, make
from tests.real_slime import package

AGENT_LOOP = "verl.experimental.agent_loop.agent_loop"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


class AddEnv(Environment):
    """Adds; its reward is the number that is the ground truth."""

    def __init__(self, model_factory: Any) -> None:
        super().__init__(
            model_factory=model_factory, reward_fn=lambda action, result: float(action.task_context.ground_truth)
        )

    def get_tools(self) -> list[Any]:
        return [add]


# ---- verl ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def agent_loop() -> Any:
    package("verl")
    return package(AGENT_LOOP)


@pytest.fixture(scope="module")
def algorithms() -> Any:
    package("verl")
    return package("verl.trainer.ppo.core_algos")


@pytest.mark.parametrize("samples", [[make()], [FAILED], []])
def test_verl_takes_the_output(agent_loop: Any, samples: list[TrainingSample]) -> None:
    fields = verl.agent_loop_output(samples, prompt_length=1, response_length=3, experts_shape=(2, 2))
    output = agent_loop.AgentLoopOutput(**{**fields, "metrics": agent_loop.AgentLoopMetrics(**fields["metrics"])})
    row = output.as_dict()
    count = len(fields["response_ids"])
    assert {len(row[name]) for name in ("responses", "response_mask", "rollout_log_probs", "rm_scores")} == {count}
    assert row["routed_experts"].shape == (1 + count, 2, 2)
    assert row["rm_scores"].sum().item() == pytest.approx(fields["reward_score"])


class Server:
    """verl's server, with its own type of answer. It is down for the prompt that says so."""

    def __init__(self) -> None:
        self.replies: dict[str, list[str]] = {}

    async def generate(self, *, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        replica = importlib.import_module("verl.workers.rollout.replica")
        if "down" in tokenizer().decode(prompt_ids):
            raise ConnectionError("engine died")
        text = self.replies.setdefault(request_id, [call(1, 2), "3"]).pop(0)
        ids = list(completion(text).ids)
        experts = np.zeros((len(prompt_ids) + len(ids) - 1, 2, 2), dtype=np.uint8)
        return replica.TokenOutput(
            token_ids=ids,
            log_probs=[-0.5] * len(ids),
            routed_experts=experts,
            stop_reason="completed",
            extra_fields={"global_steps": 7, "min_global_steps": 6, "max_global_steps": 7},
        )


@pytest.fixture(scope="module")
def batch(agent_loop: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Four rows of two prompts through verl's own worker: registration, instantiation, padding, batching."""
    omegaconf = importlib.import_module("omegaconf")
    loop = type("StrandsLoop", (verl.make_agent_loop(AddEnv, retries=0),), {"__module__": __name__})
    # verl finds the class by its module and name.
    sys.modules[__name__].StrandsLoop = agent_loop.register("strands-test")(loop)
    rollout = {
        "prompt_length": 400,
        "response_length": 128,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "calculate_log_probs": True,
        "enable_rollout_routing_replay": True,
        "agent": {"default_agent_loop": "strands-test"},
    }
    folder = tmp_path_factory.mktemp("model")  # says how many experts a row has
    importlib.import_module("transformers").Qwen3MoeConfig(num_hidden_layers=2, num_experts_per_tok=2).save_pretrained(
        folder
    )
    worker = object.__new__(agent_loop.AgentLoopWorker)  # its constructor loads a model's configuration
    worker.config = omegaconf.OmegaConf.create(
        {"actor_rollout_ref": {"rollout": rollout, "model": {"path": str(folder)}}, "data": {}}
    )
    worker.rollout_config = worker.config.actor_rollout_ref.rollout
    worker.llm_client = Server()
    worker.tokenizer, worker.processor, worker.hf_model_type = tokenizer(), None, None
    worker.mm_processor_kwargs, worker.tools = {}, []
    worker.dataset_cls, worker.reward_loop_worker_handles = None, None
    worker.distillation_enabled, worker.teacher_key = False, None
    prompts = ["1 + 2?", "1 + 2?", "1 + 2?, down", "2 + 1?"]
    rows = {
        "raw_prompt": [[{"role": "user", "content": text}] for text in prompts],
        "reward_model": [{"ground_truth": reward} for reward in ("1", "3", "9", "1")],
        "uid": ["a", "a", "a", "b"],
    }
    arrays = {}
    for name, values in rows.items():
        arrays[name] = np.empty(len(values), dtype=object)
        arrays[name][:] = values
    data = importlib.import_module("verl").DataProto(batch=None, non_tensor_batch=arrays, meta_info={})
    return asyncio.run(worker.generate_sequences(data))


def test_verl_makes_a_batch_of_rollouts_one_of_which_failed(batch: Any) -> None:
    tensors = batch.batch
    sampled = sum(len(completion(text).ids) for text in (call(1, 2), "3"))
    assert tensors["response_mask"].sum(-1).tolist() == [sampled, sampled, 0, sampled]
    assert tensors["rm_scores"].sum(-1).tolist() == [1.0, 3.0, 0.0, 1.0]
    assert tensors["rollout_log_probs"].shape == tensors["responses"].shape == (4, 128)
    assert tensors["routed_experts"].shape == (4, 528, 2, 2)
    trained = tensors["response_mask"].bool()
    assert (tensors["rollout_log_probs"][trained] == -0.5).all()
    assert (tensors["rollout_log_probs"][~trained] == 0).all()
    extra = batch.non_tensor_batch
    assert extra["status"].tolist() == ["completed", "completed", "failed", "completed"]
    assert extra["min_global_steps"].tolist() == [6, 6, None, 6]
    assert extra["max_global_steps"].tolist() == [7, 7, None, 7]


def test_verl_advantages_leave_the_failed_rollout_out(batch: Any, algorithms: Any) -> None:
    name = verl.register_advantage("strands_test")
    assert verl.register_advantage("strands_test") == name
    estimator = algorithms.get_adv_estimator_fn(name)
    arguments = {
        "token_level_rewards": batch.batch["rm_scores"],
        "response_mask": batch.batch["response_mask"],
        "index": np.array(["a", "a", "a", "b"], dtype=object),
    }
    advantages, returns = estimator(**arguments, config=None)
    kept, _ = algorithms.compute_grpo_outcome_advantage(
        **{name: values[:2] for name, values in arguments.items()}, epsilon=1e-6
    )
    assert advantages[:2].tolist() == [pytest.approx(row) for row in kept.tolist()]
    assert advantages[2:].abs().sum().item() == 0
    assert returns is advantages
    plain, _ = estimator(**arguments, config={"norm_adv_by_std_in_grpo": False})
    assert sorted(set(plain[:2].flatten().tolist())) == [-1.0, 0.0, 1.0]
    # What verl's own estimator makes of the same rows: the failure drags the baseline down.
    own, _ = algorithms.compute_grpo_outcome_advantage(**arguments)
    assert own[0].abs().max() != advantages[0].abs().max()


def test_verl_and_we_mean_the_same_advantages(algorithms: Any) -> None:
    torch = importlib.import_module("torch")
    rewards, groups = [1.0, 0.0, 0.25, 3.0, 2.0], ["a", "a", "a", "b", "b"]
    outputs = [verl.agent_loop_output([make(value)], prompt_length=8, response_length=8) for value in rewards]
    mask = torch.tensor([output["response_mask"] for output in outputs], dtype=torch.float)
    scores = torch.zeros_like(mask)
    scores[:, -1] = torch.tensor([output["reward_score"] for output in outputs])
    theirs, _ = algorithms.compute_grpo_outcome_advantage(scores, mask, np.array(groups, dtype=object))
    ours = group_advantages(rewards, group_ids=groups, rollout_ids=range(5))
    assert theirs[:, 0].tolist() == pytest.approx(ours, abs=1e-5)


# ---- AReaL -----------------------------------------------------------------------------------------------------------


def areals(path: str, *functions: str, **names: Any) -> Any:
    """The first of some functions of AReaL, out of their file: its packages load servers, engines and compilers."""
    try:
        file = Path(str(metadata.distribution("areal").locate_file(path)))
    except metadata.PackageNotFoundError:
        package("areal")  # skips, or fails where it must be there
        raise
    future = ast.parse("from __future__ import annotations").body
    tree = ast.parse(file.read_text(encoding="utf-8"))
    wanted = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in functions]
    torch = importlib.import_module("torch")
    found: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "Any": Any, **names}
    exec(compile(ast.Module([*future, *wanted], []), str(file), "exec"), found)
    return found[functions[0]]


def test_areal_takes_the_trajectory() -> None:
    class Interaction:
        """Stands in for AReaL's."""

    check = areals(
        "areal/infra/workflow_executor.py",
        "check_trajectory_format",
        InteractionWithTokenLogpReward=Interaction,
        logging=logging,
    )
    said: list[str] = []
    logger = SimpleNamespace(warning=said.append, info=said.append)
    versioned = make(weight_versions=(WeightVersionSpan(version="3", start=2, end=6),))
    row = areal.tensor_dict(versioned)
    assert row is not None
    assert check(row, batch_size=1, expected_keys=set(row), logger=logger) and not said
    assert check(areal.tensor_dict(FAILED))
    with pytest.raises(ValueError, match="Missing required keys"):
        check({name: row[name] for name in row if name != "input_ids"}, logger=logger)


def test_areals_prefix_tree_has_the_tokens_of_ours() -> None:
    """Its greedy packing, which takes equal ids for the same tokens: ours do not share what two samples train."""
    samples = [*forked(), make(token_ids=np.array([10, 11, 9, 9, 9, 9], dtype=np.int32))]
    names = ("_greedy_build_tries", "_extract_sequences", "_count_additional_nodes", "_insert_sequence", "_BuildNode")
    more = ("_compress_trie", "TrieNode", "trie_to_parent_array")
    mark = {"trace_perf": lambda name: lambda function: function, "dataclass": dataclass, "field": field}
    path, torch = "areal/models/tree_attn/tree.py", importlib.import_module("torch")
    ids = torch.tensor(np.stack([each.token_ids for each in samples]).astype(np.int64))
    build = areals(path, *names, *more, **mark)
    (trie,), (count,) = build({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, 100)
    flat = RolloutTree.of(samples).arrays()
    assert len(flat["token_ids"]) == count == 12
    theirs = build.__globals__["trie_to_parent_array"](trie, count)[0].tolist()
    tokens = [token for node in sorted(trie.nodes, key=lambda node: node.start_idx) for token in node.tokens]

    def prefixes(ids: Any, parents: Any) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for token, parent in zip(ids, parents, strict=True):
            found.append((*(found[parent] if parent >= 0 else ()), token))
        return sorted(found)

    assert prefixes(flat["token_ids"].tolist(), flat["parents"].tolist()) == prefixes(tokens, theirs)


def test_areal_collates_trajectories_of_different_lengths() -> None:
    helpers = ("_pad_cat_dim0", "is_multi_modal_key", "get_batch_size")
    concat = areals("areal/utils/data.py", "concat_padded_tensors", *helpers)
    long = make(weight_versions=(WeightVersionSpan(version="3", start=2, end=6),))
    batch = concat([areal.tensor_dict(long), areal.tensor_dict(SHORT)])
    assert batch["input_ids"].shape == (2, 6)
    assert batch["attention_mask"].sum(-1).tolist() == [6, 4]
    assert batch["loss_mask"].tolist() == [[0, 0, 1, 1, 0, 1], [0, 0, 1, 0, 0, 0]]
    assert batch["rewards"].tolist() == [0.5, 0.5]


# ---- weights of rollouts ---------------------------------------------------------------------------------------------


def losses_of_trl(kind: str, advantages: Any, mask: Any) -> Any:
    """TRL's own loss of rows that the weights of now sampled."""
    torch = importlib.import_module("torch")
    logprobs = torch.full_like(advantages, -0.5)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None),
        args=SimpleNamespace(delta=None, steps_per_generation=1),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda each: each, reduce=lambda each, **_: each),
        model=SimpleNamespace(training=True),
        _metrics=defaultdict(lambda: defaultdict(list)),
        **{"loss_type": kind, "importance_sampling_level": "token", "top_entropy_quantile": 1.0, "beta": 0.0},
        **{"epsilon_low": 0.2, "epsilon_high": 0.2, "current_gradient_accumulation_steps": 1},
        **dict.fromkeys(("aux_loss_enabled", "use_vllm", "_entropy_bonus_enabled"), False),
        off_policy_mask_threshold=None,
    )
    ids = torch.ones_like(mask, dtype=torch.long)
    rows = {"prompt_ids": ids, "prompt_mask": ids, "completion_ids": ids, "completion_mask": mask}
    rows |= {"advantages": advantages, "num_items_in_batch": mask.sum()}
    return package("trl").GRPOTrainer._compute_loss(trainer, None, rows)


def losses_of_skyrl(kind: str, advantages: Any, mask: Any) -> Any:
    utils = package("skyrl.backends.skyrl_train.utils.ppo_utils")
    scaled = utils.apply_loss_reduction_to_advantages_minibatch(advantages, mask, kind, len(mask), mask.shape[1])
    return utils.reduce_loss(-scaled, mask)


def losses_of_verl(kind: str, advantages: Any, mask: Any) -> Any:
    return package("verl.trainer.ppo.core_algos").agg_loss(-advantages, mask, kind)


@pytest.mark.parametrize(
    ("loss", "kind", "row_means"),
    [
        (losses_of_trl, "grpo", True),
        (losses_of_trl, "dapo", False),
        (losses_of_verl, "seq-mean-token-mean", True),
        (losses_of_verl, "token-mean", False),
        (losses_of_skyrl, "sequence_mean", True),
        (losses_of_skyrl, "token_mean", False),
    ],
)
def test_a_rollout_of_three_rows_weighs_as_one_of_one_row(
    loss: Any, kind: str, row_means: bool, request: pytest.FixtureRequest
) -> None:
    if loss is losses_of_skyrl:
        request.getfixturevalue("skyrl_package")
    torch = importlib.import_module("torch")
    three, one, other = [[1.0, 1.0], [2.0], [4.0, 4.0, 4.0]], [[1.0, 1.0, 2.0, 4.0, 4.0, 4.0]], [[-1.0, -1.0]]

    def loss_of(rows: list[tuple[str, list[float]]], weighed: bool) -> float:
        samples = [sampled_row(rollout, len(values)) for rollout, values in rows]
        samples = weigh_rollouts(samples, row_means=row_means) if weighed else samples
        advantages, mask = torch.zeros(len(rows), 6), torch.zeros(len(rows), 6)
        for place, (sample, (_, values)) in enumerate(zip(samples, rows, strict=True)):
            advantages[place, : len(values)] = torch.tensor(values) * sample.loss_weight
            mask[place, : len(values)] = 1.0
        return float(loss(kind, advantages, mask))

    split, joined = ([("a", row) for row in rows] + [("b", row) for row in other] for rows in (three, one))
    mean = pytest.approx(-(16 / 6 - 1) / 2)  # of the rollouts' means
    assert (loss_of(split, True), loss_of(joined, True)) == (mean, mean)
    assert loss_of(split, False) != mean


def sampled_row(rollout: str, count: int) -> TrainingSample:
    """A row of a prompt token and sampled ones."""
    mask = np.array([0] + [1] * count, dtype=np.uint8)
    ids, logprobs = np.arange(count + 1, dtype=np.int32), np.where(mask, -0.5, np.nan)
    return TrainingSample(
        token_ids=ids, prompt_length=1, loss_mask=mask, logprobs=logprobs, reward=1.0, rollout_id=rollout
    )


def test_tinkers_sum_over_tokens_weighs_three_rows_as_one() -> None:
    """Its losses run on its servers: sums over tokens of what is proportional to the advantage of the datum."""
    tensors = package("tinker").TensorData

    def loss_of(*lengths: int) -> tuple[float, int]:
        rows = weigh_rollouts([*(sampled_row("a", each) for each in lengths), sampled_row("b", 3)])
        data = [tinker.datum(row, advantage=2.0 if row.rollout_id == "a" else -1.0) for row in rows]
        advantages = [each.loss_fn_inputs["advantages"] for each in data]
        assert all(isinstance(each, tensors) for each in advantages)
        return sum(sum(each.data) for each in advantages), sum(lengths) + 3

    for lengths in ((3, 3, 3), (9,), (1, 2, 6), (3,)):
        total, tokens = loss_of(*lengths)
        assert total / tokens == pytest.approx((2.0 - 1.0) / 2)


def test_verifiers_reads_the_weights_of_every_trained_token(graph: Any) -> None:
    one, other = forked()
    fields = verifiers.message_nodes([replace(one, loss_weight=0.25), other])
    nodes = [graph.MessageNode(**item) for item in fields]
    weights = [node.loss_weights and node.loss_weights["rl"] for node in nodes]
    assert weights == [None, [0.25, 0.25], None, [0.25], None, [1.0]]


# ---- versions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(WRITTEN_FOR) - {"slime", "prime-rl"}))
def test_the_installed_trainer_is_the_one_that_the_adapter_was_written_for(name: str) -> None:
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        package(name)
        raise
    assert installed == WRITTEN_FOR[name]


def test_the_documentation_names_these_versions() -> None:
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    table = text[text.index("| module | gives | written against |") :].partition("\n\n")[0]
    for name, version in WRITTEN_FOR.items():
        assert name == "slime" or version.split()[0] in table, name


# ---- SkyRL -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def skyrl_package() -> Iterator[Any]:
    package("skyrl")
    # skyrl is for Python 3.12, where pydantic takes typing's TypedDict.
    original, typing.TypedDict = typing.TypedDict, typing_extensions.TypedDict
    try:
        yield SimpleNamespace(
            checks=package("skyrl.train.utils.trainer_utils"),
            algorithms=package("skyrl.backends.skyrl_train.utils.ppo_utils"),
            base=package("skyrl.train.generators.base"),
            preprocess=package("skyrl.train.dataset.preprocess"),
        )
    finally:
        typing.TypedDict = original


def trajectory_ids(skyrl_package: Any, *groups: str) -> list[Any]:
    return [skyrl_package.base.TrajectoryID(group, number) for number, group in enumerate(groups)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"token_rewards": True},
        {"routed_experts": True},
        {"step_wise": True},
        {"step_wise": True, "routed_experts": True},
    ],
)
def test_skyrl_takes_the_output(skyrl_package: Any, options: dict[str, bool]) -> None:
    rollouts = [[make(), make(1.0)], [FAILED], [], [make(0.0)]]
    ids = trajectory_ids(skyrl_package, "a", "a", "a", "b")
    output = skyrl.generator_output(rollouts, trajectory_ids=ids, **options)
    step_wise = options.get("step_wise", False)
    skyrl_package.checks.validate_generator_output(4, output, step_wise=step_wise)
    assert set(output) <= set(skyrl_package.base.GeneratorOutput.__annotations__)
    if options.get("routed_experts"):
        rows = zip(output["prompt_token_ids"], output["response_ids"], strict=True)
        lengths = np.array([len(prompt) + len(response) for prompt, response in rows])
        packed = skyrl_package.preprocess._collate_rollout_expert_indices(output["rollout_expert_indices"], lengths)
        assert packed.values[: lengths[0] - 1].tolist() == make().experts_array().tolist()  # type: ignore[union-attr]
    broken = {**output, "loss_masks": [mask[:-1] for mask in output["loss_masks"]]}
    with pytest.raises(AssertionError):
        skyrl_package.checks.validate_generator_output(4, broken, step_wise=step_wise)


@pytest.mark.parametrize("by_std", [True, False])
def test_a_failed_rollout_does_not_move_skyrls_baseline(skyrl_package: Any, by_std: bool) -> None:
    torch = importlib.import_module("torch")

    def advantages(rewards: list[float | None]) -> list[float]:
        rollouts = [[FAILED] if reward is None else [make(reward)] for reward in rewards]
        ids = trajectory_ids(skyrl_package, *["a"] * len(rewards))
        output = skyrl.generator_output(rollouts, trajectory_ids=ids)
        mask = torch.tensor(output["loss_masks"], dtype=torch.float)
        scores = torch.zeros_like(mask)
        scores[:, -1] = torch.tensor(output["rewards"])
        result, _ = skyrl_package.algorithms.compute_grpo_outcome_advantage(
            token_level_rewards=scores,
            response_mask=mask,
            index=np.array([trajectory.instance_id for trajectory in ids]),
            grpo_norm_by_std=by_std,
        )
        listed: list[float] = result[:, 0].tolist()
        return listed

    assert advantages([1.0, 1.0, None]) == pytest.approx([0.0, 0.0, 0.0], abs=1e-5)
    good, bad, failed = advantages([1.0, 0.0, None])
    assert (good, failed) == (pytest.approx(-bad), 0.0)
    if not by_std:
        assert good == pytest.approx(0.5)


# ---- verifiers -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graph() -> Iterator[Any]:
    """`verifiers.v1.graph`, without the clients, sandboxes and servers that its package loads."""
    package("verifiers")
    bare = {"verifiers.v1": "verifiers/v1", "renderers": "renderers"}
    before = set(sys.modules)
    folder = Path(importlib.import_module("verifiers").__file__ or "").parents[1]
    for name, path in bare.items():
        module = types.ModuleType(name)
        module.__path__ = [str(folder / path)]
        sys.modules[name] = module
    try:
        yield package("verifiers.v1.graph")
    finally:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in ("verifiers", "renderers"):
                del sys.modules[name]


def paths_of(nodes: list[Any], graph: Any) -> list[list[Any]]:
    """From root to leaf, as `Trace.branches` walks."""
    paths = []
    for leaf in graph.leaves(SimpleNamespace(nodes=nodes)):
        path, node = [], leaf
        while node is not None:
            path.append(nodes[node])
            node = nodes[node].parent
        paths.append(path[::-1])
    return paths


def forked() -> list[TrainingSample]:
    """Two paths that share a prompt and a reply."""
    one = make()
    other = make(
        token_ids=np.array([10, 11, 12, 13, 24, 25], dtype=np.int32),
        loss_mask=np.array([0, 0, 0, 0, 0, 1], dtype=np.uint8),
        trained_elsewhere=np.array([0, 0, 1, 1, 0, 0], dtype=np.uint8),
    )
    return [one, other]


def test_verifiers_takes_the_nodes_and_walks_the_same_paths(graph: Any) -> None:
    samples = forked()
    fields = verifiers.message_nodes(samples, decode=str, advantage=2.0, routed_experts=True)
    nodes = [graph.MessageNode(**item) for item in fields]
    paths = paths_of(nodes, graph)
    assert [[i for node in path for i in node.token_ids] for path in paths] == [s.token_ids.tolist() for s in samples]
    assert len(nodes) == 6
    assert sum(sum(node.mask) for node in nodes) == sum(sample.trained_tokens for sample in samples) == 4
    assert [node.logprobs for node in nodes] == [[], [-0.1, -0.2], [], [-0.3], [], [-0.3]]
    assert all(len(node.mask) == len(node.token_ids) == len(node.routed_experts) for node in nodes)
    assert all(node.routed_experts.dtype == np.uint8 for node in nodes)
    assert [node.message.role for node in paths[0]] == ["user", "assistant", "user", "assistant"]
    assert paths[1][1].advantages == [2.0, 2.0]
    again = graph.MessageNode.model_validate(nodes[1].model_dump())
    assert again.routed_experts.tolist() == nodes[1].routed_experts.tolist()


def test_a_failed_rollout_trains_no_node_of_verifiers(graph: Any) -> None:
    nodes = [graph.MessageNode(**item) for item in verifiers.message_nodes([FAILED], advantage=1.0)]
    assert [node.sampled for node in nodes] == [False, True, False, True]
    assert not any(any(node.mask) or node.logprobs or node.advantages for node in nodes)
