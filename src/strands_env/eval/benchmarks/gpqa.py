"""GPQA: graduate-level multiple choice in biology, physics and chemistry (Rein et al. 2023). Asks for a licence."""

from __future__ import annotations

import random
import re
import unicodedata
from collections import deque
from typing import ClassVar

from strands_env.core import Action, RewardFunction, RewardResult, StepResult, TaskContext
from strands_env.eval.run.benchmark import Benchmark, HubDataset, Row, field
from strands_env.sentences import is_denied

LETTERS = "ABCD"
SYSTEM_PROMPT = 'Answer the multiple-choice question. Reason first; end with the line "Answer: X", X being the letter.'

_WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
_END = r"(?!\w|['’]\w|-\w|[^\S\n]*[=+/^<>])"  # the letter is no word, formula or `B-cell`
_ARTICLE = r"(?!(?<=[AI])[^\S\n]+(?!(?:because|since|as|is|for|which|with)\b)[a-z])"  # "Answer: A good question"
_LETTER = rf"(?P<letter>[A-J]){_END}{_ARTICLE}"
_OPTION = r"(?i:(?:option|choice|letter)\W{0,3})"
_STATED = [
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        # The answer is (B). Answer: B. The correct option is B.
        r"(?i:\b(?:answer|option|choice)(?:\s+(?:choice|option|letter))?(?:\s+(?:to|for)\b[^.:\n]{0,80}?)?"
        r"(?:,\s*\w+,)?\W{0,4}(?:\b(?:is|was|(?:should|would|must|has\s+to)\s+be)\b|[:=]|\s-+\s))"
        r"\W{0,8}(?i:(?:(?:I\s+(?:think|believe)|it\s+is|(?:most\s+)?likely|probably|definitely|clearly|actually)\b\W{0,3}){0,2})"
        rf"{_OPTION}?{_LETTER}",
        # The answer is not B but C. Wait, actually it is B. It is B.
        r"(?i:\b(?:but|rather|actually|instead|no,|wait,|it\s+is|it['’]s)\W{0,4})"
        rf"{_OPTION}?{_LETTER}\)?[^\S\n]*(?=[.,;!\n]|\Z)",
        # Hmm, let me reconsider. B is right.
        rf"\b(?i:reconsider|hmm|wait|actually|instead|correction)\b[^\n]{{0,60}}?(?<!\w){_LETTER}\)?\s+is\s+(?:the\s+)?"
        r"(?:correct|right|best)\b",
        rf"(?i:\banswer)\s+\({_LETTER}",
        rf"\\f?boxed\W{{0,6}}{_OPTION}?{_LETTER}",
        rf"(?:答案|选项|选择|选|应为)\W{{0,4}}[是为]?\W{{0,4}}(?:选项)?{_LETTER}",
        # So B. I choose (B).
        r"(?i:\b(?:so|thus|therefore|hence|choose|chose|pick|select|go\s+with)\b\W{0,4}(?:the\s+(?:answer|option|choice)\W{0,3})?)"
        rf"{_OPTION}?{_LETTER}\)?[^\S\n]*(?=[.,;!\n]|\Z)",
        rf"^[^\w\n]*{_OPTION}?{_LETTER}[^\w\n]*$",
        r"(?i:\banswer)\s*:\s*\(?(?P<letter>[a-j])\)?[^\w\n]*$",
    )
]
# "A or B", "(A) (B)", "A; B", and a list of letters, one a line.
_HEDGE = re.compile(
    r"(?:\W{0,3}\b(?i:or|and|else|otherwise)\b|[^\S\n]+if\b[^.\n]*\b(?:else|otherwise)\b|[^\w\n]{0,3}(?:[/,;|&、或和+~]|[^\S\n]))[^\w\n]{0,4}"
    r"(?:(?:maybe|possibly|perhaps|also|alternatively)\W{1,3})?"
    r"(?:\\f?boxed\{)?\(?[A-HJ](?!\w)(?!\)?\s+(?:is|are|was)\b)|,\s*(?:maybe|possibly|perhaps)\b"
)
_LINES = re.compile(r"(?:^|\n)[^\w\n]*(?P<first>[A-J])[^\w\n]*\n\s*(?!(?P=first))[A-J][^\w\n]*\Z")
_DENIED = re.compile(rf"(?i:\bnot\s+{_OPTION}?)\(?[A-J]\)?(?!\w)")
_JUDGED = re.compile(rf"{_LETTER}\)?\s+is\s+(?:the\s+)?(?:correct|right|best)\b")
_MENTIONED = re.compile(rf"(?:\((?=[A-J]\))|(?i:\b(?:option|choice)\s+)\(?){_LETTER}")
_LISTED = re.compile(r"^[^\w\n]*(?P<letter>[A-J])(?:[.):]|[^\S\n]-)[^\S\n]", re.MULTILINE)


def find_letter(text: str) -> str | None:
    """The letter that an answer states last: as its answer, in a box, or alone on a line.

    Where it states none, the one that it calls right, or the only one that it names as an option. None where there is
    no such letter, or two at once ("A or B"). A letter that is denied ("B is wrong") is none.
    """
    text = re.sub(r"[*`]|__|\\(?:text|math)(?:bf|it|rm|sf)?\b", "", unicodedata.normalize("NFKC", text))
    text = _DENIED.sub("not", text).replace("<answer>", "Answer: ").replace("</answer>", "\n")
    if _LINES.search(text.rstrip()):
        return None
    letters = deque(re.finditer(rf"(?<!\w){_LETTER}", text), maxlen=1000)
    denied = {found["letter"]: found.end() for found in letters if _denied(found)}
    stated = [found.end("letter") for pattern in _STATED for found in pattern.finditer(text)]
    # A letter that is denied where it was stated, or later, is no answer any more.
    stated = [end for end in stated if end > denied.get(text[end - 1].upper(), 0)]
    if stated:
        *_, last = ends = sorted(stated)
        before = [_HEDGE.match(text, end) for end in ends]
        is_hedged = any(hedge and hedge.end() >= last for hedge in before)  # `A or B`, of which one may be stated
        return None if is_hedged else text[last - 1].upper()
    for pattern in (_JUDGED, _MENTIONED, _LISTED):
        if named := {found["letter"] for found in pattern.finditer(text)} - {*denied}:
            return named.pop() if len(named) == 1 else None
    return None


def _denied(letter: re.Match[str]) -> bool:
    text, start, end = letter.string, *letter.span()
    return is_denied(text[max(0, start - 200) : start], text[end : end + 200])


class ChoiceReward(RewardFunction):
    """1.0 where the letter that an answer states last is the ground truth; without one it is wrong: `no_letter`."""

    letters: ClassVar[str] = LETTERS

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Find the letter and compare it."""
        truth = action.task_context.ground_truth
        letter = find_letter(step_result.observation.final_response or "")
        letter = letter if letter is not None and letter in self.letters else None
        info = {"ground_truth": truth, "letter": letter, **({} if letter else {"reason": "no_letter"})}
        return RewardResult(reward=float(letter == truth), info=info)


class GPQAEvaluator(Benchmark):
    """GPQA: graduate-level multiple choice; the data set asks for a licence on the hub."""

    benchmark_name = "gpqa"
    system_prompt = SYSTEM_PROMPT
    reward_class = ChoiceReward

    def action(self, row: Row, index: int) -> Action | None:
        """The question with its choices in an order that depends on `seed` and the record only."""
        question, right = field(row, "Question"), field(row, "Correct Answer")
        wrong = [choice for name in _WRONG if (choice := field(row, name)) is not None]
        if question is None or right is None or len(wrong) != len(_WRONG):
            return None
        name = field(row, "Record ID") or str(index)
        choices = [right.strip(), *(choice.strip() for choice in wrong)]
        order = list(range(len(choices)))
        # By the record and not its place, so that a part of the data has the choices of the whole.
        random.Random(f"{self.seed}/{name}").shuffle(order)
        listed = "\n".join(f"({letter}) {choices[place]}" for letter, place in zip(LETTERS, order, strict=True))
        context = TaskContext(id=f"{self.benchmark_name}_{name}", ground_truth=LETTERS[order.index(0)])
        return Action(message=f"{question.strip()}\n\n{listed}", task_context=context)


class GPQADiamondEvaluator(GPQAEvaluator):
    """GPQA Diamond: 198 graduate-level questions (licence on the hub)."""

    benchmark_name = "gpqa-diamond"
    dataset = HubDataset(path="Idavidrein/gpqa", name="gpqa_diamond", split="train", size=198)


class GPQAMainEvaluator(GPQAEvaluator):
    """GPQA Main: 448 graduate-level questions (licence on the hub)."""

    benchmark_name = "gpqa-main"
    dataset = HubDataset(path="Idavidrein/gpqa", name="gpqa_main", split="train", size=448)


class GPQAExtendedEvaluator(GPQAEvaluator):
    """GPQA Extended: 546 graduate-level questions (licence on the hub)."""

    benchmark_name = "gpqa-extended"
    dataset = HubDataset(path="Idavidrein/gpqa", name="gpqa_extended", split="train", size=546)
