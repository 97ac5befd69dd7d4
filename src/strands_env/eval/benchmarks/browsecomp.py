"""BrowseComp (Wei et al. 2025): facts that are hard to find on the web, graded by a judge model.

Questions and answers are published encrypted, so that they do not end up in training data; do not publish runs of it.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import itertools
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from strands_env.core import Action
from strands_env.eval.benchmarks.facts import FactsBenchmark
from strands_env.eval.benchmarks.grading import MATCH, load_published
from strands_env.eval.errors import DatasetError
from strands_env.eval.run.benchmark import Row, field, read_rows

URL = "https://openaipublic.blob.core.windows.net/simple-evals/browse_comp_test_set.csv"
QUERY = """{Question}

Answer in this form:
Explanation: how you found it
Exact Answer: the answer, in a few words
Confidence: how sure you are, from 0% to 100%"""


class BrowseCompEvaluator(FactsBenchmark):
    """BrowseComp: 1,266 facts that are hard to find; needs a search provider (option `search`) and a judge model."""

    benchmark_name = "browsecomp"
    grading = MATCH
    size = 1266

    def rows(self) -> Iterator[Row]:
        """The rows of the published file, or of `data_path`, a copy of it (`.csv`) or any other data file."""
        if self.data_path is not None and Path(self.data_path).suffix != ".csv":
            yield from read_rows(self.data_path)
            return
        try:
            if self.data_path is None:
                with urllib.request.urlopen(URL, timeout=60) as answer:
                    text = answer.read().decode()
            else:
                text = Path(self.data_path).read_bytes().decode("utf-8-sig")
        except (OSError, ValueError) as error:
            where = URL if self.data_path is None else repr(str(self.data_path))
            raise DatasetError(f"cannot read {where}: {error}; give a copy of {URL} as data_path (--data)") from error
        yield from csv.DictReader(io.StringIO(text, newline=""))

    def action(self, row: Row, index: int) -> Action | None:
        """The question, decrypted, with the form of the answer."""
        problem, answer, canary = field(row, "problem"), field(row, "answer"), field(row, "canary")
        if problem is None or answer is None:
            return None
        if canary is not None:
            problem, answer = decrypt(problem, canary), decrypt(answer, canary)
        query = load_published("browse_comp.prompts", "QUERY_TEMPLATE", QUERY)
        kept = {"question": problem, "problem_topic": row.get("problem_topic")}
        return self.task(str(index), query.format(Question=problem), answer, **kept)


def decrypt(text: str, password: str) -> str:
    """The text whose base64 form was combined, byte by byte, with the repeated SHA-256 of a password."""
    key = itertools.cycle(hashlib.sha256(password.encode()).digest())
    return bytes(byte ^ mask for byte, mask in zip(base64.b64decode(text), key, strict=False)).decode()
