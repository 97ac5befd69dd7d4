"""The report of a large run in a real Chromium: how long it takes to open, to filter, and to scroll through.

    python -m benchmarks.report_open [--samples 5000]      # of 16 turns' worth of text each

Seconds are of the browser's own clock, from navigation to the first rows drawn; frames are those that it draws while
the list scrolls from its beginning to its end. Needs Chromium (Debian package `chromium`).
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.shape import arguments, print_figures
from tests.integration.chromium import CHROMIUM, chromium

from strands_env.core import Action, Observation, RewardResult, StepResult, TaskContext, TerminationReason
from strands_env.eval import EvalSample
from strands_env.eval.store import ResultLog, RunConfig, StorePaths
from strands_env.report import write_report

SAID = "the agent looks up a price and adds two numbers then answers with what it found in the shop today"
_SCROLL = """new Promise((done) => {
  const list = document.querySelector('[data-testid=prompts]'), times = [];
  let last = performance.now();
  const step = (now) => {
    times.push(now - last);
    last = now;
    list.scrollTop += 400;
    if (list.scrollTop + list.clientHeight < list.scrollHeight - 1 && times.length < 600) requestAnimationFrame(step);
    else done({ frames: times.length, median: times.sort((a, b) => a - b)[times.length >> 1], worst: times.at(-1) });
  };
  requestAnimationFrame(step);
})"""
_FILTER = """(() => {
  const box = document.querySelector('input[type=search]'), start = performance.now();
  box.value = 'reward<1 tokens>100 price';
  box.dispatchEvent(new Event('input'));
  return performance.now() - start;
})()"""


def make_sample(rng: random.Random, prompt: int, index: int) -> EvalSample:
    """A sample with a call, its result and an answer."""
    said = " ".join(rng.choice(SAID.split()) for _ in range(60))
    reward = rng.choice([0.0, 0.0, 0.5, 1.0, 1.0, None])
    call = {"toolUseId": "c", "name": "price_of", "input": {"item": "lamp"}}
    result = {"toolUseId": "c", "status": "success", "content": [{"text": "35 dollars"}]}
    context = TaskContext(id=f"task-{prompt}", ground_truth="35")
    return EvalSample(
        action=Action(message=f"Question {prompt}: {said}", task_context=context),
        step_result=StepResult(
            observation=Observation(
                messages=[
                    {"role": "user", "content": [{"text": said}]},
                    {"role": "assistant", "content": [{"toolUse": call}]},
                    {"role": "user", "content": [{"toolResult": result}]},
                    {"role": "assistant", "content": [{"text": said}]},
                ],
                metrics={"output_tokens": {"total": rng.randint(20, 900)}, "tool_calls": 1, "model_calls": 2},
            ),
            reward=None if reward is None else RewardResult(reward=reward, info={"reason": said[:60]}),
            termination_reason=TerminationReason.TIMEOUT if reward is None else TerminationReason.TASK_COMPLETE,
        ),
        id=f"{prompt * 1000 + index:032x}",
        prompt_id=f"task-{prompt}",
        task_digest=f"{prompt:032x}",
        index=index,
        place=prompt,
        duration_s=rng.uniform(1, 400),
    )  # fmt: skip


def make_report(folder: Path, samples: int, group: int, seed: int) -> tuple[Path, dict[str, float]]:
    """The report of a run, in `folder`, and what it cost."""
    rng = random.Random(seed)
    RunConfig(StorePaths.of(folder).run, {"benchmark": "shop"}).check(has_results=False)
    log = ResultLog(StorePaths.of(folder), fsync_interval=None)
    prompts = list(range(-(-samples // group)))
    rng.shuffle(prompts)  # samples end in any order
    for prompt in prompts:
        log.append([make_sample(rng, prompt, index) for index in range(group)])
    log.close()
    started = time.process_time()
    written = write_report(folder, folder / "report.html")
    cost = {"megabytes": round(written.size / 1e6, 1), "written_cpu_s": round(time.process_time() - started, 1)}
    return written.path, {"samples": written.samples, **cost}


async def measure(report: Path, profile: Path) -> dict[str, Any]:
    """Open, filter and scroll."""
    async with chromium(profile) as page:
        await page.open(report)
        await page.until("document.querySelectorAll('.row').length > 0")
        opened = await page.run("performance.now()")
        read = await page.run("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
        return {
            "opened_s": round(opened / 1000, 2),
            "page_read_s": round(read / 1000, 2),
            "scrolled_ms": await page.run(_SCROLL),
            "filtered_ms": round(await page.run(_FILTER)),
            "problems": list(page.problems),
        }


def main() -> int:
    """Make the report, and open it."""
    parser = arguments(__doc__)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--group", type=int, default=4, help="samples of a prompt")
    args = parser.parse_args()
    if CHROMIUM is None:
        print("there is no Chromium (Debian package 'chromium')", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        folder, profile = Path(scratch, "run"), Path(scratch, "profile")
        folder.mkdir()
        report, figures = make_report(folder, 80 if args.quick else args.samples, args.group, args.seed)
        print_figures("report_open", **figures, **asyncio.run(measure(report, profile)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
