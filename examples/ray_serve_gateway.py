"""Gateways as the replicas of a Ray Serve deployment.

    STRANDS_GATEWAY_ADMIN_KEY=KEY serve run examples.ray_serve_gateway:app \\
        base_url=http://sglang:30000 tokenizer=Qwen/Qwen3-8B state=/shared/sessions
    curl -X POST http://127.0.0.1:8000/ -H "authorization: Bearer KEY" -H "content-type: application/json" -d '{}'

Serve places the gateways, starts them again and spreads new sessions over them. An agent's calls take the addresses in
the answer, which are those of the gateway itself: behind Serve's proxy nobody knows which answers a client has read.
A gateway that is started again has its rank, and with it the folder and the port of the one before.
"""

import os
from typing import Any

import aiohttp
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response
from transformers import AutoTokenizer

from strands_sglang import SGLangClient
from strands_sglang.gateway import Gateway


@serve.deployment(num_replicas=2)
class GatewayReplica:
    """A gateway, and a route that opens a session in it."""

    async def __init__(self, base_url: str, tokenizer: str, state: str, port: str = "41437") -> None:
        rank = serve.get_replica_context().rank.rank
        self.gateway = Gateway(
            client=SGLangClient(base_url),
            tokenizer=AutoTokenizer.from_pretrained(tokenizer),
            host=ray.util.get_node_ip_address(),
            port=int(port) + rank,
            admin_key=os.environ["STRANDS_GATEWAY_ADMIN_KEY"],
            state=f"{state}/{rank}",
        )
        await self.gateway.start()

    async def __call__(self, request: Request) -> Response:
        """`POST /sessions` of the replica that Serve has chosen."""
        headers = {name: request.headers.get(name, "") for name in ("authorization", "content-type")}
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{self.gateway.url}/sessions", data=await request.body(), headers=headers) as made,
        ):
            return Response(await made.read(), made.status, media_type="application/json")


def app(options: dict[str, Any]) -> serve.Application:
    """The application, with the options of the command line."""
    return GatewayReplica.bind(**options)
