"""The embedded engine behind SGLang's routes: what a client meets on a real socket without a GPU.

`generate` is SGLang's `/generate` over the engine's `ask`; `create_app` puts it, and the control routes, into an
application. `python -m tests.servers.engine_server --model NAME` serves it.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import re
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from strands_sglang.backends.contract import GenerateAnswer, GenerateRequest, token_array
from strands_sglang.backends.engine import EmbeddedEngine, ModelLoadError
from strands_sglang.backends.engine.loader import load_model
from strands_sglang.backends.sglang.request import checked_fields
from strands_sglang.exceptions import BackendContextLengthError, BackendError, BackendRequestError, MediaError
from strands_sglang.trajectory import Finish, FinishType

ENGINE: web.AppKey[EmbeddedEngine] = web.AppKey("engine")
SERVED_NAME = web.AppKey("served_name", str)
DEFAULT_NEW_TOKENS = 128
RESERVED_POSITIONS = 2
"""Positions of the context that a server keeps back."""


async def generate(engine: EmbeddedEngine, input_ids: list[int], **fields: Any) -> dict[str, Any]:
    """SGLang's `/generate`: its fields are keywords, its answer is returned."""
    fields = checked_fields(fields)
    params = {"max_new_tokens": DEFAULT_NEW_TOKENS, **(fields.get("sampling_params") or {})}
    room = engine.context_length - len(input_ids)
    if room > 0 and (params["max_new_tokens"] or 0) <= room:
        room = max(0, room - RESERVED_POSITIONS)
        params["max_new_tokens"] = room if params["max_new_tokens"] is None else min(params["max_new_tokens"], room)
    logprobs, start = fields.get("return_logprob", False), fields.get("logprob_start_len", -1)
    if not isinstance(logprobs, bool):  # a server checks its own fields; the client sends them as they are
        raise ValueError(f"return_logprob must be true or false, got {logprobs!r}")
    images = fields.get("image_data") or ()
    request = GenerateRequest(
        prompt=token_array(input_ids),
        sampling_params={name: value for name, value in params.items() if (name, value) != ("n", 1)},
        rid=fields.get("rid"),
        logprobs=logprobs,
        score_from=start + 1 if logprobs and start >= 0 else None,
        score_top_k=fields.get("top_logprobs_num") or 0,
        images=tuple(image["url"] if isinstance(image, dict) else image for image in images),
        show_prompt=True,
    )
    answer = await engine.ask(request)
    meta: dict[str, Any] = {
        "id": answer.rid,
        "finish_reason": _finish_reason(answer),
        "completion_tokens": len(answer.output_ids),
        "weight_versions": [
            {"version": span.version, "start": span.start, "end": span.end} for span in answer.weight_spans
        ],
        "weight_version": answer.weight_spans[-1].version if answer.weight_spans else engine.weight_version,
        "e2e_latency": answer.latency,
    }
    if answer.prompt_tokens is not None:  # as on a server, one that is aborted in the queue does not know it
        meta |= {"prompt_tokens": answer.prompt_tokens, "cached_tokens": answer.cached_tokens}
    if logprobs:
        meta["output_token_logprobs"] = _entries(answer.output_logprobs or (), answer.output_ids)
        meta["input_token_logprobs"] = []
    prompt = answer.prompt_ids or input_ids
    if (scored := answer.scored_prompt) is not None and start < len(prompt):
        meta["input_token_logprobs"] = [[None, prompt[start], None], *_entries(scored.logprobs, scored.ids)]
        if scored.top_ids is not None and scored.top_logprobs is not None:
            flat, top = _entries(scored.top_logprobs, scored.top_ids), request.score_top_k
            meta["input_top_logprobs"] = [None, *(flat[at : at + top] for at in range(0, len(flat), top))]
    text = engine.tokenizer.decode(answer.output_ids, skip_special_tokens=True)
    made = {"text": text, "output_ids": answer.output_ids.tolist(), "meta_info": meta}
    return made | ({"prompt_token_ids": answer.prompt_ids} if fields.get("return_prompt_token_ids") else {})


def _entries(logprobs: Iterable[float], ids: Iterable[int]) -> list[list[Any]]:
    return [[None if math.isnan(value) else value, token, None] for value, token in zip(logprobs, ids, strict=True)]


def _finish_reason(answer: GenerateAnswer) -> dict[str, Any]:
    finish: Finish = answer.finish
    if finish.type is FinishType.STOP:
        return {"type": "stop", "matched": finish.matched}
    if finish.type is FinishType.LENGTH:
        return {"type": "length", "length": len(answer.output_ids)}
    return {"type": "abort", "message": finish.message}


# ---- routes


def create_app(engine: EmbeddedEngine) -> web.Application:
    """Build the application; the engine stays the caller's, who closes it.

    Run it with `aiohttp.web.AppRunner(app, handler_cancellation=True)`: a client that goes away then aborts its
    request.
    """
    app = web.Application(middlewares=[_errors], client_max_size=256 * 2**20)
    app[ENGINE], app[SERVED_NAME] = engine, engine.model_path
    app.add_routes(
        [
            web.post("/abort_request", _abort),
            web.post("/continue_generation", _continue),
            web.post("/generate", _generate),
            web.post("/pause_generation", _pause),
            web.post("/update_weights_from_disk", _update_weights),
            web.get("/health", _health),
            *(web.get(path, _model_info) for path in ("/model_info", "/get_model_info", "/server_info")),
            web.get("/v1/models", _models),
            web.get("/v1/loads", _loads),
        ]
    )
    return app


@asynccontextmanager
async def serve(engine: EmbeddedEngine, port: int = 0) -> AsyncIterator[str]:
    """The application on loopback; yields its address."""
    runner = web.AppRunner(create_app(engine), handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def _refusal(message: object, status: int = 400) -> web.Response:
    return _json({"error": {"message": str(message)}}, status)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except BackendContextLengthError as error:
        tokens, *_, context = re.findall(r"\d+", str(error))
        return _refusal(f"The input ({tokens} tokens) is longer than the model's context length ({context} tokens).")
    except (BackendRequestError, MediaError) as error:  # a genuine server would die of some
        words = "Duplicate request ID detected: " if "in flight" in str(error) else ""
        return _refusal(f"{words}{error}")
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        return _json(
            {"object": "error", "message": repr(error), "type": "Bad Request", "param": None, "code": 400}, 400
        )
    except BackendError as error:
        return web.Response(text=str(error), status=500)
    except web.HTTPException as error:
        return _json({"detail": error.reason}, error.status)


async def _body(request: web.Request) -> dict[str, Any]:
    return dict(orjson.loads(await request.read() or b"{}"))


async def _generate(request: web.Request) -> web.StreamResponse:
    body = await _body(request)
    if body.pop("stream", False):
        return _refusal("no streams here")
    return _json(await generate(request.app[ENGINE], **body))


async def _health(request: web.Request) -> web.Response:
    return web.Response(status=503 if request.app[ENGINE]._paused else 200)


async def _model_info(request: web.Request) -> web.Response:
    engine = request.app[ENGINE]
    return _json(
        {
            "model_path": engine.model_path,
            "served_model_name": request.app[SERVED_NAME],
            "tokenizer_path": getattr(engine.tokenizer, "name_or_path", None) or engine.model_path,
            "is_generation": True,
            "vocab_size": engine.vocab_size,  # a genuine server does not report it
            "weight_version": engine.weight_version,
            "has_image_understanding": engine.image_expander is not None,
            "context_length": engine.context_length,
            "version": "0.5.23",
        }
    )


async def _models(request: web.Request) -> web.Response:
    engine = request.app[ENGINE]
    card = {"id": engine.model_path, "object": "model", "owned_by": "sglang", "max_model_len": engine.context_length}
    return _json({"object": "list", "data": [card]})


async def _loads(request: web.Request) -> web.Response:
    scheduler = request.app[ENGINE]._scheduler
    return _json({"loads": [{"num_running_reqs": len(scheduler.running), "num_waiting_reqs": len(scheduler.waiting)}]})


async def _abort(request: web.Request) -> web.Response:
    await request.app[ENGINE].abort((await _body(request))["rid"])
    return web.Response()


async def forget_prefixes(engine: EmbeddedEngine) -> None:
    """Empty the prefix cache."""
    await engine._call(engine._scheduler.cache.clear)


async def _pause(request: web.Request) -> web.Response:
    """`in_place` and `retract` are one: held requests keep what was computed for them."""
    await request.app[ENGINE].pause_generation()
    if (await _body(request)).get("mode", "abort") == "abort":
        await request.app[ENGINE].abort_all()
    return _json({"message": "Generation paused successfully.", "status": "ok"})


async def _continue(request: web.Request) -> web.Response:
    await request.app[ENGINE].continue_generation()
    return _json({"message": "Generation continued successfully.", "status": "ok"})


async def _update_weights(request: web.Request) -> web.Response:
    engine, body = request.app[ENGINE], await _body(request)
    folder = body["model_path"]
    try:
        if not await asyncio.to_thread(Path(folder).is_dir):  # a name would be fetched from a model hub
            raise ModelLoadError(f"model_path={folder!r}: expected a folder on this machine")
        loaded = await asyncio.to_thread(load_model, folder, tokenizer=engine.tokenizer)
        await engine.update_weights(loaded.model, body.get("weight_version"))
    except (ModelLoadError, ValueError) as error:
        return _json({"success": False, "message": str(error)}, 400)
    engine.model_path = folder
    return _json({"success": True, "message": "Succeeded to update model weights."})


async def _main(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with EmbeddedEngine(options.model, threads=options.threads) as engine, serve(engine, options.port) as url:
        print(f"listening on {url} model {engine.model_path}", flush=True)
        await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The embedded engine with SGLang's routes, on loopback.")
    parser.add_argument("--model", default="smollm2", help="smollm2 (default), tiny, a Hugging Face id, or a folder")
    parser.add_argument("--port", type=int, default=30000, help="port to listen on, 0 for a free one (%(default)s)")
    parser.add_argument("--threads", type=int, help="PyTorch threads (default: half the processors)")
    asyncio.run(_main(parser.parse_args()))
