"""slime's own code on CPU: its modules with stand-ins for engines, its arguments by its own parser.

slime is read from `SLIME_DIR`, or from `reference/slime` of the recorded data. Ray, PyTorch and transformers are the
real ones.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import importlib
import importlib.abc
import importlib.machinery
import json
import math
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from provider_support import call, completion, tokenizer
from slime_support import AddEnv, TwoPaths

from strands_env.core import Environment
from strands_sglang.testing import Reply, build_answer
from tests.conftest import SHARED

SLIME = Path(os.environ.get("SLIME_DIR") or SHARED / "reference" / "slime")

requires_slime = pytest.mark.skipif(
    not (SLIME / "slime" / "rollout").is_dir(),
    reason=f"slime's source is not at {str(SLIME)!r}: set SLIME_DIR to a checkout of slime 0.3.1 (624b824a8)",
)

REASON = "needs the packages of tests/contract/trainers.txt, which says how to install them"


def package(name: str, reason: str = REASON) -> Any:
    """A module of a trainer. Where CI has installed the packages, a missing one is a failure."""
    if os.environ.get("STRANDS_ROLLOUT_TRAINERS") == "required":
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=reason)


_STAND_INS = ("sglang", "sglang_router", "wandb", "megatron", "mbridge", "tensorboardX")


class _StandIn(types.ModuleType):
    """A module that has every name: classes that can be inherited from, and called."""

    __path__: list[str] = []  # noqa: RUF012 - a package, so that its submodules are looked for

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"add_cli_args": staticmethod(lambda parser, **_: parser)})
        setattr(self, name, made)
        return made


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        known = name.partition(".")[0] in _STAND_INS
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _is_slimes(name: str) -> bool:
    ours = ("slime", "slime_plugins", "examples", "miles", "miles_plugins", "vime")
    return name.partition(".")[0] in (*ours, *_STAND_INS)


@contextmanager
def slime_imported(folder: Path = SLIME) -> Iterator[None]:
    """The packages of slime, or of a fork, can be imported in a `with` block, and are gone afterwards."""
    before = {name: module for name, module in sys.modules.items() if _is_slimes(name)}
    for name in before:
        del sys.modules[name]
    finder = _StandIns()
    sys.meta_path.insert(0, finder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _is_slimes(name)]:
            del sys.modules[name]
        sys.modules.update(before)


def slimes_parser() -> argparse.ArgumentParser:
    """slime's parser, without the options of Megatron and SGLang themselves."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    arguments = importlib.import_module("slime.utils.arguments")
    arguments.get_slime_extra_args_provider()(parser)
    importlib.import_module("slime.backends.sglang_utils.arguments").add_sglang_arguments(parser)
    return parser


def slimes_args(flags: Sequence[str], **more: Any) -> argparse.Namespace:
    """slime's arguments for these flags, and what it takes over from Megatron, SGLang and its own start."""
    args = slimes_parser().parse_args(list(flags))
    derived: dict[str, Any] = {
        "debug_rollout_only": False,
        "debug_train_only": False,
        "sglang_router_ip": "127.0.0.1",
        "sglang_dp_size": 1,
        "sglang_enable_deterministic_inference": False,
        "sglang_speculative_algorithm": None,
        "sglang_model_routers": None,
        "eval_function_path": "slime.rollout.sglang_rollout.generate_rollout",
        "eval_datasets": [],
        "use_dynamic_batch_size": False,
        "rollout_num_gpus": 1,
        "rollout_num_gpus_per_engine": 1,
        "context_parallel_size": 1,
        "num_layers": 2,
        "moe_router_topk": 2,
        "world_size": 2,
        "rank": 0,
        "save": None,
        "load": None,
        "load_debug_rollout_data": None,
        "save_debug_rollout_data": None,
    }
    for name, value in derived.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)
    if args.over_sampling_batch_size is None:
        args.over_sampling_batch_size = args.rollout_batch_size
    for name, value in more.items():
        setattr(args, name, value)
    return args


def write_prompts(path: Path, prompts: Sequence[Any]) -> Path:
    """A data file as slime reads it: a prompt and a label a line."""
    lines = [json.dumps({"prompt": prompt, "label": "3"}) for prompt in prompts]
    path.write_text("\n".join(lines) + "\n")
    return path


class Router:
    """A router and its only worker, in a thread of its own: a model that calls `add` once, then answers.

    Args:
        seconds: How long an answer takes; an abort ends it at once, with half of its tokens.

    Attributes:
        hangs: Prompts whose answer only an abort ends, if any.
        sent: `(id, log-probability)` of every token that was sent.
        fails: Number of requests that are still to be refused.
        requests: Number of requests.
        version: Version of the weights.
    """

    def __init__(self, *, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.hangs: Callable[[str], bool] | None = None
        self.sent: set[tuple[int, float]] = set()
        self.fails = 0
        self.requests = 0
        self.version = "1"
        self._stopping = asyncio.Event()
        self._running = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Router:
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _start(self) -> int:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_get("/workers", self._workers)
        app.router.add_get("/v1/loads", self._loads)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return int(self._runner.addresses[0][1])

    async def _workers(self, request: web.Request) -> web.Response:
        return web.json_response({"workers": [{"url": f"http://127.0.0.1:{self.port}"}]})

    async def _loads(self, request: web.Request) -> web.Response:
        return web.json_response({"loads": [{"num_running_reqs": self._running, "num_waiting_reqs": 0}]})

    async def _abort(self, request: web.Request) -> web.Response:
        stopped, self._stopping = self._stopping, asyncio.Event()
        stopped.set()
        return web.Response()

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests += 1
        if self.fails:
            self.fails -= 1
            return web.json_response({"error": {"message": "broken"}}, status=400)
        reply = self._reply(body["input_ids"])
        self._running += 1
        try:
            hangs = self.hangs is not None and self.hangs(tokenizer().decode(body["input_ids"]))
            async with asyncio.timeout(60.0 if hangs else self.seconds):
                await self._stopping.wait()
            ids = reply.ids[: len(reply.ids) // 2]
            reply = replace(reply, ids=ids, finish="abort")
        except TimeoutError:
            pass
        finally:
            self._running -= 1
        answer = build_answer(replace(reply, meta=self._meta(body, reply)), body["input_ids"], body, rid=body["rid"])
        self.sent.update((entry[1], entry[0]) for entry in answer["meta_info"]["output_token_logprobs"])
        return web.json_response(answer)

    def _reply(self, input_ids: list[int]) -> Reply:
        called = "<tool_response>" in tokenizer().decode(input_ids).rpartition("<|im_start|>user")[2]
        reply = completion("It is 3.") if called else completion(call(1, 2), split=True)
        return replace(reply, weight_version=self.version, cached_tokens=5, meta={})

    def _meta(self, body: dict[str, Any], reply: Reply) -> dict[str, Any]:
        meta: dict[str, Any] = {"queue_time": 0.25, "e2e_latency": 0.5}
        if body.get("return_routed_experts"):
            rows = len(body["input_ids"]) + len(reply.ids) - 1 - body.get("routed_experts_start_len", 0)
            meta["routed_experts"] = _encoded(np.ones((rows, 2, 2), dtype="<i4"))
        if (body["sampling_params"].get("custom_params") or {}).get("return_top_p_token_ids"):
            meta["top_p_token_ids"] = _encoded(np.array(reply.ids, dtype="<i4"))
            meta["top_p_token_offsets"] = _encoded(np.arange(len(reply.ids) + 1, dtype="<i4"))
        return meta


def _encoded(array: Any) -> str:
    return base64.b64encode(array.tobytes()).decode()


def make_env(*, model_factory: Any, sample: Any, options: dict[str, Any]) -> Environment:
    """The factory that the arguments name."""
    made = TwoPaths if options.get("two_paths") else AddEnv
    reward_fn = None if options.get("unscored") else (lambda action, result: float(sample.index % 2))
    return made(model_factory=model_factory, reward_fn=reward_fn)


OURS = "strands_env.training.slime"
FLAGS = [
    *("--custom-generate-function-path", f"{OURS}.generate"),
    *("--custom-rm-path", f"{OURS}.reward_func"),
    *("--custom-reward-post-process-path", f"{OURS}.reward_post_process"),
    *("--custom-rollout-log-function-path", f"{OURS}.log_rollout"),
    *("--custom-eval-rollout-log-function-path", f"{OURS}.log_eval_rollout"),
    *("--input-key", "prompt", "--label-key", "label"),
    *("--rollout-batch-size", "2", "--n-samples-per-prompt", "2", "--global-batch-size", "4"),
    *("--rollout-max-response-len", "400", "--num-rollout", "1", "--sglang-server-concurrency", "4"),
]
PARALLEL = {
    "dp_size": 2,
    "cp_size": 1,
    "tp_size": 1,
    "pp_size": 1,
    "vpp_size": 1,
    "microbatch_group_size_per_vp_stage": 1,
}


class Run:
    """slime's rollout side of a training run: the data source and the manager, without engines.

    Args:
        checkpoint: The tokenizer's folder.
        folder: Where data lies.
        router: What answers.
        flags: Further flags.
        **more: Further arguments.
    """

    def __init__(self, checkpoint: Path, folder: Path, router: Router, *flags: str, **more: Any) -> None:
        prompts = write_prompts(folder / "prompts.jsonl", [f"What is 1 + 2? ({number})" for number in range(8)])
        self.router = router
        self.args = slimes_args(
            [*FLAGS, "--hf-checkpoint", str(checkpoint), "--prompt-data", str(prompts), *flags],
            sglang_router_port=router.port,
            **{
                "strands_env_factory": "tests.real_slime.make_env",
                "strands_env_client_options": {"max_retries": 0},
                "strands_env_log_dir": str(folder / "log"),
                **more,
            },
        )
        misc = importlib.import_module("slime.utils.misc")
        misc.SingletonMeta._instances.clear()
        http = importlib.import_module("slime.utils.http_utils")
        http._http_client = None
        http.init_http_client(self.args)
        rollout = importlib.import_module("slime.ray.rollout")
        cls = rollout.RolloutManager.__ray_metadata__.modified_class
        self.manager: Any = object.__new__(cls)
        self.manager.args = self.args
        self.manager.data_source = misc.load_function(self.args.data_source_path)(self.args)
        self.manager.generate_rollout = misc.load_function(self.args.rollout_function_path)
        self.manager.eval_generate_rollout = misc.load_function(self.args.eval_function_path)
        self.manager.custom_reward_post_process_func = misc.load_function(self.args.custom_reward_post_process_path)
        self.manager.custom_convert_samples_to_train_data_func = None
        self.manager.train_parallel_config = PARALLEL
        self.manager.health_monitoring_resume = lambda: None

    def step(self, number: int = 0) -> list[Any]:
        """A rollout step: the data of every rank."""
        return [box.inner for box in self.manager.generate(number)]

    def samples(self, number: int = 0) -> list[Any]:
        """The samples of a step."""
        samples, _ = self.manager._get_rollout_data(number)
        return list(samples)


def check_ranks(ranks: list[dict[str, Any]], router: Router, *, samples: int) -> None:
    """The trainer's input: aligned tensors in which each trained token is one that the server sent."""
    assert sum(len(rank["tokens"]) for rank in ranks) == samples
    for rank in ranks:
        for tokens, mask, logprobs, length in zip(
            rank["tokens"], rank["loss_masks"], rank["rollout_log_probs"], rank["response_lengths"], strict=True
        ):
            assert length == len(mask) == len(logprobs) < len(tokens)
            response = tokens[-length:].tolist()
            for token, trained, value in zip(response, mask.tolist(), logprobs.tolist(), strict=True):
                assert math.isfinite(value)
                assert (token, value) in router.sent if trained else value == 0.0


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Run]]:
    """Starts slime's rollout side on four samples of a task, with the config file of an example and further options."""
    monkeypatch.setattr(importlib.import_module("ray"), "put", lambda value, **_: value)

    def start(example: Path, task: dict[str, Any], router: Router, **options: Any) -> Run:
        monkeypatch.syspath_prepend(str(example))
        data = tmp_path / "tasks.jsonl"
        data.write_text(f"{json.dumps(task)}\n" * 4)
        config = pytest.importorskip("yaml").safe_load((example / "config.yaml").read_text())
        config["strands_env_options"] = {**config.get("strands_env_options", {}), **options}
        config["strands_env_log_dir"] = str(tmp_path / "log")
        checkpoint = tmp_path / "checkpoint"
        tokenizer().save_pretrained(checkpoint)
        (checkpoint / "config.json").write_text('{"model_type": "qwen3"}')
        flags = ("--prompt-data", str(data), "--metadata-key", "metadata")
        return Run(checkpoint, tmp_path, router, *flags, **config)

    with slime_imported():
        yield start
    for module in ("swe_env", "harness_env"):
        sys.modules.pop(module, None)
