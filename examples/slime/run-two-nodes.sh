#!/usr/bin/env bash
# GRPO of Qwen3-8B, disaggregated over two nodes with 8 GPUs each: one trains, one samples.
# Before: `ray start --head --node-ip-address HEAD` on this node, `ray start --address HEAD:6379 --num-gpus 8` on the
# other, this project and its sandbox installed on both, and SLIME_DIR and BASE_DIR on a file system that both see.
# To watch: `ray status` shows 16 GPUs; the rollouts of a step begin while nothing is offloaded.
set -euo pipefail

LAYOUT_ARGS=(--actor-num-nodes 1 --actor-num-gpus-per-node 8 --rollout-num-gpus 8)
EXTRA_ARGS=(
  --tensor-model-parallel-size 2       # 4 replicas on the training node
  --sglang-mem-fraction-static 0.85    # the engines have their GPUs to themselves
  --sglang-server-concurrency 64       # rollouts an engine; each waits for its sandbox too (SLOTS of retool_env.py)
)
. "$(dirname "${BASH_SOURCE[0]}")/strands_qwen3_8b.sh"
