"""Training samples in Parquet files (extra `train`)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from strands_env.core.files import arrow, replacing
from strands_env.core.types import WeightVersionSpan
from strands_env.training.sample import PER_TOKEN, SampleStatus, TrainingSample
from strands_sglang.trajectory import Role, SamplingMask
from strands_sglang.trajectory.media import PlacedMedium

FORMAT_VERSION = "1"
"""Version of the columns, kept in the file's metadata."""

_VERSION_KEY = b"strands_env.training.format"


def save_samples(samples: Iterable[TrainingSample], path: str | Path) -> int:
    """Write samples to a Parquet file, replaced if it exists, and return their number.

    The file appears under its name only when it is complete.

    Raises:
        ImportError: pyarrow is not installed.
        TypeError: An element is not a TrainingSample, or its metadata cannot be written as JSON.
    """
    pa, parquet = arrow()
    samples = list(samples)
    for place, sample in enumerate(samples):
        if not isinstance(sample, TrainingSample):
            raise TypeError(
                f"samples[{place}] is {sample!r:.80}, expected a TrainingSample: samples_from_step() makes them"
            )
    rows = [_to_row(sample) for sample in samples]
    table = pa.Table.from_pylist(rows, schema=_schema(pa))
    with replacing(Path(path)) as partial:
        parquet.write_table(table, partial, compression="zstd")
    return len(rows)


def load_samples(path: str | Path) -> list[TrainingSample]:
    """Read what `save_samples` wrote.

    Raises:
        ImportError: pyarrow is not installed.
        FileNotFoundError: The file does not exist.
        ValueError: The file was written by something else, or by a later version.
    """
    pa, parquet = arrow()
    try:
        table = parquet.read_table(path)
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"{str(path)!r} is not a complete Parquet file, expected one that save_samples() wrote"
        ) from error
    version = (table.schema.metadata or {}).get(_VERSION_KEY, b"").decode()
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{str(path)!r} has format {version or 'unknown'!r}, expected {FORMAT_VERSION!r}: a file of save_samples()"
        )
    return [_from_row(row) for row in table.to_pylist()]


def _schema(pa: Any) -> Any:
    span = pa.struct([("version", pa.string()), ("start", pa.int64()), ("end", pa.int64())])
    texts = [("data", pa.string()), ("digest", pa.string()), ("processor", pa.string())]
    places = [("grid", pa.list_(pa.int64())), ("offset", pa.int64()), ("length", pa.int64())]

    def column(name: str, dtype: Any) -> Any:
        values = pa.list_(pa.from_numpy_dtype(np.dtype(dtype)))
        return pa.list_(values) if "_top_" in name else values

    fields = [
        *((name, column(name, dtype)) for name, dtype in PER_TOKEN.items()),
        ("prompt_length", pa.int64()),
        ("weight_versions", pa.list_(span)),
        ("routed_experts", pa.large_binary()),
        ("experts_shape", pa.list_(pa.int64())),
        ("sampling_mask_ids", pa.list_(pa.int32())),
        ("sampling_mask_offsets", pa.list_(pa.int64())),
        ("media", pa.list_(pa.struct([*texts, *places]))),
        ("reward", pa.float64()),
        *((name, pa.string()) for name in ("group_id", "rollout_id", "agent_name", "agent_id", "role", "parent")),
        ("status", pa.string()),
        ("finish_reason", pa.string()),
        ("advantage", pa.float64()),
        ("metadata", pa.string()),
    ]
    return pa.schema(fields, metadata={_VERSION_KEY: FORMAT_VERSION.encode()})


def _to_row(sample: TrainingSample) -> dict[str, Any]:
    row = {name: getattr(sample, name) for name in sample.__dataclass_fields__}
    mask = row.pop("sampling_mask")
    return row | {
        # Arrow takes an array of one dimension as it is, and rows of a matrix one by one.
        **{name: list(row[name]) for name in PER_TOKEN if np.ndim(row[name]) > 1},
        "weight_versions": [asdict(span) for span in sample.weight_versions],
        "sampling_mask_ids": None if mask is None else mask.ids,
        "sampling_mask_offsets": None if mask is None else mask.offsets,
        "media": [asdict(medium) for medium in sample.media],
        "advantage": sample.metadata.get("advantage"),  # for other readers; `load_samples` has it in the metadata
        "metadata": json.dumps(dict(sample.metadata)),
    }


def _from_row(row: dict[str, Any]) -> TrainingSample:
    ids, offsets = row.pop("sampling_mask_ids"), row.pop("sampling_mask_offsets")
    mask = None
    if offsets is not None:
        mask = SamplingMask(ids=np.array(ids, dtype=np.int32), offsets=np.array(offsets, dtype=np.int64))
    for name in ("advantage", "is_discarded", "trainable"):  # older files have all three
        row.pop(name, None)
    media = [{**each, "grid": each["grid"] and tuple(each["grid"])} for each in row.get("media") or ()]
    arrays = {name: np.array(row[name], dtype=dtype) for name, dtype in PER_TOKEN.items() if row.get(name) is not None}
    return TrainingSample(
        **row
        | arrays
        | {
            "weight_versions": tuple(WeightVersionSpan(**span) for span in row["weight_versions"]),
            "experts_shape": row["experts_shape"] and tuple(row["experts_shape"]),
            "sampling_mask": mask,
            "media": tuple(PlacedMedium(**each) for each in media),
            "role": Role(row.get("role", Role.MAIN)),  # older files have none
            "status": SampleStatus(row["status"]),
            "metadata": json.loads(row["metadata"]),
        }
    )
