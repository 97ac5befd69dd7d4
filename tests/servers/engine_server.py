"""The engine behind SGLang's HTTP routes.

Bodies and statuses are those of the server (0.5.23), its different shapes of error included.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import signal
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from strands_sglang.backends.engine.own_models import ModelLoadError
from strands_sglang.backends.engine.request import parse_error, value_error
from strands_sglang.exceptions import BackendHTTPError, BackendRequestError

if TYPE_CHECKING:
    from strands_sglang.backends.engine.engine import EmbeddedEngine

ENGINE: web.AppKey[EmbeddedEngine] = web.AppKey("engine")
VERSION = "0.5.23"
"""Version of SGLang whose answers are imitated."""
MAX_BODY = 256 * 2**20

_PER_ITEM = ("sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num", "rid")
_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


T = TypeVar("T")


def create_app(engine: EmbeddedEngine) -> web.Application:
    """Build the application; the engine stays the caller's, who closes it.

    Run it with `aiohttp.web.AppRunner(app, handler_cancellation=True)`: a client that goes away then aborts its
    request.
    """
    app = web.Application(middlewares=[_errors], client_max_size=MAX_BODY)
    app[ENGINE] = engine
    app.add_routes(
        [
            web.post("/abort_request", _abort),
            web.post("/continue_generation", _continue),
            web.post("/detokenize", _detokenize),
            web.post("/flush_cache", _flush),
            web.get("/flush_cache", _flush),
            web.post("/generate", _generate),
            web.put("/generate", _generate),
            web.post("/pause_generation", _pause),
            web.post("/tokenize", _tokenize),
            web.post("/update_weight_version", _update_weight_version),
            web.post("/update_weights_from_disk", _update_weights),
            *(web.get(path, _health) for path in ("/health", "/health_generate", "/ready")),
            *(web.get(path, _model_info) for path in ("/model_info", "/get_model_info")),
            *(web.get(path, _server_info) for path in ("/server_info", "/get_server_info")),
            web.get("/v1/models", _models),
            web.get("/v1/loads", _loads),
        ]
    )
    return app


def _json(value: Any, status: int = 200) -> web.Response:
    # Floats keep every digit, and a lone surrogate cannot occur: texts come out of a decoder.
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except BackendRequestError as error:  # a real server would die of these
        return _json({"error": {"message": str(error)}}, 400)
    except BackendHTTPError as error:
        kind = "application/json" if error.body.startswith("{") else "text/plain"
        return web.Response(text=error.body, status=error.status or 500, content_type=kind)
    except web.HTTPException as error:
        return _json({"detail": error.reason}, error.status)


async def _body(request: web.Request) -> dict[str, Any]:
    raw = await request.read()
    if not raw:
        return {}
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise parse_error(f"1 validation error:\n  JSON decode error: {error}") from error
    if not isinstance(body, dict):
        raise parse_error(f"1 validation error:\n  Input should be an object, got {type(body).__name__}")
    return body


def _field(body: dict[str, Any], name: str, kind: type[T], default: T) -> T:
    """A field of a body, which must be of this type; the default where it is missing."""
    value = body.get(name, default)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise parse_error(f"1 validation error:\n  {name}: Input should be a valid {kind.__name__}, got {value!r:.100}")
    return value


async def _generate(request: web.Request) -> web.StreamResponse:
    if request.content_type != "application/json":
        raise parse_error("1 validation error:\n  the content type must be application/json")
    engine, body = request.app[ENGINE], await _body(request)
    stream = body.pop("stream", False)
    ids, text = body.pop("input_ids", None), body.pop("text", None)
    if ids is None and text is not None:
        texts = [text] if isinstance(text, str) else text
        if not isinstance(texts, list) or not texts or not all(isinstance(each, str) for each in texts):
            raise parse_error("1 validation error:\n  text: Input should be a valid string or a list of them")
        encoded = [engine.tokenizer.encode(each) for each in texts]
        ids = encoded[0] if isinstance(text, str) else encoded
    if ids is None:
        raise value_error("Either text, input_ids or input_embeds should be provided.")
    if not isinstance(ids, list) or any(not isinstance(item, (int, list)) for item in ids):
        raise parse_error("1 validation error:\n  input_ids: Value error, elements must be int or list")
    params = body.get("sampling_params")
    if params is not None and not isinstance(params, (dict, list)):
        raise parse_error("1 validation error:\n  sampling_params: Input should be a valid dictionary or list")
    if not (ids and isinstance(ids[0], list)):
        work = engine.generate(ids, **body)
        return await _stream(request, work) if stream else _json(await work)
    if stream:
        raise value_error("Streaming of a batch is not supported by the embedded engine.")
    for key in _PER_ITEM:
        if isinstance(body.get(key), list) and len(body[key]) != len(ids):
            raise value_error(
                f"The length of {key} should be equal to the batch size {len(ids)}, got {len(body[key])}."
            )
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(engine.generate(each, **_item(body, index))) for index, each in enumerate(ids)]
    except ExceptionGroup as failures:  # one bad member fails the batch
        raise failures.exceptions[0] from None
    return _json([task.result() for task in tasks])


def _item(body: dict[str, Any], index: int) -> dict[str, Any]:
    fields = dict(body)
    for key in _PER_ITEM:
        if isinstance(fields.get(key), list):
            fields[key] = fields[key][index]
        elif key == "rid" and fields.get(key):
            fields[key] = f"{fields[key]}_{index}"
    return fields


async def _stream(request: web.Request, work: Awaitable[dict[str, Any]]) -> web.StreamResponse:
    """Answer as a stream of one chunk: allowed by the protocol, whose chunks are cumulative."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    try:
        chunk = await work
    except BackendHTTPError as error:
        detail = {"message": error.body, "type": "BadRequestError", "code": error.status, "retryable": False}
        chunk = {"error": detail}
    await response.prepare(request)
    await response.write(b"data: " + orjson.dumps(chunk) + b"\n\ndata: [DONE]\n\n")
    return response


async def _health(request: web.Request) -> web.Response:
    return web.Response(status=200 if await request.app[ENGINE].health() else 503)


async def _model_info(request: web.Request) -> web.Response:
    return _json(await request.app[ENGINE].get_model_info())


async def _server_info(request: web.Request) -> web.Response:
    engine = request.app[ENGINE]
    info = await engine.get_model_info()
    limits = {"context_length": engine.context_length, "max_running_requests": engine.max_batch_size}
    return _json(
        info | limits | {"device": engine.device, "version": VERSION, "internal_states": [await engine.loads()]}
    )


async def _models(request: web.Request) -> web.Response:
    engine = request.app[ENGINE]
    card = {
        "id": engine.model_path,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": engine.model_path,
        "parent": None,
        "max_model_len": engine.context_length,
    }
    return _json({"object": "list", "data": [card]})


async def _loads(request: web.Request) -> web.Response:
    loads = [await request.app[ENGINE].loads()]
    return _json({"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "version": VERSION, "loads": loads})


async def _abort(request: web.Request) -> web.Response:
    engine, body = request.app[ENGINE], await _body(request)
    if _field(body, "abort_all", bool, False):
        await engine.abort_all()
    elif rid := _field(body, "rid", str, ""):
        await engine.abort(rid)
    return web.Response()


async def _flush(request: web.Request) -> web.Response:
    engine = request.app[ENGINE]
    try:
        seconds = float(request.query.get("timeout", 0))
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise parse_error("1 validation error:\n  timeout: Input should be a valid number of seconds")
    deadline = time.monotonic() + seconds
    while not (flushed := await engine.flush_cache()) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return web.Response(text=_FLUSHED) if flushed else web.Response(text="Flush cache failed.\n", status=400)


async def _pause(request: web.Request) -> web.Response:
    body = await _body(request)
    await request.app[ENGINE].pause_generation(_field(body, "mode", str, "abort"))
    return _json({"message": "Generation paused successfully.", "status": "ok"})


async def _continue(request: web.Request) -> web.Response:
    await request.app[ENGINE].continue_generation()
    return _json({"message": "Generation continued successfully.", "status": "ok"})


async def _update_weight_version(request: web.Request) -> web.Response:
    body = await _body(request)
    version = body.get("new_version")
    if not isinstance(version, str):
        raise parse_error("1 validation error:\n  new_version: Field required")
    abort_all = _field(body, "abort_all_requests", bool, True)
    await request.app[ENGINE].update_weight_version(version, abort_all=abort_all)
    return _json({"success": True, "message": f"Weight version updated to {version}", "new_version": version})


async def _update_weights(request: web.Request) -> web.Response:
    from strands_sglang.backends.engine.loader import load_model  # loads torch

    engine, body = request.app[ENGINE], await _body(request)
    folder, version = _field(body, "model_path", str, ""), body.get("weight_version")
    flush, abort_all = _field(body, "flush_cache", bool, True), _field(body, "abort_all_requests", bool, False)
    if version is not None and not isinstance(version, str):
        raise parse_error(f"1 validation error:\n  weight_version: Input should be a valid str, got {version!r:.100}")
    try:
        if not await asyncio.to_thread(Path(folder).is_dir):  # a name would be fetched from a model hub
            raise ModelLoadError(f"model_path={folder!r}: expected a folder on this machine")
        loaded = await asyncio.to_thread(load_model, folder, tokenizer=engine.tokenizer)
        await engine.update_weights(loaded.model, version, flush_cache=flush, abort_all=abort_all)
    except (ModelLoadError, BackendHTTPError) as error:
        return _json({"success": False, "message": str(error), "num_paused_requests": 0}, 400)
    if flush and not await engine.flush_cache():
        message = (
            "Weights were updated, but the cache was not flushed because requests are still running or queued. "
            "Retract or finish them, then call /flush_cache."
        )
        return _json({"success": False, "message": message, "num_paused_requests": 0}, 400)
    engine.model_path = folder
    message = "Succeeded to update model weights." + (f" Weight version updated to {version}." if version else "")
    return _json({"success": True, "message": message, "num_paused_requests": 0})


async def _tokenize(request: web.Request) -> web.Response:
    engine, body = request.app[ENGINE], await _body(request)
    tokenizer = engine.tokenizer
    if body.get("messages") is not None:
        try:
            prompt = tokenizer.apply_chat_template(
                _field(body, "messages", list, []),
                tools=body.get("tools"),
                tokenize=False,
                add_generation_prompt=_field(body, "add_generation_prompt", bool, True),
                **_field(body, "chat_template_kwargs", dict, {}),
            )
        except BackendHTTPError:
            raise
        except Exception as error:  # boundary: a template is a program, and messages and tools are its input
            raise parse_error(f"the chat template cannot print these messages: {error}") from error
        tokens = tokenizer.encode(prompt, add_special_tokens=False)
    else:
        special = _field(body, "add_special_tokens", bool, True)
        tokens = tokenizer.encode(_field(body, "prompt", str, ""), add_special_tokens=special)
    return _json({"tokens": tokens, "count": len(tokens), "max_model_len": tokenizer.model_max_length})


async def _detokenize(request: web.Request) -> web.Response:
    engine, body = request.app[ENGINE], await _body(request)
    skip, tokens = _field(body, "skip_special_tokens", bool, True), _field(body, "tokens", list, [])
    if not all(type(token) is int and 0 <= token < engine.vocab_size for token in tokens):
        raise parse_error(f"1 validation error:\n  tokens: expected ids from 0 to {engine.vocab_size - 1}")
    return _json({"text": engine.tokenizer.decode(tokens, skip_special_tokens=skip)})


async def _serve(options: argparse.Namespace) -> None:
    from strands_sglang.backends.engine import EmbeddedEngine

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with EmbeddedEngine(options.model, threads=options.threads) as engine:
        runner = web.AppRunner(create_app(engine), handler_cancellation=True, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", options.port).start()
            print(f"listening on http://127.0.0.1:{runner.addresses[0][1]} model {engine.model_path}", flush=True)
            await stop.wait()
        finally:
            await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The embedded engine with SGLang's routes, on loopback.")
    parser.add_argument("--model", default="smollm2", help="smollm2 (default), tiny, a Hugging Face id, or a folder")
    parser.add_argument("--port", type=int, default=30000, help="port to listen on, 0 for a free one (%(default)s)")
    parser.add_argument("--threads", type=int, help="PyTorch threads (default: half the processors)")
    asyncio.run(_serve(parser.parse_args()))
