"""Records what a genuine vLLM answers, for `test_vllm_answers.py`: python tests/contract/record_vllm.py URL

The server is one of `scripts/vllm-cpu serve`: a tiny model of 1,024 ids and 4,096 positions, and the routes of
`VLLM_SERVER_DEV_MODE`, which pause it and name its weights. There are no seeds: one ends the engine of 0.32 on CPU.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp

FILE = Path(__file__).with_name("vllm_answers.json")
PROMPT = list(range(20, 60))
GENERATE = "/inference/v1/generate"
LONG = {"max_tokens": 150, "min_tokens": 150, "logprobs": 0}
"""Sampling that takes seconds, in which the server is paused, or the request aborted."""


async def record(url: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with aiohttp.ClientSession(base_url=url, timeout=aiohttp.ClientTimeout(total=300)) as http:

        async def call(name: str | None, path: str, body: Any = None, method: str = "POST") -> None:
            async with http.request(method, path, json=body) as response:
                text = (await response.text()).replace(model, "tiny")
            if name is not None:
                found[name] = {"request": body, "status": response.status, "body": text}

        async def sample(name: str, prompt: list[int] = PROMPT, **fields: Any) -> None:
            params = {"max_tokens": 4, "logprobs": 0, **fields.pop("params", {})}
            await call(name, GENERATE, {"token_ids": prompt, "sampling_params": params, **fields})

        async def control(path: str, body: Any = None) -> None:
            await call(None, path, body)

        async with http.get("/v1/models") as response:
            model = (await response.json())["data"][0]["id"]
        await control("/update_weight_version", {"new_version": "default"})
        for name, path in (("models", "/v1/models"), ("version", "/version"), ("not_sglang", "/get_model_info")):
            await call(name, path, method="GET")
        await sample("plain")
        await sample("shown", return_token_ids=True, request_id="abc")
        await sample("best_three", params={"logprobs": 3, "max_tokens": 1, "temperature": 2.0})
        await sample("greedy", params={"temperature": 0.0})
        await sample("stop_string", params={"max_tokens": 200, "stop": ["a", "e", "o"]})
        await sample("stop_token", params={"max_tokens": 200, "stop_token_ids": list(range(1000))})
        await sample("end_of_sequence", params={"max_tokens": 4, "structured_outputs": {"regex": "[0-9]{3}"}})
        await sample("without_logprobs", params={"logprobs": None})
        await sample("cut_to_the_room", prompt=PROMPT * 102, params={"max_tokens": 200})
        await sample("unknown_name", params={"foo": 1})
        await sample("out_of_vocabulary", prompt=[*PROMPT, 99999])
        await sample("too_long", prompt=PROMPT * 200)
        await sample("too_hot", params={"temperature": 5.0})
        await sample("too_many_logprobs", params={"logprobs": 50})
        await sample("bad_grammar", params={"structured_outputs": {"regex": "[0-9"}})
        await sample("wrong_type", params={"max_tokens": "x"})
        await sample("unknown_model", model="nope")

        running = asyncio.create_task(sample("aborted", request_id="r1", params=LONG))
        await asyncio.sleep(0.4)
        await control("/inference/v1/abort_requests", {"request_ids": ["generate-tokens-r1"]})
        await running
        running = asyncio.create_task(sample("two_versions", request_id="r2", params=LONG))
        await asyncio.sleep(0.4)
        await control("/pause?mode=keep&clear_cache=false")
        await control("/update_weight_version", {"new_version": "v2"})
        await control("/resume")
        await running
    return found


if __name__ == "__main__":
    recorded = asyncio.run(record(sys.argv[1]))
    FILE.write_text(json.dumps(recorded, indent=0) + "\n", encoding="utf-8")
    print({name: entry["status"] for name, entry in recorded.items()})
