"""The page of `strands-env watch --open` over a run that is still written, in a real Chromium.

    python -m benchmarks.live_page [--samples 5000] [--passes 3]

The last tenth of the samples is written while the page is looked at; the watch is a process of its own, as a user has
it. Milliseconds from the navigation to the first paint and to the first rows of the table, then the longest frame and
the 99th percentile of 240 frames in which the table is scrolled, once by prompt and once by sample, while news arrives;
`cpu` is the processor time of the page's thread for a frame, which a busy machine changes little.
Medians of the passes; `worst` is the longest frame of all, and `load` that of the machine before it.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.shape import arguments, medians, print_figures

SCROLL = """new Promise((resolve) => {
  const list = document.querySelector('[data-testid=prompts]'), frames = [];
  let last = performance.now();
  const frame = (now) => {
    frames.push(now - last);
    last = now;
    list.scrollTop += 1500;
    if (frames.length < 240) requestAnimationFrame(frame);
    else resolve(frames.slice(1).sort((a, b) => a - b));
  };
  requestAnimationFrame(frame);
})"""
FIRST_ROW = """new Promise((resolve) => {
  const look = () => (document.querySelector('.row') ? resolve(performance.now()) : requestAnimationFrame(look));
  look();
})"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


def write(folder: Path, first: int, last: int, seconds: float) -> None:
    """Samples of four turns with their tokens, four a prompt, evenly over so many seconds."""
    import time

    from strands_env.core import (
        Action,
        Observation,
        RewardResult,
        StepResult,
        TaskContext,
        TokenObservation,
        Trajectory,
    )
    from strands_env.core import TerminationReason as Reason
    from strands_env.eval import EvalSample
    from strands_env.eval.store import ResultLog, RunConfig, StorePaths

    rng = random.Random(first)
    if not first:
        RunConfig(StorePaths.of(folder).run, {"benchmark": "live"}).check(has_results=False)
    log = ResultLog(StorePaths.of(folder), fsync_interval=None)
    turn = {"model_s": 2.0, "tool_s": 0.7, "input_tokens": 300, "output_tokens": 100, "cached_tokens": 250}
    for number in range(first, last):
        ids = [rng.randrange(100, 40_000) for _ in range(500)]
        mask, logprobs = [0] * 100 + [1] * 400, [None] * 100 + [-rng.expovariate(2) for _ in range(400)]
        tokens = TokenObservation(token_ids=ids, prompt_length=100, loss_mask=mask, logprobs=logprobs)
        name = f"problem/{number // 4:05}"
        messages = [{"role": role, "content": [{"text": "text " * 40}]} for role in ("user", "assistant") * 4]
        metrics = {
            "turns": [turn] * 4,
            "model_latency_s": {"total": 8.0},
            "tool_s": 2.8,
            "output_tokens": {"total": 400},
        }
        result = StepResult(
            observation=Observation(messages=messages, metrics=metrics),
            reward=RewardResult(reward=float(rng.random() < 0.6)),
            termination_reason=Reason.TASK_COMPLETE,
            trajectories=[Trajectory(agent_name="agent", tokens=tokens, is_main=True)],
        )
        action = Action(message=f"Question {number // 4}: " + "what? " * 30, task_context=TaskContext(id=name))
        facts: dict[str, Any] = {"id": f"{number:032x}", "task_digest": name, "prompt_id": name}
        log.append([EvalSample(action=action, step_result=result, index=number % 4, duration_s=13.0, **facts)])
        time.sleep(seconds / (last - first))
    log.close()


async def cpu_ms(page: Any) -> float:
    """Processor time of the page's own thread so far."""
    metrics = {each["name"]: each["value"] for each in (await page.call("Performance.getMetrics"))["metrics"]}
    return 1000 * float(metrics["TaskDuration"])


async def measure(samples: int, folder: Path) -> dict[str, float]:
    """One pass."""
    from tests.integration.chromium import chromium

    before = samples * 9 // 10
    write(folder / "run", 0, before, 0)
    command = [sys.executable, "-m", "strands_env", "watch", str(folder / "run"), "--tokenizer", "none", "--port", "0"]
    watch = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert watch.stdout is not None
        address = (await watch.stdout.readline()).decode().split()[0]
        figures: dict[str, float] = {}
        async with chromium(folder, address) as page:
            done = f"document.querySelector('[data-testid=count]')?.textContent.endsWith(' of {before // 4:,}')"
            await page.until(done)  # the watch has read what was there
            await page.call("Page.navigate", url="about:blank")
            await page.call("Page.navigate", url=address)
            figures["first_rows_ms"] = await page.run(FIRST_ROW)
            await page.until(f"({PAINT}) !== null")
            figures["first_paint_ms"] = await page.run(PAINT)
            writing = asyncio.create_task(asyncio.to_thread(write, folder / "run", before, samples, 12.0))
            await page.call("Performance.enable", timeDomain="threadTicks")
            for mode in ("prompts", "samples"):
                await page.click(f"[data-mode={mode}]")
                started = await cpu_ms(page)
                frames = await page.run(SCROLL)
                figures |= {f"{mode}_longest_ms": frames[-1], f"{mode}_p99_ms": frames[-len(frames) // 100]}
                figures[f"{mode}_cpu_ms"] = (await cpu_ms(page) - started) / len(frames)
            await writing
        return figures
    finally:
        watch.terminate()
        await watch.wait()


async def main() -> None:
    parser = arguments(__doc__, passes=3)
    parser.add_argument("--samples", type=int, default=5000)
    args = parser.parse_args()
    samples, passes = (400, 1) if args.quick else (args.samples, args.passes)
    found, load = [], os.getloadavg()[0]
    for _ in range(passes):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            found.append(await measure(samples, Path(folder)))
    worst = max(value for each in found for name, value in each.items() if name.endswith("longest_ms"))
    facts = {"samples": samples, "passes": passes, "load": round(load, 2), "worst": round(worst, 1)}
    print_figures("live_page", **facts, page=medians(found))


if __name__ == "__main__":
    asyncio.run(main())
