"""Everyday answers in prose: what one says last, what it takes back, and what is only said beside it."""

from __future__ import annotations

import importlib.util

import pytest

from strands_env.core import Action, TaskContext
from strands_env.rewards import ChoiceReward, NumberReward
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
0N | 12 | The answer is 12. Wait, no, it's 13.
1N | 13 | The answer is 12. Wait, no, it's 13.
0N | 12 | The answer is 12. Hmm, that's not right. It should be 13.
1N | 13 | The answer is 12. Hmm, that's not right. It should be 13.
0N | 12 | The answer is 12. I made an arithmetic error; it's 13.
1N | 13 | The answer is 12. I made an arithmetic error; it's 13.
0N | 12 | The answer is 12. That is wrong.
0N | 12 | The answer is 12. Actually, that is incorrect.
0N | 12 | The answer is 12, but I'm wrong about that.
0N | 12 | We get 12. I made a mistake somewhere.
0N | 12 | We get 12, but that is wrong.
0N | 12 | We get 12, which is wrong.
0N | 12 | We get 12, which can't be right.
0N | 12 | Is it 12? No, it is 13.
1N | 13 | Is it 12? No, it is 13.
1N | 13 | Is it 12? No. 13.
0N | 12 | 12? No, 13.
1N | 13 | 12? No, 13.
0N | 12 | 12. No, 13.
1N | 13 | 12. No, 13.
0N | 12 | 12... no, 13.
0N | 12 | 12, sorry, 13.
1N | 13 | 12, sorry, 13.
0N | 12 | 12, I mean 13.
1N | 13 | 12, I mean 13.
0N | 12 | 12. Scratch that. 13.
1N | 13 | 12. Scratch that. 13.
0N | 12 | 12. Oops, 13.
1N | 13 | 12. Oops, 13.
0N | 12 | 12. Correction: 13.
1N | 13 | 12. Correction: 13.
0N | 12 | 12 - wait, 13.
1N | 13 | 12 - wait, 13.
0N | 12 | The answer is 12. Make that 13.
1N | 13 | The answer is 12. Make that 13.
0N | 12 | The answer is 12. No wait. 13.
1N | 13 | The answer is 12. No wait. 13.
0N | 12 | The answer is 12. Let me double-check: 5 + 8 = 13. So the answer is 13.
1N | 13 | The answer is 12. Let me double-check: 5 + 8 = 13. So the answer is 13.
1N | 12 | The answer is 12. Let me double-check: 5 + 7 = 12. Yes.
1N | 12 | The answer is 12. Let me double-check: 12 - 7 = 5. Correct.
1N | 12 | The answer is 12. Let me verify: 12 / 3 = 4, and 4 * 3 = 12.
1N | 12 | The answer is 12. This is correct because 5 + 7 = 12.
1N | 12 | The answer is 12. Wait, let me check that again. 5 + 7 = 12. OK.
1N | 12 | The answer is 12. At first I thought it was 13.
1N | 12 | I first thought it was 13, but the answer is 12.
1N | 12 | My first guess was 13. That was wrong. The answer is 12.
1N | 12 | It is 13? No, 12.
1N | 12 | The answer is 12. I made a mistake at first and got 13, but then I fixed it.
1N | 12 | The answer is 12. 13 would be wrong.
1N | 12 | The answer is 12. 13 is wrong because it is odd.
1N | 12 | The answer is 12. Anything else is wrong.
1N | 12 | The answer is 12. It is not 13.
1N | 12 | The answer is 12. You might think it is 13, but that is wrong.
1N | 12 | The answer is 12. Some people say 13, but that is incorrect.
1N | 12 | The answer is 12. If you counted the first one twice, you would get 13.
1N | 12 | The answer is 12. With 6 players it would be 15.
1N | 12 | The answer is 12. There is no error in this calculation.
1N | 12 | The answer is 12. I checked it twice.
1N | 12 | The answer is 12. I am 100% sure.
1N | 12 | The answer is 12. I'm sure it's not 13.
1N | 12 | The answer is 12. It took me 3 tries.
1 | 12 | \boxed{12}¶¶This took 3 steps.
1 | 12 | \boxed{12}. It is not the only way to do it.
1 | 12 | \boxed{12}. That is not surprising.
1 | 12 | \boxed{12}. This is not a coincidence: it is 3 times 4.
1 | 12 | \boxed{12}. It is impossible to get 13.
1 | 12 | \boxed{12}. Note that it is not a prime number.
1 | 12 | \boxed{12}. It cannot be larger.
1 | 12 | \boxed{12}. That is not true for larger boards.
1 | 12 | \boxed{12}. If the board were larger, that would not be right.
1 | 12 | \boxed{12}. The answer for the second part is 5.
1 | 12 | \boxed{12}. In general the answer is n(n-1).
1 | 12 | \boxed{12}. It is exactly 12.
1 | 12 | \boxed{12}. That is 12 apples.
1 | 12 | \boxed{12}. That's one dozen.
1 | 12 | \boxed{12}. That is, 3 rows of 4.
1 | 12 | \boxed{12}. Actually, this also holds for 13 players.
1 | 12 | \boxed{12}. Wait, is that right? 3*4=12. Yes.
1 | 12 | \boxed{12}. Hmm, does this make sense? There are 5 boys and 7 girls. So it does.
1 | 12 | \boxed{12}. Let me double check with n = 2: it is 2. OK.
0 | 12 | \boxed{12}. Wait, that's wrong.
0 | 12 | \boxed{12}. Hmm, no.
0 | 12 | \boxed{12}. Sorry, I meant \(13\).
1 | 13 | \boxed{12}. Sorry, I meant \(13\).
0 | 12 | \boxed{12}. Sorry, I meant 13.
1 | 13 | \boxed{12}. Sorry, I meant 13.
0 | 12 | \boxed{12}. The correct answer is 13.
0 | 12 | \boxed{12}. Wait, I misread the question. The answer is 13.
1 | 13 | \boxed{12}. Wait, I misread the question. The answer is 13.
0 | 12 | \boxed{12}. I forgot one. It's 13.
0 | 12 | \boxed{12} + 1, since I forgot one.
0 | 12 | \boxed{12}. Disregard that.
0 | 12 | \boxed{12}. This is not the answer.
0 | 12 | \boxed{12}. That is not what was asked.
0 | 12 | \boxed{12}. I don't think that's right.
0 | 12 | \boxed{12} is incorrect.
0 | 12 | \boxed{12} is not the answer.
0 | 12 | \boxed{12}? No.
0 | 12 | The answer is not \boxed{12}.
0 | 12 | It is tempting to say \boxed{12}.
0 | 12 | If it were even, the answer would be \boxed{12}.
0 | 12 | A wrong answer is \boxed{12}.
0 | 12 | \boxed{12}, but the true value is 13.
0 | 12 | \boxed{12}. My final answer: 13.
1 | 13 | \boxed{12}. My final answer: 13.
0 | 12 | \boxed{12}. Final answer: 13
0L | B | The answer is B. Hmm, that's wrong. It's C.
1L | C | The answer is B. Hmm, that's wrong. It's C.
0L | B | Answer: B. Sorry, I meant C.
1L | C | Answer: B. Sorry, I meant C.
0L | B | B. That is wrong.
0L | B | Answer: B¶¶Wait, B is wrong. C is correct.
1L | C | Answer: B¶¶Wait, B is wrong. C is correct.
0L | B | B? No, C.
1L | C | B? No, C.
0L | B | The answer is B. I take that back.
0L | B | The answer is B. Correction: C.
1L | C | The answer is B. Correction: C.
1L | B | The answer is B. C is wrong because it ignores gravity.
1L | B | The answer is B. A, C and D are wrong.
1L | B | The answer is B. Many students choose C.
1L | B | B is correct. C would be correct if the sign were reversed.
1L | B | B¶¶C is a common mistake.
1L | B | Option B
1L | B | (B)
1L | B | B.
1L | B | b
1L | B | The answer is b.
1L | B | The correct option is (B) 42.
1L | B | B) 42
1L | B | **B) 42**
1L | B | Answer: B) Both A and C
1L | B | Answer: B) None of the above
1L | B | I choose B.
1L | B | I'd go with B.
1L | B | My answer is B.
1L | B | It must be B.
1L | B | Only B fits.
1L | B | B is the only one left.
1L | B | A and C are impossible, and D is too large, so B.
1L | B | We can rule out A, C and D, leaving B.
1L | B | By elimination, B.
0L | B | A or B
0L | B | Both A and B.
0L | B | A and B are correct.
0L | B | Either B or C.
0L | B | It is not B.
0L | B | B is wrong.
0L | B | All but B.
0L | B | Anything but B.
0L | B | A, B, C, D
0L | B | A B C D
1 | yes | Yes, it is.
1 | yes | Yes!
1 | yes | Yes, because 7 is odd. It is not even.
1 | yes | Is 7 prime? Yes, it is.
1 | no | Is 8 prime? No, it is not.
1 | no | No, it isn't.
1 | no | Nope.
1 | yes | Yep.
1 | yes | Yeah, it is.
1 | no | The answer is no.
1 | no | Answer: No, it is divisible by 2.
0 | no | Answer: No. Wait, yes.
0 | yes | Yes. Actually no.
1 | no | Yes. Actually no.
0 | yes | Yes, no, maybe.
0 | yes | Yes or no?
0 | yes | I thought yes, but it is no.
0 | yes | Not yes.
1 | True | It is true.
1 | True | The statement is true.
0 | True | The statement is not true.
0 | True | It isn't true.
1 | False | The statement is not true.
1 | False | That is false.
1 | False | False. It does not hold for n = 2.
0 | False | It is not false.
0 | False | False? No, true.
1 | True | False? No, true.
0N | 15 | Up to 15.
0N | 15 | Almost 15.
1 | July 4, 1776 | It was on July 4, 1776.
1 | July 4, 1776 | 4 July 1776
1 | 1776 | It was in 1776.
1 | 1776 | In 1776.
1 | 1776 | The declaration was signed in 1776.
0 | 1776 | It was in 1777.
1 | blue | The answer is "blue".
1N | 80 | The price drops by 20% to $80.
1N | 80 | After a 20% discount, it costs $80.
0N | 20 | After a 20% discount, it costs $80.
1N | 80 | It costs $80 after a 20% discount.
1N | 36 | There are 36 students in 2 classes. | How many students are there?
1N | 36 | There are 36 students (18 boys and 18 girls).
1N | 36 | 18 boys and 18 girls, so 36 students.
0N | 33 | The bill is over €33.
1N | 44 | Ben now has 44 of the 48 apples.
1N | 45 | Altogether there are 45 marbles.
1N | 25 | The answer is 25. In the general case the answer is k(k+1).
0N | 24 | I don't know. 24 is a number.
1N | 0 | There are no apples left. | How many apples are left?
1 | Alice | Alice is the oldest. | Who is the oldest?
0 | Paris | The answer is Paris. Wait, actually it is Lyon.
0N | 12 | The answer is one of 10, 11, 12.
0N | 12 | The wrong answer is 12.
0N | 12 | Let's assume the answer is 12. Then we get a contradiction.
0N | 12 | The answer is 12... just kidding, it is 13.
0N | 12 | The answer is 12. Just kidding: 13.
0N | 12 | The answer is 12. EDIT: 13.
1N | 13 | The answer is 12. EDIT: 13.
0N | 12 | \boxed{12}¶¶EDIT: the answer is 13.
0 | 12 | \boxed{12} (wrong)
0 | 12 | Instead of \boxed{12}, we get 13.
0 | 12 | \boxed{12} fails the second condition.
0 | 12 | \boxed{12} contradicts the assumption.
1 | 12 | \boxed{12}. Instead of counting one by one, one can multiply 3 by 4.
1L | B | B seems right.
1 | yes | So yes, it is.
1N | 8 | It is 8 instead of 6.
0N | 6 | 8, unlike 6
1N | 6 | There are 6 in total: 2 red and 4 blue ones.
1N | 40 | She drove 40 km in 30 minutes.
1N | 7 | She needs 7 more points to reach 20.
1 | Evelyn | Evelyn is the fastest. | Who is fastest?
0 | Evelyn | Carla is the fastest. | Who is fastest?
0N | 6 | 6 squared
1 | 42 | The answer is $42$!
1 | 42 | The answer is **$42$**!
0 | 9 | \boxed{9} to 10
0 | 9 | $\boxed{9}\to 10$
1 | 9 | \boxed{9} to 2 decimal places
0 | 9 | \boxed{9}\text{ is wrong}
0N | 12 | 12 doubled
0N | 6 | It would be 6 if repetition were allowed, but it isn't.
0N | 6 | The answer is 6 and a half.
0N | 6 | The answer is 6, 7.
0 | 25 | \boxed{25} Hmm, that doesn't look right.
0 | 25 | \boxed{25} But this contradicts the first condition, so it's 24.
0 | 25 | \boxed{25} Let me correct that to 26.
1 | 26 | \boxed{25} Let me correct that to 26.
0 | 25 | \boxed{25} On reflection it's 26.
0 | 25 | \boxed{25} Rechecking gives 26 instead.
0 | 25 | \boxed{25} Not 25 but 26.
0 | 25 | \boxed{25} That answer is off by one.
0 | 25 | \boxed{25} I no longer believe this.
0 | 25 | \boxed{25} Hold on, 26.
0 | 25 | \boxed{25} Turns out it's 26.
0 | 25 | \boxed{25} Typo: 26.
1 | 26 | \boxed{25} Replace 25 by 26.
1 | 25 | \boxed{25} It is wrong to count the corners twice.
1 | 25 | \boxed{25} It is false that 26 works.
1 | 25 | \boxed{25} It turns out it's also a square.
1 | 25 | \boxed{25} This has 3 factors instead of 4.
0N | 7 | It is not \boxed{7}.
0N | 7 | The answer is 8, not \boxed{7}.
0N | 7 | \boxed{7} is not the answer.
0N | 7 | \boxed{7} is wrong; the right one is 8.
0N | 7 | \boxed{7}? No, the answer is 8.
0N | 7 | \boxed{7} Actually, the final answer is 8
0N | 7 | I reject \boxed{7}.
0N | 7 | The answer is 7. Wait, no, it is 8.
0N | 7 | The answer is 7. Or 8.
0N | 7 | It is false that the answer is 7.
0N | 7 | I don't think the answer is 7.
0N | 7 | I doubt it is 7
0N | 7 | The answer exceeds 7.
0N | 7 | The answer differs from 7.
0N | 7 | Here are 7 steps I could not finish.
0N | 7 | Unknown. Page 7
0N | 7 | Since 7 is prime there is no answer.
0N | 7 | I am 7% sure
0N | 7 | 7 and 8
0N | 7 | either 7, 8, or 9
1N | 7 | 答案是7。一共3步。
0N | 7 | 7 (or 8)
0N | 7 | 7, maybe 8
0N | 7 | 7 to 8
0N | 7 | 7 out of 10
0N | 7 | double 7
0N | 7 | half of 7
0N | 7 | anything except 7
0N | 7 | 7 if x>0, else 8
0N | 7 | 7 is not the answer.
0N | 7 | 7 is wrong.
0N | 7 | 7? No.
1N | 7 | Since 3 does not divide n, we get \boxed{7}.
1N | 7 | It is not hard to see that it is \boxed{7}
1N | 7 | No doubt the answer is \boxed{7}.
1N | 7 | The answer is \boxed{7}, which is not divisible by 2.
1N | 7 | \boxed{7}. So the final answer is 7.
1N | 7 | Not 8 but \boxed{7}.
1N | 7 | It isn't 8, it is \boxed{7}.
1N | 7 | I don't think it is hard: the answer is 7.
1N | 7 | I do not believe 8, so the answer is 7.
1N | 7 | The answer is 7. It is not 8.
1N | 7 | The answer is 7. No other value works.
1N | 7 | The answer is 7. Actually, it is a prime.
1N | 7 | \boxed{7}. The answer is approximately 7.0
1N | 7 | Therefore $x \neq 8$ and $x = \boxed{7}$.
1N | 7 | We cannot have 8. \boxed{7}
1N | 7 | \boxed{7} or seven.
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
        from strands_env.rewards.mathematics.answers import verify

        found = verify(gold, answer, task.text)
        assert (found.get("reason") != "undecided", bool(found.get("matched"))) == (True, verdict[0] == "1"), found
