"""vime and miles, slime's forks: their names for slime's things, and miles' own samples and rollout code.

miles is read from `MILES_DIR`, vime's sample from `VIME_DIR`; tests that need them are skipped without.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from provider_support import call, completion
from real_slime import package, slime_imported
from slime_support import PARAMS, Rig, Sample, rig

from strands_env.training import slime
from strands_sglang import get_client_from_slime_args
from strands_sglang.backends.vllm import VLLMClient

__all__ = ["rig"]

REVISIONS = {"miles": "radixark/miles, 31f1ca961", "vime": "vllm-project/vime of October 2026"}


@pytest.fixture
def fork(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a fork whose source is here, and can be imported."""
    name = request.param
    folder = os.environ.get(f"{name.upper()}_DIR", "")
    if not Path(folder, name, "utils", "types.py").is_file():
        pytest.skip(f"the source of {name} is absent: set {name.upper()}_DIR to a checkout of {REVISIONS[name]}")
    package("torch")
    with slime_imported(Path(folder)):
        yield name


def vimes_sample() -> Any:
    """A sample whose class vime defines."""
    return type("Sample", (Sample,), {"__module__": "vime.utils.types"})()


@pytest.fixture
def vime(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """vime as far as our functions see it."""
    module = types.ModuleType("vime.rollout.vllm_rollout")
    module.GenerateState = lambda args: rig.state  # type: ignore[attr-defined]
    for name in ("vime", "vime.rollout"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "vime.rollout.vllm_rollout", module)
    monkeypatch.delitem(sys.modules, "slime.rollout.sglang_rollout")
    rig.args.router_policy = "consistent_hash"
    return rig


async def test_a_rollout_of_vime_has_its_seed_and_its_worker(vime: Rig) -> None:
    client = vime.serve(completion(call(1, 2)), completion("3"))
    made = await slime.generate(vime.args, vimes_sample(), {**PARAMS, "seed": 7})
    assert made.status is Sample.Status.COMPLETED
    assert [request.fields["sampling_params"]["sampling_seed"] for request in client.requests] == [7, 7]
    assert [request.fields["routing_key"] for request in client.requests] == [made.session_id] * 2


async def test_a_rollout_of_vime_stops_when_it_says_so(vime: Rig) -> None:
    vime.state.aborted = True
    client = vime.serve(completion("3"))
    made = await slime.generate(vime.args, vimes_sample(), dict(PARAMS))
    assert (made.status, client.requests) == (Sample.Status.ABORTED, [])


def test_the_client_of_vimes_arguments_is_one_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    args = types.SimpleNamespace(
        vllm_router_ip="127.0.0.1", vllm_router_port=8000, vllm_server_concurrency=8, rollout_num_engines=2
    )
    client = get_client_from_slime_args(args)
    assert isinstance(client, VLLMClient)
    assert (client.base_url, client.max_connections) == ("http://127.0.0.1:8000", 16)


async def test_miles_functions_of_slime_are_refused_and_the_right_one_is_named(rig: Rig) -> None:
    sample = type("Sample", (Sample,), {"__module__": "miles.utils.types"})()
    with pytest.raises(slime.SlimeConfigError, match=r"name strands_env.training.slime.miles.generate in"):
        await slime.generate(rig.args, sample, dict(PARAMS))


async def test_a_rollout_of_miles_takes_its_state_and_its_worker_from_the_call(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("miles.rollout.base_types")
    module.GenerateFnOutput = types.SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "miles.rollout.base_types", module)
    rig.args.sglang_router_policy = "manual"
    client = rig.serve(completion("3"))
    sample = type("Sample", (Sample,), {"__module__": "miles.utils.types", "routing_key": "key"})()
    given = {"args": rig.args, "sample": sample, "sampling_params": dict(PARAMS), "evaluation": False}
    generate = importlib.import_module("strands_env.training.slime.miles").generate
    state = types.SimpleNamespace(aborted=False, tokenizer=rig.state.tokenizer)
    output = await generate(types.SimpleNamespace(**given, state=state))
    assert output.samples.status is Sample.Status.COMPLETED
    assert [request.fields["routing_key"] for request in client.requests] == ["key"]
    state.aborted = True
    assert (await generate(types.SimpleNamespace(**given, state=state))).samples.status is Sample.Status.ABORTED


@pytest.mark.parametrize("fork", ["miles", "vime"], indirect=True)
@pytest.mark.parametrize("fanout", [False, True])
async def test_the_samples_of_a_fork_are_filled(fork: str, fanout: bool, rig: Rig) -> None:
    theirs = importlib.import_module(f"{fork}.utils.types").Sample
    module = types.ModuleType("vime.rollout.vllm_rollout")
    module.GenerateState = lambda args: rig.state  # type: ignore[attr-defined]
    sys.modules["vime.rollout.vllm_rollout"] = module  # gone with the fork
    rig.args.strands_env_fanout = fanout
    rig.serve(completion(call(1, 2), version="7"), completion("3", version="8"))
    sample = theirs(group_index=0, index=3, prompt="What is 1 + 2?", label="3")
    made = await run_as(fork, rig, sample)
    (filled,) = made if fanout else [made]
    assert type(filled) is theirs and filled.status is theirs.Status.COMPLETED
    assert len(filled.loss_mask) == len(filled.rollout_log_probs) == filled.response_length
    assert (filled.reward, filled.weight_versions, filled.rollout_id) == (1.0, ["7", "8"], 3 if fanout else None)
    assert theirs.from_dict(filled.to_dict()) == filled
    getattr(filled, "validate", lambda: None)()


async def run_as(fork: str, rig: Rig, sample: Any) -> Any:
    if fork == "vime":
        return await slime.generate(rig.args, sample, dict(PARAMS))
    base = importlib.import_module("miles.rollout.base_types")
    state = types.SimpleNamespace(args=rig.args, aborted=False, tokenizer=rig.state.tokenizer)
    given = base.GenerateFnInput(state=state, sample=sample, sampling_params=dict(PARAMS), evaluation=False)
    output = await importlib.import_module("strands_env.training.slime.miles").generate(given)
    assert isinstance(output, base.GenerateFnOutput)
    return output.samples


@pytest.mark.parametrize("fork", ["miles"], indirect=True)
async def test_miles_rollout_code_runs_a_group(fork: str, rig: Rig) -> None:
    """Its own group function, loader and routing keys; nothing starts once it says stop."""
    common = importlib.import_module("miles.rollout.inference_rollout.inference_rollout_common")
    rig.args.sglang_router_policy, rig.args.group_rm = "manual", False
    rig.args.mask_offpolicy_in_partial_rollout = False
    state = types.SimpleNamespace(
        args=rig.args,
        aborted=False,
        tokenizer=rig.state.tokenizer,
        generate_fn_semaphore=asyncio.Semaphore(4),
        generate_function=common.load_generate_function("strands_env.training.slime.miles.generate"),
    )
    theirs = importlib.import_module("miles.utils.types").Sample
    group = [theirs(group_index=0, index=number, prompt="What is 1 + 2?", label="3") for number in range(2)]
    client = rig.serve(*[completion("3") for _ in group])
    samples = await common.generate_and_rm_group(state, group, dict(PARAMS))
    assert [sample.status for sample in samples] == [theirs.Status.COMPLETED] * 2
    keys = {request.fields["routing_key"] for request in client.requests}
    assert keys == {sample.routing_key for sample in samples} and None not in keys
    state.aborted = True
    again = theirs(group_index=1, index=2, prompt="What is 1 + 2?", label="3")
    output = await state.generate_function(
        importlib.import_module("miles.rollout.base_types").GenerateFnInput(
            state=state, sample=again, sampling_params=dict(PARAMS), evaluation=False
        )
    )
    assert output.samples.status is theirs.Status.ABORTED and len(client.requests) == 2
