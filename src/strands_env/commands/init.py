"""`strands-env init`: a folder with an environment, a reward, tasks, a test and the file of a run, all of which run."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import shlex
from importlib import resources
from pathlib import Path
from string import Template

from strands_env.commands.terminal import show
from strands_sglang.command_line import CommandError, Exit

_FILES = {
    "env.py.txt": "{module}.py",
    "tasks.jsonl.txt": "tasks.jsonl",
    "test_env.py.txt": "test_{module}.py",
    "run.yaml.txt": "run.yaml",
    "pytest.ini.txt": "pytest.ini",
    "README.md.txt": "README.md",
}
"""Our templates and the files made from them."""


def run(args: argparse.Namespace) -> int:
    """Make it."""
    folder = Path(args.name)
    module = re.sub(r"\W+", "_", folder.name.lower()).strip("_")
    mistake = None
    if not module.isidentifier() or keyword.iskeyword(module) or module in ("test", "tasks", "train"):
        mistake = f"{args.name!r} gives no module name: take letters, digits and '_', such as 'my_env'"
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        mistake = f"{args.name!r} exists already and is not empty: take another name"
    elif (Path.cwd() / f"{module}.py").is_file():
        mistake = f"this folder holds {module}.py already: it is made; next: strands-env check --env {module}"
    elif importlib.util.find_spec(module) is not None:
        mistake = f"{module!r} is the name of a module that can be imported here already: take another name"
    if mistake is not None:
        raise CommandError(mistake, Exit.USAGE)
    title = module.replace("_", " ").capitalize()
    values = {"module": module, "cls": "".join(part.capitalize() for part in module.split("_")), "title": title}
    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for template, name in _FILES.items():
            text = resources.files("strands_env.commands").joinpath("scaffold", template).read_text(encoding="utf-8")
            path = folder / name.format(module=module)
            path.write_text(Template(text).substitute(values), encoding="utf-8")
            files.append(str(path))
    except OSError as error:
        raise CommandError(f"cannot write {str(folder)!r}: {error.strerror or error}", Exit.REFUSED) from error
    check = f"cd {shlex.quote(args.name)} && strands-env check --env {module} --data tasks.jsonl"
    evaluate, train = "strands-env eval run.yaml -o runs/first", "strands-env train run.yaml"
    lines = [*files, f"next        {check}", f"then        {evaluate}", f"            {train}"]
    show({"files": files, "next": [check, evaluate, train]}, lines, as_json=args.json)
    return Exit.OK
