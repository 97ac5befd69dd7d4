"""`python -m strands_env.eval` with the options of upstream's strands-env, as `strands-env eval` takes them."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

_RENAMED = {"--max-tokens": "--max-new-tokens", "--tokenizer-path": "--tokenizer", "--max-samples": "--limit"}
_GONE = {
    "--evaluator": "give module:Evaluator as the benchmark",
    "--region-name": "set AWS_REGION",
    "--profile-name": "set AWS_PROFILE",
    "--role-arn": "name the role in a profile of ~/.aws/config, and set AWS_PROFILE",
    "--reasoning-effort": "give it in --sampling",
    "--prompt-cache-ttl": "the provider's default holds",
}
_WITHOUT_EFFECT = ("--keep-rollout", "--prompt-cache", "--no-prompt-cache")
"""Tokens are kept by default, and prompts cached where the provider does."""
_SHORT = {"-b": "--backend", "-e": "--env"}
_ADDRESS, _SERVER = ("--base-url", "--sglang-base-url"), "http://localhost:30000"


def translate(arguments: Sequence[str]) -> list[str]:
    """Upstream's arguments as those of `strands-env`.

    Raises:
        SystemExit: An option has no counterpart; the message says what to do instead.
    """
    if "--list" in arguments:
        return ["list"]
    found, benchmark, backend, given = [], [], "sglang", list(arguments)
    while given:
        name, has_value, value = given.pop(0).partition("=")
        name = _SHORT.get(name, name)
        if name in _GONE:
            raise SystemExit(f"strands-env has no option {name}: {_GONE[name]}")
        if name in ("--benchmark", "--backend", "--n-actors-per-node") and not has_value:
            value = given.pop(0) if given else ""
        if name == "--benchmark":
            benchmark = [value]
        elif name == "--backend":
            backend = value
        elif name == "--n-actors-per-node":
            found += ["--executor", "ray", "--workers", value]
        elif name == "--debug":
            found.append("-v")
        elif name not in _WITHOUT_EFFECT:
            found.append(_RENAMED.get(name, name) + (f"={value}" if has_value else ""))
    if backend == "sglang" and not any(each.partition("=")[0] in _ADDRESS for each in found):
        found += ["--base-url", _SERVER]
    return ["eval", "--backend", backend, *found, *benchmark]


if __name__ == "__main__":
    sys.argv[1:] = translate(sys.argv[1:])
    runpy.run_module("strands_env", run_name="__main__")
