"""Arguments of every subcommand of `strands-env`. Nothing heavy is imported for them, so that help comes at once."""

from __future__ import annotations

import argparse
from functools import partial

from strands_env.backends import BACKENDS
from strands_env.recipe.names import EXECUTORS, GROUP_POLICIES, REWARDS, TRACKERS
from strands_sglang.command_line import AddArguments, add_server, json_object, non_negative, number, positive, whole

seed = partial(whole, least=0, most=2**63 - 1, expected="a whole number from 0, below 2^63")  # as readers of JSON hold


def add_eval(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `eval`."""
    parser.add_argument("benchmark", nargs="?", help="name of a benchmark (see list), or module:attribute of your own")
    parser.add_argument("--from-run", metavar="RUN", help="take the rest from a saved run: its folder or x.run.json")
    model = parser.add_argument_group("model")
    model.add_argument("--backend", choices=BACKENDS, help="where the model is (default: local, on this CPU)")
    model.add_argument("--model-id", "--model", metavar="ID", help="model: a name, a hub id or a folder")
    model.add_argument("--base-url", "--sglang-base-url", metavar="URL", help="server of sglang, vllm or openai")
    model.add_argument("--tokenizer", metavar="ID", help="tokenizer (default: the server's)")
    model.add_argument("--tool-parser", metavar="NAME", help="reader of tool calls (default: fits the chat template)")
    model.add_argument("--temperature", type=number, metavar="T", help="0 is greedy")
    model.add_argument("--top-p", type=number, metavar="P")
    model.add_argument("--top-k", type=int, metavar="K")
    model.add_argument("--max-new-tokens", type=positive, metavar="N", help="tokens of one model call")
    model.add_argument("--sampling", type=json_object, metavar="JSON", help="further sampling parameters, or a file")
    script = """answer of the backend scripted, or a JSON list of texts and calls {"tool": NAME, "input": {...}}"""
    model.add_argument("--script", metavar="TEXT", help=script)
    _add_environment(parser.add_argument_group("environment"))
    data = parser.add_argument_group("data")
    _add_data(data)
    data.add_argument("--limit", type=positive, metavar="N", help="number of tasks")
    data.add_argument("--seed", type=seed, metavar="N", help="seed of the data (0) and of sampling (drawn)")
    run = parser.add_argument_group("run")
    run.add_argument("-n", "--n-samples-per-prompt", type=positive, metavar="N", help="samples of each task (1)")
    run.add_argument("-c", "--max-concurrency", type=positive, metavar="N", help="rollouts at a time (10)")
    run.add_argument("-o", "--output", metavar="DIR", help="folder of the results (default: runs/BENCHMARK)")
    run.add_argument("--resume", action="store_true", help="continue what is in the output folder, if anything is")
    run.add_argument("--record", metavar="FILE", help="keep every request and answer of the backend, for replay")
    run.add_argument("--no-tokens", action="store_true", help="do not keep token ids and log-probabilities")
    run.add_argument("--max-attempts", type=positive, metavar="N", help="rollouts of a sample that gets lost (3)")
    run.add_argument("--max-failures", type=non_negative, metavar="N", help="give up after so many lost samples")
    run.add_argument("--group-policy", choices=GROUP_POLICIES, help="for lost samples (keep)")
    run.add_argument("--sample-timeout", type=number, metavar="S", help="seconds of one rollout")
    _add_threshold(run)
    text = "seconds in which the reward is proven on a sample of local tasks, before the run (2; 0: none)"
    run.add_argument("--proof-seconds", type=number, metavar="S", help=text)
    run.add_argument("--executor", choices=EXECUTORS, help="where rollouts run (default: inline, this process)")
    run.add_argument("--workers", type=positive, metavar="N", help="worker processes or Ray actors")
    run.add_argument("--track", type=_trackers, metavar="NAMES", help=f"also report to {', '.join(TRACKERS)}")
    run.add_argument("--project", metavar="NAME", help="project of the tracker (default: the benchmark)")
    _add_display(run)


def add_replay(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `replay`."""
    parser.add_argument("file", help="recording of 'strands-env eval --record FILE'")
    parser.add_argument("-o", "--output", metavar="DIR", help="folder of the results (default: FILE.replay)")
    _add_display(parser)


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `compare`."""
    parser.add_argument("first", help="folder or .jsonl of the run to compare with")
    parser.add_argument("others", nargs="+", metavar="second", help="the run in question, or several")
    parser.add_argument("--reward-threshold", type=number, metavar="R", help="compare pass rates at this reward")
    parser.add_argument("--level", type=number, default=0.95, metavar="L", help="confidence level (default: 0.95)")
    parser.add_argument(
        "--fail-if-worse",
        action="store_true",
        help="exit 1 when the second is significantly worse, 3 when samples were lost",
    )
    _add_json(parser)


def add_report(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `report`."""
    parser.add_argument("run", help="folder or .jsonl of a run; or of a training: a folder of runs, or slime's log")
    parser.add_argument("-o", "--output", metavar="FILE", help="HTML file (default: report.html beside the results)")
    parser.add_argument("--tokenizer", metavar="ID", help="for texts and drift (default: the run's; none: only ids)")
    _add_threshold(parser)
    parser.add_argument("--open", action="store_true", help="open it in the browser")
    _add_json(parser, "its path and size as JSON")


def add_view(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `view`."""
    _add_run(parser)
    parser.add_argument("sample", nargs="?", help="prompt id, or prompt id and index: p7 or p7/2")
    parser.add_argument("--limit", type=non_negative, default=50, metavar="N", help="prompts to list (default: 50)")
    _add_json(parser, "as JSON; samples as in the results, one a line")


def add_rescore(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `rescore`."""
    _add_run(parser)
    _add_environment(parser.add_argument_group("reward", "Without any of these, the run's own environment scores."))
    parser.add_argument("-o", "--output", metavar="DIR", help="folder of the new run (default: RUN-rescored)")
    parser.add_argument("-c", "--max-concurrency", type=positive, default=10, metavar="N", help="at a time (10)")
    _add_threshold(parser)
    _add_display(parser)


def add_export(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export`."""
    _add_run(parser)
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help=".parquet for samples, else .jsonl")
    formats = (
        "samples: our neutral columns, one row a path; sft: messages, ids and labels; prompts: pass rates and sampling "
        "weights for the next run (default: samples)"
    )
    parser.add_argument("--format", choices=["samples", "sft", "prompts"], default="samples", help=formats)
    parser.add_argument("--min-reward", type=number, metavar="R", help="only rollouts with at least this reward")
    parser.add_argument("--max-reward", type=number, metavar="R", help="only rollouts with at most this reward")
    parser.add_argument("--mixed", action="store_true", help="only prompts whose rollouts differ in their reward")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    _add_json(parser, "counts as JSON")
    prompts = parser.add_argument_group("prompts", "Only with --format prompts; unscored samples count for nothing.")
    bounds = ("LOW", "HIGH")
    prompts.add_argument("--between", nargs=2, type=number, metavar=bounds, help="only pass rates in [LOW, HIGH]")
    prompts.add_argument("--draw", type=positive, metavar="N", help="N rows, each prompt as often as its weight says")
    prompts.add_argument("--seed", type=seed, default=0, metavar="N", help="seed of --draw (0)")
    _add_threshold(prompts)


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `verify`."""
    _add_run(parser)
    again = parser.add_argument_group("score again", "Without these, only the files are checked.")
    add_server(again, "server that scores every trajectory again")
    again.add_argument("--model", metavar="NAME", help="for the embedded engine: smollm2, a hub id or a folder")
    again.add_argument("--limit", type=positive, metavar="N", help="samples to score (default: all)")
    again.add_argument("--max-kl", type=number, metavar="X", help="exit 1 when the mismatch KL is larger")
    _add_json(parser)


def add_drift(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `drift`, which is a command of `strands-sglang` too."""
    _add_run(parser)
    parser.add_argument("--tokenizer", metavar="ID", help="tokenizer (default: the run's)")
    _add_json(parser)


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `watch`."""
    _add_run(parser)
    _add_json(parser, "look once, as JSON")


def add_check(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `check`."""
    parser.add_argument("benchmark", nargs="?", help="benchmark whose environment and first task are tried")
    _add_environment(parser)
    _add_data(parser)
    text = "model whose chat template renders the prompt, or none"
    parser.add_argument("--tokenizer", "--model", "--model-id", metavar="ID", help=text)
    text = "seconds for the proof of the reward on the tasks (60; 0: none)"
    parser.add_argument("--proof-seconds", type=number, default=60.0, metavar="S", help=text)
    parser.add_argument("--ask-judge", action="store_true", help="prove a reward that asks a model, too")
    _add_json(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="log where user code raised")


def add_init(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `init`."""
    parser.add_argument("name", help="name of the environment; also of the folder, which must be new or empty")
    _add_json(parser, "the files and the next commands as JSON")


def add_demo(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `demo`."""
    parser.add_argument("--model", default="smollm2", metavar="ID", help="a name, a hub id or a folder (smollm2)")
    parser.add_argument("--questions", type=positive, default=4, metavar="N", help="number of questions (4)")
    parser.add_argument("--samples", type=positive, default=3, metavar="N", help="rollouts of each question (3)")
    parser.add_argument("--temperature", type=number, default=1.0, metavar="T", help="0 is greedy (1)")
    parser.add_argument("--max-new-tokens", type=positive, default=64, metavar="N", help="of one model call (64)")
    parser.add_argument("--seed", type=seed, default=5, metavar="N", help="the same seed gives the same rollouts (5)")
    _add_json(parser)


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `doctor`."""
    help = "server that samples one token as for training, vllm+URL: vLLM"
    parser.add_argument("--server", action="append", default=[], metavar="URL", help=help)
    parser.add_argument("--tokenizer", metavar="ID", help="tokenizer of the servers (default: the one they name)")
    _add_json(parser)


def add_images(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `images`."""
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    pull = actions.add_parser("pull", help="fetch an image from a registry, with skopeo, podman or docker")
    pull.add_argument("image", help="its reference, as in debian:bookworm-slim")
    pull.add_argument("--name", metavar="NAME", help="another name for it here")
    taken = actions.add_parser("import", help="take in an image that is on this machine")
    taken.add_argument("source", help="podman:NAME, docker:NAME, oci:FOLDER[:TAG], or the path of an archive or layout")
    taken.add_argument("--name", metavar="NAME", help="its name here, such as the docker_image of a task")
    build = actions.add_parser("build", help="build the Dockerfile of a task with podman or docker")
    build.add_argument("folder", help="folder of the task, or one with a Dockerfile")
    build.add_argument("--name", metavar="NAME", help="its name here (default: the one its task looks for)")
    actions.add_parser("list", help="list the images on this machine")
    remove = actions.add_parser("remove", help="remove an image")
    remove.add_argument("image", help="its reference")


def add_validate(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `validate`."""
    parser.add_argument("folder", help="folder of tasks in Harbor's format, or one task")
    parser.add_argument("-n", "--repeats", type=positive, default=2, metavar="N", help="trials of each kind (2)")
    parser.add_argument("--backend", default="bubblewrap", metavar="NAME", help="bubblewrap, docker, podman, ...")
    parser.add_argument("--backend-options", type=json_object, metavar="JSON", help="options of the backend")
    parser.add_argument("--verifier", choices=["task", "separate", "in-place"], default="task", help="where tests run")
    parser.add_argument("--work", nargs="+", metavar="PATH", help="what counts as work beside the work directory")
    parser.add_argument("--keep-processes", action="store_true", help="leave servers of the solution running for tests")
    parser.add_argument("--cheats", action="store_true", help="also try our own cheats on every task")
    parser.add_argument("--concurrency", type=positive, default=4, metavar="N", help="trials at the same time (4)")
    parser.add_argument("--limit", type=positive, metavar="N", help="first N tasks only")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="write report.json and tasks.txt, the sound tasks")
    _add_json(parser)


COMMANDS: dict[str, tuple[AddArguments, str]] = {
    "eval": (add_eval, "run a benchmark"),
    "replay": (add_replay, "run a recorded evaluation again, without its server"),
    "compare": (add_compare, "compare two runs prompt by prompt, with a test of significance"),
    "report": (add_report, "write one HTML file to look at a run"),
    "view": (add_view, "show a run, or one sample of it, in the terminal"),
    "rescore": (add_rescore, "score saved rollouts with another reward; nothing is sampled again"),
    "export": (add_export, "write a run as training data: Parquet or JSON Lines"),
    "verify": (add_verify, "check a run's files, and its log-probabilities against a server"),
    "drift": (add_drift, "count what re-tokenising a run's texts would have changed"),
    "watch": (add_watch, "watch a run in progress"),
    "check": (add_check, "try an environment: its tools, its first prompt; prove its reward on the tasks"),
    "init": (add_init, "make a folder with an environment, a reward, tasks, a test and a training"),
    "demo": (add_demo, "sample rollouts of a small model, and see what re-tokenising would change"),
    "doctor": (add_doctor, "report what works on this machine, and how to fix what does not"),
    "images": (add_images, "the container images of sandboxes without a daemon"),
    "validate": (add_validate, "try container tasks: solution 1, nothing 0, cheats 0"),
    "list": (lambda parser: _add_json(parser), "list benchmarks"),
}
"""Every subcommand: the function that adds its arguments, and one line of help. Its module has its name."""


# ---- what several have -----------------------------------------------------------------------------------------------


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="folder or .jsonl of the run")


def _add_json(parser: argparse._ActionsContainer, help: str = "as JSON") -> None:
    parser.add_argument("--json", action="store_true", help=help)


def _add_display(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, only the result")
    _add_json(parser, "the result as JSON on standard output")
    parser.add_argument("-v", "--verbose", action="store_true", help="log warnings of single samples")


def _add_environment(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--env", metavar="HOOK", help="an environment: module:function of a hook, or module:Class")
    parser.add_argument("--env-config", type=json_object, metavar="JSON", help="arguments of the hook, or a file")
    rewards = f"what scores: {', '.join(REWARDS)}, or module:attribute (default: the environment's)"
    parser.add_argument("--reward", metavar="HOOK", help=rewards)


def _add_data(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--data", metavar="PATH", help="local .jsonl, .json or .parquet; without a benchmark, of tasks")
    parser.add_argument("--columns", metavar="MAP", help="its columns, as in question=prompt,answer=solution")


def _add_threshold(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--reward-threshold", type=number, metavar="R", help="a sample passes from this reward on")


# ---- types -----------------------------------------------------------------------------------------------------------


def _trackers(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in TRACKERS:
            from strands_sglang.exceptions import did_you_mean  # brings the SDK, which help does without

            hint = did_you_mean(name, TRACKERS)
            raise argparse.ArgumentTypeError(f"unknown tracker {name!r}{hint}; choose from {', '.join(TRACKERS)}")
    return names
