"""Runs notebooks in this process, without a kernel: `python -m tests.notebook FILE` writes their outputs into them."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import sys
from pathlib import Path
from typing import Any


def run_notebook(path: Path) -> list[list[dict[str, Any]]]:
    """The outputs of every code cell, as a notebook keeps them; what a cell raises is raised."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]

    async def run() -> list[list[dict[str, Any]]]:
        return [await _run_cell("".join(cell["source"]), f"{path.name}[{number}]", names, number)
                for number, cell in enumerate(cells, 1)]  # fmt: skip

    return asyncio.run(run())


async def _run_cell(source: str, where: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    parsed = ast.parse(source, where)
    last = parsed.body.pop() if isinstance(parsed.body[-1], ast.Expr) else None
    said, value = io.StringIO(), None
    with contextlib.redirect_stdout(said):
        for code, mode in ((parsed, "exec"), (last and ast.Expression(last.value), "eval")):
            if code is not None:
                value = eval(compile(code, where, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)  # type: ignore[arg-type]
                value = await value if inspect.isawaitable(value) else value
    outputs: list[dict[str, Any]] = []
    if text := said.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data = {"text/html": value._repr_html_().splitlines(keepends=True), **data}
        outputs.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data})
    return outputs


def main(path: Path) -> None:
    """Run a notebook, and write what its cells gave."""
    outputs = run_notebook(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    for number, cell in enumerate((cell for cell in document["cells"] if cell["cell_type"] == "code"), 1):
        cell |= {"execution_count": number, "outputs": outputs[number - 1]}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
