"""The report of one run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strands_env.core.jsonable import without_secrets
from strands_env.eval.saved import SavedRun
from strands_env.eval.store import Entry, ResultReader
from strands_env.report.details import TokenTexts, details
from strands_env.report.health import HealthRow, find_problems, row_of
from strands_env.report.overview import Overview
from strands_env.report.page import now, page

CHUNK = 50
"""Samples of one data island: what the browser unpacks when one of them is opened."""
TOKEN_BUDGET = 20_000_000
"""Tokens a report may hold; beyond it only messages are shown."""
_SCRIPTS = ("dom.js", "charts.js", "tokens.js", "detail.js", "table.js", "drawer.js", "app.js")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportResult:
    """A written report; sizes in bytes, `tokens_left_out` counts samples whose tokens did not fit the budget."""

    path: Path
    samples: int
    size: int
    tokens_left_out: int = 0


def write_report(
    run: str | Path,
    output: str | Path,
    *,
    tokenizer: Any = None,
    tokenizer_note: str | None = None,
    title: str | None = None,
    reward_threshold: float | None = None,
    token_budget: int = TOKEN_BUDGET,
) -> ReportResult:
    """Write the report of a run.

    Args:
        run: The `.jsonl` file or its folder.
        tokenizer: Tokenizer of the run, to show tokens as text and where re-tokenising would have drifted; None shows
            ids.
        tokenizer_note: A note on the tokenizer, such as why it is missing.
        title: Title; the name of the benchmark if None.
        reward_threshold: A sample passes with at least this reward; the run's own threshold if None.

    Raises:
        FileNotFoundError: There are no results.
        StoreError: They are damaged, or the file cannot be written.
    """
    target = Path(output)
    with ResultReader(run) as reader:
        saved = SavedRun.of(run)
        overview = Overview(replace(saved.options, reward_threshold=saved.threshold(reward_threshold)))
        for entry in reader.entries:  # as they finished: the running mean follows the run
            overview.add(reader.read(entry))
        order = reader.in_task_order()
        name = title or saved.name
        texts = TokenTexts(tokenizer, token_budget)
        with page(target, title=name, scripts=_SCRIPTS) as writer:
            # Chunk by chunk: the tokens of a whole run do not fit into memory.
            rows: list[HealthRow] = []
            for number, chunk in enumerate(_chunks(reader, order, texts, saved.system_prompt, rows)):
                writer.add(f"chunk-{number}", chunk)
            data = {
                **overview.to_dict(order),
                "title": name,
                "path": str(reader.paths.results.name),
                "made": now(),
                "chunk": CHUNK,
                "header": saved.header,
                "health": [finding.to_dict() for finding in find_problems(rows)[0]],
                "drift": None if texts.drift is None or not texts.drift.trajectories else texts.drift.to_dict(),
                "run": without_secrets({key: saved.document.get(key) for key in ("config", "environment", "about")}),
                "has_texts": tokenizer is not None,
                "tokenizer_note": tokenizer_note,
                "tokens_left_out": texts.left_out,
            }
            writer.add("overview", data)
    return ReportResult(path=target, samples=len(order), size=target.stat().st_size, tokens_left_out=texts.left_out)


def _chunks(
    reader: ResultReader, order: list[Entry], texts: TokenTexts, system_prompt: str | None, rows: list[HealthRow]
) -> Iterator[dict[str, Any]]:
    for start in range(0, len(order), CHUNK):
        vocabulary: dict[int, str] = {}
        samples = []
        for entry in order[start : start + CHUNK]:
            sample = reader.read(entry, with_tokens=True)
            samples.append(document := details(sample, texts, vocabulary, system_prompt))
            drifts = [path["drift"] for path in document.get("trajectories", ()) if "drift" in path]
            rows.append(row_of(sample, [kind for spans in drifts for _, _, kind, _ in spans] if drifts else None))
        yield {"samples": samples, "vocabulary": vocabulary}
