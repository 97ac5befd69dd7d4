#!/usr/bin/env bash
# Fully asynchronous GRPO of Qwen3-8B on one node with 8 GPUs: 4 train while 4 sample, across steps.
# To watch: perf/rollout_time falls below the time of a training step; `weight_versions` in our log is above 1, for
# rollouts now see several versions of the weights. Off-policy tokens are trained with the log-probabilities that were
# recorded when they were sampled.
set -euo pipefail

TRAIN=train_async.py
LAYOUT_ARGS=(--actor-num-nodes 1 --actor-num-gpus-per-node 4 --rollout-num-gpus 4)
EXTRA_ARGS=(
  # Keeps a pool of rollouts running across steps.
  --rollout-function-path slime.rollout.fully_async_rollout.generate_rollout_fully_async
  # The worker does not evaluate.
  --eval-function-path slime.rollout.sglang_rollout.generate_rollout
  --update-weights-interval 2          # steps between two versions of the weights
  --tensor-model-parallel-size 4       # one replica on 4 GPUs
  --sglang-mem-fraction-static 0.85    # the engines have their GPUs to themselves
)
. "$(dirname "${BASH_SOURCE[0]}")/strands_qwen3_8b.sh"
