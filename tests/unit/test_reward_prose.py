"""Everyday answers in prose: what one says last, what it takes back, and what is only said beside it."""

from __future__ import annotations

import importlib.util

import pytest

from strands_env.core import Action, TaskContext
from strands_env.eval.benchmarks.gpqa import ChoiceReward
from strands_env.rewards import NumberReward
from strands_env.testing import answered

TABLE = r"""
1N | 60 | £27.50 + £32.50 = £60.00
0N | 32.5 | £27.50 + £32.50 = £60.00
1 | 1/2 | The probability is 1/2, or 50%.
1 | 0.5 | The probability is 1/2, or 50%.
1 | 50\% | The probability is 1/2, or 50%.
0 | 1/2 | The probability is 1/2, or 25%.
0 | 1/2 | The probability is 1/2 or 1/3.
1L | D | Answer: D) A and C
0L | A | Answer: D) A and C
0L | C | Answer: D) A and C
1L | C | That leaves C.
0L | B | That leaves C.
1L | C | A, B and D are wrong. That leaves C.
1L | C | It cannot be A, B or D, which leaves C.
1N | 42 | So the total is 42!
1N | 42 | The answer is 42!
1N | 42 | There are 42!
1 | 42! | The answer is $42!$.
1N | 8 | $5+$3=$8
0N | 3 | $5+$3=$8
0N | 5 | $5+$3=$8
1N | 8 | $5 + $3 = $8.
1N | 42 | Answer: 42¶Confidence: 95%
0N | 95 | Answer: 42¶Confidence: 95%
1N | 7 | 3 + 5 = 8, but one was eaten, leaving 7.
0N | 8 | 3 + 5 = 8, but one was eaten, leaving 7.
0 | no | No. Wait, actually yes, it is prime.
1 | yes | No. Wait, actually yes, it is prime.
0 | no | No, that was my first thought. The correct answer: yes.
0 | no | No. Correction: yes.
0 | no | No? Yes!
0 | no | No. That is wrong. Yes.
0 | no | No.¶¶Hmm, let me check 7*13 = 91. So it is composite.¶¶Yes, it is composite.
1 | yes | No.¶¶Hmm, let me check 7*13 = 91. So it is composite.¶¶Yes, it is composite.
0 | 12 | The answer is 12. Wait, actually it is 13.
0 | 12 | \boxed{12}. Wait, no, it is 13.
0 | 12 | \boxed{12} is what I got first, but that is wrong.
0 | 12 | \boxed{12}. That is wrong, though.
0 | 12 | The answer is \boxed{12}. Hmm, that can't be right. It is 13.
0 | 12 | \boxed{12}. I made a mistake: it should be 13.
0 | 12 | \boxed{12}¶¶Actually, I made an error above; the result is 13.
0 | 12 | \boxed{12}. On second thought, 13.
0 | 12 | \boxed{12}. This answer is incorrect.
0 | 12 | \boxed{12}. I take that back.
0 | 12 | I first thought it was \boxed{12}, but it's 13.
0 | 12 | \boxed{12}. Let me recheck. 3*5=15. So the answer is 15.
0 | 12 | \boxed{12}. Let me recheck. 3*5=15. So it is 15.
1 | 12 | \boxed{12}. Let me recheck: 3*4=12. Yes, 12 is right.
1 | 12 | \boxed{12}. It is not possible to do it in fewer.
1 | 20 | \boxed{20}. For 5 players the answer is 20.
1 | 20 | The answer is \boxed{20}. For 5 players the answer is 20.
1 | 12 | \boxed{12}. This cannot be improved.
1 | 12 | \boxed{12} is the smallest such number; 11 is not possible.
1 | 12 | \boxed{12}. Note that 11 would be wrong because it is odd.
1 | 12 | \boxed{12}. A common mistake is to answer 13.
1 | 12 | \boxed{12}. Many would say the answer is 13.
1 | 12 | \boxed{12}. (For n=5 the answer is 20.)
1 | 12 | \boxed{12}. If there were 3 players, the answer would be 6.
1 | 12 | \boxed{12}. I'm confident that this is not wrong.
1 | 12 | \boxed{12}. No other answer is possible.
1 | 12 | \boxed{12}. There is no mistake here.
1 | 12 | \boxed{12}. I double-checked and found no error.
1 | 12 | Wait, I made a mistake. The answer is \boxed{12}.
1 | 12 | \boxed{12}. Wait, let me verify: 3*4 = 12. Correct.
0 | B | \boxed{B}. Wait, no, it is C.
0L | B | The answer is B. Wait, no, it is C.
1L | C | The answer is B. Wait, no, it is C.
0L | B | B. Actually, C.
0 | yes | \boxed{yes}. Actually, no, the answer is no.
0 | yes | Yes. Sorry, I meant no.
0 | yes | Yes... no, wait. No.
1 | yes | Yes. It is not even, so it is odd and prime.
1 | no | No. It is divisible by 7. Yes, really.
1 | no | No, it is not prime, because 91 = 7*13.
1 | yes | Yes, that is correct.
1 | no | No, that is wrong.
1 | True | True. The statement holds.
1 | False | The statement is false.
0 | True | The statement is false.
1 | yes | The answer is yes.
1 | no | Is it prime? No.
0 | no | Is it prime? No. Hmm, actually it is. Yes.
"""
"""Verdict, gold, answer (`¶` is a line break), question. `N` asks `NumberReward` too, `L` the reader of letters."""


@pytest.mark.parametrize("row", TABLE.strip().split("\n"))
async def test_the_last_word_on_an_answer_counts(row: str) -> None:
    verdict, gold, answer, *question = row.replace("¶", "\n").split(" | ")
    task = Action(message=question[0] if question else "?", task_context=TaskContext(ground_truth=gold))
    for letter, grader in (("N", NumberReward), ("L", ChoiceReward)):
        if letter in verdict:
            assert (await grader().compute(task, answered(answer))).reward == float(verdict[0])
    if importlib.util.find_spec("math_verify") is not None:
        from strands_env.mathematics.answers import verify

        found = verify(gold, answer, task.text)
        assert (found.get("reason") != "undecided", bool(found.get("matched"))) == (True, verdict[0] == "1"), found
