#!/usr/bin/env bash
# GRPO of Qwen3-8B as the agent of strands-harness; one node with 8 GPUs. README.md says how to prepare it.
set -euo pipefail

EXAMPLE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PROMPTS=${PROMPTS:-tasks.jsonl}       # in BASE_DIR
EVAL_ARGS=()                          # none in this example
EXTRA_ARGS=(
  --metadata-key metadata             # names the task, for make_env
  --rollout-batch-size 16             # tasks a step
  --over-sampling-batch-size 16
  --n-samples-per-prompt 8            # rollouts a task
  --global-batch-size 128             # 16 x 8
  --rollout-max-response-len 24576    # the whole response of a path: all turns and all tool results
  --rollout-max-context-len 32768     # with the harness' prompt of about 3,000 tokens
  --max-tokens-per-gpu 16384          # of a micro batch, over 2 GPUs:
  --context-parallel-size 2
)
. "$EXAMPLE/../slime/strands_qwen3_8b.sh"
