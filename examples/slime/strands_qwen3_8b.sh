#!/usr/bin/env bash
# GRPO of Qwen3-8B on DAPO-Math-17k with a Python sandbox, evaluated on AIME 2024; one node with 8 GPUs.
# Edit the two paths, prepare models and data as README.md says, then: bash strands_qwen3_8b.sh [--baseline retokenized]
# The other launch scripts set some of the next lines and more options, and source this one.
set -euo pipefail

MODEL=${MODEL:-Qwen3-8B}                 # folder of the model in BASE_DIR, and its name in slime's scripts/models
SHAPE=${SHAPE:-qwen3-8B}
TRAIN=${TRAIN:-train.py}                 # of slime
GPUS=${GPUS:-8}                          # of this node, where Ray is started here
# Nodes, GPUs of each, and training and inference in turn on the same ones; without --colocate: --rollout-num-gpus too.
[ -n "${LAYOUT_ARGS+set}" ] || LAYOUT_ARGS=(--actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate)
[ -n "${EXTRA_ARGS+set}" ] || EXTRA_ARGS=() # options that come last, and so win

SLIME_DIR=${SLIME_DIR:-/root/slime}      # slime, beside its Megatron-LM: where slime's container has them
BASE_DIR=${BASE_DIR:-/path/to/storage}   # models, data and checkpoints

# The arm: the tokens that were sampled, or text all the way (retokenized.py). Both log drift the same way.
GENERATE=strands_env.training.slime.generate
ARM=exact
LOG_ROLLOUT=${LOG_ROLLOUT:-retokenized.log_rollout}
case "$*" in
  "") ;;
  "--baseline retokenized") GENERATE=retokenized.generate ARM=retokenized ;;
  *) echo "got $*, expected nothing or --baseline retokenized" >&2; exit 2 ;;
esac

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
EXAMPLE=${EXAMPLE:-$HERE}                # folder of config.yaml and of the environment's module
CHECK=${CHECK-$HERE/retool_env.py}       # tries the environment; empty for none
PROMPTS=${PROMPTS:-dapo-math-17k/dapo-math-17k.jsonl} # in BASE_DIR
[ -n "${EVAL_ARGS+set}" ] || EVAL_DATA=aime-2024/aime-2024.jsonl
stop() { echo "$1" >&2; exit 2; }
for program in python3 ray; do
  command -v "$program" > /dev/null || stop "$program is missing: run this in slime's container, see README.md"
done
for path in "$SLIME_DIR/$TRAIN" "$SLIME_DIR/scripts/models/$SHAPE.sh" "$SLIME_DIR/../Megatron-LM/megatron" \
  "$BASE_DIR/$MODEL" "$BASE_DIR/${MODEL}_torch_dist" \
  "$BASE_DIR/$PROMPTS" ${EVAL_DATA:+"$BASE_DIR/$EVAL_DATA"}; do
  [ -e "$path" ] || stop "$path is missing: edit SLIME_DIR and BASE_DIR, and see README.md"
done
SLIME_DIR=$(cd "$SLIME_DIR" && pwd) # train.py runs in another folder
BASE_DIR=$(cd "$BASE_DIR" && pwd)
PYTHON_PATH="$SLIME_DIR/../Megatron-LM:$EXAMPLE:$HERE:$SLIME_DIR"
for module in strands_env math_verify torch sglang megatron.core slime; do
  PYTHONPATH=$PYTHON_PATH python3 -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec(sys.argv[1]))' \
    "$module" 2> /dev/null || stop "the Python module $module is missing: README.md says what to install and where"
done
[ -z "$CHECK" ] || python3 "$CHECK" || stop "the sandbox or the reward does not work here, see README.md"

# shellcheck disable=SC1091
source "$SLIME_DIR/scripts/models/$SHAPE.sh" # MODEL_ARGS: the shape of the model, for Megatron

CKPT_ARGS=(
  --hf-checkpoint "$BASE_DIR/$MODEL"          # tokenizer, and architecture and first weights of the inference engines
  --ref-load "$BASE_DIR/${MODEL}_torch_dist"  # the same weights, converted for Megatron: reference and start
  --load "$BASE_DIR/${MODEL}_strands_$ARM"  # where to go on from; while nothing is saved there: --ref-load
  --save "$BASE_DIR/${MODEL}_strands_$ARM"  # the same folder, so that a further start goes on
  --save-interval 20                          # steps between checkpoints: what a crash may cost
)

STRANDS_ARGS=(
  # One rollout: a whole agent loop.
  --custom-generate-function-path "$GENERATE"
  # Not called here, for the environment scores; the scorer where it has no reward.
  --custom-rm-path strands_env.training.slime.reward_func
  # Groups by prompt, each rollout once, failed rollouts left out. Needed as soon as one fails or has several paths.
  --custom-reward-post-process-path strands_env.training.slime.reward_post_process
  # Our metrics and some conversations (strands_env_log_dir), of training; in this example drift, too.
  --custom-rollout-log-function-path "$LOG_ROLLOUT"
  # And of evaluations.
  --custom-eval-rollout-log-function-path strands_env.training.slime.log_eval_rollout
  # Our own options.
  --custom-config-path "$EXAMPLE/config.yaml"
)

[ -n "${FILTER_ARGS+set}" ] || FILTER_ARGS=(
  # Drops prompts whose rollouts all have the same reward, for nothing is to be learnt: all advantages are 0.
  --dynamic-sampling-filter-path strands_env.training.slime.check_reward_nonzero_std
)

ROLLOUT_ARGS=(
  # JSON lines, a problem each.
  --prompt-data "$BASE_DIR/$PROMPTS"
  --input-key prompt               # messages; no --apply-chat-template: the agent renders the conversation itself
  --label-key label                # becomes TaskContext.ground_truth
  --rollout-shuffle                # prompts in random order (--rollout-seed)
  --num-rollout 3000               # training steps
  --rollout-batch-size 32          # prompts a step
  --n-samples-per-prompt 8         # rollouts a prompt: a group; more make advantages less noisy
  --over-sampling-batch-size 64    # prompts started at a time, for some groups are dropped by the filter
  --rollout-max-response-len 8192  # the whole response: all turns and all tool results together
  --rollout-temperature 1          # higher explores more
  --global-batch-size 256          # rollouts of one optimiser step: 32 x 8, so one a step
  --balance-data                   # long and short rollouts evenly over the data-parallel ranks
  # --partial-rollout              # rollouts that are cut at the end of a step go on in the next, sandbox and all
)

[ -n "${EVAL_ARGS+set}" ] || EVAL_ARGS=(
  # A name for the metrics, and the file.
  --eval-prompt-data aime "$BASE_DIR/${EVAL_DATA:-}"
  --eval-interval 20              # steps between evaluations; there is one before training too
  --n-samples-per-eval-prompt 16  # AIME has 30 problems: fewer samples make its mean noisy
  --eval-max-response-len 16384   # as --rollout-max-response-len; here longer answers cost no training memory
  --eval-top-p 1                  # of evaluation; its other sampling options are those of the rollouts
)

GRPO_ARGS=(
  --advantage-estimator grpo  # reward minus its group's mean, by its standard deviation
  --use-kl-loss               # reports the KL divergence from --ref-load; without it no reference is loaded
  --kl-loss-coef 0.00         # its weight in the loss; above 0 keeps the policy near the start
  --kl-loss-type low_var_kl   # its estimator: k3, never negative
  --entropy-coef 0.00         # a bonus for entropy; above 0 where the policy narrows too early
  --eps-clip 0.2              # PPO's clipping of the ratio, downwards
  --eps-clip-high 0.28        # and upwards: clip-higher, as in DAPO
)

OPTIMIZER_ARGS=(
  --optimizer adam           # with decoupled weight decay in Megatron: AdamW
  --lr 1e-6                  # lower it first where rewards collapse
  --lr-decay-style constant  # no schedule
  --weight-decay 0.1         # pulls weights towards 0; 0.0 turns it off
  --adam-beta1 0.9           # average of gradients
  --adam-beta2 0.98          # and of their squares; below Adam's 0.999, for gradients change with the policy
)

PERF_ARGS=(
  --tensor-model-parallel-size 4    # GPUs a layer is split over: 2 replicas on 8; more where memory lacks
  --sequence-parallel               # splits the activations between layers too; always with the above
  --pipeline-model-parallel-size 1  # stages of layers; more for models over several nodes
  --context-parallel-size 1         # GPUs a sequence is split over; more for longer responses
  --expert-model-parallel-size 1    # for mixtures of experts: GPUs the experts are spread over
  --expert-tensor-parallel-size 1   # for mixtures of experts: GPUs an expert is split over
  --recompute-granularity full      # less memory, a third more computation; drop the three if memory allows
  --recompute-method uniform        # all layers alike
  --recompute-num-layers 1          # layers that are recomputed together
  --use-dynamic-batch-size          # micro batches by tokens, not by samples
  --max-tokens-per-gpu 9216         # of a micro batch; prompt and response of one rollout should fit
)

SGLANG_ARGS=(
  --rollout-num-gpus-per-engine 2   # SGLang's tp_size: 4 engines on 8 GPUs
  --sglang-mem-fraction-static 0.7  # memory for weights and cache; less where training lacks it
)

MISC_ARGS=(
  --attention-dropout 0.0               # Megatron's default is 0.1
  --hidden-dropout 0.0                  # so too
  --accumulate-allreduce-grads-in-fp32  # gradients are summed in fp32, not in bf16
  --attention-softmax-in-fp32           # more exact attention
  --attention-backend flash             # drop it for models with MLA (DeepSeek)
)

WANDB_ARGS=() # for Weights & Biases, where its key is in the environment, under slime's name or its own
WANDB_KEY=${WANDB_KEY:-${WANDB_API_KEY:-}}
if [ -n "$WANDB_KEY" ]; then
  WANDB_ARGS=(--use-wandb --wandb-project strands-slime --wandb-group "$SHAPE-retool-$ARM" --wandb-key "$WANDB_KEY")
fi

# Ray's processes, and so train.py and our log, work in the folder where Ray is started. One that runs is used.
cd "$SLIME_DIR"
ray status > /dev/null 2>&1 || ray start --head --node-ip-address 127.0.0.1 --num-gpus "$GPUS" --disable-usage-stats

# Megatron wants CUDA_DEVICE_MAX_CONNECTIONS=1 for tensor parallelism.
RUNTIME_ENV="{\"env_vars\": {\"PYTHONPATH\": \"$PYTHON_PATH\", \"CUDA_DEVICE_MAX_CONNECTIONS\": \"1\"}}"
ray job submit --address=http://127.0.0.1:8265 --runtime-env-json="$RUNTIME_ENV" -- \
  python3 "$SLIME_DIR/$TRAIN" "${LAYOUT_ARGS[@]}" \
  "${MODEL_ARGS[@]}" "${CKPT_ARGS[@]}" "${STRANDS_ARGS[@]}" "${FILTER_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${EVAL_ARGS[@]}" "${GRPO_ARGS[@]}" \
  "${OPTIMIZER_ARGS[@]}" "${PERF_ARGS[@]}" "${SGLANG_ARGS[@]}" "${MISC_ARGS[@]}" "${WANDB_ARGS[@]}" "${EXTRA_ARGS[@]}"
