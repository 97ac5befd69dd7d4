"""Common behaviour of all tool parsers, and each family's format: exact calls, or malformed ones with a reason."""

from __future__ import annotations

import dataclasses
import pickle
import re
from collections.abc import Sequence

import pytest

from strands_sglang.exceptions import ToolParserError
from strands_sglang.tool_parsers import (
    TOOL_PARSER_REGISTRY,
    UNKNOWN_TOOL_NAME,
    BareToolParser,
    GLMToolParser,
    HermesToolParser,
    KimiK2ToolParser,
    QwenXMLToolParser,
    SectionToolParser,
    ToolParser,
    ToolParseResult,
    get_tool_parser,
    list_tool_parsers,
    register_tool_parser,
)
from strands_sglang.tool_parsers.gpt_oss import GptOssToolParser
from strands_sglang.tool_parsers.json_calls import FunctionaryToolParser
from strands_sglang.tool_parsers.message_formats import MessageToolParser, MuseGlimmerToolParser
from strands_sglang.tool_parsers.splitting import SegmentKind
from tests.tool_call_writer import render

EVERY = [get_tool_parser(name) for name in sorted({cls: name for name, cls in TOOL_PARSER_REGISTRY.items()}.values())]
every_parser = pytest.mark.parametrize("parser", EVERY, ids=lambda parser: type(parser).__name__)
closed_by_marker = pytest.mark.parametrize(
    "parser", [parser for parser in EVERY if parser.tool_end_token], ids=lambda parser: type(parser).__name__
)
closed_by_turn = pytest.mark.parametrize(
    "parser", [parser for parser in EVERY if not parser.tool_end_token], ids=lambda parser: type(parser).__name__
)


def only(results: Sequence[ToolParseResult]) -> ToolParseResult:
    assert len(results) == 1, results
    return results[0]


# --- results ---


def test_a_result_with_raw_text_is_an_error_and_one_without_is_a_call() -> None:
    result = ToolParseResult(id="call_1", name="f", input={"a": 1, "b": "x"})
    assert (result.raw, result.error, result.model_id, result.is_error) == (None, None, None, False)
    assert result.payload == '{"a": 1, "b": "x"}'
    for raw in ("{bad", ""):
        result = ToolParseResult(id="call_1", name="f", input={}, raw=raw)
        assert (result.is_error, result.payload) == (True, raw)
    assert pickle.loads(pickle.dumps(result)) == result
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.raw = None  # type: ignore[misc]
    assert ToolParseResult.UNKNOWN_NAME == UNKNOWN_TOOL_NAME == "unknown_tool"


# --- registry ---


def test_parsers_by_name() -> None:
    for parser_class, names in (
        (HermesToolParser, ["hermes", "qwen25"]),
        (QwenXMLToolParser, ["qwen_xml", "qwen3_coder"]),
        (GLMToolParser, ["glm", "glm45"]),
        (KimiK2ToolParser, ["kimi_k2"]),
    ):
        assert {type(get_tool_parser(name)) for name in names} == {parser_class}
        assert set(names) <= set(list_tool_parsers())
    with pytest.raises(ToolParserError, match=r"unknown tool parser 'nonexistent'.*hermes.*qwen_xml") as caught:
        get_tool_parser("nonexistent")
    assert isinstance(caught.value, KeyError)


def test_options_reach_the_parser_and_replace_single_markers() -> None:
    parser = get_tool_parser("hermes", tool_start_token="<call>", think_end_token="</hm>")
    assert (parser.tool_call_tokens, parser.think_tokens) == (("<call>", "</tool_call>"), ("<think>", "</hm>"))
    with pytest.raises(TypeError):
        get_tool_parser("hermes", tool_tokens=("a", "b"))
    with pytest.raises(ToolParserError, match="begin marker"):
        HermesToolParser(tool_call_tokens=("", "x"))


def test_a_registered_parser_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.tool_parsers.base.TOOL_PARSER_REGISTRY", registry := {})

    @register_tool_parser("mine", "also_mine")
    class MyParser(HermesToolParser):
        pass

    assert type(get_tool_parser("also_mine")) is MyParser
    assert set(registry) == {"mine", "also_mine"}
    with pytest.raises(ToolParserError, match="'mine' belongs to"):
        register_tool_parser("mine")(GLMToolParser)


# --- what all families share ---


@closed_by_marker
def test_calls_stand_in_visible_text(parser: ToolParser) -> None:
    calls = [render(parser, name, {"q": f"needle {name}"}) for name in ("first", "second", "third")]
    sampled = "<|im_start|> I look.\n\n{}\n{} and {} \nDone.<|im_end|>".format(*calls)
    output = parser.parse_all(sampled)
    assert [(call.id, call.name) for call in output.calls] == [
        ("call_0000", "first"),
        ("call_0001", "second"),
        ("call_0002", "third"),
    ]
    for call, printed in zip(output.calls, calls, strict=True):
        markup = sampled[slice(*call.span)]
        assert markup in printed and f"needle {call.name}" in markup
    assert output.text == "<|im_start|> I look.\n\n\n and  \nDone.<|im_end|>"
    assert [segment.kind for segment in output.segments].count(SegmentKind.BLOCK) == 3


@closed_by_marker
def test_calling_the_parser_gives_plain_dicts_of_good_calls(parser: ToolParser) -> None:
    good = render(parser, "f", {"q": "x"})
    header = "f<|message|>" if isinstance(parser, GptOssToolParser) else ""
    inner = good.index(parser.tool_start_token) + len(parser.tool_start_token)
    bad = f"{good[:inner]}{header}\x00{good[good.rindex(parser.tool_end_token) :]}"
    assert parser(f"{bad} {good}") == [{"id": "call_0001", "name": "f", "input": {"q": "x"}}]


@every_parser
def test_drafts_inside_reasoning_are_not_calls(parser: ToolParser) -> None:
    opening, closing = parser.think_tokens or ("", "")
    draft, call = render(parser, "draft", {"q": "x"}).removesuffix(closing), render(parser, "real", {"q": "y"})
    if isinstance(parser, MuseGlimmerToolParser):
        draft = draft.partition("<|message|>")[2]  # a header in a thought is no draft
    output = parser.parse_all(f"{opening}maybe {draft}{closing}ok {opening}or {draft}{closing}{call}")
    assert [result.name for result in output.calls] == ["real"]
    assert (output.text, output.reasoning) == ("ok ", f"maybe {draft}\nor {draft}")
    assert [result.name for result in parser.parse(f"maybe {draft}{closing}{call}", in_reasoning=True)] == ["real"]
    assert parser.parse(f"maybe {draft}", in_reasoning=True) == []
    unended = parser.parse_all(f"{opening}maybe {draft}")
    assert (unended.calls, unended.unclosed_call) == ((), None)


@every_parser
def test_a_finished_call_before_a_stray_closing_tag_stays_a_call(parser: ToolParser) -> None:
    call, closing = render(parser, "real", {"q": "x"}), parser.think_tokens[1]
    if isinstance(parser, MessageToolParser):  # its closing tag ends messages of other kinds too
        return
    for before in ("",) if isinstance(parser, BareToolParser) else ("", "so "):
        for after in ("", "\n", "\n\nI wait."):
            has_more = not (after.strip() and isinstance(parser, BareToolParser))  # a bare call behind words is words
            for more in ((), (render(parser, "more", {"q": "y"}),))[: 1 + has_more]:
                text = "".join((before, call, closing, after, *more))
                output = parser.parse_all(text)
                assert [each.name for each in output.calls] == ["real", "more"][: 1 + len(more)]
                assert [each.error for each in output.calls] == [None] * (1 + len(more))
                assert (output.text, output.reasoning) == (before + after, "")
                assert "".join(text[each.start : each.end] for each in output.segments) == text


@every_parser
def test_think_tags_in_arguments_are_arguments(parser: ToolParser) -> None:
    arguments = {"q": f"a {parser.think_start_token} b", "r": f"c {parser.think_end_token} d"}
    after = "after" if parser.tool_end_token else ""
    output = parser.parse_all(render(parser, "f", arguments) + after)
    assert only(list(output.calls)).input == arguments
    assert (output.text, output.reasoning) == (after, "")


@every_parser
def test_reasoning_tags_can_be_switched_off(parser: ToolParser) -> None:
    parser = type(parser)(think_tokens=None)
    if isinstance(parser, BareToolParser):
        assert parser.parse_all("<think>a</think>b").text == "<think>a</think>b"
        return
    assert only(parser.parse(f"<think><seed:think>{render(parser, 'f', {'q': 'x'})}")).name == "f"


@closed_by_marker
def test_an_unclosed_call_is_no_call_but_is_told(parser: ToolParser) -> None:
    call = render(parser, "f", {"q": "x"})
    cut = call[: call.rindex(parser.tool_end_token)]
    output = parser.parse_all("so: " + render(parser, "g", {"q": "y"}) + cut)
    assert [result.name for result in output.calls] == ["g"]
    assert output.text == "so: "
    assert (output.unclosed_call.id, output.unclosed_call.name) == ("call_0001", "f")
    assert output.unclosed_call.is_error and output.unclosed_call.span[1] - output.unclosed_call.span[0] == len(cut)
    assert parser.tool_end_token in str(output.unclosed_call.error)


@every_parser
def test_other_markers(parser: ToolParser) -> None:
    if isinstance(parser, MessageToolParser | BareToolParser):
        pytest.skip("has no begin marker of its own")
    tokens = ("<other>", "</other>" if parser.tool_end_token else "")
    other = type(parser)(tool_call_tokens=tokens)
    assert only(other.parse(render(other, "f", {"q": "x"}))).name == "f"
    assert other(render(parser, "f", {"q": "x"})) == []
    if not isinstance(parser, SectionToolParser):  # a call of theirs that stands in no section is malformed
        assert other.parse(render(parser, "f", {"q": "x"})) == []


F = [{"name": "f", "inputSchema": {"json": {"type": "object", "properties": {"q": {"type": "string"}}}}}]


def bare(parser: ToolParser) -> tuple[str, str]:
    """A call of `f` without the marker that begins its block, and its end marker."""
    call, end = render(parser, "f", {"q": "x"}), parser.tool_end_token
    if not isinstance(parser, BareToolParser):
        call = call.partition(parser.tool_start_token)[2].lstrip()
    return (call.rpartition(end)[0] if end else call).rstrip(), end


@every_parser
def test_a_call_without_its_begin_marker_is_malformed(parser: ToolParser) -> None:
    call, end = bare(parser)
    name = "" if isinstance(parser, GptOssToolParser) else "f"
    can_begin = isinstance(parser, BareToolParser | FunctionaryToolParser)  # a whole answer is a call
    for before in ("so:\n",) if can_begin else ("", "so:\n"):
        for after in ({end} if end else {""}) | ({""} if name else set()):
            text = before + call + after
            output = parser.parse_all(text, tools=F)
            refused = only(list(output.calls))
            assert (refused.name, refused.is_error, output.unclosed_call) == (name or UNKNOWN_TOOL_NAME, True, None)
            assert re.search("stands (outside of|behind)|header is not of the form", str(refused.error))
            if name:
                assert output.text == before and str(refused.raw).startswith(call)
            assert "".join(text[slice(*each[1:])] for each in output.segments) == text
    opening, closing = parser.think_tokens or ("", "")
    drafted = parser.parse_all(f"{opening}maybe {call}{end}".removesuffix(closing) + f"{closing}ok", tools=F)
    assert (drafted.calls, drafted.text) == ((), "ok")


@every_parser
def test_a_call_of_no_declared_tool_is_text_without_any_marker(parser: ToolParser) -> None:
    call, _ = bare(parser)
    for tools in (None, [{"name": "other", "inputSchema": {"json": {}}}]):
        output = parser.parse_all(f"Write `{call}` or\n{call}", tools=tools)
        if isinstance(parser, SectionToolParser):  # their control tokens stand in no prose
            assert {each.name for each in output.calls} == {"f"}
        else:
            assert (output.calls, output.text, output.unclosed_call) == ((), f"Write `{call}` or\n{call}", None)


@closed_by_marker
def test_an_end_marker_outside_of_a_block(parser: ToolParser) -> None:
    end = parser.tool_end_token
    for text in (f"Done.{end} Bye.", f"{end}Done. Bye.", f"Done. Bye.\n{end}\n{end}"):
        output = parser.parse_all(text, tools=F)
        if parser.END_IS_TEXT:  # a fence, or the end of any message
            assert (output.calls, output.text) == ((), text)
        else:
            assert (only(list(output.calls)).name, output.text.strip()) == (UNKNOWN_TOOL_NAME, "Done. Bye.")
            assert re.search("stands outside of|header is not of", str(output.calls[0].error))
    if not parser.END_IS_TEXT:
        mention = f"`{end}` ends a call, and so does '{end}'."
        assert parser.parse_all(mention, tools=F).text == mention
        good = render(parser, "f", {"q": "x"})
        broken = f"{parser.tool_start_token}f<|message|>{{]{end}"
        output = parser.parse_all(f"{good}{end}\n{end} ok {broken}{end} then", tools=F)
        assert [call.is_error for call in output.calls] == [False, True]
        assert output.text == " ok  then"


@closed_by_marker
def test_an_empty_block_is_one_malformed_call(parser: ToolParser) -> None:
    header = render(parser, "f", {}).partition(parser.tool_start_token)[0]
    for blank in ("", "\n"):
        output = parser.parse_all(f"a{header}{parser.tool_start_token}{blank}{parser.tool_end_token}")
        assert (only(list(output.calls)).name, output.calls[0].is_error) == (UNKNOWN_TOOL_NAME, True)
        assert output.text == "a"


@closed_by_turn
def test_a_call_that_ends_with_the_turn_is_malformed_by_what_follows_and_unclosed_when_cut(parser: ToolParser) -> None:
    sampled = render(parser, "f", {"q": "x"})
    assert not only(parser.parse(sampled + " \n")).is_error
    output = parser.parse_all(sampled + " Done.")
    call = only(list(output.calls))
    assert (call.name, call.input) == ("f", {})
    assert "not valid JSON" in str(call.error)
    assert str(call.raw).endswith(" Done.")
    assert output.text == ""
    for cut in (1, 2):
        output = parser.parse_all(sampled[:-cut])
        assert (output.calls, output.unclosed_call.name) == ((), "f")


# --- reasoning and visible text ---


@pytest.mark.parametrize(
    ("in_reasoning", "sampled", "text", "reasoning"),
    [
        (False, "", "", ""),
        (False, "hello", "hello", ""),
        (False, "<think>\nhm\n</think>\n\nhello", "\n\nhello", "\nhm\n"),
        (False, "<think></think>hello", "hello", ""),
        (False, "a<think>1</think>b<think>2</think>c", "abc", "1\n2"),
        (False, "<think>never ends", "", "never ends"),
        (False, "a<think>", "a", ""),
        (False, "<think>a <think> b</think>c", "c", "a <think> b"),
        (False, "a</think>b", "b", "a"),
        (False, "<think>a</think>b</think>c", "b</think>c", "a"),
        (False, "half a tag <thin", "half a tag <thin", ""),
        (True, "", "", ""),
        (True, "hm", "", "hm"),
        (True, "</think>hello", "hello", ""),
        (True, "<think>hm</think>hello", "hello", "<think>hm"),
        (True, "1</think>a<think>2</think>b", "ab", "1\n2"),
    ],
)
def test_text_is_split_from_reasoning(in_reasoning: bool, sampled: str, text: str, reasoning: str) -> None:
    output = HermesToolParser().parse_all(sampled, in_reasoning=in_reasoning)
    assert (output.text, output.reasoning) == (text, reasoning)


@pytest.mark.parametrize("tags", [("", "</think>"), ("<think>", ""), ("|", "|")])
def test_tags_that_cannot_be_told_apart_are_refused(tags: tuple[str, str]) -> None:
    with pytest.raises(ToolParserError, match="think_tokens"):
        HermesToolParser(think_tokens=tags)


# --- a parser with `parse` alone ---


class PlainParser(ToolParser):
    """Written for strands-sglang 0.3: one method, and an `__init__` that does not call ours."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def parse(self, text):
        self.seen.append(text)
        found = re.findall(r"<tool_call>(.*?)</tool_call>", text)
        return [
            ToolParseResult.from_parse_error(id="e", raw=name)
            if name == "bad"
            else ToolParseResult(id=f"mine_{index}", name=name, input={})
            for index, name in enumerate(found)
        ]


def test_a_parser_that_defines_parse_alone_is_complete() -> None:
    parser = PlainParser()
    said = "so <tool_call>f</tool_call><tool_call>bad</tool_call>!"
    output = parser.parse_all(f"<think>maybe <tool_call>no</tool_call></think>{said}")
    assert [(call.id, call.name, call.is_error) for call in output.calls] == [
        ("mine_0", "f", False),
        ("e", UNKNOWN_TOOL_NAME, True),
    ]
    assert (output.text, output.reasoning, parser.seen) == ("so !", "maybe <tool_call>no</tool_call>", [said])
    assert parser.parse_all("no call").text == "no call"


def test_a_parser_that_defines_nothing_cannot_be_made() -> None:
    with pytest.raises(TypeError, match=r"Nothing must define read_block.*or parse\(text\)"):
        type("Nothing", (ToolParser,), {})()
