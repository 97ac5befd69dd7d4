"""A run in the log format of inspect_ai (version 2, JSON), which `inspect view` opens.

The format: https://inspect.aisi.org.uk/eval-logs.html. A task's samples are its epochs. Tokens have no
place in it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from strands_env.core.files import replacing
from strands_env.core.jsonable import shown
from strands_env.eval.metrics import ScoreTable, summarize
from strands_env.eval.metrics.summary import without_nan
from strands_env.eval.sample import EvalSample
from strands_env.eval.saved import SavedRun
from strands_env.eval.store import ResultReader
from strands_env.eval.store.record import naming_errors
from strands_env.report.details import before

SCORER = "reward"
"""Name of the score: the reward of the sample."""


def write_inspect_log(run: str | Path, output: str | Path) -> int:
    """Write the log of a run to a file that ends in `.json`; returns the number of samples.

    Raises:
        FileNotFoundError: There are no results.
        StoreError: They are damaged, or the file cannot be written.
    """
    target = Path(output)
    with ResultReader(run) as reader:
        saved = SavedRun.of(run)
        document, header = saved.document, saved.header
        table, samples = ScoreTable(), []
        model = f"strands/{header['model'] or 'unknown'}"
        for entry in reader.entries:
            sample = reader.read(entry)
            table.add(sample.prompt_id, sample)
            samples.append(_sample(sample, model, saved.system_prompt))
    started = header["started"] or datetime.now(UTC).isoformat(timespec="seconds")
    ended = datetime.fromisoformat(started) + timedelta(seconds=header["wall_s"] or 0)
    ids = list(dict.fromkeys(sample["id"] for sample in samples))
    log = {
        "version": 2,
        "status": "success",
        "eval": {
            "created": started,
            "task": saved.name,
            "run_id": document.get("digest") or saved.name,
            "dataset": {"name": saved.name, "samples": len(ids), "sample_ids": ids},
            "model": model,
            "model_generate_config": {
                key: value for key, value in header["sampling"].items() if key in ("temperature", "top_p", "top_k")
            },
            "config": {"epochs": max((sample["epoch"] for sample in samples), default=1)},
            "packages": {},
            "metadata": {"config": document.get("config")},
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": _results(table, len(samples)),
        "stats": {"started_at": started, "completed_at": ended.isoformat(timespec="seconds"), "model_usage": {}},
        "samples": samples,
    }
    with naming_errors("write", target), replacing(target) as partial:
        partial.write_text(json.dumps(without_nan(shown(log)), ensure_ascii=True), encoding="utf-8")
    return len(samples)


def _results(table: ScoreTable, samples: int) -> dict[str, Any]:
    summary = summarize(table, k_values=[1])
    mean = summary.mean_reward
    metrics = {"mean": mean.value, "low": mean.low, "high": mean.high}
    known = {name: {"name": name, "value": value} for name, value in without_nan(metrics).items() if value is not None}
    return {
        "total_samples": samples,
        "completed_samples": summary.scored,
        "scores": [{"name": SCORER, "scorer": SCORER, "metrics": known}] if known else [],
    }


def _sample(sample: EvalSample, model: str, system_prompt: str | None) -> dict[str, Any]:
    result = sample.step_result
    messages = chat_messages([*before(sample, system_prompt), *result.observation.messages])
    answer = next((message for message in reversed(messages) if message["role"] == "assistant"), None)
    truth = sample.action.task_context.ground_truth
    reason = result.termination_reason.value
    logged: dict[str, Any] = {
        "id": sample.prompt_id,
        "epoch": sample.index + 1,
        "uuid": sample.id,
        "input": sample.action.text,
        "target": "" if truth is None else str(truth),
        "messages": messages,
        "output": {
            "model": model,
            "choices": [] if answer is None else [{"message": answer, "stop_reason": "stop"}],
        },
        "metadata": {"termination_reason": reason, "attempts": sample.attempts},
        "total_time": sample.duration_s,
    }
    if sample.reward is not None and result.reward is not None:
        info = result.reward.info
        logged["scores"] = {
            SCORER: {
                "value": sample.reward,
                "answer": result.observation.final_response,
                "explanation": json.dumps(shown(info), ensure_ascii=False) if info else None,
                "metadata": {"termination_reason": reason},
            }
        }
    if result.error is not None:
        message = f"{result.error.type} in {result.error.where}: {result.error.message}"
        traceback = result.error.traceback or message
        logged["error"] = {"message": message, "traceback": traceback, "traceback_ansi": traceback}
    return logged


def chat_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages of the SDK as those of inspect: a result of a tool is a message of its own, with the role `tool`."""
    found: list[dict[str, Any]] = []
    names: dict[str, str] = defaultdict(str)
    for message in messages:
        role = str(message.get("role")).partition(",")[0]
        content: list[dict[str, Any]] = []
        calls: list[dict[str, Any]] = []
        for block in message.get("content") or []:
            match block:
                case {"toolUse": {"toolUseId": call, "name": name, **rest}}:
                    given = rest.get("input")
                    names[str(call)] = str(name)
                    arguments = given if isinstance(given, dict) else {"input": given}
                    calls.append({"id": str(call), "function": str(name), "arguments": arguments, "type": "function"})
                case {"toolResult": dict() as result}:
                    found.append(_tool_message(result, names))
                case _:
                    content.append(_content(block))
        if content or calls or role == "assistant":
            found.append({"role": role, "content": content, **({"tool_calls": calls} if calls else {})})
    return found


def _tool_message(result: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    call = str(result.get("toolUseId"))
    content = [_content(block) for block in result.get("content") or []]
    made: dict[str, Any] = {
        "role": "tool",
        "content": content,
        "tool_call_id": call,
        "function": names.get(call) or None,
    }
    if result.get("status") == "error":
        said = " ".join(part["text"] for part in content if part["type"] == "text")
        made["error"] = {"type": "unknown", "message": said}
    return made


def _content(block: Mapping[str, Any]) -> dict[str, Any]:
    match block:
        case {"text": text}:
            return {"type": "text", "text": str(text)}
        case {"reasoningContent": {"reasoningText": {"text": text}}}:
            return {"type": "reasoning", "reasoning": str(text)}
        case {"json": value}:
            return {"type": "text", "text": json.dumps(shown(value), ensure_ascii=False)}
    kind = next(iter(block), "block")
    return {"type": "text", "text": f"({kind})"}  # pictures and documents stay in the results
