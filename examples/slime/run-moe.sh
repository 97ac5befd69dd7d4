#!/usr/bin/env bash
# GRPO of Qwen3-30B-A3B, a mixture of experts, on one node with 8 GPUs: training replays the experts that the engines
# chose, and the tokens that top-p kept.
# Needs slime's patched SGLang (--enable-return-routed-experts is set by slime; top-p data comes with its patch).
# To watch: train_rollout_logprob_abs_diff stays small; without the replay it is larger from the first step on.
set -euo pipefail

MODEL=${MODEL:-Qwen3-30B-A3B}
SHAPE=qwen3-30B-A3B
EXTRA_ARGS=(
  --use-rollout-routing-replay       # a rollout without routed experts is FAILED, never trained without them
  --rollout-top-p 0.95               # the survivors of each position are recorded and replayed
  --tensor-model-parallel-size 4     # of attention
  --expert-model-parallel-size 8     # 128 experts over 8 GPUs
  --rollout-num-gpus-per-engine 4    # 2 engines
  --optimizer-cpu-offload            # the optimiser's state does not fit beside the weights
  --overlap-cpu-optimizer-d2h-h2d    # copied while the GPU computes
  --use-precision-aware-optimizer    # needed by the offload
)
. "$(dirname "${BASH_SOURCE[0]}")/strands_qwen3_8b.sh"
