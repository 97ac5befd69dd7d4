"""The command `strands-sglang doctor`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from provider_support import GO, Replay
from reply_round_trip import FRAMES, ONE_BAR, RESPONSE, framed

from strands_sglang import SGLangModel, TemplateError, ToolParserError, get_tokenizer
from strands_sglang.__main__ import main
from strands_sglang.backends.engine.tiny import make_tiny_tokenizer
from strands_sglang.commands.doctor import load_source
from strands_sglang.conversation import Conversation, TurnRequest
from tests.servers.faulty_server import FaultyServer
from tests.unit.template_texts import CHATML, LLAMA

LOSES_TOOLS = "{% for m in messages if m.role != 'tool' %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}<assistant>"


def diagnose(*argv: str) -> int:
    return main(["doctor", *argv])


def jinja_file(folder: Path, text: str = CHATML) -> str:
    path = folder / "template.jinja"
    path.write_text(text, "utf-8")
    return str(path)


def tokenizer_folder(folder: Path, template: Any = CHATML, **files: Any) -> str:
    made = make_tiny_tokenizer(300, 4096)
    made.chat_template = template
    made.save_pretrained(folder)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return str(folder)


THINKING = CHATML.replace(
    "{{ message.content or '' }}",
    "{{ message.content or '' }}{% if message.reasoning_content and (loop.last or preserve_thinking) %}"
    "<think>{{ message.reasoning_content }}</think>{% endif %}",
)
UNREADABLE = framed(each=("<|calls|>", "")).replace("<tool_call>", "").replace("</tool_call>", "")
OPENS = CHATML + "{% if add_generation_prompt and think %}<think>\n{% endif %}"


@pytest.mark.parametrize(
    ("template", "arguments", "status", "words"),
    [
        (CHATML, ["--stop", "<|im_end|>"], 0, ["EXACT", "call>tool", "'<|im_end|>'"]),
        (LOSES_TOOLS, ["--stop", "</s>"], 1, ["UNSUPPORTED", "drops", "use a template with tool support"]),
        (LOSES_TOOLS, ["--stop", "</s>", "--no-tools"], 0, ["EXACT"]),
        (
            LLAMA,
            ["--stop", "<|eot_id|>"],
            0,
            ["calls>tools: the template rejects the step: only ", "one call at"],
        ),
        (OPENS, ["--stop", "<|im_end|>", "--kwargs", '{"think": true}'], 0, ["prompt opens <think>"]),
        (THINKING, ["--stop", "<|im_end|>"], 0, ["template_kwargs={'preserve_thinking': True}"]),
        (
            RESPONSE,
            ["--stop", "<|im_end|>"],
            0,
            ["parser     hermes", "frame      '<|START_RESPONSE|>' '<|END_RESPONSE|>'", "without tools  yes"],
        ),
        (
            UNREADABLE,
            ["--stop", "<|im_end|>"],
            1,
            ["verdict    UNSUPPORTED", "prompts    EXACT", "with tools     no: no tool parser", "without tools  yes"],
        ),
        (UNREADABLE, ["--stop", "<|im_end|>", "--no-tools"], 0, ["verdict    EXACT"]),
        (UNREADABLE, ["--stop", "<|im_end|>", "--tool-parser", "hermes"], 0, ["verdict    EXACT", "parser     hermes"]),
        (
            ONE_BAR,
            ["--stop", "<|im_end|>"],
            1,
            ["UNSUPPORTED", "'<|bar|><|bar|>' is left", "without tools  yes: of its"],
        ),
        (FRAMES["a header behind reasoning"], ["--stop", "<|im_end|>"], 0, ["between <|musing|> and <|end|>"]),
        (
            FRAMES["a tag of several tokens, opened by the prompt"],
            ["--stop", "<|im_end|>"],
            0,
            ["prompt opens <|open|>muse<|sep|>, <|close|>muse<|sep|> closes it; printed in past replies"],
        ),
    ],
)
def test_the_report_says_the_verdict_and_what_to_do(tmp_path, capsys, template, arguments, status, words):
    assert diagnose(jinja_file(tmp_path, template), *arguments) == status
    out = capsys.readouterr().out
    assert [word for word in words if word not in out] == []


@pytest.mark.parametrize("template", [CHATML, RESPONSE, UNREADABLE, ONE_BAR, LOSES_TOOLS])
def test_the_exit_status_is_what_a_model_decides(tmp_path: Path, template: str) -> None:
    folder = tokenizer_folder(tmp_path, template)
    conversation = Conversation(tokenizer=get_tokenizer(folder), client=Replay([]))
    tool: Any = {"name": "f", "description": "Does.", "inputSchema": {"json": {"type": "object", "properties": {}}}}
    for tools in ([], [tool]):
        try:
            conversation.prepare(TurnRequest(messages=GO, tools=tools))
            refused = 0
        except (TemplateError, ToolParserError):
            refused = 1
        assert diagnose(folder, *([] if tools else ["--no-tools"])) == refused


def test_report_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose(jinja_file(tmp_path, LLAMA), "--stop", "<|eot_id|>", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "PARTIAL"
    assert report["closers"]["call>tool"] == "<|eot_id|>"
    assert list(report["refused"]) == ["calls>tools"]
    assert report["printed_call"] == '{"name": "lookup", "parameters": {"q": "two words"}}'


@pytest.mark.parametrize("kwargs", ["{", "[1]", "enable_thinking=false"])
def test_wrong_variables_are_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], kwargs: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        diagnose(jinja_file(tmp_path), "--kwargs", kwargs)
    assert repr(kwargs) in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{% for m in messages %}", "no template at all", ""])
def test_wrong_template_is_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert diagnose(jinja_file(tmp_path, text)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_a_place_without_a_template_is_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose("./missing.jinja") == 2
    assert "'./missing.jinja' does not exist" in capsys.readouterr().err
    assert diagnose(tokenizer_folder(tmp_path, None)) == 2
    assert "no chat template" in capsys.readouterr().err
    folder = tokenizer_folder(tmp_path / "broken")
    (tmp_path / "broken" / "tokenizer_config.json").write_text("{", "utf-8")
    assert diagnose(folder) == 2
    assert f"the tokenizer {folder!r} cannot be loaded" in capsys.readouterr().err


def test_a_folder_is_read_as_a_model_reads_it(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path, generation_config={"eos_token_id": 5})
    source, model = load_source(folder), SGLangModel(tokenizer=get_tokenizer(folder), client=Replay([]))
    assert len(source.stop_tokens) == 2
    assert load_source(folder, ["<|x|>"]).stop_tokens == ("<|x|>",)
    assert source.stop_tokens == model.conversation._tokens.stop_tokens
    assert set(source.stop_tokens) <= set(source.special_tokens) | set(model.conversation.token_texts([5]))
    assert source.template.render([{"role": "user", "content": "Hi"}]).startswith("<|im_start|>user")


def test_transformers_is_needed_for_a_tokenizer_only(tmp_path, monkeypatch, capsys):
    folder, file = tokenizer_folder(tmp_path), jinja_file(tmp_path)
    for package in ("transformers", "torch"):
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["doctor", file, "--stop", "<|im_end|>"]) == 0
    assert capsys.readouterr().out.startswith("verdict    EXACT")
    for name in (folder, "some-org/some-model"):
        assert main(["doctor", name]) == 2
        assert "[hf]'" in capsys.readouterr().err


PRINTS_EOS = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_special_tokens_that_a_file_does_not_say_are_assumed_and_named(tmp_path, capsys):
    file = jinja_file(tmp_path, PRINTS_EOS)
    assert diagnose(file, "--no-tools", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["assumed"]) == ("EXACT", {"eos_token": "</s>", "bos_token": "<s>"})
    assert diagnose(file, "--no-tools", "--json", "--eos", "<|e|>", "--bos", "<|b|>") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["assumed"], report["closers"]) == ({}, {"text>user": "<|e|>"})


def test_tokens_given_for_a_folder_that_names_its_own_are_not_ignored(tmp_path, capsys):
    assert diagnose(tokenizer_folder(tmp_path), "--eos", "</s>") == 2
    assert "names its own tokens" in (printed := capsys.readouterr().err) and "--eos" in printed


@pytest.mark.parametrize(
    ("told", "word", "line"),
    [(True, True, "takes them"), ("false", False, "takes none"), (None, None, "does not say whether")],
)
async def test_the_report_says_whether_a_server_takes_images(tmp_path, capsys, told, word, line):
    folder = tokenizer_folder(tmp_path)
    facts = {"tokenizer_path": folder} | ({} if told is None else {"has_image_understanding": told})
    async with FaultyServer([], model_info=facts) as server:
        for arguments in ([], ["--json"]):
            await asyncio.to_thread(diagnose, folder, "--server", server.url, *arguments)
        text, report = (out := capsys.readouterr().out)[: (start := out.index("{\n"))], json.loads(out[start:])
    assert f"images     the server {line}" in text and report["images"] is word
    assert diagnose(folder, "--server", server.url) == 1
    assert "no SGLang server answers" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        diagnose("--vision", folder)
    assert "--vision is gone: the first request with an image proves" in capsys.readouterr().err
