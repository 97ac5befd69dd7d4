"""vime, slime's fork for vLLM: the same functions under its own names."""

from __future__ import annotations

from strands_env.training.slime.settings import Trainer

TRAINER = Trainer(
    name="vime",
    states="vime.rollout.vllm_rollout",
    seed="seed",
    meta=None,
    asks_for_top_p=True,
    by_key=frozenset({"consistent_hash"}),
    traces="vime.utils.trace_utils",
    span="vllm_generate",
    attributes="build_vllm_meta_trace_attrs",
)
