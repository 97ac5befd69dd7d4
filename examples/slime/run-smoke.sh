#!/usr/bin/env bash
# A smoke run: three steps of Qwen2.5-0.5B-Instruct on one GPU of 24 GB or more, about ten minutes.
# Shows that slime, Megatron, SGLang, the sandbox and this project work together; nothing is learnt in three steps.
set -euo pipefail

MODEL=${MODEL:-Qwen2.5-0.5B-Instruct}
SHAPE=qwen2.5-0.5B
GPUS=1
LAYOUT_ARGS=(--actor-num-nodes 1 --actor-num-gpus-per-node 1 --colocate)
FILTER_ARGS=() # this model solves next to nothing, and every group would be dropped
EXTRA_ARGS=(
  --num-rollout 3                   # steps
  --rollout-batch-size 4            # prompts a step
  --over-sampling-batch-size 4      # none is dropped:
  --n-samples-per-prompt 4          # rollouts a prompt
  --global-batch-size 16            # 4 x 4
  --rollout-max-response-len 1024   # the whole response
  --skip-eval-before-train          # AIME is too hard for this model
  --eval-interval 1000              # and so later
  --tensor-model-parallel-size 1    # one GPU
  --max-tokens-per-gpu 4096         # of a micro batch
  --rollout-num-gpus-per-engine 1   # one engine
  --sglang-mem-fraction-static 0.5  # half the memory for weights and cache
  --save-interval 1000              # nothing to keep
)
. "$(dirname "${BASH_SOURCE[0]}")/strands_qwen3_8b.sh"
