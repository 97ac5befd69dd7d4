"""Runs a server's own tool parsers, in the server's environment; `serving_parsers` starts it.

Reads a JSON object from standard input, `{"server", "tools", "markers", "replies": [[PARSER, TEXT], ...]}`, and prints
`{"version", "outcomes"}`. An outcome has `calls` (pairs of a name and the arguments as text) and `text`, or `error`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

Reader = Callable[[str, str], tuple[list[tuple[str, str]], str]]


def sglang_reader(tools: list[Any], markers: list[str]) -> Reader:
    """SGLang's parsers, as its chat route calls them."""
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    made = [Tool(**tool) for tool in tools]

    def read(name: str, text: str) -> tuple[list[tuple[str, str]], str]:
        parser = FunctionCallParser(made, name)
        if not parser.has_tool_call(text):  # as the chat route does
            return [], text
        shown, calls = parser.parse_non_stream(text)
        return [(call.name, call.parameters) for call in calls], shown

    return read


def vllm_reader(tools: list[Any], markers: list[str]) -> Reader:
    """vLLM's parsers, with a tokenizer that has every marker as one token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in markers])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "?"}], tools=tools)

    def read(name: str, text: str) -> tuple[list[tuple[str, str]], str]:
        parser = ToolParserManager.get_tool_parser(name)(tokenizer, request.tools)
        found = parser.extract_tool_calls(text, request=request)
        return [(call.function.name, call.function.arguments) for call in found.tool_calls], found.content or ""

    return read


def main() -> None:
    """Answer the question on standard input."""
    asked = json.load(sys.stdin)
    logging.disable(logging.CRITICAL)
    outcomes: list[dict[str, Any]] = []
    with contextlib.redirect_stdout(sys.stderr):
        reader = {"sglang": sglang_reader, "vllm": vllm_reader}[asked["server"]]
        read = reader(asked["tools"], asked["markers"])
        for name, text in asked["replies"]:
            try:
                calls, shown = read(name, text)
                outcomes.append({"calls": calls, "text": shown or ""})
            except Exception as error:
                outcomes.append({"error": f"{type(error).__name__}: {error}"[:200]})
    print(json.dumps({"version": importlib.metadata.version(asked["server"]), "outcomes": outcomes}))


if __name__ == "__main__":
    main()
