"""IFEval: instructions whose following a program can check (Zhou et al. 2023), all 25 kinds.

The rules are those of the published checker (google-research/instruction_following_eval), in one pass over the text
each. The reward is its strict prompt-level accuracy; `info` has the loose one and every instruction. Two rules need
tokenisers of NLTK, whose data no package brings: sentences (`length_constraints:number_sentences`) and words in
capitals (`change_case:capital_word_frequency`) are counted by rules of our own, which differ from NLTK's around rare
abbreviations and symbols. Keywords are taken as text, not as regular expressions. langdetect (extra `ifeval`) finds the
language, as published, but with a fixed seed.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from strands_env.core import Action, RewardFunction, RewardResult, StepResult
from strands_env.core.threads import reward_threads
from strands_env.eval.run.benchmark import Benchmark, HubDataset, Row, field
from strands_sglang.exceptions import install_command

Arguments = Mapping[str, Any]
InstructionCheck = Callable[[str, Arguments], bool]

_MAX_LANGUAGE_CHARS = 100_000  # langdetect looks at 10,000 characters, after it has left out addresses
# Possessive quantifiers (`*+`) below do not backtrack: hostile answers take linear time, too.
_CLOSERS = "\"')]}”’*_`»"
_ABBREVIATIONS = frozenset(
    (
        *("mr", "mrs", "ms", "dr", "prof", "st", "sr", "jr", "gen", "col", "capt", "lt", "sgt", "rev", "hon", "gov"),
        *("sen", "rep", "inc", "ltd", "co", "corp", "vs", "etc", "e.g", "i.e", "cf", "al", "no", "vol", "fig", "dept"),
        *("est", "approx", "u.s", "u.k", "u.n", "a.m", "p.m", "ph.d", "b.a", "m.a", "jan", "feb", "mar", "apr", "aug"),
        *("sept", "oct", "nov", "dec"),
    )
)
_CONTRACTION = re.compile(r"(?<=.)['’](?:S|M|D|RE|VE|LL)$|N['’]T$")
_CONSTRAINED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def _holds(count: int, relation: str | None, bound: int) -> bool:
    if relation not in ("less than", "at least"):
        raise ValueError(f"a relation is 'less than' or 'at least', got {relation!r}")
    return count < bound if relation == "less than" else count >= bound


def _count(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text, re.IGNORECASE))


def count_capital_words(text: str) -> int:
    """Words without lower-case letters. Hyphens, full stops and slashes join; contractions are two words."""
    words = re.split(r"[\s,:;!?()\[\]{}<>\"“”…@#$%&]", text)
    return sum(word.isupper() + bool(_CONTRACTION.search(word) and word.isupper()) for word in words)


def _is_language(text: str, expected: str) -> bool:
    """A text without letters is in every language, as in the published checker."""
    from langdetect import LangDetectException

    detector = _detectors().create()
    detector.append(text[:_MAX_LANGUAGE_CHARS])
    try:
        return bool(detector.detect() == expected)
    except LangDetectException:
        return True


@functools.cache
def _detectors() -> Any:
    from langdetect.detector_factory import PROFILES_DIRECTORY, DetectorFactory

    factory = DetectorFactory()
    factory.seed = 0  # langdetect draws at random
    factory.load_profile(PROFILES_DIRECTORY)
    return factory


def count_sentences(text: str) -> int:
    """Sentences end at `?`, `!`, or a full stop that is not one of an abbreviation, an initial, or an ellipsis."""
    count, is_open = 0, False
    words = text.split()
    for word, following in zip(words, [*words[1:], ""], strict=True):
        bare = word.rstrip(_CLOSERS)
        ends = bare.endswith(("?", "!")) or (bare.endswith(".") and _ends_sentence(bare, following))
        count += ends
        is_open = not ends
    return count + is_open


def _ends_sentence(word: str, following: str) -> bool:
    stem = word.strip("\"'([{“‘*_").removesuffix(".").lower()
    if stem in _ABBREVIATIONS or (len(stem) == 1 and stem.isalpha() and stem != "i"):
        return not following
    if word.endswith("..") or stem.isdigit():  # an ellipsis, or the number of a list
        return not following[:1].islower()
    return True


def _paragraphs(text: str, args: Arguments) -> bool:
    parts = [bool(part.strip()) for part in re.split(r"\s?\*\*\*\s?", text)]
    return all(parts[1:-1]) and sum(parts) == int(args["num_paragraphs"])


def _first_word(text: str, args: Arguments) -> bool:
    parts = text.split("\n\n")
    count, place = sum(bool(part.strip()) for part in parts), int(args["nth_paragraph"])
    if not 0 < place <= count or not parts[place - 1].strip():
        return False
    word = parts[place - 1].split()[0].lstrip("'").lstrip('"')
    first = re.split(r"[.,?!'\"]", word, maxsplit=1)[0].lower()
    return bool(count == int(args["num_paragraphs"]) and first == args["first_word"].lower())


def _two_responses(text: str, args: Arguments) -> bool:
    parts = [part.strip() for part in text.split("******")]
    answers = [part for part in parts if part]
    return all(parts[1:-1]) and len(answers) == 2 and answers[0] != answers[1]


def count_bullets(text: str) -> int:
    """Lines that begin with `-`, or with one `*`. A line of one `*` takes the line below it along, as published."""
    dashes = stars = 0
    taken = False
    lines = [line.lstrip() for line in text.split("\n")]
    for number, line in enumerate(lines):
        dashes += line.startswith("-")
        if taken:
            taken = False
        elif line == "*":
            taken = number + 1 < len(lines)
            stars += taken
        else:
            stars += line.startswith("*") and not line.startswith("**")
    return dashes + stars


def _highlights(text: str, args: Arguments) -> bool:
    single = [part for part in re.findall(r"\*[^\n*]*+\*", text) if part.strip("*").strip()]
    double = [part for part in re.findall(r"\*\*[^\n*]*+\*\*", text) if part[2:-2].strip()]
    return len(single) + len(double) >= int(args["num_highlights"])


def _title(text: str, args: Arguments) -> bool:
    for line in text.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if start >= 0 and start + 3 <= end and line[start : end + 2].lstrip("<").rstrip(">").strip():
            return True
    return False


def _json(text: str, args: Arguments) -> bool:
    text = text.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _placeholders(text: str, args: Arguments) -> bool:
    lines = (line[: line.rfind("]") + 1] for line in text.split("\n"))
    return sum(_count(r"\[[^\]]*+\]", line) for line in lines) >= int(args["num_placeholders"])


def _postscript(text: str, args: Arguments) -> bool:
    marker = args["postscript_marker"].strip()
    known = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return bool(re.search(known.get(marker, re.escape(marker.lower())), text.lower()))


# Checks by instruction id: does the text follow the instruction with these arguments? All take linear time.
CHECKS: dict[str, InstructionCheck] = {
    "keywords:existence": lambda text, args: all(_count(re.escape(word), text) for word in args["keywords"]),
    "keywords:frequency": lambda text, args: _holds(
        _count(re.escape(args["keyword"].strip()), text), args["relation"], args["frequency"]
    ),
    "keywords:forbidden_words": lambda text, args: (
        not any(_count(rf"\b{re.escape(word)}\b", text) for word in args["forbidden_words"])
    ),
    "keywords:letter_frequency": lambda text, args: _holds(
        text.lower().count(args["letter"].strip().lower()), args["let_relation"], args["let_frequency"]
    ),
    "language:response_language": lambda text, args: _is_language(text, args["language"]),
    "length_constraints:number_sentences": lambda text, args: _holds(
        count_sentences(text), args["relation"], args["num_sentences"]
    ),
    "length_constraints:number_words": lambda text, args: _holds(
        _count(r"\w+", text), args["relation"], args["num_words"]
    ),
    "length_constraints:number_paragraphs": _paragraphs,
    "length_constraints:nth_paragraph_first_word": _first_word,
    "detectable_content:number_placeholders": _placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": lambda text, args: count_bullets(text) == int(args["num_bullets"]),
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:multiple_sections": lambda text, args: (
        len(re.findall(rf"\s?{re.escape(args['section_spliter'].strip())}\s?\d+\s?", text)) >= int(args["num_sections"])
    ),
    "detectable_format:constrained_response": lambda text, args: any(option in text for option in _CONSTRAINED),
    "detectable_format:json_format": _json,
    "detectable_format:title": _title,
    "combination:two_responses": _two_responses,
    "combination:repeat_prompt": lambda text, args: (
        text.strip().lower().startswith(args["prompt_to_repeat"].strip().lower())
    ),
    "startend:end_checker": lambda text, args: (
        text.strip().strip('"').lower().endswith(args["end_phrase"].strip().lower())
    ),
    "startend:quotation": lambda text, args: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"',
    "punctuation:no_comma": lambda text, args: "," not in text,
    "change_case:capital_word_frequency": lambda text, args: _holds(
        count_capital_words(text), args["capital_relation"], args["capital_frequency"]
    ),
    "change_case:english_capital": lambda text, args: text.isupper() and _is_language(text, "en"),
    "change_case:english_lowercase": lambda text, args: text.islower() and _is_language(text, "en"),
}


def loosen(text: str) -> list[str]:
    """The text and its seven loose forms: without the first line, the last one, both, and each without asterisks."""
    lines = text.split("\n")
    forms = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return forms + [form.replace("*", "") for form in forms]


class InstructionReward(RewardFunction):
    """1.0 where every instruction of the prompt is followed, else 0.0: IFEval's strict prompt-level accuracy.

    `info` has `followed`, by instruction id a list, `loose` (the loose prompt-level accuracy) and `loose_followed`. A
    prompt with an unknown instruction gives no reward, and `info["unchecked"]` names it.

    Raises:
        ImportError: langdetect is not installed.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("langdetect") is None:
            raise ImportError(f"IFEval needs langdetect: {install_command('ifeval')}")

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Check each instruction, in a thread."""
        context = action.task_context.model_dump()
        names, arguments = context["instructions"], context["arguments"]
        if unchecked := sorted({name for name in names if name not in CHECKS}):
            return RewardResult(reward=None, info={"unchecked": unchecked})
        text = step_result.observation.final_response or ""
        return await reward_threads.run(_score, text, list(zip(names, arguments, strict=True)))


def _score(text: str, instructions: list[tuple[str, Arguments]]) -> RewardResult:
    strict, loose = [], []
    for name, args in instructions:
        strict.append(_follows(name, text, args))
        loose.append(strict[-1] or any(_follows(name, form, args) for form in loosen(text)[1:]))
    info = {
        "followed": _by_name(instructions, strict),
        "loose": float(all(loose)),
        "loose_followed": _by_name(instructions, loose),
    }
    return RewardResult(reward=float(all(strict)), info=info)


def _follows(name: str, text: str, args: Arguments) -> bool:
    return bool(text.strip()) and CHECKS[name](text, args)


def _by_name(instructions: list[tuple[str, Arguments]], followed: list[bool]) -> dict[str, list[bool]]:
    by_name: dict[str, list[bool]] = {}
    for (name, _), follows in zip(instructions, followed, strict=True):
        by_name.setdefault(name, []).append(follows)
    return by_name


class IFEvalEvaluator(Benchmark):
    """IFEval: 541 prompts with instructions that a program checks; strict prompt-level accuracy."""

    benchmark_name = "ifeval"
    reward_class = InstructionReward
    dataset = HubDataset(path="google/IFEval", split="train", size=541)

    def action(self, row: Row, index: int) -> Action | None:
        """The prompt with its instructions and their arguments."""
        prompt = field(row, "prompt")
        names = row.get("instruction_id_list")
        if prompt is None or not names:
            return None
        keywords = row.get("kwargs") or [{} for _ in names]
        arguments = [{key: value for key, value in (item or {}).items() if value is not None} for item in keywords]
        name = field(row, "key") or str(index)
        return self.task(name, prompt, instructions=list(names), arguments=arguments)
