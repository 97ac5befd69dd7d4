"""GRPO with TRL: an agent program repairs a repository. `python train_trl.py --help` says what it needs."""

import argparse
import asyncio

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from strands_env.core import Action
from strands_env.environments.harness import RepositoryEnvironment, mini_swe_agent
from strands_env.training import samples_from_step
from strands_env.training.trl import environment_reward, make_rollout_func
from strands_sglang import SGLangModel
from strands_sglang.backends.engine import EmbeddedEngine

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="smollm2", help="model of the embedded engine")
parser.add_argument("--mini", required=True, help="the program mini of mini-swe-agent")
parser.add_argument("--programs", required=True, help="folder with all that it needs")
parser.add_argument("--repository", required=True, help="folder with the code")
parser.add_argument("--task", required=True, help="what is to be done")
parser.add_argument("--test", required=True, help="command that passes when it is done")
parser.add_argument("--steps", type=int, default=1)
args = parser.parse_args()
engine = EmbeddedEngine(args.model)


async def run(prompt, trainer):
    sampling = {"max_new_tokens": 256, "temperature": 1.0}
    env = RepositoryEnvironment(
        model_factory=lambda: SGLangModel(client=engine, tokenizer=engine.tokenizer, sampling_params=sampling),
        harness=mini_swe_agent(args.mini), read_only=[args.programs], repository=args.repository, test=args.test,
        max_requests=8, final_answer=True,
    )  # fmt: skip
    return samples_from_step(await env.rollout(Action(message=prompt)))


trainer = GRPOTrainer(
    model=engine.model, processing_class=engine.tokenizer, reward_funcs=environment_reward,
    rollout_func=make_rollout_func(run), train_dataset=Dataset.from_list([{"prompt": args.task}] * 2),
    args=GRPOConfig(max_steps=args.steps, per_device_train_batch_size=2, num_generations=2, use_cpu=True, bf16=False,
                    report_to=[], save_strategy="no"),
)  # fmt: skip
trainer.train()
asyncio.run(engine.close())
