"""Rewards that read text: exact, by regular expression, by its form, and by its number."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import regex

from strands_env.core.threads import reward_threads
from strands_env.core.types import Action, RewardFunction, RewardResult, StepResult
from strands_sglang.exceptions import check_positive

from .golds import Gold, GroundTruthError, gold_text, golds, only_gold
from .proof import RewardExamples
from .turns import turns_of

if TYPE_CHECKING:
    from .numerals import Numeral

DEFAULT_TIMEOUT = 5.0
"""Seconds of CPU time a search may take."""
_LABEL_BEHIND = re.compile(r"\s*\([^\W\d_][^()\d]*\)\s*\Z")
"""The unit of a ground truth as ASDiv has it: `9 (apples)`."""


def _not_scored(info: dict[str, Any], error: GroundTruthError) -> RewardResult:
    return RewardResult(reward=None, info={**info, "reason": "invalid_ground_truth", "error": str(error)})


@lru_cache(maxsize=1024)  # every sample of a task is compared with the same one
def _number_of_gold(text: str) -> Numeral | None:
    from .numerals import only_number  # its patterns take a tenth of a second to compile

    return only_number(_LABEL_BEHIND.sub("", text))


class Pattern:
    """A regular expression that is searched for in a thread, without holding the interpreter.

    Args:
        timeout: Seconds of CPU time a search may take.

    Raises:
        ValueError: The expression is wrong, or `timeout` is not positive.
    """

    def __init__(self, pattern: str, flags: re.RegexFlag, timeout: float) -> None:
        check_positive("seconds", timeout=timeout)
        self.timeout = timeout
        try:
            re.compile(pattern, flags)  # the same expressions as everywhere; `regex` knows more
            # The two packages have flags of the same names, but not of the same values.
            self.compiled = regex.compile(pattern, sum(getattr(regex, str(flag.name)) for flag in re.RegexFlag(flags)))
        except (re.error, regex.error) as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error

    async def search(self, text: str, *, last: bool = False) -> Any:
        """The first or the last match; None without one. `TimeoutError` where it took too long."""

        def find() -> Any:
            # `concurrent` lets other threads run while the expression backtracks.
            matches = self.compiled.finditer(text, timeout=self.timeout, concurrent=True)
            return next(iter(deque(matches, maxlen=1)), None) if last else next(matches, None)

        return await reward_threads.run(find)


@dataclass(kw_only=True, eq=False)
class ExactMatchReward(RewardFunction):
    """1.0 where the final response is the ground truth, or one of them, word for word; otherwise 0.0.

    White space around and between words does not count. A ground truth that is a number or a boolean, not a text, is
    compared by value. A task without ground truth, or with one that cannot be read, gives no reward.
    """

    ignore_case: bool = False

    def examples(self, action: Action) -> RewardExamples:
        """The accepted texts win as they stand, in no other form."""
        return RewardExamples(right=[gold.text for gold in golds(action.task_context.ground_truth)])

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Compare the final response with `action.task_context.ground_truth`, one answer or a list of them."""
        truth = action.task_context.ground_truth
        info: dict[str, Any] = {"matched": False, "ground_truth": truth}
        try:
            accepted = golds(truth)
        except GroundTruthError as error:
            return _not_scored(info, error)
        answer = step_result.observation.final_response
        if answer is None:
            return RewardResult(reward=0.0, info={**info, "reason": "no_final_response"})
        info["matched"] = any(self._is_accepted(gold, answer) for gold in accepted)
        return RewardResult(reward=float(info["matched"]), info=info)

    def _is_accepted(self, gold: Gold, answer: str) -> bool:
        if gold.original is None:
            from .numerals import only_number

            number, expected = only_number(answer), only_number(gold.text)
            if number is None or expected is None:
                return answer.strip().casefold() == gold.text.casefold()
            return number.value == expected.value and not number.is_percent
        words, *others = (" ".join(text.split()) for text in (answer, gold.text, gold.original))
        return words in others or (self.ignore_case and words.casefold() in [other.casefold() for other in others])


class RegexMatchReward(RewardFunction):
    r"""1.0 where a regular expression matches the final response, otherwise 0.0.

    With a group, the last match's group must also be the ground truth: `RegexMatchReward(r"#### (\S+)", group=1)`
    reads a GSM8K answer.

    The search runs in a thread, by the package `regex`, and does not hold up the event loop. An answer on which it
    takes too long is wrong, with reason `timeout` in `info`.

    Args:
        pattern: The expression, searched for anywhere; None takes the task's ground truth as the expression.
        group: Group to compare with the ground truth, by number or name; None compares nothing.
        flags: Flags of `re`.
        timeout: Seconds of CPU time one search may take.

    Raises:
        ValueError: The expression is wrong, it has no such group, or `timeout` is not positive.
    """

    def __init__(
        self,
        pattern: str | None = None,
        *,
        group: int | str | None = None,
        flags: re.RegexFlag = re.NOFLAG,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        if pattern is None and group is not None:
            raise ValueError(f"group={group!r} needs a pattern; the ground truth cannot be both pattern and answer")
        self.pattern, self.group, self.flags, self.timeout = pattern, group, flags, timeout
        self._expression = Pattern(pattern or "", flags, timeout)
        known = {None, *range(self._expression.compiled.groups + 1), *self._expression.compiled.groupindex}
        if group not in known:
            raise ValueError(f"{pattern!r} has no such group: {group!r}")
        if group is None:  # an expression says of no other text that it is right
            self.examples: Any = self._examples if pattern is None else lambda action: None

    @staticmethod
    def _examples(action: Action) -> RewardExamples:
        """No right answers, but wrong ones; a gold that is a plain number must not be found inside another."""
        gold = (gold_text(action) or "").strip()
        inside = (f"1{gold}", f"{gold}0", f"the answer is not {gold}") if gold.isdigit() else ()
        return RewardExamples(wrong=("", "I do not know", action.text, *inside), only=True)

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Search the final response."""
        truth = action.task_context.ground_truth
        info: dict[str, Any] = {"matched": False, "ground_truth": truth}
        accepted: list[Gold] = []
        try:
            if self.pattern is None or self.group is not None:
                accepted = golds(truth)
        except GroundTruthError as error:
            return _not_scored(info, error)
        answer = step_result.observation.final_response
        if answer is None:
            return RewardResult(reward=0.0, info={**info, "reason": "no_final_response"})
        try:
            expression = Pattern(str(truth), self.flags, self.timeout) if self.pattern is None else self._expression
            found = await expression.search(answer, last=self.group is not None)
        except TimeoutError:
            return RewardResult(reward=0.0, info={**info, "reason": "timeout"})
        if found is None:
            return RewardResult(reward=0.0, info={**info, "reason": "no_match"})
        if self.group is None:
            return RewardResult(reward=1.0, info={**info, "matched": True})
        # None where the group stands in a branch that did not match.
        info["extracted"] = found[self.group]
        texts = [text.strip() for gold in accepted for text in (gold.text, gold.original) if text is not None]
        info["matched"] = info["extracted"] is not None and info["extracted"].strip() in texts
        return RewardResult(reward=float(info["matched"]), info=info)


class FormatReward(RewardFunction):
    r"""1.0 where replies have a form, otherwise 0.0: `FormatReward(r"\\boxed\{")`.

    With `every_turn` the reward is the share of replies that have it, and each turn has its own reward.
    A reply on which the search takes too long does not have the form; `info` has the reason `timeout`.

    Args:
        pattern: Regular expression, searched for anywhere in a reply's text; anchor it with `^` and `$` for the whole.
        every_turn: Look at every reply that has text, not at the final response alone.
        flags: Flags of `re`; by default `.` matches line breaks too.
        timeout: Seconds of CPU time one search may take.

    Raises:
        ValueError: The expression is wrong, or `timeout` is not positive.
    """

    def __init__(
        self,
        pattern: str,
        *,
        every_turn: bool = False,
        flags: re.RegexFlag = re.DOTALL,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self.every_turn = every_turn
        self._expression = Pattern(pattern, flags, timeout)

    def examples(self, action: Action) -> None:
        """None: a form says nothing of right and wrong."""

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Search the replies."""
        answer = step_result.observation.final_response
        if not self.every_turn:
            texts = {} if answer is None else {0: answer}
        else:
            # A turn of calls alone has no form to look at.
            texts = {turn.index: turn.text for turn in turns_of(step_result.observation.messages) if turn.text}
        if not texts:
            return RewardResult(reward=0.0, info={"reason": "no_text"})
        info: dict[str, str] = {}
        scored = dict.fromkeys(texts, 0.0)
        for index, text in texts.items():
            try:
                scored[index] = float(await self._expression.search(text) is not None)
            except TimeoutError:
                info["reason"] = "timeout"
        reward = sum(scored.values()) / len(scored)
        return RewardResult(reward=reward, info=info, turn_rewards=scored if self.every_turn else {})


class NumberReward(RewardFunction):
    """1.0 where the answer's number is the ground truth, compared exactly; otherwise 0.0.

    The number that the final response states counts ("the answer is 4", a line `#### 4`), or its last. Numbers may have
    separators of thousands (`1,234`, `1 234`), an exponent (`1e3`, `4.2 × 10^3`), a scale (`5k`, `1M`, `2 million`), a
    percent sign, a fraction (`1/2`, `3 1/2`) and any spelling of the minus sign; words are read where there are no
    digits (`forty-two`). `50%` is 0.5, and 50 where no percent sign is asked for. A part of a
    larger expression (`3x`, `2^3`, `4 + 3`), of a date or a time, and a number that is denied ("not 3", "3 is wrong")
    or one of several ("3 or 4") is none, nor is one of a repeated prompt. A ground truth that is no number gives
    no reward.
    """

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Compare the answer's number."""
        from .numerals import Numeral, numerals
        from .sentences import says_none, without_confidence

        truth = action.task_context.ground_truth
        info: dict[str, Any] = {"matched": False, "ground_truth": truth, "answer": None}
        try:
            text = only_gold(truth)
            if (gold := _number_of_gold(text)) is None:
                raise GroundTruthError(
                    f"the ground truth {text!r:.60} is not a number: expected one, such as '4' or '1/2'"
                )
        except GroundTruthError as error:
            return _not_scored(info, error)
        response, prompt = (step_result.observation.final_response or "").strip(), action.text.strip()
        response = without_confidence(response, prompt)
        answer = numerals(response.removeprefix(prompt) if " " in prompt else response)[1]
        if answer is None and says_none(response, prompt):
            answer = Numeral("none", Fraction(0), is_percent=False)
        if answer is None:
            reason = "no_final_response" if step_result.observation.final_response is None else "no_number"
            return RewardResult(reward=0.0, info={**info, "reason": reason})
        info["answer"] = answer.text
        if isinstance(gold.value, str) or isinstance(answer.value, str):
            info["matched"] = (gold.value, gold.is_percent) == (answer.value, answer.is_percent)
            return RewardResult(reward=float(info["matched"]), info=info)
        gold_value, value = (
            one / 100 if is_percent else one
            for one, is_percent in ((gold.value, gold.is_percent), (answer.value, answer.is_percent))
        )
        loose = gold.is_percent != answer.is_percent and gold.value == answer.value and abs(gold.value) >= 1
        info["matched"] = gold_value == value or loose
        return RewardResult(reward=float(info["matched"]), info=info)
