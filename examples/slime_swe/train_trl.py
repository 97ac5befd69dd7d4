"""GRPO with TRL: an agent program repairs a repository. `python train_trl.py --help` lists its arguments."""

import argparse
import copy

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from strands_env.core import Action
from strands_env.environments.harness import RepositoryEnvironment, mini_swe_agent
from strands_env.training import samples_from_step
from strands_env.training.trl import environment_reward, make_rollout_func
from strands_sglang import SGLangModel
from strands_sglang.backends.engine import EmbeddedEngine

parser = argparse.ArgumentParser(description=__doc__)
for name in ("model", "mini", "programs", "repository", "task", "test"):
    parser.add_argument(f"--{name}", required=True)
args = parser.parse_args()
tokenizer = AutoTokenizer.from_pretrained(args.model)
model = AutoModelForCausalLM.from_pretrained(args.model)
engine = EmbeddedEngine(copy.deepcopy(model), tokenizer=tokenizer)


async def run(prompt, trainer):
    env = RepositoryEnvironment(
        model_factory=lambda: SGLangModel(client=engine, tokenizer=tokenizer, sampling_params={"max_new_tokens": 256}),
        harness=mini_swe_agent(args.mini), read_only=[args.programs], repository=args.repository, test=args.test,
        max_requests=20, final_answer=True,
    )  # fmt: skip
    return samples_from_step(await env.rollout(Action(message=prompt)), placement=None)


async def prepare(trainer):
    await engine.update_weights(trainer.model, str(trainer.state.global_step))


config = GRPOConfig(
    max_steps=1, per_device_train_batch_size=2, num_generations=2, use_cpu=True, bf16=False, report_to=[]
)
GRPOTrainer(
    model=model, processing_class=tokenizer, reward_funcs=environment_reward, args=config,
    rollout_func=make_rollout_func(run, prepare=prepare), train_dataset=Dataset.from_list([{"prompt": args.task}] * 2),
).train()  # fmt: skip
