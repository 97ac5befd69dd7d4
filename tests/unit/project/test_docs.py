"""Documentation: links lead somewhere, code compiles, and blocks marked `runnable` run and print what they claim.

- ```` ```python not-run="reason" ````: must compile (`await` at the top is fine).
- ```` ```python title="file" ````: a file of a tutorial, which a test of its own runs.
- ```` ```python runnable ````: is executed, in a process of its own, in an empty folder.
- ```` ```python runnable needs=trl,torch ````: the same where these packages are installed.
- ```` ```python runnable needs=bubblewrap ````: the same where sandboxes are isolated.
- ```` ```python runnable faulty ````: the same, with a reward that fails its proof.
- ```` ```text output ```` right after a runnable block: exactly what it prints.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strands_env.commands.cli import main as command_line
from tests.conftest import ROOT
from tests.servers.engine_server import serve
from tests.unit.docs_block import AWAITING, run_block
from tests.unit.sandbox_support import unavailable

DOCUMENTS = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "examples/**/*.md",
        "benchmarks/**/*.md",
        "tests/**/*.md",
        "src/**/README.md",
    )
    for path in ROOT.glob(pattern)
)
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6}\s+(?P<text>.+?)\s*#*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a document."""

    document: Path
    line: int
    info: str
    body: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks(document: Path) -> list[Block]:
    text = document.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        indent = len(match["indent"])
        body = "".join(line[indent:] if line.strip() else "\n" for line in match["body"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(document=document, line=line, info=match["info"].strip(), body=body))
    return found


def python_blocks(*, runnable: bool) -> Iterator[tuple[Block, str | None]]:
    """Python blocks, each with the output claimed right after it, if any."""
    for document in DOCUMENTS:
        found = blocks(document)
        for block, following in itertools.zip_longest(found, found[1:]):
            language, _, rest = block.info.partition(" ")
            if language == "python" and (not runnable or "runnable" in rest.split()):
                yield block, following.body if following and following.info == "text output" else None


def prose(document: Path) -> str:
    return FENCE.sub("", document.read_text(encoding="utf-8"))


def anchors(document: Path) -> set[str]:
    """Names of the headings as the forges make them."""
    texts = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match["text"]) for match in HEADING.finditer(prose(document)))
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


@pytest.mark.parametrize("block", [block for block, _ in python_blocks(runnable=False)], ids=str)
def test_code_compiles(block: Block) -> None:
    compile("\n" * block.line + block.body, str(block.document), "exec", flags=AWAITING)


def test_every_python_block_is_run_or_says_why_not() -> None:
    marks = re.compile(r'\brunnable\b|\btitle="|\bnot-run="[^"]+"')
    assert [str(block) for block, _ in python_blocks(runnable=False) if not marks.search(block.info)] == []


@pytest.mark.parametrize(("block", "output"), list(python_blocks(runnable=True)), ids=str)
def test_runnable_code_runs(block: Block, output: str | None, tmp_path: Path) -> None:
    needed = [name for names in re.findall(r"needs=(\S+)", block.info) for name in names.split(",")]
    if "bubblewrap" in needed:
        needed.remove("bubblewrap")
        if reason := unavailable():
            pytest.skip(f"no isolation here: {reason}")
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        pytest.skip(f"needs the packages {missing}")
    # What it defines keeps the contracts, too.
    faulty = "faulty" in block.info.split()
    tried = f"\nfrom tests.unit import docs_contracts\ndocs_contracts.check_examples(dict(globals()), faulty={faulty})"
    status, said, errors = run_block("\n" * block.line + block.body + tried, str(block), tmp_path)
    assert status == 0, errors
    if output is not None:
        assert said.strip() == output.strip()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for match in LINK.finditer(prose(document)):
        target = match["target"]
        if re.match(r"[a-z]+:", target):
            if not target.startswith(("https://", "mailto:")):
                broken.append(target)
            continue
        path, _, anchor = target.partition("#")
        other = (document.parent / path).resolve() if path else document
        if not other.exists() or (anchor and other.suffix == ".md" and anchor not in anchors(other)):
            broken.append(target)
    assert not broken


def test_files_and_names_of_the_architecture_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Proposals")[0]
    named = re.findall(r"`([\w/]+(?:\.py|/))(?::\w+)?`", page)
    roots = [ROOT, ROOT / "src", ROOT / "src" / "strands_sglang", ROOT / "src" / "strands_env"]
    missing = [name for name in named if "NAME" not in name and not any((root / name).exists() for root in roots)]
    assert len(named) > 30 and not missing
    files = [path for folder in ("src", "tests/unit") for path in (ROOT / folder).rglob("*.py")]
    source = "\n".join(path.read_text(encoding="utf-8") for path in files if path != Path(__file__))
    names = {part for name in re.findall(r"`([A-Z][\w.]+)", page) for part in name.split(".") if "NAME" not in name}
    assert len(names) > 20 and names <= set(re.findall(r"\w+", source))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("agent.py", r"Tool #1: calculator[\s\S]*The answer is 425\.\n\d+ tokens, \d\d sampled, log-probability -\d"),
        ("environment.py", r"\nreward 1\.0, TokenSequence\(tokens=\d+, prompt_length=\d+, trained=\d\d, segments=4\)"),
    ],
)  # fmt: skip
def test_a_program_of_the_readme_runs(name: str, says: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    status, said, errors = run_block(titled(ROOT / "README.md")[name], "README.md", tmp_path)
    assert status == 0, errors
    assert re.search(says, said), said


async def test_the_program_of_the_readme_for_a_server_runs_against_one(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from strands_sglang.backends.engine import EmbeddedEngine

    program = titled(ROOT / "README.md")["agent_on_a_server.py"]
    engine = EmbeddedEngine("smollm2", seed=2)
    engine.tokenizer.save_pretrained(tmp_path / "tokenizer")
    async with serve(engine) as url:
        for old, new in (("http://localhost:30000", url), ("Qwen/Qwen3-8B", str(tmp_path / "tokenizer"))):
            assert program.count(old) == 1
            program = program.replace(old, new)
        status, said, errors = await asyncio.to_thread(run_block, program, "README.md", tmp_path)
    await engine.close()
    assert status == 0, errors
    assert re.search(r"\n\d+ tokens, \d+ sampled\n", said)


def test_the_readme_is_short() -> None:
    """Three programs, the argument, the guarantees, and one table of links."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 145


def test_each_core_dependency_has_its_reason_and_each_extra_its_use() -> None:
    page = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.split(r"[<>=~\[ ]", requirement)[0] for requirement in project["dependencies"]]
    explained = re.findall(r"^\| `([\w-]+)` \|", page.partition("## Dependencies")[2], re.MULTILINE)
    assert sorted(explained) == sorted(names)
    assert [name for name in project["optional-dependencies"] if f"`{name}`" not in page] == []


def test_extras_named_anywhere_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    files = [*DOCUMENTS, *(ROOT / "src").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    wrong = [
        f"{path.relative_to(ROOT)}: {extra}"
        for path in files
        for named in re.findall(r"strands-rollout\[([\w,]+)\]", path.read_text(encoding="utf-8"))
        for extra in named.split(",")
        if extra not in extras
    ]
    assert not wrong


def titled(document: Path) -> dict[str, str]:
    """Blocks with a title, by it: the files that a reader of the document makes."""
    found = ((re.search(r'title="([^"]+)"', block.info), block.body) for block in blocks(document))
    return {match[1]: body for match, body in found if match}


def test_the_commands_of_the_tutorial_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert command_line(["init", "shop"]) == 0
    monkeypatch.chdir(tmp_path / "shop")
    for name, body in titled(ROOT / "docs" / "tutorial.md").items():
        assert Path(name).read_text(encoding="utf-8") == body, name
    monkeypatch.setattr(sys, "path", [str(tmp_path / "shop"), *sys.path])
    scripted = ["--backend", "scripted", "--script", "It costs 35 dollars."]
    common = ["--data", "tasks.jsonl", "--env", "shop"]
    for line in (
        ["check", *common, "--tokenizer", "tiny"],
        ["eval", *common, *scripted, "-n", "4", "-o", "runs/first"],
        ["eval", "run.yaml", *scripted, "-o", "runs/file", "-q"],
        ["train", "run.yaml", "--dry-run"],
        ["report", "runs/first", "lamp/0"],
        ["report", "runs/first", "--tokenizer", "none"],
        ["rescore", "runs/first", "--reward", "shop:right_and_looked_up", "-o", "runs/rescored"],
        ["compare", "runs/first", "runs/rescored"],
        ["export", "runs/first", "-o", "train.jsonl", "--format", "sft"],
    ):
        assert command_line(line) == 0, line
    sys.modules.pop("shop", None)


def test_the_training_loop_of_the_examples_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    source = (ROOT / "examples" / "training_loop.py").read_text(encoding="utf-8")
    assert "STEPS, GROUP = 10, 16" in source
    monkeypatch.chdir(tmp_path)
    exec(compile(source.replace("STEPS, GROUP = 10, 16", "STEPS, GROUP = 2, 2"), "training_loop.py", "exec"), {})
    assert command_line(["report", "runs/training", "--tokenizer", "none"]) == 0


@pytest.mark.parametrize("what", ["tool calls", "a reply", "the context"])
def test_the_generate_of_the_slime_page_trains_rollouts_that_a_limit_cut(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from strands_sglang.backends.engine import make_tiny_model
    from strands_sglang.testing import ScriptedClient

    tokenizer = make_tiny_model().tokenizer
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'
    client = ScriptedClient(
        ["words " * 50 if what == "a reply" else call] * 9,
        tokenizer=tokenizer,
        max_model_len=500 if what == "the context" else None,
    )
    monkeypatch.setattr("strands_sglang.get_client_from_slime_args", lambda args: client)
    monkeypatch.setattr("strands_sglang.get_tokenizer", lambda path: tokenizer)
    page: dict[str, Any] = {}
    exec(compile(titled(ROOT / "docs" / "slime.md")["my_rollout.py"], "my_rollout.py", "exec"), page)
    status = SimpleNamespace(TRUNCATED="truncated", COMPLETED="completed")
    given = {"Status": status, "prompt": "What is 1 + 1?", "label": "2", "metadata": None}
    sample = type("Sample", (), given)()

    sampled = asyncio.run(page["generate"](SimpleNamespace(hf_checkpoint="tiny"), sample, {"max_new_tokens": 60}))

    assert sampled.status == "truncated"
    assert len(sampled.loss_mask) == len(sampled.rollout_log_probs) == sampled.response_length > 0
    assert sum(sampled.loss_mask) > 0


def test_the_trial_of_the_slime_page_runs_on_prompts_that_are_messages(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    page = titled(ROOT / "docs" / "slime.md")
    found = blocks(ROOT / "docs" / "slime.md")
    place = next(number for number, block in enumerate(found) if "try_rollout.py" in block.info)
    written = f"import pathlib\npathlib.Path('my_rollout.py').write_text({page['my_rollout.py']!r})\n"
    path = "import sys\nsys.path.insert(0, '')\n"
    status, said, errors = run_block(written + path + page["try_rollout.py"], "try_rollout.py", tmp_path)
    assert status == 0, errors
    assert said.strip() == found[place + 1].body.strip()


WRONG = [
    *(
        "",
        "Answer: 1 2 3 42",
        "I think Answer: 42 is wrong",
        "Answer: 42 is wrong",
        "Answer: 42 or 43",
        "not 42",
        "425",
    ),
    *(
        "The answer is not 42.",
        "Answer: -42",
        "Answer: 4 42",
        "Answer: 42^2",
        "Answer: 42\nAnswer: 43",
        "42 43",
        "1/42",
    ),
]


def test_the_reward_of_the_slime_page_is_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On rows as those of dapo-math-17k: prompts that are messages, labels that are numbers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    Path("my_rollout.py").write_text(titled(ROOT / "docs" / "slime.md")["my_rollout.py"])
    rows = [
        {"prompt": [{"role": "user", "content": f"Question {place}?"}], "label": label}
        for place, label in enumerate(["42", "425", "-3", "0", "34"])
    ]
    Path("dapo.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert command_line(["check", "--data", "dapo.jsonl", "--reward", "my_rollout:reward", "--tokenizer", "none"]) == 0
    is_right = sys.modules.pop("my_rollout").is_right
    for text in ("42", "So:\nAnswer: 42", "The answer is 42.", "1 + 41 = 42\nanswer: 42\n"):
        assert is_right(text, "42") == 1.0, text
    for text in WRONG:
        assert is_right(text, "42") == 0.0, text
