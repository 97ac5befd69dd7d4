#!/usr/bin/env bash
# filelock 4.3.1 (PyPI), filelock/_core/_fork.py; CPython 3.12 and newer (on 3.11 it adds no hook).
#
# Importing filelock makes `copy.deepcopy` of a chat message two to five times slower, for the rest of the process. filelock
# adds an audit hook, written in Python, to watch for forks. CPython calls a hook for every audited event, and `id()` is one
# (`builtins.id`), which deepcopy calls for each thing it copies; so do `array.array(...)` and `sys._getframe()`. A hook
# cannot be taken away again. transformers and huggingface_hub import filelock, and an agent loop that copies
# its messages before each model call pays on every turn: nothing of it shows in a profile by cProfile, which CPython
# stops while a hook runs.
#
# Seen (Python 3.13.0; the microseconds are of one machine, the ratio is what is asserted to be above 1.5):
#   hooks that importing filelock 4.3.1 adds: 1
#   deepcopy of a tool result: 5.4 us before, 13.8 us after the import (2.5 times)
#
# Exit status 0: as above. 1: another outcome. Needs Python 3.12 or newer: PYTHON names one, else python3.13 or python3.12.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-$(command -v python3.13 || command -v python3.12 || echo python3)}
"$python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "filelock==4.3.1"
cat > "$folder/run.py" << 'END'
import copy
import sys
import time

block = {"toolUseId": "call_1", "status": "success", "content": [{"text": "The answer is 4."}]}
message = {"role": "user", "content": [{"toolResult": block}]}


def microseconds() -> float:
    """The least time of a copy, of many."""
    least = float("inf")
    for _ in range(200):
        began = time.perf_counter()
        for _ in range(50):
            copy.deepcopy(message)
        least = min(least, time.perf_counter() - began)
    return 1e6 * least / 50


added, add = [], sys.addaudithook
sys.addaudithook = lambda hook: (added.append(hook), add(hook))[1]
before = microseconds()
import filelock  # noqa: E402

after = microseconds()
print(f"hooks that importing filelock {filelock.__version__} adds: {len(added)}")
print(f"deepcopy of a tool result: {before:.1f} us before, {after:.1f} us after the import ({after / before:.1f} times)")
assert len(added) == 1, added
assert after > 1.5 * before, (before, after)
END
"$folder/venv/bin/python" "$folder/run.py"
