"""`strands-env init`: a folder with an environment, a reward, tasks, a test and a training, all of which run."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import shlex
from importlib import resources
from pathlib import Path
from string import Template

from strands_env.commands.terminal import complain, say
from strands_sglang.commands.command_line import Exit

_FILES = {
    "env.py.txt": "{module}.py",
    "tasks.jsonl.txt": "tasks.jsonl",
    "test_env.py.txt": "test_{module}.py",
    "train.py.txt": "train.py",
    "README.md.txt": "README.md",
}
"""Our templates and what they become."""


def run(args: argparse.Namespace) -> int:
    """Make it."""
    folder = Path(args.name)
    module = re.sub(r"\W+", "_", folder.name.lower()).strip("_")
    if not module.isidentifier() or keyword.iskeyword(module) or module in ("test", "tasks", "train"):
        complain("init", f"{args.name!r} gives no module name: take letters, digits and '_', such as 'my_env'")
        return Exit.USAGE
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        complain("init", f"{args.name!r} exists already and is not empty: take another name")
        return Exit.USAGE
    if (Path.cwd() / f"{module}.py").is_file():
        complain("init", f"this folder holds {module}.py already: it is made; next: strands-env check --env {module}")
        return Exit.USAGE
    if importlib.util.find_spec(module) is not None:
        complain("init", f"{module!r} is the name of a module that can be imported here already: take another name")
        return Exit.USAGE
    title = module.replace("_", " ").capitalize()
    values = {"module": module, "cls": "".join(part.capitalize() for part in module.split("_")), "title": title}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for template, name in _FILES.items():
            text = resources.files("strands_env.commands").joinpath("scaffold", template).read_text(encoding="utf-8")
            filled = text if template.startswith(("tasks", "train")) else Template(text).substitute(values)
            path = folder / name.format(module=module)
            path.write_text(filled, encoding="utf-8")
            say(str(path))
    except OSError as error:
        complain("init", f"cannot write {str(folder)!r}: {error.strerror or error}")
        return Exit.REFUSED
    say(f"next        cd {shlex.quote(args.name)} && strands-env check --env {module} --data tasks.jsonl")
    say(f"then        strands-env eval --data tasks.jsonl --env {module} -n 4 --temperature 1 -o runs/first")
    return Exit.OK
