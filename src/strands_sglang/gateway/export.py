"""Trajectories of a session as rows: for JSON, and for Parquet (extra `train`)."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from ..trajectory import Trajectory
from .counters import Counters


def rows_of(
    trajectories: Iterable[Trajectory], *, session: str, labels: Mapping[str, Any], counters: Counters
) -> list[dict[str, Any]]:
    """One row per trajectory. Images are left out; `images` has their number."""
    rows = []
    for trajectory in trajectories:
        rows.append(
            {
                "session": session,
                "labels": dict(labels),
                "agent": trajectory.agent_name,
                "token_ids": trajectory.token_ids,
                "loss_mask": trajectory.loss_mask,
                "output_mask": trajectory.output_mask,
                "logprobs": trajectory.logprobs,
                "prompt_length": trajectory.initial_prompt_length,
                "segments": trajectory.segment_info,
                "finish_reason": trajectory.finish_reason,
                "is_discarded": trajectory.is_discarded,
                "constrained": [turn.is_constrained for turn in trajectory.turns],
                "tool_calls": [{"id": c.id, "name": c.name, "error": c.error} for c in trajectory.calls],
                "weight_versions": [[s.version, s.start, s.end] for s in trajectory.weight_versions],
                "request_ids": trajectory.request_ids,
                "images": len(trajectory.images),
                "extension_rate": counters.extension_rate,
                "edited": counters.edited,
            }
        )
    return rows


def parquet_of(rows: Sequence[dict[str, Any]]) -> bytes:
    """The rows as a Parquet file; `ImportError` without pyarrow."""
    import importlib

    pa: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    span = pa.struct([("is_output", pa.bool_()), ("length", pa.int64())])
    version = pa.struct([("version", pa.string()), ("start", pa.int64()), ("end", pa.int64())])
    call = pa.struct([("id", pa.string()), ("name", pa.string()), ("error", pa.string())])
    schema = pa.schema(
        [
            ("session", pa.string()),
            ("labels", pa.string()),
            ("agent", pa.string()),
            ("token_ids", pa.list_(pa.int32())),
            ("loss_mask", pa.list_(pa.int8())),
            ("output_mask", pa.list_(pa.bool_())),
            ("logprobs", pa.list_(pa.float32())),
            ("prompt_length", pa.int64()),
            ("segments", pa.list_(span)),
            ("finish_reason", pa.string()),
            ("is_discarded", pa.bool_()),
            ("constrained", pa.list_(pa.bool_())),
            ("tool_calls", pa.list_(call)),
            ("weight_versions", pa.list_(version)),
            ("request_ids", pa.list_(pa.string())),
            ("images", pa.int64()),
            ("extension_rate", pa.float64()),
            ("edited", pa.int64()),
        ]
    )
    flat = [
        {
            **row,
            "labels": orjson.dumps(row["labels"]).decode(),
            "segments": [{"is_output": kind, "length": length} for kind, length in row["segments"]],
            "weight_versions": [
                dict(zip(("version", "start", "end"), span, strict=True)) for span in row["weight_versions"]
            ],
        }
        for row in rows
    ]
    sink = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(flat, schema=schema), sink, compression="zstd")
    return sink.getvalue()
