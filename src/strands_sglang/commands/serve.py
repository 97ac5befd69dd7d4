"""`strands-sglang serve`: the embedded engine over HTTP, with SGLang's routes."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

from aiohttp import web

from ..backends.engine.own_models import DTYPES, ModelLoadError, UnknownModelError, check_model_name
from ..backends.engine.server import LOOPBACK_HOSTS, create_app
from ..command_line import Exit, non_negative, port, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--model", default="smollm2", help="smollm2 (default), tiny, a Hugging Face id, or a folder")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=port, default=30000, help="port to listen on, 0 for a free one (%(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or mps (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="type of the weights")
    parser.add_argument("--context-length", type=positive, metavar="N", help="most positions (default: the model's)")
    parser.add_argument(
        "--max-batch-size", type=positive, default=16, metavar="N", help="requests at a time (%(default)s)"
    )
    parser.add_argument("--prefix-cache-tokens", type=non_negative, default=16_384, metavar="N", help="prefix cache")
    parser.add_argument("--threads", type=positive, metavar="N", help="PyTorch threads (default: half the processors)")
    parser.add_argument("--seed", type=non_negative, metavar="N", help="seed of requests that bring none")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; the first line printed is the address. Returns the exit status."""
    return asyncio.run(_serve(args))


async def _serve(args: argparse.Namespace) -> int:
    try:
        check_model_name(args.model)  # before the engine loads torch
    except UnknownModelError as error:
        sys.stderr.write(f"strands-sglang serve: {error}\n")
        return Exit.USAGE
    from ..backends.engine.engine import EmbeddedEngine

    try:
        engine = EmbeddedEngine(
            args.model,
            device=args.device,
            dtype=args.dtype,
            context_length=args.context_length,
            max_batch_size=args.max_batch_size,
            prefix_cache_tokens=args.prefix_cache_tokens,
            threads=args.threads,
            seed=args.seed,
        )
    except (ModelLoadError, ValueError) as error:
        sys.stderr.write(f"strands-sglang serve: {error}\n")
        return Exit.USAGE if isinstance(error, ValueError) else Exit.FAILED
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with engine:
        hosts = LOOPBACK_HOSTS if args.host in ("127.0.0.1", "localhost", "::1") else None  # None: any name of ours
        runner = web.AppRunner(create_app(engine, hosts=hosts), handler_cancellation=True, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, args.host, args.port).start()
            host, port = runner.addresses[0][:2]
            sys.stdout.write(f"listening on http://{host}:{port} model {engine.model_path}\n")
            sys.stdout.flush()
            await stop.wait()
        except OSError as error:
            sys.stderr.write(
                f"strands-sglang serve: cannot listen on {args.host}:{args.port}: {error.strerror or error}; "
                "--port 0 takes a free port\n"
            )
            return Exit.FAILED
        finally:
            await runner.cleanup()
    return Exit.OK
