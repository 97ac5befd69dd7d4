"""The command `strands-sglang doctor`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.__main__ import main
from strands_sglang.commands.doctor import command as doctor
from strands_sglang.commands.doctor.source import load_source
from strands_sglang.template import Flag, Shape, TemplateVerdict
from tests.unit.template_texts import CHATML, LLAMA

LOSES_TOOLS = "{% for m in messages if m.role != 'tool' %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}<assistant>"


def diagnose(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    return doctor.run(parser.parse_args(argv))


def jinja_file(folder: Path, text: str = CHATML) -> str:
    path = folder / "template.jinja"
    path.write_text(text, "utf-8")
    return str(path)


def tokenizer_folder(folder: Path, template: Any = CHATML, **files: Any) -> str:
    config = {"eos_token": {"content": "<|im_end|>"}, "bos_token": None}
    if template is not None:
        config["chat_template"] = template
    for name, content in {"tokenizer_config": config, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return str(folder)


def test_usable_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose(jinja_file(tmp_path), "--stop", "<|im_end|>") == 0
    out = capsys.readouterr().out
    assert "EXACT" in out and "call>tool" in out and "'<|im_end|>'" in out


def test_unsupported_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose(jinja_file(tmp_path, LOSES_TOOLS), "--stop", "</s>") == 1
    out = capsys.readouterr().out
    assert "UNSUPPORTED" in out and "drops" in out and "use a template with tool support" in out


def test_without_tools_it_is_usable(tmp_path: Path) -> None:
    assert diagnose(jinja_file(tmp_path, LOSES_TOOLS), "--stop", "</s>", "--no-tools") == 0


def test_refused_shape_with_its_reason_and_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose(jinja_file(tmp_path, LLAMA), "--stop", "<|eot_id|>") == 0
    out = capsys.readouterr().out
    assert "calls>tools: the template rejects the step: only single tool-calls" in out
    assert "one call at a time" in out


def test_report_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose(jinja_file(tmp_path, LLAMA), "--stop", "<|eot_id|>", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "PARTIAL"
    assert report["closers"]["call>tool"] == "<|eot_id|>"
    assert list(report["refused"]) == ["calls>tools"]
    assert report["printed_call"] == '{"name": "lookup", "parameters": {"q": "two words"}}'


def test_template_variables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = jinja_file(tmp_path, CHATML + "{% if add_generation_prompt and think %}<think>\n{% endif %}")
    assert diagnose(path, "--stop", "<|im_end|>", "--kwargs", '{"think": true}') == 0
    assert "prompt opens <think>" in capsys.readouterr().out


def test_reasoning_advice_names_the_variable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    thinking = (
        "{{ message.content or '' }}{% if message.reasoning_content and (loop.last or preserve_thinking) %}"
        "<think>{{ message.reasoning_content }}</think>{% endif %}"
    )
    diagnose(jinja_file(tmp_path, CHATML.replace("{{ message.content or '' }}", thinking)), "--stop", "<|im_end|>")
    assert "template_kwargs={'preserve_thinking': True}" in capsys.readouterr().out


@pytest.mark.parametrize("kwargs", ["{", "[1]", "enable_thinking=false"])
def test_wrong_variables_are_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], kwargs: str) -> None:
    assert diagnose(jinja_file(tmp_path), "--kwargs", kwargs) == 2
    assert repr(kwargs) in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{% for m in messages %}", "no template at all", ""])
def test_wrong_template_is_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert diagnose(jinja_file(tmp_path, text)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_missing_file_is_wrong_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose("./missing.jinja") == 2
    assert "'./missing.jinja' does not exist" in capsys.readouterr().err


def test_folder_without_a_template_is_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose(tokenizer_folder(tmp_path, None)) == 2
    assert "has no chat template" in capsys.readouterr().err


def test_broken_configuration_is_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{", "utf-8")
    assert diagnose(str(tmp_path)) == 2
    assert "is not valid JSON" in capsys.readouterr().err


def test_folder_tells_stop_and_special_tokens(tmp_path: Path) -> None:
    folder = tokenizer_folder(
        tmp_path,
        generation_config={"eos_token_id": [7, 8]},
        added_tokens={"<|im_start|>": 6},
        tokenizer={"added_tokens": [{"id": 7, "content": "<|endoftext|>"}, {"id": 8, "content": "<|im_end|>"}]},
    )
    source = load_source(folder)
    assert source.stop_tokens == ("<|endoftext|>", "<|im_end|>")
    assert set(source.special_tokens) == {"<|im_start|>", "<|endoftext|>", "<|im_end|>"}
    assert source.template.special_values == {"eos_token": "<|im_end|>"}


def test_added_tokens_of_the_configuration_count(tmp_path: Path) -> None:
    config = {"chat_template": CHATML, "added_tokens_decoder": {"3": {"content": "<|x|>"}}}
    source = load_source(tokenizer_folder(tmp_path, tokenizer_config=config, config={"eos_token_id": 3}))
    assert source.stop_tokens == ("<|x|>",)


def test_special_tokens_map_wins(tmp_path: Path) -> None:
    source = load_source(tokenizer_folder(tmp_path, special_tokens_map={"eos_token": "<|end|>"}))
    assert source.template.special_values["eos_token"] == "<|end|>"


def test_given_stop_tokens_win(tmp_path: Path) -> None:
    assert load_source(tokenizer_folder(tmp_path), ["<|x|>"]).stop_tokens == ("<|x|>",)


def test_template_file_of_a_folder_wins(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path, "old")
    (tmp_path / "chat_template.jinja").write_text("new", "utf-8")
    assert load_source(folder).template.render([]) == "new"


def test_named_templates_of_a_folder(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path, [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}])
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("c", "utf-8")
    template = load_source(folder).template
    assert (template.render([]), template.render([], tools=[])) == ("a", "c")


def test_every_verdict_flag_and_shape_is_explained() -> None:
    assert set(doctor._VERDICTS) == set(TemplateVerdict)
    assert set(doctor._FLAGS) == set(Flag)
    assert set(doctor._SHAPES) == set(Shape)


def test_transformers_is_needed_for_a_model_id_only(tmp_path, monkeypatch, capsys):
    for package in ("transformers", "torch"):
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["doctor", tokenizer_folder(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("verdict    EXACT")
    assert main(["doctor", "some-org/some-model"]) == 2
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
    assert "the folder" in (printed := capsys.readouterr().err) and "--eos" in printed
