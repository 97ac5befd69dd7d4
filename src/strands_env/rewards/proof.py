"""The proof of a reward: right answers to a task win, wrong ones lose, and an answer scores the same every time.

`prove_reward` tries a reward function on tasks before anything is sampled. A reward takes part as it is; with a method
`examples(action)` it says itself which answers are right and wrong. Containers are proven by their own trials
(`environments/harbor/validation.py`), with the same verdicts.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from fractions import Fraction
from itertools import chain, islice
from typing import Any

from strands_env.core.rollout import EnvFactory, make_environment, takes_action
from strands_env.core.scoring import as_reward_function, computed_reward
from strands_env.core.termination import TerminationReason
from strands_env.core.types import Action, Observation, StepResult

from .golds import GroundTruthError, gold_text, only_gold

logger = logging.getLogger(__name__)

AT_ONCE = 4
"""Tasks that are tried at the same time."""
OTHERS = 3
"""Golds of other tasks that are tried as wrong answers."""
SHOWN = 10
"""Tasks of one verdict that the table names."""


READS_TEXTS = frozenset({"MathRewardFunction", "NumberReward"})
"""Rewards to which a ground truth of another kind is of no use."""


class TaskVerdict(StrEnum):
    """The use of a task for training."""

    SOUND = "sound"
    """Its solution wins, all other answers lose, and all do so every time."""
    BROKEN = "broken"
    """Its solution was not scored: there is none, or the reward, the container or its verifier failed."""
    UNSOLVED = "unsolved"
    """Its own solution loses."""
    FREE = "free"
    """Doing nothing, or a wrong answer, wins."""
    FLAKY = "flaky"
    """The same trial gives different rewards."""
    HACKABLE = "hackable"
    """A cheat gives a reward (containers)."""


def tally(verdicts: Iterable[TaskVerdict]) -> str:
    """Numbers of tasks by verdict: `3 tasks: 2 sound, 1 free`."""
    counts = Counter(verdict.value for verdict in verdicts)
    total = sum(counts.values())
    return f"{total} task{'s' * (total != 1)}: " + ", ".join(f"{n} {name}" for name, n in counts.most_common())


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardExamples:
    """Answers to a task that must win and that must lose: texts, or whole results where a text is not enough.

    Attributes:
        right: Instead of the gold in its usual forms; empty where no right answer is known.
        wrong: Beside the usual wrong answers, or instead of them with `only`.
        every: Every right answer has to win; otherwise one of them.
    """

    right: Sequence[str | StepResult] = ()
    wrong: Sequence[str | StepResult] = ()
    only: bool = False
    every: bool = True


def answered(response: str | None) -> StepResult:
    """A step that ended with this response; None for one that ended without."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"text": "?"}]}]
    if response is not None:
        messages.append({"role": "assistant", "content": [{"text": response}]})
    return StepResult(observation=Observation(messages=messages), termination_reason=TerminationReason.TASK_COMPLETE)


# ---- answers to try --------------------------------------------------------------------------------------------------

_RIGHT = {"as it stands": "{}", "boxed": "\\boxed{{{}}}", "in a sentence": "The answer is {}.", "with a stop": "{}."}
_MUCH_ELSE = " ".join(["That was a first guess, and after a second look it does not hold."] * 10)
_FRESH = "The answer is {}"
_NUMBER = re.compile(r"[-−+]?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?\s*\\?%?")
_UNITS = {"cm": "km", "m": "km", "km": "m", "g": "kg", "kg": "g", "s": "h", "h": "s", "ms": "s"}
_OPPOSITES = {"yes": "no", "no": "yes", "true": "false", "false": "true"}


def right_answers(gold: str) -> dict[str, str]:
    """The gold in the forms in which models write it, by name."""
    return {name: form.format(gold.strip() if name != "as it stands" else gold) for name, form in _RIGHT.items()}


def wrong_answers(gold: str, others: Sequence[str] = (), prompt: str = "") -> dict[str, str]:
    """Answers that differ from the gold, by their names: other golds, the gold changed in one place, no answer.

    Args:
        others: Golds of other tasks. One that may be the same value in another spelling is left out.
    """
    gold = gold.strip()
    others = [other.strip() for other in others if _differs(other, gold)]
    found: dict[str, str] = {
        f"gold of another task, {number}": other for number, other in enumerate(others[:OTHERS], 1)
    }
    found |= {f"gold with {what}": text for what, text in _altered_golds(gold)}
    numbers = re.findall(r"\d+", gold)  # one with the same numbers may win beside other words
    others = [other for other in others if not numbers or re.findall(r"\d+", other) != numbers]
    if others and not re.search(r"[,;{]", gold):  # neither the first nor the last of them
        listed = [others[0], gold, *(others[1:] or others)]
        found |= {"all golds": ", ".join(listed), "all golds, boxed": " ".join(f"\\boxed{{{one}}}" for one in listed)}
        found["six golds"] = ", ".join([*listed, *listed[-1:] * (6 - len(listed))])
        found |= {"gold or another": f"{gold} or {others[0]}", "another or gold": f"{others[0]} or {gold}"}
        found["gold, then much else"] = f"{gold}. {_MUCH_ELSE} The answer is {others[0]}"
        found["gold in a long text"] = f"{_MUCH_ELSE} Some say {gold}, some say {others[0]}. {_MUCH_ELSE}"
        found["prompt and gold of another task"] = f"{prompt} {others[0]}"
    found |= {
        "gold denied": f"the answer is not {gold}",
        "not gold": f"not {gold}",
        "gold denied in a box": f"It is not \\boxed{{{gold}}}",
        "a long text": " ".join([_MUCH_ELSE] * 4),
        "nothing": "",
        **{digit: digit for digit in "01" if numbers != [digit]},
        "no answer": "I do not know",
        "the prompt": prompt,
        "white space": " \n ",
    }
    different = {text: what for what, text in reversed(found.items()) if _normal(text) != _normal(gold)}
    return {what: text for text, what in reversed(different.items())}


def _altered_golds(gold: str) -> Iterator[tuple[str, str]]:
    """The gold changed in one place."""
    digits = list(re.finditer(r"\d", gold))
    for what, place in (("another last digit", digits[-1:]), ("another first digit", digits[:1])):
        for match in place:
            yield what, f"{gold[: match.start()]}{int(match[0]) % 9 + 1}{gold[match.end() :]}"
    if exponent := re.search(r"(?<!\b[01])(?:\^\{?|(?<=\d)[eE])[-+]?(\d+)", gold):
        yield "another exponent", f"{gold[: exponent.start(1)]}{int(exponent[1]) + 1}{gold[exponent.end(1) :]}"
    is_number = _NUMBER.fullmatch(gold)
    if (is_number or re.match(r"-?\\[dt]?frac", gold)) and re.search("[1-9]", gold):
        yield "another sign", gold.lstrip("-−+") if gold[0] in "-−" else f"-{gold.lstrip('+')}"
    if is_number and re.search("[1-9]", gold) and gold.lstrip("-−+$").isdigit():
        yield "a digit more", f"{gold}0"
        yield "a digit before", f"1{gold.lstrip('-−+$')}"
        yield "a fraction more", f"{gold}.4"
    if is_number and "." in gold:
        yield "its point missing", gold.replace(".", "")
    if is_number and _normal(gold) not in (0, 1):
        yield "a word that changes it", f"{gold} squared"
        yield "a divisor", f"{gold}/2"
    if re.fullmatch(r"[^\W\d_]{2,}(?: [^\W\d_]+)*", gold):
        yield "letters around it", f"x{gold}x"
        yield "its words in another order", gold if re.search(r" (?:and|or) ", gold) else " ".join(gold.split()[::-1])
    if len(gold) > 2 and (gold.isalpha() or (is_number and gold[-1].isdigit())):
        yield "its end missing", gold[:-1]
    if (pair := next(re.finditer(r"(?=(\w)(\w))", gold[1:]), None)) and not _NUMBER.search(gold):
        at = pair.start() + 1
        yield "two letters swapped", f"{gold[:at]}{pair[2]}{pair[1]}{gold[at + 2 :]}"
    if date := re.fullmatch(r"(\d{4}-)?(\d{1,2})([-/.])(\d{1,2})((?:[-/.]\d{2,4})?)", gold):
        year, day, sign, month, end = date.groups()
        yield "day and month swapped", f"{year or ''}{month}{sign}{day}{end}"
    elements = gold.rpartition(",")[0]
    if elements and not is_number and all(re.search(r"\d|^\W*\w\W*$", one) for one in gold.split(",")):
        closing = re.search(r"(\\?[\])}])?$", gold)
        yield "the last element missing", elements + (closing[0] if closing else "")
    if (unit := re.fullmatch(r"(.*\d\s*)([a-z]+)", gold)) and unit[2] in _UNITS:
        yield "another unit", unit[1] + _UNITS[unit[2]]
    if re.fullmatch(r"\(?[A-Ja-j]\)?", gold):
        letter = gold.strip("()")
        yield "the next letter", gold.replace(letter, chr(ord(letter) + 1))
    if opposite := _OPPOSITES.get(gold.lower()):
        yield "the opposite", opposite.capitalize() if gold[0].isupper() else opposite


@functools.lru_cache(maxsize=16_384)  # each gold is compared with that of every other task
def _normal(text: str) -> str | Fraction:
    """A key that spellings of one answer share, as far as that is cheap to say: numbers are their value."""
    from .numerals import only_number  # its patterns take a tenth of a second to compile

    number = only_number(text)
    if number is not None and isinstance(number.value, Fraction):
        return number.value / (100 if number.is_percent else 1)
    plain = re.sub(r"\\(?:boxed|text|mathrm|fbox)\s*\{([^{}]*)\}", r"\1", text)
    return re.sub(r"\\[,!; ]|[\s$\\]|(?<=\d),(?=\d{3})", "", plain).replace("−", "-").casefold().rstrip(".")


def _differs(other: str, gold: str) -> bool:
    """The other answer cannot be the gold in another spelling."""
    one, two = _normal(other), _normal(gold)
    if isinstance(one, Fraction) and isinstance(two, Fraction):
        return one != two and one != two * 100 and one * 100 != two
    one, two = str(one), str(two)
    if not one or one == two or min(len(one), len(two)) < 3:
        return bool(one) and one != two
    numbers = sorted(re.findall(r"\d+", one))
    return one not in two and two not in one and not (numbers and numbers == sorted(re.findall(r"\d+", two)))


# ---- trials ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Trial:
    """An answer and its scores; `why` where it was not scored."""

    name: str
    text: str
    is_right: bool
    scores: list[float | None] = field(default_factory=list)
    why: str = ""
    has_raised: bool = False
    seconds: float = 0.0

    @property
    def numbers(self) -> list[float]:
        """The scores that are some."""
        return [score for score in self.scores if score is not None]

    def wins(self, needed: float) -> bool:
        """Any one of the scores is enough."""
        return max(self.numbers, default=-math.inf) >= needed


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProof:
    """The proof of one task.

    Attributes:
        reason: The first complaint, in words.
        seconds: Time of its slowest answer.
    """

    id: str
    verdict: TaskVerdict
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardProof:
    """The findings of a proof.

    Attributes:
        total: Number of tasks that were given.
        rows: Tasks that were tried, in their order. Those without a gold, of which the reward gives no examples, are
            not, nor those for which there was no time.
        wins: A gold won: the reward can be won by an answer alone.
        loses: A wrong answer lost: the reward reads answers.
        declares: The reward gave examples itself.
        lost_forms: Forms of the gold that lose where another wins, with the ids of those tasks: spellings that the
            reward does not read.
        highest_wrong: The most that an answer scored that lost.
        raised: Number of answers on which the reward raised, and the first error.
        unscored_wrong: Number of wrong answers that were not scored, and why the first: such rollouts count nowhere.
        equal_golds: Golds of two tasks each of which wins at the other's task, so that neither is a wrong answer.
        skipped: Why nothing was tried; empty where something was.
        is_late: The time was too short for a single task: nothing is known of the reward.
    """

    total: int
    rows: tuple[TaskProof, ...] = ()
    wins: bool = False
    loses: bool = False
    declares: bool = False
    lost_forms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    highest_wrong: float = 0.0
    raised: tuple[int, str] = (0, "")
    unscored_wrong: tuple[int, str] = (0, "")
    equal_golds: tuple[tuple[str, str], ...] = ()
    skipped: str = ""
    is_late: bool = False

    def ids(self, *verdicts: TaskVerdict) -> list[str]:
        """Ids of the tasks with these verdicts; of all that failed without any."""
        failed = [row for row in self.rows if row.verdict is not TaskVerdict.SOUND]
        return [row.id for row in failed if not verdicts or row.verdict in verdicts]

    @property
    def ok(self) -> bool:
        """No task that was tried failed, and there was time for one."""
        return not self.ids() and not self.is_late

    @property
    def decides(self) -> bool:
        """The proof says something of single tasks: a gold won, or the reward gave the answers itself.

        A reward that reads more than the final answer, such as calls or a database, lets no gold win.
        """
        return self.wins or self.declares

    @property
    def slowest(self) -> float:
        """Seconds of the slowest answer."""
        return max((row.seconds for row in self.rows), default=0.0)

    def warn(self, when: str) -> None:
        """Warn once of the tasks that failed, or that no gold wins."""
        if failed := self.ids() if self.decides else []:
            found = tally(row.verdict for row in self.rows)
            names = " ".join([*failed[:3], *(("...",) if len(failed) > 3 else ())])
            first = next(row.reason for row in self.rows if row.id == failed[0])
            words = "failed=<%d>, tasks=<%s>, first=<%s> | the reward fails its proof, %s (%s): see 'strands-env check'"
            logger.warning(words, len(failed), names, first, when, found)
        elif failed := self.ids():
            words = "tasks=<%d>, first=<%s> | no gold wins or is scored, %s: if answers decide, mend it or the golds"
            logger.warning(words, len(failed), self.rows[0].reason, when)

    def table(self) -> str:
        """The result as text, failed tasks by verdict with their ids."""
        if not self.rows:
            return f"nothing proven of {self.total} tasks: {self.skipped}"
        tried = tally(row.verdict for row in self.rows)
        lines = [f"{tried} (of {self.total}), slowest answer {self.slowest:.1f} s"]
        for verdict in TaskVerdict:
            rows = [row for row in self.rows if row.verdict is verdict]
            if verdict is not TaskVerdict.SOUND:
                lines += [f"  {verdict:<9} {row.id}: {row.reason}" for row in rows[:SHOWN]]
                if len(rows) > SHOWN:
                    lines.append(
                        f"  {verdict:<9} and {len(rows) - SHOWN} more: {_first_names([row.id for row in rows[SHOWN:]])}"
                    )
        notes = []
        for form, names in self.lost_forms.items():
            where = f" ({_first_names(names)})" if len(names) < len(self.rows) else ""
            notes.append(f"the gold loses when written {form} in {len(names)} of {len(self.rows)} tasks{where}")
        if self.highest_wrong > 0:
            notes.append(f"a wrong answer scores up to {self.highest_wrong:.3g}")
        if self.unscored_wrong[0]:
            number, first = self.unscored_wrong
            notes.append(f"{number} wrong answers are not scored, and such rollouts lost: {first}")
        for one, two in self.equal_golds[:1]:
            notes.append(f"golds are equal under the reward: {one[:40]!r} and {two[:40]!r}")
        if self.raised[0]:
            notes.append(f"the reward raised on {self.raised[0]} answers: {self.raised[1]}")
        return "\n".join([*lines, *(f"  note      {note}" for note in notes)])

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        rows = [{**asdict(row), "verdict": row.verdict.value} for row in self.rows]
        counts = Counter(row.verdict.value for row in self.rows)
        return {**asdict(self), "rows": rows, "verdicts": dict(counts), "ok": self.ok, "slowest": self.slowest}


@dataclass(frozen=True, slots=True)
class RewardOf:
    """A reward function of each task, for environments that are made for a task."""

    make: Callable[[Action], Awaitable[Any]]


async def reward_of(env_factory: EnvFactory) -> Any:
    """The reward function of a factory's environments, a `RewardOf` where each is made for its task."""
    if (found := getattr(env_factory, "reward_fn", None)) is not None:  # the same for all
        return found
    if not takes_action(env_factory):
        return getattr(await make_environment(env_factory, Action(message=""), False), "reward_fn", None)

    async def make(action: Action) -> Any:
        return getattr(await make_environment(env_factory, action, True), "reward_fn", None)

    return RewardOf(make)


def asks_models(reward_fn: Any) -> bool:
    """The reward asks a model, which costs money: it is proven only on demand."""
    return bool(getattr(getattr(reward_fn, "function", reward_fn), "asks_models", False))


def examples_of(reward_fn: Any, action: Action) -> RewardExamples | None:
    """The reward's own examples for a task, or the gold in its usual forms; None where there is nothing to try."""
    own = getattr(getattr(reward_fn, "function", reward_fn), "examples", None)
    if own is not None:
        found: RewardExamples | None = own(action)
        return found
    gold = gold_text(action, lists=_reads_texts(reward_fn))
    return None if gold is None else RewardExamples(right=list(right_answers(gold).values()), every=False)


def _reads_texts(reward_fn: Any) -> bool:
    """The reward is one of ours that reads any ground truth that `golds` reads; a function of the user may not."""
    return type(reward_fn).__name__ in READS_TEXTS


async def prove_reward(
    tasks: Iterable[Action],
    reward_fn: Any,
    *,
    seconds: float | None = None,
    limit: int | None = None,
    seed: int = 0,
    timeout: float | None = None,
    ask_models: bool = False,
) -> RewardProof:
    """Try a reward function on right and wrong answers to tasks, as it will be used.

    A task with a text or a number as ground truth is tried with the gold in several forms and with answers that differ
    from it; see `right_answers` and `wrong_answers`. The reward may have a method `examples(action)` that returns
    `RewardExamples`, or None where an answer alone decides nothing.

    A right answer wins with at least half of the best gold's score (of 1 at most), a wrong one with more than half of
    its own gold's. A task whose wrong answers are all unscored is broken.

    Args:
        tasks: The tasks, of which a seeded sample is tried where time or `limit` does not suffice for all.
        reward_fn: A `RewardFunction` or a plain function; `RewardOf` for one of each task.
        seconds: Budget; tasks that are not finished in it are not in the result. None for all.
        limit: Number of tasks to try; None for all.
        timeout: Seconds of one score, as `reward_timeout` of an environment.
        ask_models: Try a reward that asks a model (`asks_models`) too.
    """
    tasks = list(tasks)
    if asks_models(reward_fn) and not ask_models:
        return RewardProof(total=len(tasks), skipped="the reward asks a model, which is done on demand only")
    golds = [gold_text(task, lists=_reads_texts(reward_fn)) for task in tasks]
    choose = random.Random(seed)
    order = iter(choose.sample(range(len(tasks)), min(len(tasks), limit or len(tasks))))
    distinct = list(dict.fromkeys(gold for gold in golds if gold is not None))
    choose.shuffle(distinct)
    found: dict[int, _TaskTrials] = {}

    async def work() -> None:
        for place in order:
            tried = await _try(tasks, reward_fn, golds, distinct, place, seed, timeout, ask_models)
            if tried is not None:
                found[place] = tried

    with suppress(TimeoutError):
        async with asyncio.timeout(seconds) as clock:
            await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    _normal.cache_clear()
    return _conclude(tasks, dict(sorted(found.items())), is_late=clock.expired() and not found)


@dataclass(slots=True, kw_only=True)
class _TaskTrials:
    trials: list[_Trial] = field(default_factory=list)
    declares: bool = False
    why: str = ""
    equal_golds: list[tuple[str, str]] = field(default_factory=list)


async def _try(
    tasks: Sequence[Action],
    made: Any,
    golds: Sequence[str | None],
    distinct: Sequence[str],
    place: int,
    seed: int,
    timeout: float | None,
    paid: bool,
) -> _TaskTrials | None:
    """The trials of one task; None where there is nothing to try."""
    task, reward_fn = tasks[place], made
    if isinstance(reward_fn, RewardOf):
        reward_fn = await reward_fn.make(task)
        if reward_fn is None or (asks_models(reward_fn) and not paid):
            return None
    try:
        examples = examples_of(reward_fn, task)
    except GroundTruthError as error:
        return _TaskTrials(why=str(error)) if any(golds) or task.task_context.ground_truth is not None else None
    except Exception as error:  # the user's method, whose fault is a finding
        return _TaskTrials(why=f"examples() raised {type(error).__name__}: {error}", declares=True)
    if examples is None:
        if hasattr(getattr(reward_fn, "function", reward_fn), "examples"):
            return None
        truth = task.task_context.ground_truth
        if not any(golds) and not (
            truth and _reads_texts(reward_fn)
        ):  # where other tasks have a gold, one without cannot be scored
            return None
        try:
            only_gold(truth)
        except GroundTruthError as error:
            return _TaskTrials(why=str(error))
        return _TaskTrials(why=f"the ground truth must be a text or a number, got {type(truth).__name__} {truth!r:.60}")
    names = [f"right example {number}" for number in range(1, len(examples.right) + 1)]
    if not examples.every and len(names) == len(_RIGHT):
        names = list(_RIGHT)
    answers = [(name, one, True) for name, one in zip(names, examples.right, strict=True)]
    answers += [(f"wrong example {number}", one, False) for number, one in enumerate(examples.wrong, 1)]
    reward = as_reward_function(reward_fn)
    tried = _TaskTrials(declares=examples.every)

    async def score(name: str, answer: str | StepResult, is_right: bool, at: Action = task) -> _Trial:
        # Wrong answers are many, and one of them says as much of stability as all.
        repeats = 2 if is_right or name == "no answer" else 1
        return await _score(reward, at, name, answer, is_right, repeats, timeout)

    for answer in answers:
        tried.trials.append(await score(*answer))
    if examples.only:
        return tried
    gold = (golds[place] or "").strip()
    # The first from a place of its own, for a comparison with all golds costs more than the rest of the proof.
    start = random.Random(f"{seed}/{place}").randrange(len(distinct)) if distinct else 0
    around = chain(islice(distinct, start, None), islice(distinct, start))
    others = list(islice((other for other in around if _differs(other, gold)), OTHERS))
    own = max((number for trial in tried.trials if trial.is_right for number in trial.numbers), default=0.0)

    async def wins(text: str, at: Action, unscored: float = 0.0) -> bool:
        trial = await score("", text, False, at)
        return max(trial.numbers, default=unscored) > own / 2

    async def is_equal(other: str) -> bool:
        # In words that were not tried yet, for a reward may remember texts. Where the other gold is itself not scored,
        # its task says nothing.
        there = tasks[golds.index(other)]
        return (
            own > 0
            and await wins(other, task)
            and await wins(_FRESH.format(other.strip()), task)
            and await wins(_FRESH.format(gold), there, unscored=own)
        )

    equal = [other for other in others if gold and not isinstance(made, RewardOf) and await is_equal(other)]
    tried.equal_golds = [(gold, other) for other in equal]
    right = {_normal(one) for one in examples.right if isinstance(one, str)}
    wrong = wrong_answers(gold, [other for other in others if other not in equal], task.text)
    for name, text in wrong.items():
        if _normal(text) not in right:
            tried.trials.append(await score(name, text, False))
    return tried


async def _score(
    reward: Any, task: Action, name: str, answer: str | StepResult, is_right: bool, repeats: int, timeout: float | None
) -> _Trial:
    text = answer if isinstance(answer, str) else (answer.observation.final_response or "")
    trial = _Trial(name=name, text=text, is_right=is_right)
    for _ in range(repeats):
        started = time.perf_counter()
        try:
            result = answered(answer) if isinstance(answer, str) else answer.model_copy(deep=True)
            scored = await computed_reward(reward, task, result, timeout=timeout)
            trial.scores.append(scored.reward)
            if scored.reward is None:
                error = None if scored.error is None else str(scored.error)
                found = [error] if error else [scored.info[key] for key in ("reason", "error") if scored.info.get(key)]
                trial.why = ": ".join(map(str, found)) or "the reward abstains"
        except Exception as error:  # whatever a user's function raises is a finding
            trial.scores.append(None)
            trial.why, trial.has_raised = f"{type(error).__name__}: {error}", True
        trial.seconds = max(trial.seconds, round(time.perf_counter() - started, 4))
    return trial


# ---- verdicts --------------------------------------------------------------------------------------------------------


def _conclude(tasks: Sequence[Action], found: Mapping[int, _TaskTrials], is_late: bool) -> RewardProof:
    trials = [trial for tried in found.values() for trial in tried.trials]
    best = max((score for trial in trials if trial.is_right for score in trial.numbers), default=0.0)
    half = min(1.0, best) / 2 if best > 0 else 0.5
    rows, lost, lost_forms = [], [0.0], defaultdict(list)
    for place, tried in found.items():
        name = tasks[place].task_context.id
        right, wrong = ([trial for trial in tried.trials if trial.is_right is kind] for kind in (True, False))
        own = max((score for trial in right for score in trial.numbers), default=0.0)
        free = [trial for trial in wrong if max(trial.numbers, default=0.0) > max(half, min(1.0, own) / 2)]
        lost += [score for trial in wrong if trial not in free for score in trial.numbers]
        losing = [trial for trial in right if not trial.wins(half)]
        if not tried.declares and len(losing) < len(right):
            for trial in losing:
                lost_forms[trial.name].append(name)
            losing = []
        verdict, reason = _judge(tried, losing, free)
        words = [trial for trial in wrong if trial.text.strip()]  # an empty answer may be left unscored
        if verdict is TaskVerdict.SOUND and words and not any(trial.numbers for trial in words):
            verdict = TaskVerdict.BROKEN
            reason = f"no wrong answer is scored, as {words[0].text[:60]!r}: {words[0].why}"
        seconds = max((trial.seconds for trial in tried.trials), default=0.0)
        rows.append(TaskProof(id=name, verdict=verdict, reason=reason, seconds=seconds))
    raised = [f"{trial.text[:40]!r}: {trial.why}" for trial in trials if trial.has_raised]
    unscored = [trial for trial in trials if not trial.is_right and not trial.numbers]
    return RewardProof(
        total=len(tasks),
        rows=tuple(rows),
        loses=len(lost) > 1,
        wins=any(trial.wins(half) for trial in trials if trial.is_right),
        declares=any(tried.declares for tried in found.values()),
        lost_forms={form: tuple(names) for form, names in lost_forms.items()},
        highest_wrong=max(lost),
        raised=(len(raised), raised[0][:200] if raised else ""),
        unscored_wrong=(len(unscored), f"{unscored[0].text[:40]!r}: {unscored[0].why}"[:200] if unscored else ""),
        equal_golds=tuple(pair for tried in found.values() for pair in tried.equal_golds),
        skipped=""
        if rows
        else "the time was too short for a single one"
        if is_late
        else "none has ground truth that is a text or a number",
        is_late=is_late,
    )


def _judge(tried: _TaskTrials, losing: Sequence[_Trial], free: Sequence[_Trial]) -> tuple[TaskVerdict, str]:
    if not tried.trials:
        return TaskVerdict.BROKEN, tried.why
    if losing and all(None in trial.scores for trial in losing):
        return TaskVerdict.BROKEN, f"{losing[0].text[:60]!r} is not scored: {losing[0].why}"
    for trial in tried.trials:
        if len(set(trial.scores)) > 1:
            return TaskVerdict.FLAKY, f"{trial.text[:60]!r} scores {', then '.join(map(_score_text, trial.scores))}"
    if free:
        more = f", and {len(free) - 1} more wrong answers win" if len(free) > 1 else ""
        return TaskVerdict.FREE, f"{free[0].text[:60]!r} ({free[0].name}) scores {_score_text(free[0].scores[0])}{more}"
    for trial in losing:
        why = f" ({trial.why})" if trial.why else ""
        return TaskVerdict.UNSOLVED, f"{trial.text[:60]!r} scores {_score_text(trial.scores[0])}{why}"
    return TaskVerdict.SOUND, ""


def _first_names(names: Sequence[str]) -> str:
    return " ".join(names[:SHOWN]) + (f" ... and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _score_text(score: float | None) -> str:
    return "nothing" if score is None else f"{score:g}"
