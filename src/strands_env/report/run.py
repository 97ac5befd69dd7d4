"""The report of one run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strands_env.eval.metrics import Prices
from strands_env.eval.run.groups import Grouping
from strands_env.eval.store import Entry, ResultReader, StorePaths, load_run
from strands_env.report.details import TokenTexts, details
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
    reward_threshold: float = 1.0,
    token_budget: int = TOKEN_BUDGET,
    prices: Prices | None = None,
) -> ReportResult:
    """Write the report of a run.

    Args:
        run: The `.jsonl` file or its folder.
        tokenizer: Tokenizer of the run, to show tokens as text and where re-tokenising would have drifted; None shows
            ids.
        tokenizer_note: A note on the tokenizer, such as why it is missing.
        title: Title; the name of the benchmark if None.
        reward_threshold: A sample passes with at least this reward.

    Raises:
        FileNotFoundError: There are no results.
        StoreError: They are damaged, or the file cannot be written.
    """
    target = Path(output)
    with ResultReader(run) as reader:
        document = load_run(reader.paths.run) or {}
        overview = Overview(reward_threshold=reward_threshold, grouping=Grouping.of(document), prices=prices)
        # Prompts in the order of the data; where a run has not recorded it, in that of their first samples.
        places: dict[str, float] = {}
        first = {entry.prompt_id: number for number, entry in reversed(list(enumerate(reader.entries)))}
        for entry in reader.entries:
            sample = reader.read(entry)
            overview.add(sample)
            places.setdefault(entry.prompt_id, math.inf if sample.place is None else sample.place)
        order = sorted(reader.entries, key=lambda entry: (places[entry.prompt_id], first[entry.prompt_id], entry.index))
        name = title or title_of(document, reader.paths)
        texts = TokenTexts(tokenizer, token_budget)
        with page(target, title=name, scripts=_SCRIPTS) as made:
            for number, chunk in enumerate(_chunks(reader, order, texts, system_prompt_of(document))):
                made.add(f"chunk-{number}", chunk)
            data = {
                **overview.to_dict(order),
                "title": name,
                "path": str(reader.paths.results.name),
                "made": now(),
                "chunk": CHUNK,
                "header": header_of(document),
                "drift": None if texts.drift is None or not texts.drift.trajectories else texts.drift.to_dict(),
                "run": {key: document.get(key) for key in ("config", "environment", "about")},
                "has_texts": tokenizer is not None,
                "tokenizer_note": tokenizer_note,
                "tokens_left_out": texts.left_out,
            }
            made.add("overview", data)
    return ReportResult(path=target, samples=len(order), size=target.stat().st_size, tokens_left_out=texts.left_out)


def title_of(document: Mapping[str, Any], paths: StorePaths) -> str:
    """The benchmark's name; for results without one, that of their folder, or of a file that has one of its own."""
    file, folder = paths.results.stem, paths.results.resolve().parent.name
    return str((document.get("config") or {}).get("benchmark") or (folder if file == "results" and folder else file))


def system_prompt_of(document: Mapping[str, Any] | None) -> str | None:
    """The system prompt in the saved document of a run; None where its environment was not described, or has none."""
    prompt = ((document or {}).get("environment") or {}).get("system_prompt")
    return prompt if isinstance(prompt, str) else None


def header_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The head of the page: model, sampling, date, wall time. None where it was not saved."""
    about, config = document.get("about") or {}, document.get("config") or {}
    described = (document.get("environment") or {}).get("model") or {}
    configured = config.get("model")
    configured = configured if isinstance(configured, dict) else {"model_id": configured}
    options = about.get("options") or {}
    default = "smollm2" if options.get("backend") == "local" else options.get("backend")
    sampling = configured.get("sampling_params") or described.get("sampling_params") or {}
    return {
        "model": configured.get("model_id") or described.get("model_id") or default,
        "sampling": {name: value for name, value in sampling.items() if value is not None},
        "started": about.get("started"),
        "wall_s": about.get("wall_s") or None,
        "seed": config.get("sampling_seed"),
        "rescored": (about.get("rescored") or {}).get("reward"),
    }


def _chunks(
    reader: ResultReader, order: list[Entry], texts: TokenTexts, system_prompt: str | None
) -> Iterator[dict[str, Any]]:
    for start in range(0, len(order), CHUNK):
        vocabulary: dict[int, str] = {}
        samples = [
            details(reader.read(entry, with_tokens=True), texts, vocabulary, system_prompt)
            for entry in order[start : start + CHUNK]
        ]
        yield {"samples": samples, "vocabulary": vocabulary}
