#!/usr/bin/env bash
# GRPO of Qwen3-8B on DAPO-Math-17k with a Python sandbox, evaluated on AIME 2024; one node with 8 GPUs.
# Edit the two paths, prepare models and data as README.md says, then: bash run-qwen3-8b.sh
set -euo pipefail

SLIME_DIR=${SLIME_DIR:-/path/to/slime}   # a checkout of slime, beside its Megatron-LM
BASE_DIR=${BASE_DIR:-/path/to/storage}   # models, data and checkpoints

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
for path in "$SLIME_DIR/train.py" "$BASE_DIR/Qwen3-8B" "$BASE_DIR/Qwen3-8B_torch_dist" \
  "$BASE_DIR/dapo-math-17k/dapo-math-17k.jsonl" "$BASE_DIR/aime-2024/aime-2024.jsonl"; do
  [ -e "$path" ] || { echo "$path is missing: edit SLIME_DIR and BASE_DIR, and see README.md" >&2; exit 2; }
done
BASE_DIR=$(cd "$BASE_DIR" && pwd) # train.py runs in another folder
python3 "$HERE/retool_env.py" || { echo "the sandbox or the reward does not work here, see README.md" >&2; exit 2; }

# shellcheck disable=SC1091
source "$SLIME_DIR/scripts/models/qwen3-8B.sh" # MODEL_ARGS: the shape of the model, for Megatron

CKPT_ARGS=(
  --hf-checkpoint "$BASE_DIR/Qwen3-8B"              # tokenizer, and weights of the inference engines
  --ref-load "$BASE_DIR/Qwen3-8B_torch_dist"        # the same weights, converted for Megatron
  --load "$BASE_DIR/Qwen3-8B_strands"               # where to continue, if there is something
  --save "$BASE_DIR/Qwen3-8B_strands"
  --save-interval 20
)

STRANDS_ARGS=(
  --custom-generate-function-path strands_env.training.slime.generate  # one rollout: a whole agent loop
  --custom-rm-path strands_env.training.slime.reward_func              # not called here: the environment scores
  # Groups by prompt, each rollout once, failed rollouts left out. Needed as soon as one fails or has several paths.
  --custom-reward-post-process-path strands_env.training.slime.reward_post_process
  # Drops prompts whose rollouts all have the same reward.
  --dynamic-sampling-filter-path strands_env.training.slime.check_reward_nonzero_std
  --custom-rollout-log-function-path strands_env.training.slime.log_rollout
  --custom-eval-rollout-log-function-path strands_env.training.slime.log_eval_rollout
  --custom-config-path "$HERE/config.yaml"                             # our own options
)

ROLLOUT_ARGS=(
  --prompt-data "$BASE_DIR/dapo-math-17k/dapo-math-17k.jsonl"
  --input-key prompt             # messages; no --apply-chat-template: the agent renders the conversation itself
  --label-key label              # becomes TaskContext.ground_truth
  --rollout-shuffle
  --num-rollout 3000             # training steps
  --rollout-batch-size 32        # prompts a step
  --n-samples-per-prompt 8       # rollouts a prompt: a group
  --over-sampling-batch-size 64  # prompts started at a time, for some groups are dropped by the filter
  --rollout-max-response-len 8192 # the whole response: all turns and all tool results together
  --rollout-temperature 1
  --global-batch-size 256        # rollouts of one optimiser step: 32 x 8
  --balance-data
  # --partial-rollout            # rollouts that are cut at the end of a step go on in the next, sandbox and all
)

EVAL_ARGS=(
  --eval-interval 20
  --eval-prompt-data aime "$BASE_DIR/aime-2024/aime-2024.jsonl"
  --n-samples-per-eval-prompt 16
  --eval-max-response-len 16384
  --eval-top-p 1
)

GRPO_ARGS=(
  --advantage-estimator grpo
  --use-kl-loss                  # reported; without weight in the loss
  --kl-loss-coef 0.00
  --kl-loss-type low_var_kl
  --entropy-coef 0.00
  --eps-clip 0.2
  --eps-clip-high 0.28           # clip-higher, as in DAPO
)

OPTIMIZER_ARGS=(
  --optimizer adam
  --lr 1e-6
  --lr-decay-style constant
  --weight-decay 0.1
  --adam-beta1 0.9
  --adam-beta2 0.98
)

PERF_ARGS=(
  --tensor-model-parallel-size 4
  --sequence-parallel
  --pipeline-model-parallel-size 1
  --context-parallel-size 1
  --expert-model-parallel-size 1
  --expert-tensor-parallel-size 1
  --recompute-granularity full   # less memory, a third more computation
  --recompute-method uniform
  --recompute-num-layers 1
  --use-dynamic-batch-size       # micro batches by tokens, not by samples
  --max-tokens-per-gpu 9216
)

SGLANG_ARGS=(
  --rollout-num-gpus-per-engine 2
  --sglang-mem-fraction-static 0.7
)

MISC_ARGS=(
  --attention-dropout 0.0        # Megatron's default is 0.1
  --hidden-dropout 0.0
  --accumulate-allreduce-grads-in-fp32
  --attention-softmax-in-fp32
  --attention-backend flash
)

WANDB_ARGS=()
if [ -n "${WANDB_API_KEY:-}" ]; then
  WANDB_ARGS=(--use-wandb --wandb-project strands-slime --wandb-group qwen3-8b-retool --wandb-key "$WANDB_API_KEY")
fi

# Ray's processes, and so train.py and our log, work in the folder where Ray is started. One that runs is used.
cd "$SLIME_DIR"
SLIME_DIR=$PWD
ray status > /dev/null 2>&1 || ray start --head --node-ip-address 127.0.0.1 --num-gpus 8 --disable-usage-stats

# PYTHONPATH: Megatron-LM, this folder (retool_env), and slime.
RUNTIME_ENV="{\"env_vars\": {
  \"PYTHONPATH\": \"$SLIME_DIR/../Megatron-LM:$HERE:$SLIME_DIR\",
  \"CUDA_DEVICE_MAX_CONNECTIONS\": \"1\"
}}"
ray job submit --address=http://127.0.0.1:8265 --runtime-env-json="$RUNTIME_ENV" -- \
  python3 "$SLIME_DIR/train.py" --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate \
  "${MODEL_ARGS[@]}" "${CKPT_ARGS[@]}" "${STRANDS_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${EVAL_ARGS[@]}" "${GRPO_ARGS[@]}" \
  "${OPTIMIZER_ARGS[@]}" "${PERF_ARGS[@]}" "${SGLANG_ARGS[@]}" "${MISC_ARGS[@]}" "${WANDB_ARGS[@]}"
