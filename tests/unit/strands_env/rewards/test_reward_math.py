"""`MathRewardFunction`: what counts as equal, and that nothing an answer says can hang or leak."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import psutil
import pytest

pytest.importorskip("math_verify", reason="needs the extra `math`")

from strands_env.core import Action, TaskContext
from strands_env.rewards import MathRewardFunction, close_math_workers, math_reward
from strands_env.rewards.math_reward import _WORKERS, VerifierPool
from strands_env.rewards.mathematics.answers import verify
from strands_env.rewards.mathematics.boxes import find_boxes
from strands_env.testing import answered


def action(ground_truth: object) -> Action:
    return Action(message="?", task_context=TaskContext(ground_truth=ground_truth))


RIGHT = r"""
17 | \boxed{17.}
10 | \boxed{10°}
10 | 10^\circ
10^\circ | \boxed{10}
\infty | \boxed{∞}
\sqrt{2} | \boxed{√2}
-5 | \boxed{–5}
-5 | \boxed{−5}
(1,2) | \boxed{（1，2）}
5 | 答案是5。
5 | \boxed5
5 | \fbox{5}
\emptyset | \boxed{\varnothing}
\emptyset | \boxed{\{\}}
15 | \boxed{\textbf{(C)}\ 15}
C | \boxed{\textbf{(C)}\ 15}
C | \boxed{(C)}
C | \boxed{\text{C}}
\text{C} | \boxed{C}
\textbf{(C)}\ 15 | \boxed{15}
\textbf{(C)}\ 15 | \boxed{C}
\$5 | \boxed{5}
\$18.90 | \boxed{18.90}
\$18.90 | \boxed{\$18.9}
18.90 | \boxed{\$18.90}
\$32,\!348 | \boxed{32348}
1,234 | \boxed{1234}
1{,}234 | \boxed{1234}
10,\!080 | \boxed{10080}
12 345 | \boxed{12,345}
3 1/2 | \boxed{3.5}
3\frac12 | \boxed{\frac{7}{2}}
-3\frac{1}{2} | \boxed{-3.5}
3½ | \boxed{7/2}
5 \text{ cm} | \boxed{5}
5 | \boxed{5 \text{ cm}}
5 \text{ cm} | \boxed{50 \text{ mm}}
5 \text{ cm}^2 | \boxed{5 \text{ square centimeters}}
50\% | \boxed{50}
50\% | \boxed{0.5}
0.5 | \boxed{50\%}
28 | \boxed{28\%}
90^\circ | \boxed{\frac{\pi}{2}}
9:30 | \boxed{9:30}
9:30 \text{ a.m.} | \boxed{9:30 \text{ am}}
21:30 | \boxed{9:30 p.m.}
3:4 | \boxed{6:8}
3:4 | \boxed{3/4}
10101_2 | \boxed{10101_{2}}
2A_{16} | \boxed{2a_{16}}
n \equiv 1 \pmod 3 | \boxed{n \equiv 1 \pmod{3}}
n \equiv 1 \pmod 3 | \boxed{n \equiv 4 \pmod{3}}
n \equiv 1 \pmod 3 | \boxed{1 \pmod 3}
0.\overline{3} | \boxed{1/3}
0.\overline{72} | \boxed{8/11}
0.(3) | \boxed{1/3}
0.333... | \boxed{1/3}
1/3 | \boxed{0.333333}
0.1\dot{6} | \boxed{1/6}
x=5 | \boxed{5}
5 | \boxed{x=5}
5 | \boxed{x = 5 \text{ cm}}
5 | \boxed{2+3=5}
8 | \boxed{2^3 = 8}
5 | \boxed{\text{Area} = 5}
5 | \boxed{|AB| = 5}
60 | \boxed{\angle ABC = 60^\circ}
y=2x+3 | \boxed{2x+3}
2x+3 | \boxed{y=3+2x}
y=2x+3 | \boxed{2x-y+3=0}
x^2+y^2=1 | \boxed{2x^2+2y^2=2}
f(x)=x^2 | \boxed{x^2}
f(x)=x^2 | \boxed{f(x)=x\cdot x}
x=1, y=2 | \boxed{(1,2)}
(1,2) | \boxed{x=1, y=2}
(1,2) | \boxed{y=2, x=1}
1,2 | \boxed{x=1 \text{ or } x=2}
x=1,2 | \boxed{\{1,2\}}
\{1,2\} | \boxed{2,1}
1,2 | \boxed{2 \text{ and } 1}
1,2,3 | \boxed{3, 1 and 2}
\pm 2 | \boxed{2,-2}
\pm 2 | \boxed{x = \pm 2}
1\pm\sqrt2 | \boxed{1+\sqrt{2}, 1-\sqrt{2}}
[1,2) | \boxed{1\le x<2}
(1,2) | \boxed{1<x<2}
x>3 | \boxed{(3,\infty)}
(3,\infty) | \boxed{x>3}
x \ge 3 | \boxed{3 \leq x}
(-\infty,1)\cup(3,\infty) | \boxed{x<1 \text{ or } x>3}
(-\infty,1)\cup(3,\infty) | \boxed{(3,\infty)\cup(-\infty,1)}
x \in [1,2] | \boxed{[1,2]}
\mathbb{R} | \boxed{(-\infty,\infty)}
\mathbb{R}\setminus\{0\} | \boxed{(-\infty,0)\cup(0,\infty)}
\{x \mid x>3\} | \boxed{(3,\infty)}
\begin{pmatrix}1&2\\3&4\end{pmatrix} | \boxed{\begin{bmatrix}1&2\\3&4\end{bmatrix}}
\begin{pmatrix}1\\2\end{pmatrix} | \boxed{(1,2)}
\begin{pmatrix}1/2\\2\end{pmatrix} | \boxed{\begin{pmatrix}0.5\\2\end{pmatrix}}
\langle1,2,3\rangle | \boxed{(1,2,3)}
\frac{1}{\sqrt3} | \boxed{\frac{\sqrt3}{3}}
x^2+2x+1 | \boxed{(x+1)^2}
\sin^2 x | \boxed{1-\cos^2 x}
\tan x | \boxed{\frac{\sin x}{\cos x}}
2\ln x | \boxed{\ln x^2}
\log_2 8 | \boxed{3}
\ln 2 | \boxed{\log 2}
e^{i\pi} | \boxed{-1}
3+4i | \boxed{4i+3}
\binom{5}{2} | \boxed{10}
5! | \boxed{120}
2^{100} | \boxed{1267650600228229401496703205376}
6.63\times10^{-34} | \boxed{6.63e-34}
.0000672 | \boxed{6.72 \times 10^{-5}}
\text{Evelyn} | \boxed{Evelyn}
\text{Friday} | The answer is Friday.
\text{even} | \boxed{\text{Even}}
\text{June 20} | \boxed{June 20}
(A), (C) | \boxed{A, C}
10 dollars | \boxed{10}
10 miles per hour | \boxed{10 mph}
36 km/h | \boxed{10 m/s}
5 | The answer is 5.
5 | So we have $x=5$.
42 | After adding, we get 42 apples.
\frac{3}{4} | \boxed{\dfrac34}
\frac{3}{4} | \boxed{3/4}
\frac34 | Therefore the probability is $\frac{3}{4}$.
x^{10} | \boxed{x^10}
2\sqrt{3} | \boxed{\sqrt{12}}
\frac{\pi}{4} | \boxed{\pi/4}
\frac12 x | \boxed{x/2}
-\frac{1}{2} | \boxed{\frac{-1}{2}}
1-\frac1e | \boxed{1-e^{-1}}
1,3,5,\ldots,99 | \boxed{1, 3, 5, \dots, 99}
\begin{cases} x & x>0 \\ -x & x\le 0\end{cases} | \boxed{\begin{cases} -x & x\le 0 \\ x & x>0 \end{cases}}
f=\begin{cases} x & \text{if } x>0 \\ 0 & \text{else}\end{cases} | \begin{cases} x, & x>0 \\ 0, & \text{else}\end{cases}
\begin{cases} x=1 \\ y=2 \end{cases} | \boxed{x=1, y=2}
\begin{cases} x=1 \\ y=2 \end{cases} | \boxed{(1,2)}
\{(1,2),(3,4)\} | \boxed{(3,4),(1,2)}
(1,2),(3,4) | \boxed{(3,4), (1,2)}
2,000 | \boxed{2000}
0.30000000000000004 | \boxed{0.3}
12.5664 | \boxed{4\pi}
4\pi | \boxed{12.566371}
no solution | \boxed{\text{No solution}}
x(x+1) | \boxed{x^2+x}
h(a+b)/2 | \boxed{\frac{(a+b)h}{2}}
2\cdot 3^2 | \boxed{18}
\lfloor 3.7 \rfloor | \boxed{3}
|{-5}| | \boxed{5}
2^{-3} | \boxed{1/8}
x_1 | \boxed{x_{1}}
\frac{n(n+1)}{2} | \boxed{\frac{n^2+n}{2}}
(-1)^n | \boxed{(-1)^{n}}
(-1)^n | \boxed{\cos(n\pi)}
\sqrt[3]{2} | \boxed{2^{1/3}}
\arctan 2 | \boxed{\tan^{-1} 2}
\text{yes} | \boxed{Yes}
2\mathbf{i}+3\mathbf{j} | \boxed{3\mathbf{j}+2\mathbf{i}}
5 | **5**
5 | The final answer is $\boxed{5}$. I hope it is correct.
3x+2 | \boxed{3x + 2}
\frac{x+1}{x-1} | \boxed{(x+1)/(x-1)}
x^2-1 | \boxed{(x-1)(x+1)}
\frac{2}{3}\pi | \boxed{\frac{2\pi}{3}}
1/2 | \boxed{.5}
1.5 | \boxed{1 1/2}
100 | \boxed{10^2}
1000000 | \boxed{1\,000\,000}
1000000 | \boxed{10^6}
0 | \boxed{0}
-\infty | \boxed{-\infty}
(-\infty, 3] | \boxed{x \leqslant 3}
\{-1, 0, 1\} | \boxed{-1, 0, 1}
5 \text{ units} | \boxed{5 units}
5 \text{ hours} | \boxed{300 \text{ minutes}}
7{,}5 | \boxed{7.5}
3.14 | \boxed{3,14}
4210_{5} | \boxed{4210_5}
x \neq 2 | \boxed{\mathbb{R} \setminus \{2\}}
2 | \boxed{\frac{4}{2}}
A = \pi r^2 | \boxed{\pi r^2}
x^2 + C | \boxed{x^2 + C}
\frac{1}{3}x^3 + C | \boxed{\frac{x^3}{3}+C}
\text{(B)} | \boxed{B}
B | \boxed{\text{(B)}}
\text{all real numbers} | \boxed{\mathbb{R}}
\text{A and B} | \boxed{A \text{ and } B}
25\pi \text{ cm}^2 | \boxed{25\pi}
\sin 30^\circ | \boxed{1/2}
\frac{23}{35} | \boxed{{23 \over 35}}
3 - 5i | \boxed{3 - i5}
x \in (-25,-23) | \boxed{-25 < x < -23}
y = -10x - 8 | The line is $y = -10x - 8$.
22.1 | The answer is 22.1 m/s.
\text{Monday} | **Answer: Monday**
\text{(C)} | \boxed{\text{C.}}
5:37 \text{ a.m.} | The answer is 5:37 a.m.
5:23 \text{ a.m.} | At 5:23 AM.
162634_7 | The answer is 162634 in base 7.
2112_6 | \boxed{2112 \text{ (base 6)}}
n \equiv 2 \pmod{15} | \boxed{n \equiv 2 \ (\text{mod } 15)}
22 \bmod 26 | \boxed{22 \text{ mod } 26}
3 \text{ hours } 20 \text{ minutes} | \boxed{200 \text{ minutes}}
3:4 | \boxed{3 \text{ to } 4}
1.5 \times 10^6 | \boxed{1.5 \text{ million}}
\sqrt{2} | \boxed{\sqrt{2} \approx 1.414}
\text{ABD} | \boxed{A, B, D}
{10 \choose 3} | \boxed{120}
\mathbb{Z}^+ | \boxed{\mathbb{Z}^{+}}
FF_{16} | \boxed{\text{FF}_{16}}
x \equiv 1, 5 \pmod 6 | \boxed{x \equiv 5, 1 \pmod{6}}
\frac{\pi}{4}+k\pi, k\in\mathbb{Z} | \boxed{\frac{\pi}{4} + n\pi, n \in \mathbb{Z}}
f(t) = t^2 | \boxed{f(x) = x^2}
y - 3 = 2(x - 1) | \boxed{y = 2x + 1}
\cos 20^\circ | \boxed{\sin 70^\circ}
\$0.50 | \boxed{50 \text{ cents}}
9.8 \text{ m/s}^2 | \boxed{9.8 \text{ meters per second squared}}
1,2,3 | $\boxed{1}$, $\boxed{3}$ and $\boxed{2}$
\int_0^1 x^2\,dx | \boxed{1/3}
\sum_{k=1}^{10} k | \boxed{55}
42 | \boxed{\color{blue}42}
42 | \boxed{\textcolor{blue}{42}}
\text{Friday} | \boxed{\textcolor{blue}{\text{Friday}}}
42 | \boxed{\underline{42}}
42 | \boxed{\large 42}
42 | \boxed{\tt 42}
\frac12 | \boxed{1\over2}
\frac12 | \boxed{\nicefrac{1}{2}}
42 | \boxed{42\\}
42 | _42_
42 | \boxed{\boxed{42}}
AB | \boxed{AB}
AB | \boxed{\overline{AB}}
\overline{AB} | \boxed{AB}
\text{CAT} | \boxed{CAT}
HHT, HTH | \boxed{HTH, HHT}
5 | \boxed{AB = 5}
2021-05-05 | \boxed{2021-05-05}
1914-1918 | \boxed{1914–1918}
2, 2, 3 | \boxed{3, 2, 2}
(0,5) | \boxed{x>0 \text{ and } x<5}
(1,3) | \boxed{x>1, x<3}
42 | \boxed{\text{Area is } 42}
x>0 \text{ and } x<5 | \boxed{0<x<5}
x<1, x>3 | \boxed{x<1 \text{ or } x>3}
x>0 \text{ and } y>0 | \boxed{y>0 \text{ and } x>0}
42 | \boxed{42 \text{ apples}}
42 \text{ widgets} | \boxed{42 \text{ widgets}}
42 | \boxed{42 \text{ kg}}
5 | \boxed{f(x) = 5}
42 | We add them.\nThe total is **42**.
42 | We add them.\n- Total: 42
42 | </think>\n\n42
42 | We add them.\nTotal - 42 in all.
42 | The answer is 42, because 40 + 2 = 42.
5 | \boxed{x_1 = 5}
5 | \boxed{\text{the answer} = 5}
"""
"""Ground truth and answer, which denote the same."""
WRONG = r"""
3 | \boxed{-3}
3 | \boxed{3, 4}
3 | \boxed{4}, or \boxed{2}
3 | \boxed{3}\boxed{4}
1 | \boxed{0 \text{ or } 1 \text{ or } 2}
1 | 0 or 1 or 2
.0000672 | \boxed{.0000668}
6.63\times10^{-34} | \boxed{6.63\times10^{-30}}
1/2^{60} | \boxed{1/2^{59}}
9007199254740993 | \boxed{9007199254740992}
(1,2) | \boxed{(2,1)}
[1,2] | \boxed{(1,2)}
\{1,2\} | \boxed{\{1,3\}}
x=5 | \boxed{y=5}
x=5 | \boxed{x=6}
5 | \boxed{7=5}
5 | \boxed{2x=5}
x | \boxed{y}
x | \boxed{5}
5 | \boxed{x}
5 | \boxed{True}
5 | True
5 | I do not know
5 | \boxed{}
C | \boxed{(D)}
C | \boxed{\textbf{(D)}\ 15}
15 | \boxed{\textbf{(C)}\ 16}
x^2 | \boxed{x^3}
\sin x | \boxed{\cos x}
|x| | \boxed{x}
5 \text{ cm} | \boxed{5 \text{ m}}
5 \text{ cm} | \boxed{6 \text{ cm}}
5 \text{ hours} | \boxed{5 \text{ minutes}}
50\% | \boxed{5}
9:30 | \boxed{9:31}
9:30 \text{ a.m.} | \boxed{9:30 \text{ p.m.}}
3:4 | \boxed{4:3}
n \equiv 1 \pmod 3 | \boxed{n \equiv 2 \pmod 3}
n \equiv 1 \pmod 3 | \boxed{n \equiv 1 \pmod 4}
10101_2 | \boxed{10100_2}
10101_2 | \boxed{10101_3}
x>3 | \boxed{x<3}
x>3 | \boxed{x\ge3}
(-\infty,1)\cup(3,\infty) | \boxed{(-\infty,1)}
(-\infty,1)\cup(3,\infty) | \boxed{(-\infty,1)\cup(4,\infty)}
\begin{pmatrix}1&2\\3&4\end{pmatrix} | \boxed{\begin{pmatrix}1&2\\3&5\end{pmatrix}}
\begin{pmatrix}1&2\\3&4\end{pmatrix} | \boxed{4}
\text{Friday} | \boxed{\text{Monday}}
\text{even} | \boxed{\text{odd}}
y=2x+3 | \boxed{y=2x+4}
y=2x+3 | \boxed{2x+4}
2,3 | \boxed{3}
2,3 | \boxed{2}
\infty | \boxed{-\infty}
\emptyset | \boxed{0}
\frac{1}{3} | \boxed{0.33}
\sqrt2 | \boxed{1.41}
1234.56 | \boxed{1234.57}
\$18.90 | \boxed{\$18.91}
f(x)=x^2 | \boxed{f(x)=x^3}
x^2+y^2=1 | \boxed{x^2+y^2=2}
x^2+y^2=1 | \boxed{1}
3 1/2 | \boxed{31/2}
\pm2 | \boxed{2}
2 | \boxed{\pm 2}
42 | \boxed{425}
42 | The answer is 425.
\ln 2 | \boxed{\ln 3}
e | \boxed{\pi}
10 | \boxed{1}
2\pi | \boxed{2}
\frac{a}{b} | \boxed{\frac{b}{a}}
x^2+C | \boxed{x^2}
1,3,5,\ldots,99 | \boxed{99}
1,3,5,\ldots,99 | \boxed{1,3,5,\ldots,97}
5 | \boxed{\frac{0}{0}}
5 | \boxed{\infty}
\text{Evelyn} | \boxed{5}
5 | \boxed{\text{Evelyn}}
(3,4) | \boxed{3}
\begin{cases} x & x>0 \\ -x & x\le 0\end{cases} | \boxed{\begin{cases} -x & x> 0 \\ x & x\le 0 \end{cases}}
\begin{cases} x & x>0 \\ -x & x\le 0\end{cases} | \boxed{x}
1 | \boxed{x=1, x=2}
5 | \boxed{5 = 6}
X | \boxed{Y}
2024 | \boxed{2,024,000}
0.5 | \boxed{0.05}
7.5 | \boxed{7{,}500}
1\frac{11}{13} | \boxed{\frac{24}{13}\%}
\emptyset | \boxed{\{\emptyset\}}
-30, 28, 25, 2 | First \boxed{-30, 28, 25, 2}, which is wrong. So \boxed{-30, 28, 25}
(3, 4) | \boxed{x = 4, y = 3}
(3, \frac{\pi}{2}) | \boxed{\emptyset}
8500_9 | \boxed{-8500_9}
1000_3 | \boxed{3_{1000}}
n \equiv 3 \pmod 8 | \boxed{n \not\equiv 3 \pmod{8}}
\begin{cases} x & x>0 \\ -x & x\le 0\end{cases} | \boxed{\begin{cases} x & x>0 \end{cases}}
\text{Friday} | \boxed{\text{not Friday}}
100 | \boxed{99.9999999}
7 | The answer is not 7.
5 | \boxed{-x = 5}
3 \text{ hours } 20 \text{ minutes} | \boxed{3.2 \text{ hours}}
\sqrt{2} | \boxed{1 \approx \sqrt{2}}
\text{ABD} | \boxed{A, B, C}
f(t) = t^2 | \boxed{f(x) = x^3}
\frac{\pi}{4}+k\pi, k\in\mathbb{Z} | \boxed{\frac{\pi}{4}}
\mathbb{R} | \boxed{\mathbb{Z}}
x \equiv 1, 5 \pmod 6 | \boxed{x \equiv 1 \pmod 6}
42 | \boxed{41?}
42 | \boxed{\zzz}
42 | \boxed{>42}
42 | \boxed{42 \text{ less}}
5 | \boxed{5 \text{ is wrong}}
4 | \boxed{4 \unknown}
CAT | \boxed{ACT}
DAB | \boxed{BAD}
HHT | \boxed{THH}
XIV | \boxed{XVI}
\text{DAB} | \boxed{BAD}
2011 | \boxed{2021-05-05}
2021-05-05 | \boxed{2011}
3/4/2020 | \boxed{6/8/2020}
1914-1918 | \boxed{1939-1943}
555-1234 | \boxed{-679}
9007199254740993 | \boxed{9007199254740992.0}
10 | \boxed{9.9999999999999999999999}
123456789 | \boxed{1.23457\times10^8}
2, 2, 3 | \boxed{2, 3, 3}
42 | \boxed{\boxed{41}\boxed{42}}
42 | \boxed{\text{half of } 42}
42 | \boxed{\text{twice } 42}
42 | The answer is twice 42
42 | The answer is twice 42.
42 | The answer is negative 42.
42 | The answer is minus 42.
42 | The answer is 5 times 42.
42 | The answer is one over 42.
42 | The answer is the square root of 42.
42 | The answer is at least 42.
42 | The answer is between 41 and 42.
42 | The answer is 42 squared.
42 | The answer isn't 42.
42 | The answer is definitely not $42$.
42 | It is twice 42.
42 | It is the square root of $42$.
42 | I get at least 42.
42 | It lies between 41 and 42.
42 | So it is 42 squared.
42 | It isn't 42.
42 | It is definitely not $42$.
42 | The result is one over 42.
42 | We get minus 42.
42 | negative 42
\mathbb{R} | \boxed{x>1 \text{ and } x<3}
x>1 \text{ and } x<3 | \boxed{\mathbb{R}}
x<2 \text{ or } x>5 | \boxed{x<2 \text{ and } x>5}
x>0 \text{ and } y>0 | \boxed{x>0 \text{ or } y>0}
x=1 \text{ and } y=2 | \boxed{x=1 \text{ or } y=2}
42 | \boxed{42 \text{ dozen}}
42 | \boxed{42 \text{ lakh}}
42 | \boxed{42 \text{ crore}}
42 | \boxed{42 \text{ bn}}
42 | \boxed{42 \text{ M}}
42 | \boxed{42 \text{ k}}
42 | \boxed{42 \text{ halves}}
42 | \boxed{42 \text{ thirds}}
42 | \boxed{42 \text{ squared}}
42 | \boxed{42 \text{ cubed}}
42 | \boxed{42 \text{ factorial}}
42 | \boxed{42 \text{ reciprocal}}
42 | \boxed{42 \text{ negative}}
42 | \boxed{42 \text{ minus one}}
42 | \boxed{42 \text{ ppm}}
42 | \boxed{42 \text{ below zero}}
42 | \boxed{42 \text{ pi}}
42 | \boxed{42 \text{ MM}}
42 | \boxed{42 \text{ widgets}}
5 | \boxed{\text{twice the answer} = 5}
5 | \boxed{wrong = 5}
5 | \boxed{\text{half} = 5}
5 | \boxed{x!=5}
"""
"""Ground truth and answer, which do not."""


FAMILIES = r"""
100\ \Omega | \boxed{100} | 1
100\ \Omega | \boxed{0.1\ \text{k}\Omega} | 1
100\ \Omega | \boxed{100\text{ ohms}} | 1
100\ \Omega | \boxed{100\ \text{k}\Omega} | 0
100\ \Omega | \boxed{10\ \Omega} | 0
4.7\ \text{k}\Omega | \boxed{4700\ \Omega} | 1
5\ \mu m | \boxed{5\times10^{-6}\text{ m}} | 1
5\ \mu m | \boxed{5\times10^{-6} m} | 1
5\ \mu\text{m} | \boxed{5 μm} | 1
5\ \mu\text{m} | \boxed{5\ \text{m}} | 0
5\ \mu\text{m} | \boxed{0.005\ \text{mm}} | 1
5\ \mu\text{m} | \boxed{5\times10^{-3}\text{ m}} | 0
1.6\times10^{-19}\ \text{C} | \boxed{1.6\times10^{-19}} | 1
1.6\times10^{-19}\ \text{C} | \boxed{1.6\times10^{-19}\text{ C}} | 1
1.6\times10^{-19}\ \text{C} | \boxed{1.6\times10^{-18}\text{ C}} | 0
3\ \mu\text{F} | \boxed{3\times10^{-6}\ \text{F}} | 1
25^\circ\text{C} | \boxed{77^\circ\text{F}} | 1
25^\circ\text{C} | \boxed{25^\circ\text{F}} | 0
25^\circ\text{C} | \boxed{298.15\text{ K}} | 1
|x-1|<2 | \boxed{(-1,3)} | 1
|x-1|<2 | \boxed{-1<x<3} | 1
|x-1|<2 | \boxed{[-1,3]} | 0
|x-1|<2 | \boxed{x<3} | 0
(-1,3) | \boxed{|x-1|<2} | 1
x\notin[2,5] | \boxed{x<2 \text{ or } x>5} | 1
x<2 \text{ or } x>5 | \boxed{x \notin [2,5]} | 1
x<2 \text{ or } x>5 | \boxed{x \in [2,5]} | 0
x<2 \text{ or } x>5 | \boxed{x \notin (2,5)} | 0
€5,50 | \boxed{5.50} | 1
€5,50 | \boxed{550} | 0
€5,50 | \boxed{€5.05} | 0
5,50 € | \boxed{5.5} | 1
12,34,567 | \boxed{1234567} | 1
12,34,567 | \boxed{1234576} | 0
1234567 | \boxed{12,34,567} | 1
1.234,56 | \boxed{1234.56} | 1
1.234,56 | \boxed{1.23456} | 0
1.234.567 | \boxed{1234567} | 1
1.234.567 | \boxed{1.234567} | 0
1 234 567,89 | \boxed{1234567.89} | 1
1 234 567,89 | \boxed{123456789} | 0
x=1或x=2 | \boxed{x=1 \text{ or } x=2} | 1
x=1或x=2 | \boxed{x=1} | 0
x>1且x\neq 2 | \boxed{(1,2)\cup(2,+\infty)} | 1
x>1且x\neq 2 | \boxed{(1,+\infty)} | 0
\frac{d}{dx}x^2 | \boxed{2x} | 1
\frac{d}{dx}x^2 | \boxed{x} | 0
\frac{10!}{3!7!} | \boxed{120} | 1
\frac{10!}{3!7!} | \boxed{121} | 0
30^\circ 15' | \boxed{30.25^\circ} | 1
30^\circ 15' | \boxed{30.15^\circ} | 0
30^\circ 15' 36'' | \boxed{30.26^\circ} | 1
H_2O | \boxed{\text{H}_2\text{O}} | 1
H_2O | \boxed{\mathrm{H_2O}} | 1
H_2O | \boxed{\ce{H2O}} | 1
H_2O | \boxed{H₂O} | 1
H_2O | \boxed{H_2O_2} | 0
H_2O | \boxed{\text{HO}} | 0
\ce{H2O} | \boxed{\ce{H2O2}} | 0
\text{Fe}^{3+} | \boxed{\mathrm{Fe^{3+}}} | 1
\text{Fe}^{3+} | \boxed{\text{Fe}^{2+}} | 0
SO_4^{2-} | \boxed{\text{SO}_4^{2-}} | 1
Ca(OH)_2 | \boxed{\mathrm{Ca(OH)_2}} | 1
NaCl | \boxed{\text{NaCl}} | 1
\ce{2H2 + O2 -> 2H2O} | \boxed{\ce{O2 + 2H2 -> 2H2O}} | 1
\ce{2H2 + O2 -> 2H2O} | \boxed{\ce{H2 + O2 -> H2O}} | 0
21 | \boxed{\text{twenty-one}} | 1
21 | \boxed{\text{twenty-two}} | 0
\text{twenty-one} | \boxed{21} | 1
123 | \boxed{\text{one hundred twenty-three}} | 1
2500 | \boxed{\text{two thousand five hundred}} | 1
\frac23 | \boxed{\text{two thirds}} | 1
\frac23 | \boxed{\text{two-thirds}} | 1
\text{isosceles triangle} | \boxed{\text{an isosceles triangle}} | 1
\text{an isosceles triangle} | \boxed{\text{isosceles triangle}} | 1
\text{an isosceles triangle} | \boxed{\text{an equilateral triangle}} | 0
-42 | The answer is negative 42. | 1
-42 | The answer is minus forty-two. | 1
5 | \boxed{f(2)=5} | 1
5 | \boxed{f(2)=6} | 0
f(2)=5 | \boxed{5} | 1
12:00 \text{ pm} | \boxed{\text{noon}} | 1
\text{noon} | \boxed{12:00 \text{ p.m.}} | 1
\text{noon} | \boxed{12:00 \text{ a.m.}} | 0
\text{midnight} | \boxed{\text{noon}} | 0
3 \pmod 7 | \boxed{3} | 1
3 | \boxed{3 \pmod 7} | 1
3 \pmod 7 | \boxed{4} | 0
3 \pmod 7 | \boxed{10} | n
9 \text{ pm} | \boxed{21:00} | 1
45 | \boxed{45^\circ} | 1
\frac{1}{2} | The answer is one half. | 1
7:05 \text{ PM} | \boxed{19:05} | 1
|x| \ge 2 | \boxed{(-\infty,-2]\cup[2,\infty)} | 1
|x| \ge 2 | \boxed{[-2,2]} | 0
x^2 < 9 | \boxed{-3<x<3} | 1
x^2 < 9 | \boxed{x<3} | 0
CO_2 | \boxed{CO} | 0
NO_2 | \boxed{N_2O} | 0
\ln|x| | \boxed{\ln x} | n
3\ \text{kN} | \boxed{3000\ \text{N}} | 1
3\ \text{kN} | \boxed{3000\ \text{kN}} | 0
5\text{元} | \boxed{5元} | 1
3 | \boxed{3种} | 1
3 | \boxed{4种} | 0
2\text{ 小时} | \boxed{120\text{ 分钟}} | 1
2\text{ 小时} | \boxed{2\text{ 分钟}} | 0
f(x) = x^2 | \boxed{f(t) = t^2} | 1
P(A) = \frac14 | \boxed{0.25} | 1
P(A) = \frac14 | \boxed{P(B) = \frac14} | 0
f(3) = 7 | \boxed{f(2) = 7} | 0
5 | \boxed{f(x)+1 = 5} | n
7 \text{ or } -4 | $n=7$ or $n=-4$ | 1
7 \text{ or } -4 | $n=7$ | 0
8 | The results are 7 and 8. | 0
7, 8 | The results are 8 and 7. | 1
9 | \boxed{4} or \boxed{9} | 0
9 | \boxed{9}, or 4 | 0
\frac{1}{4} | \boxed{\frac14}, or 0.25 | 1
9 | 1 2 3 9 | 0
9 | It may be 7, 8 or 9 | 0
9 | The answer cannot be 9. | 0
9 | Anything but 9. | 0
9 | Any number different from 9 will do. | 0
9 | It is false that we get 9. | 0
9 | If the expected answer is 9, then my answer is 9; otherwise it is another. | 0
9 | The answer is 9, not 8. | 1
9 | The answer is not 8 but 9. | 1
9 | The answer isn't 8; we must count both, so it is 9. | 1
9 | The length is $4$; correction, so the length is $9$. | 1
4 | The length is $4$; correction, so the length is $9$. | 0
9 | Answer: 9 (that is, 3 × 3) | 1
9 | The answer is $\$9$. | 1
9 | There are nine ways. | 1
9 | 9 pence | 1
£9 | 9 pence | 0
£9 | 9 pounds | 1
2,7 | Das Ergebnis ist 2,7. | 1
2.7 | Das Ergebnis ist 2,7. | 1
4500000 | Il y a 4.500.000 habitants, donc le nombre est 4.500.000. | 1
4500000 | Le nombre est 4.500.001. | 0
\text{parabola} | The curve is a parabola. | 1
\text{parabola} | The curve is either a line or a parabola. | 0
\text{parabola} | The curve is a circle. | 0
\text{no} | No, there is none. | 1
\text{no} | Yes, there is one. | 0
\text{no} | No... the first case fails, so the answer is yes. | 0
SO_2 | The gas is SO₂. | 1
SO_2 | The gas is SO₃. | 0
B | The correct option is $\textbf{(B)}$. | 1
B | The correct option is $\textbf{(C)}$. | 0
\text{April 9, 1987} | \boxed{\text{9 April 1987}} | 1
\text{April 9, 1987} | 1987-04-09 | 1
\text{April 9, 1987} | \boxed{\text{9 May 1987}} | 0
5th | \boxed{\text{fifth}} | 1
5th | \boxed{\text{sixth}} | 0
32^{\text{nd}} | the thirty-second term | 1
x^4 + C | \boxed{x^4 + c} | 1
x^4 + C | \boxed{x^4 + 5 + C_1} | 1
x^4 + C | \boxed{x^4} | 0
x^4 + C | \boxed{x^3 + C} | 0
\ln|x-2|+C | \boxed{\ln|3x-6| + c} | 1
\ln|x-2|+C | \boxed{\ln(x-2) + c} | n
A + B + C | \boxed{A+B+C+5} | 0
x = \frac{\pi}{5} + k\pi, k \in \mathbb{Z} | \boxed{x = n\pi - \frac{4\pi}{5},\ n\in\mathbf{Z}} | 1
x = \frac{\pi}{5} + k\pi, k \in \mathbb{Z} | \boxed{x = 2n\pi + \frac{\pi}{5},\ n\in\mathbf{Z}} | 0
x = \frac{\pi}{5} + k\pi, k \in \mathbb{Z} | $x=\frac{\pi}{5}+k\pi$, where $k$ is any integer. | 1
(s, 3s), s \in \mathbb{R} | \boxed{(t, 3t)\ (t\in\mathbb{R})} | 1
(s, 3s), s \in \mathbb{R} | \boxed{(3t, t),\ t\in\mathbb{R}} | 0
n \equiv 1, 3 \pmod 8 | \boxed{n\equiv 1\pmod 8\text{ or } n\equiv 3\pmod 8} | 1
n \equiv 1, 3 \pmod 8 | \boxed{n\equiv 1\pmod 8} | 0
x\equiv 2,5 \pmod 7 | \boxed{x\equiv \pm 2 \pmod 7} | 1
\{2,3,4\} | \boxed{\{n\in\mathbb{Z} : 2\le n\le 4\}} | 1
\{2,3,4\} | \boxed{\{n\in\mathbb{Z} : 2\le n< 4\}} | 0
Q(3,-1) | \boxed{(3,-1)} | 1
Q(3,-1) | \boxed{(-1,3)} | 0
4\mathbf{i}-\mathbf{j} | \boxed{\langle 4,-1\rangle} | 1
4\mathbf{i}-\mathbf{j} | \boxed{4\hat{i}-\hat{j}} | 1
4\mathbf{i}-\mathbf{j} | \boxed{\langle 4,1\rangle} | 0
(4,-1) | \boxed{\vec{u}+\vec{v}=(4,-1)} | 1
6x | \boxed{\frac{dy}{dx}=6x} | 1
6x | \boxed{\frac{dy}{dx}=5x} | 0
20 | \boxed{C(6,3)=20} | 1
35\% | $\frac{7}{20} = 35\%$ | 1
35\% | $\frac{7}{20} = 36\%$ | 0
\text{True}, \text{False} , \text{True} | (a) True, (b) False, (c) True | 1
\text{True}, \text{False} , \text{True} | \boxed{\text{True, True, False}} | 0
(1) 6; (2) \frac{1}{3} | (1) $6$; (2) $\frac{1}{3}$ | 1
(1) 6; (2) \frac{1}{3} | (1) $\frac{1}{3}$; (2) $6$ | 0
②④ | \boxed{②④} | 1
②④ | \boxed{②③} | 0
(n-2)3^{n}+1 | \boxed{1+(n-2)\cdot 3^n} | 1
(n-2)3^{n}+1 | \boxed{1+(n-1)\cdot 3^n} | 0
2:20 \text{ PM} | \boxed{2{:}20\text{ PM}} | 1
10:45 \text{ AM} | \boxed{22:45} | 0
2 \text{ hours } 15 \text{ minutes} | 2 h 15 min | 1
\frac{1}{9} | The chance is 1 in 9. | 1
37.2 | \boxed{37.24} | n
37.2 | \boxed{37.29} | 0
\text{A or B} | \boxed{\text{A and B}} | 0
(-\infty,0]\cup[4,\infty) | $\{x\mid x\leqslant 0 \text{ or } x\geqslant 4\}$ | 1
₹3,40,000 | The price is Rs. 3,40,000. | 1
₹3,40,000 | \boxed{₹34,000} | 0
b_{n+1}=3b_n | \boxed{b_{n+1} = 3b_{n}} | 1
b_{n+1}=3b_n | \boxed{b_{n+1} = 2b_{n}} | 0
753 \text{ BC} | \boxed{753} | n
753 \text{ BC} | \boxed{753 \text{ BC}} | 1
a<=b<c | \boxed{a \le b < c} | 1
D | \boxed{C = D} | n
a<=b<c | \boxed{a < b < c} | 0
P \cup Q | \boxed{Q \cup P} | 1
7 | 7 or Paris | 0
7 | Paris or 7 | 0
7 cm | 7 cm or Rome | 0
7 | 7 or so | 1
7 | yes, 7, New York | 0
7 | 7, yes, New York, no | 0
7 | So, 7, as expected. | 1
7 | The result, 7, is prime. | 1
7 | yes, 7 | 1
7 | If the answer is 7, I would be surprised. | 0
7 | One might think the answer is 7. | 0
7 | Suppose it is 7. | 0
7 | Die Antwort ist 7. (Probe: 3+4) | 1
7 | La réponse est 7, car 3 + 4 = 7 et non 8. | 1
7 | La respuesta es 7. Hay 3 pasos. | 1
7 | 答えは7です。 | 1
7 | 정답은 7입니다. | 1
7 | Some think it is 7. | 0
7 | The answer is 7 if I am not mistaken. | 1
7 | If we add 3 and 4, the answer is 7. | 1
7 | 7 in base 9 | n
7 | \boxed{7} Wait, let me check: 3+4 = 7. The answer is 3+4. | 1
dog | \boxed{god} | 0
I am | \boxed{am I} | 0
a cat | \boxed{act a} | 0
abc | \boxed{cba} | 1
xy | \boxed{yx} | 1
\vec a\times\vec b | \boxed{\vec b\times\vec a} | 0
\vec a\times\vec b | \boxed{-\vec b\times\vec a} | 1
\vec a\times 2\vec b | \boxed{2\vec a\times\vec b} | 1
\vec a\cdot\vec b | \boxed{\vec b\cdot\vec a} | 1
\vec a\cdot\vec b | \boxed{\vec a\times\vec b} | 0
\vec a\times(\vec b+2\vec c) | \boxed{\vec a\times\vec b-2\vec c\times\vec a} | 1
\mathbf{u}\times\mathbf{v} | \boxed{\mathbf{u}\mathbf{v}} | 0
a \times b | \boxed{b \times a} | 1
AB^{-1} | \boxed{B^{-1}A} | 0
X = A^{-1}B | \boxed{X = BA^{-1}} | 0
X = A^{-1}B | \boxed{A^{-1}B} | 1
A^{-1}B | \boxed{A^{-1} \cdot B} | 1
B^{-1}A^{-1} | \boxed{(AB)^{-1}} | 1
B^{-1}A^{-1} | \boxed{(BA)^{-1}} | 0
A^T B | \boxed{BA^T} | 0
B^TA^T | \boxed{(AB)^{\top}} | 1
P^{-1}AP | \boxed{A} | 0
g^{-1}hg | \boxed{h} | 0
AB - BA | \boxed{0} | 0
AB - BA | \boxed{BA - AB} | 0
A^2 + AB + BA + B^2 | \boxed{(A+B)^2} | 1
A^2 + AB + BA + B^2 | \boxed{A^2+2AB+B^2} | 0
\frac{P}{V} | \boxed{V^{-1}P} | 1
\frac{GM}{r^2} | \boxed{\frac{MG}{r^2}} | 1
mgh | \boxed{hmg} | 1
act | \boxed{cat} | 0
red | \boxed{Red} | 1
2 dog | \boxed{2 god} | 0
DNE | \boxed{\text{undefined}} | 1
u + at | \boxed{at + u} | 1
f(x)=x | \boxed{f(y)=x} | 0
f(x)=ax | \boxed{f(a)=a^2} | 0
f(x)=ax | \boxed{f(t)=ta} | 1
f(x,y)=x-y | \boxed{f(y,x)=y-x} | 1
f(x,y)=x-y | \boxed{f(y,x)=x-y} | 0
2 | \boxed{2\text{nd}} | n
2nd | \boxed{2} | 1
March 15, 2021 | The date was March 15th, 2021. | 1
255 | \boxed{FF_{16}} | n
6.02 \times 10^{23} | \boxed{6.02 x 10^23} | 1
6.02 \times 10^{23} | \boxed{6.02 x 10^{22}} | 0
12 | \boxed{12 sq. ft.} | 1
12 \text{ ft}^2 | \boxed{12 \text{ sq ft}} | 1
12 \text{ ft}^2 | \boxed{12 \text{ cu ft}} | 0
42 | \boxed{42 years old} | 1
42 \text{ years} | \boxed{42 \text{ years old}} | 1
\text{none} | \boxed{\emptyset} | 1
\emptyset | \boxed{\text{There are no solutions}} | 1
\text{none} | \boxed{0} | 0
\text{undefined} | The limit does not exist. | 1
\text{diverges} | The series diverges. | 1
\text{diverges} | The series converges. | 0
x>3 | x is greater than 3 | 1
x>3 | \boxed{x \text{ is less than } 3} | 0
x \ge 3 | \boxed{x \text{ is at least } 3} | 1
x \ge 3 | \boxed{x \text{ is greater than or equal to } 3} | 1
-2 | \boxed{\det\begin{pmatrix}1&2\\3&4\end{pmatrix}} | 1
-2 | \boxed{\det A = -2} | 1
\deg(f) = 2 | \boxed{\dim(f) = 2} | 0
\Gamma(5) | \boxed{24} | 1
\Gamma(n+1) | \boxed{n!} | 1
\Gamma(5) | \boxed{120} | 0
\frac{\pi^2}{6} | \boxed{\zeta(2)} | 1
n \equiv 3 \pmod{7} | \boxed{n = 7k+3,\ k\in\mathbb{Z}} | 1
n \equiv 3 \pmod{7} | \boxed{n = 7k - 4} | 1
n \equiv 3 \pmod{7} | \boxed{n = 7k+4} | 0
n \equiv 3 \pmod{7} | \boxed{n = 14k+3} | 0
5 \text{ kg} | \boxed{5 \text{ kg of apples}} | 1
\gcd(m,n) | \boxed{1} | 0
36 | \boxed{\text{lcm}(12,18)} | 1
x = A^{-1}b | \boxed{x = bA^{-1}} | 0
3rd | \boxed{\text{third place}} | 1
11 | \boxed{11_{10}} | 1
255 | \boxed{0xFF} | n
5 \text{ cm} | \boxed{5} m | 0
5 \text{ cm} | $\boxed{50}\text{ mm}$ | 1
12\pi \text{ cm}^2 | $\boxed{12\pi}\text{ cm}^2$ | 1
12\pi \text{ cm}^2 | $\boxed{12\pi}$ cm | 0
5 | \boxed{5} dozen | 0
5 | \boxed{5} apples | 1
5 | $-\boxed{5}$ | 0
-5 | $x = -\boxed{5}$ | 1
5 | - \boxed{5} | 1
5 | $x \ne \boxed{5}$ | 0
5 | $\boxed{5}^2$ | 0
5 | $2\cdot\boxed{5}$ | 0
5 | $3 \times \boxed{5} = 15$ | 1
5 | $\sqrt{\boxed{5}}$ | 0
5 | <answer>\boxed{5}</answer> | 1
42 | We need 42 m of rope. | 1
12 \text{ cm}^2 | It covers 12 cm² of paper. | 1
10 \text{ dozen} | \boxed{10} | 0
10 \text{ dozen} | \boxed{120} | 1
5 \text{ minutes} | It takes 5 hours. | 0
60 \text{ mph} | It travels 60 miles per hour. | 1
"""
"""Ground truth, answer, and `1`, `0` or `n` (none): ways of writing that are each read as a whole."""

BOXES = r"""
12 | $\boxed{12}\pi$ | 0
12\pi | \boxed{12}\pi | 1
12\pi | The area is \boxed{12}\pi. | 1
12 | The area is \boxed{12}π | 0
12 | \boxed{12}! | 0
12 | $\boxed{12}!$ | 0
12 | So it is \boxed{12}! | 1
12 | So it is $\boxed{12}$! | 1
24 | $\boxed{4}!$ | 1
12 | 2\boxed{12} | 0
24 | $2\boxed{12}$ | 1
12 | \pm\boxed{12} | 0
\pm 12 | $x=\pm\boxed{12}$ | 1
12 | x > \boxed{12} | 0
12 | $x > \boxed{12}$ | 0
x>12 | $x > \boxed{12}$ | 1
12 | We get x \ge \boxed{12}. | 0
204 | \boxed{204\approx 203} | 1
203 | \boxed{204\approx 203} | 0
\sqrt2 | \boxed{\sqrt2\approx 1.414} | 1
1.414 | \boxed{\sqrt2\approx 1.414} | 1
203.6 | \boxed{203.57\approx 203.6} | 1
12 | $x = 3 \cdot 4 = \boxed{12}$ | 1
5 | $15 = 3\times\boxed{5}$ | 0
5 | $3\times\boxed{5}=15$ | 1
5 | $\boxed{5}x$ | 0
5x | $\boxed{5}x$ | 1
3 | $\frac{\boxed{3}}{4}$ | 0
5 | $\sqrt{\boxed{5}}$ | 0
5 | $\mathbf{\boxed{5}}$ | 1
x+1 | $\bm{\boxed{x+1}}$ | 1
5 | {\color{red}\boxed{5}} | 1
5\% | $\boxed{5}\%$ | 1
45 | $\boxed{45}^\circ$ | 1
5 | $\boxed{5} \text{ cm}$ | 1
5 m | $\boxed{5} \text{ cm}$ | 0
9 | The log of \boxed{9} | 0
9 | with a log of \boxed{9} | 1
9 | It equals the reciprocal of \boxed{9} | 0
9 | The answer is the square of \boxed{9} | 0
81 | The answer is the square of \boxed{9} | 1
9 | a third of \boxed{9} | 0
3 | a third of \boxed{9} | 1
5 | $\boxed{5} \text{ dozen}$ | 0
5000 | $\boxed{5} \text{ thousand}$ | 1
(2,3) | $(\boxed{2}, \boxed{3})$ | 1
(3,2) | $(\boxed{2}, \boxed{3})$ | 0
3:4 | $\boxed{3}:\boxed{4}$ | 1
[1,2] | $x\in\boxed{[1,2]}$ | 1
5 | $x \neq \boxed{5}$ | 0
n \equiv 3 \pmod 7 | $n\equiv\boxed{3}\pmod 7$ | 1
n \equiv 3 \pmod 7 | $n\equiv\boxed{3}\pmod 5$ | 0
3 | $n\equiv\boxed{3}\pmod 7$ | 1
12 | \begin{align*} x &= 3\cdot 4 \\ &= \boxed{12} \end{align*} | 1
12 | \[\begin{aligned} x &= 3\cdot 4 \\[4pt] &= \boxed{12} \end{aligned}\] | 1
24 | \[\begin{aligned} x &= 3\cdot 4 \\[4pt] &= 2\cdot\boxed{12} \end{aligned}\] | 1
12 | The answer is twice \boxed{12}. | 0
24 | The answer is twice \boxed{12}. | 1
5 | negative \boxed{5} | 0
-5 | negative \boxed{5} | 1
5 | > \boxed{5} | 1
5 | 1. \boxed{5} | 1
5 | **\boxed{5}** | 1
5 | Total - \boxed{5} | 1
5 | **Answer:** $x = \boxed{5}$ | 1
2, 3 | (a) $\boxed{2}$⏎(b) $\boxed{3}$ | 1
2, 3 | (a) We add, so it is \boxed{2}.⏎⏎(b) Then $y=3$, so \boxed{3}. | 1
3, 2 | (a) $\boxed{2}$⏎(b) $\boxed{3}$ | n
(a) 2 (b) 3 | (a) $\boxed{2}$⏎(b) $\boxed{3}$ | 1
(a) 2 (b) 3 | (a) $\boxed{3}$⏎(b) $\boxed{2}$ | 0
3 | (a) \boxed{2}⏎(b) \boxed{3} | 1
2 | (a) \boxed{2}⏎(b) \boxed{3} | 0
2, 3 | \boxed{(a) 2 (b) 3} | 1
2, 3 | \boxed{\text{(a) } 2 \quad \text{(b) } 3} | 1
(a) 2 (b) 3 | \boxed{(a) 2 (b) 3} | 1
(a) 2 (b) 3 | \boxed{(a)\ 2,\ (b)\ 3} | 1
(a) 2; (b) 3 | \boxed{2, 3} | 1
(a) 2 (b) 3 | \boxed{(a) 3 (b) 2} | 0
2,3 | Part (a): \boxed{2}⏎Part (b): \boxed{3} | 1
2,3 | **(a)** \boxed{2}⏎⏎**(b)** \boxed{3} | 1
width 5, length 10 | The width is $\boxed{5}$ and the length is $\boxed{10}$. | 1
width 5, length 10 | The width is $\boxed{10}$ and the length is $\boxed{5}$. | 0
a=2, b=3 | a is \boxed{3} and b is \boxed{2} | 0
A=\pi r^2 | $\text{Area}=\boxed{\pi r^2}$ | 1
2, 3 | \[ x=\boxed{2} \quad\text{or}\quad x=\boxed{3} \] | 1
5 | $\int_0^1 f(x)\,dx = \boxed{5}$ | 1
5 | $\lim_{x\to 0} \frac{x}{y} = \boxed{5}$ | 1
5 | $x^2=25 \implies x = \boxed{5}$ | 1
5 | We have $x = y$, so $\boxed{5}$ \$ | 1
5 | $AB = \boxed{5}$ | 1
81 | $3^{\boxed{4}}$ | 1
4 | $3^{\boxed{4}} = 81$ | 1
4 | $3^{\boxed{4}}$ | 0
5 | $\boxed{5} > 3$ | 0
5 | \boxed{5} - that is it. | 1
5 | \boxed{5} (since 2+3=5) | 1
5 | So there are \boxed{5} apples. | 1
2 | $\boxed{2}+\sqrt 3$ | 0
2+\sqrt 3 | $\boxed{2}+\sqrt 3$ | 1
2+\sqrt3 | $\boxed{2} + \boxed{\sqrt 3}$ | 1
5 | the answer is $x=$ \boxed{5} | 1
5 | $\text{Answer: } \boxed{5}$ | 1
5 | x = \boxed{5}, as 2x = 10. | 1
\frac{1}{2} | Thus⏎\[⏎\boxed{\frac{1}{2}}.⏎\] | 1
5 | \boxed{5}⏎⏎2+3 | 1
5 | Probability: 1 - \boxed{5} | 0
a=2, b=3 | $a=\boxed{3}$ and $b=\boxed{2}$ | 0
a=2, b=3 | $b=\boxed{2}$ and $a=\boxed{3}$ | 0
x=2, y=3 | $x=\boxed{3}$, $y=\boxed{2}$ | 0
m=1,n=4 | $m=\boxed{4}$ and $n=\boxed{1}$ | 0
x=1, y=2, z=3 | $x=\boxed{3}$, $y=\boxed{2}$, $z=\boxed{1}$ | 0
a=2, b=3 | \boxed{3, 2} | 0
width 5, length 10 | \boxed{\text{width }10, \text{length }5} | 0
a=2, b=3 | $b=\boxed{3}$ and $a=\boxed{2}$ | 1
a=2, b=3 | $a=\boxed{2}$ and $b=\boxed{3}$ | 1
\begin{pmatrix} 1 \\[4pt] 2 \end{pmatrix} | \boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}} | 1
f(x)=\begin{cases}1 & x>0 \\ 0 & x\le 0\end{cases} | \boxed{\begin{cases}1 & x>0 \\[4pt] 0 & x\le 0\end{cases}} | 1
\begin{pmatrix} 1 \\ [1ex] 2 \end{pmatrix} | \boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}} | 1
f(x)=\begin{cases}1 & x>0 \\ 0 & x\le 0\end{cases} | \boxed{\begin{cases}1 & x>0 \\ [1ex] 0 & x\le 0\end{cases}} | 1
\begin{pmatrix} 1 \\* 2 \end{pmatrix} | \boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}} | 1
f(x)=\begin{cases}1 & x>0 \\ 0 & x\le 0\end{cases} | \boxed{\begin{cases}1 & x>0 \\* 0 & x\le 0\end{cases}} | 1
\begin{pmatrix} 1 \cr 2 \end{pmatrix} | \boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}} | 1
f(x)=\begin{cases}1 & x>0 \\ 0 & x\le 0\end{cases} | \boxed{\begin{cases}1 & x>0 \cr 0 & x\le 0\end{cases}} | 1
\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix} | \boxed{\begin{pmatrix}-\tfrac13\\[2pt]\tfrac23\end{pmatrix}} | 1
"""
"""The same of boxes, in formulas and with names; `⏎` begins a line."""

ASKED = r"""
How many metres is it? | 7 | \boxed{7\text{ km}} | 0
How many metres is it? | 7 | \boxed{x = 0.007\text{ km}} | 1
What is the distance, in meters? | 7 | \boxed{7\text{ km}} | 0
How many square feet is it? | 7 | \boxed{7\text{ feet}} | 0
How many square feet is it? | 7 | \boxed{7} | 1
What is its speed in miles per hour? | 7 | \boxed{7 \text{ km/h}} | 0
How far is it? | 7 | \boxed{7\text{ km}} | 1
How many hours a week are 60 minutes a day? | 7 | \boxed{7\text{ hours}} | 1
How many days is school? | 7 | \boxed{7\text{ school days}} | 1
Write five in base 2. | 101_2 | \boxed{101} | 1
Write five in base 2. | 101_2 | \boxed{5} | n
Write five in binary. | 101 | \boxed{101_2} | 1
What is the number? | 101_2 | \boxed{101} | 0
What is the number? | 101_2 | \boxed{5} | 1
What is 100 + 1? | 101 | \boxed{101_2} | 0
What is 250 + 5? | 255 | \boxed{FF_{16}} | 1
Convert 11_2 to decimal. | 3 | \boxed{11_2} | n
How many apples? | 2 | \boxed{2\text{nd}} | 0
How many metres is it? | 7 | \boxed{7} km | 0
How many metres is it? | 7 | So we get $7$ km. | 0
How many minutes does it take? | 120 | It takes 120 seconds. | 0
How long is the path? | 5 m | \boxed{5} | 1
How long is the path? | 5 m | \boxed{5m} | 1
How long is the path? | 5 m | \boxed{500\text{ cm}} | 1
How long is the path? | 5 m | \boxed{5\text{ cm}} | 0
Simplify $2m+3m$. | 5 m | \boxed{5} | 0
How long is it in metres? | 5m | \boxed{5} | 1
How many? | 5 x | \boxed{5} | 0
Find the acceleration in $\text{m/s}^2$. | 9.8 | \boxed{9.8 \text{ km/s}^2} | 0
How many days are in a week? | 7 | \boxed{7 \text{ weeks}} | 0
How many degrees is the angle? | 45 | \boxed{45 \text{ radians}} | 0
What is the temperature in degrees Celsius? | 10 | \boxed{10^\circ F} | 0
Find the lengths in cm. | 2, 3 | \boxed{2 \text{ m}, 3 \text{ m}} | 0
What is 66_7 + 33_7? Express your answer in base 7. | 132_7 | \boxed{132} | 1
Convert the decimal number 77 to base 5. | 302 | \boxed{302_5} | 1
Find 1011_2 in base ten. | 11 | \boxed{1011_2} | n
Write 11 (base 10) in base 2. | 1011_2 | \boxed{1011} | 1
What is the area of a triangle with base 6 and height 4? | 12 | \boxed{12.0} | 1
In which century was it? | 21 | \boxed{21^{\text{st}}} | 1
Find the ordered pair (x,y). | (2,3) | $y=\boxed{2}$, $x=\boxed{3}$ | 0
Find the ordered pair (x,y). | (2,3) | $y=\boxed{3}$, $x=\boxed{2}$ | 1
Find x and y. | x=12 | $y=\boxed{12}$ | 0
Find x. | x=12 | $S=\boxed{12}$ | 1
Let A and B be matrices. | A(B+C) | \boxed{BA + CA} | 0
"""
"""Question, ground truth, answer, and the verdict."""

FORMULAS = r"""
? | |x-5| | \boxed{5-x} | 0
? | |x+5| | \boxed{x+5} | 0
? | |x+3| | \boxed{x+3} | 0
? | \sqrt{(x-4)^2} | \boxed{4-x} | 0
? | \sqrt{x^2-8x+16} | \boxed{4-x} | 0
? | |2x-9| | \boxed{9-2x} | 0
? | |x^2-16| | \boxed{16-x^2} | 0
? | |t-4| | \boxed{4-t} | 0
? | |x-1|+|x-5| | \boxed{|x-1|+5-x} | 0
? | \max(x,10) | \boxed{10} | 0
? | \min(x,10) | \boxed{x} | 0
? | \min(n,5) | \boxed{n} | 0
? | \frac{|x-7|}{x-7} | \boxed{-1} | 0
? | \lfloor\frac{|x|}{4}\rfloor | \boxed{0} | 0
? | y=|x-5| | \boxed{y=5-x} | 0
? | (|x-5|,1) | \boxed{(5-x,1)} | 0
? | |x-5| | \boxed{|5-x|} | 1
? | |x-1| | \boxed{x-1} | 0
? | \sqrt{(x-4)^2} | \boxed{|x-4|} | 1
? | n+k-1 | \boxed{n+k} | 0
? | n+k | \boxed{n+k} | 1
? | x+c | \boxed{x+c+1} | 0
? | 2x+k | \boxed{2x+k+3} | 0
? | x^2+K | \boxed{x^2} | 0
? | x^2+C | \boxed{x^2+5+C} | 1
Find the integral of 2x. | x^2+c | \boxed{x^2+c-7} | 1
Expand. | x^2+k | \boxed{x^2+k+1} | 0
? | (-1)^{n-k}\binom{n}{k} | \boxed{\binom{n}{k}} | 0
? | (-1)^{n-k}\binom{n}{k} | \boxed{(-1)^{n+k}\binom{n}{k}} | 1
? | (-1)^{n-k}\binom{n}{k} | \boxed{(-1)^{n-k}\frac{n!}{k!(n-k)!}} | 1
? | (-1)^{n+1} | \boxed{-(-1)^{n}} | 1
? | (-1)^{n+1} | \boxed{(-1)^{n}} | 0
? | \frac{1+(-1)^n}{2} | \boxed{\cos^2(\frac{n\pi}{2})} | 1
? | \frac{1+(-1)^n}{2} | \boxed{1} | 0
? | \frac{1+(-1)^n}{2} | \boxed{0} | 0
? | \ln\frac{x-5}{x-7} | \boxed{\ln(x-5)-\ln(x-7)} | 1
? | \ln((x-5)^2) | \boxed{2\ln|x-5|} | 1
? | \ln(x^2-9) | \boxed{\ln(x-3)+\ln(x+3)} | 1
? | \sqrt{x-50}\sqrt{x-60} | \boxed{\sqrt{(x-50)(x-60)}} | 1
? | \sqrt[3]{-x} | \boxed{-\sqrt[3]{x}} | 1
? | x^{1/3}x^{2/3} | \boxed{x} | 1
? | \sqrt{x^2-1} | \boxed{\sqrt{x-1}\sqrt{x+1}} | 1
? | \binom{n+1}{k+1} | \boxed{\binom{n}{k}+\binom{n}{k+1}} | 1
? | \binom{n}{k} | \boxed{\binom{n}{n-k}} | 1
? | \binom{n-1}{k-1} | \boxed{\binom{n-1}{n-k}} | 1
? | \frac{n!}{(n-2)!} | \boxed{n(n-1)} | 1
? | \frac{(2n)!}{2^n n!} | \boxed{\frac{(2n)!}{n!2^{n}}} | 1
? | \binom{2n}{n} | \boxed{\frac{(2n)!}{(n!)^2}} | 1
? | n! | \boxed{n(n-1)!} | 1
? | \binom{n}{2} | \boxed{\frac{n(n-1)}{2}} | 1
? | \binom{n}{2} | \boxed{\frac{n(n+1)}{2}} | 0
? | \lfloor \frac{n}{2}\rfloor | \boxed{\frac{2n-1+(-1)^n}{4}} | 1
? | \lfloor \frac{n}{2}\rfloor | \boxed{\frac{n}{2}} | 0
? | \lfloor x\rfloor | \boxed{x} | 0
? | \lceil x\rceil | \boxed{\lfloor x\rfloor+1} | 0
? | \lceil x\rceil | \boxed{-\lfloor -x\rfloor} | 1
? | \lfloor\frac{x+y}{3}\rfloor | \boxed{\lceil\frac{x+y}{3}\rceil-1} | 0
For positive x | \lceil\sqrt{x}\rceil | \boxed{\lfloor\sqrt{x}\rfloor+1} | 0
? | \gcd(a,b) | \boxed{\gcd(b,a)} | 1
? | \gcd(a,b) | \boxed{\gcd(b,c)} | 0
? | \lceil \frac{n}{2}\rceil | \boxed{\lfloor\frac{n+1}{2}\rfloor} | 1
? | \lfloor\frac{x}{1000}\rfloor | \boxed{0} | 0
? | |x-10^9| | \boxed{10^9-x} | 0
? | \max(x,y) | \boxed{\frac{x+y+|x-y|}{2}} | 1
? | \max(x,y) | \boxed{x} | 0
? | \max(x,100) | \boxed{100} | 0
? | |x|+|y| | \boxed{|x+y|} | 0
? | |xy| | \boxed{|x||y|} | 1
? | \sqrt{x^2y^2} | \boxed{xy} | 0
? | \sqrt{x^2y^2} | \boxed{|xy|} | 1
Let x be a positive real number. | \sqrt{x^2} | \boxed{x} | 1
Let $x$ be a positive real number. | \sqrt{x^2} | \boxed{-x} | 0
Simplify for $x<5$. | 5-x | \boxed{|x-5|} | 1
Let $x > 5$. | |x-5| | \boxed{x-5} | 1
Let $x < 5$. | |x-5| | \boxed{x-5} | 0
Let z be a complex number. | |z|^2 | \boxed{z^2} | 0
Let z be a complex number. | |z|^2 | \boxed{z\bar{z}} | 1
? | z\overline{z} | \boxed{|z|^2} | 1
? | 2n\pi | \boxed{2k\pi} | 1
? | x=2n\pi | \boxed{x=2k\pi, k\in\mathbb{Z}} | 1
? | 2n\pi, n\in\mathbb{Z} | \boxed{2k\pi} | 1
? | 2n\pi | \boxed{k\pi} | 0
? | 2n\pi r | \boxed{2k\pi r} | 1
Express it in terms of n and k. | n\pi | \boxed{k\pi} | 0
? | 2\pi n | \boxed{2\pi m} | 1
? | C_1e^{x}+C_2e^{2x} | \boxed{Ae^{x}+Be^{2x}} | 1
? | y=C_1e^{x}+C_2e^{2x} | \boxed{y=C_2e^{x}+C_1e^{2x}} | 1
? | y=C_1e^{x}+C_2e^{2x} | \boxed{y=Ae^{x}+Be^{3x}} | 0
Solve the differential equation y'=2y. | Ce^{2x} | \boxed{Ae^{2x}} | 1
Solve $y' = 2y$. | y=Ce^{2x} | \boxed{y=Ae^{2x}} | 1
Solve $y' = 2y$. | y=Ce^{2x} | \boxed{y=Ae^{x}} | 0
Solve the differential equation. | Ce^{2x} | \boxed{3Ce^{2x}} | 1
? | C_1\cos x+C_2\sin x | \boxed{A\cos x+B\sin x} | 1
? | C_1\cos x+C_2\sin x | \boxed{A\cos x} | 0
? | C_1\cos x+C_2\sin x + x | \boxed{x + A\sin x + B\cos x} | 1
? | \sin^2 x + C | \boxed{-\cos^2 x + C} | 1
? | \sin^2 x+C | \boxed{-\frac12\cos 2x+C} | 1
? | \sin^2 x+C | \boxed{\cos^2x+C} | 0
? | \ln|x|+C | \boxed{\ln|5x|+C} | 1
? | \frac{x^3}{3}+C | \boxed{\frac{x^3}{3}+K} | 1
? | \frac{x^3}{3}+C | \boxed{\frac{x^3}{3}} | 0
Find the integral | x^2 | \boxed{x^2+C} | 0
? | \sin(2x) | \boxed{2\sin x\cos x} | 1
? | \sin^4 x | \boxed{\frac{3-4\cos 2x+\cos 4x}{8}} | 1
? | \tan(x/2) | \boxed{\frac{\sin x}{1+\cos x}} | 1
? | e^{x+y} | \boxed{e^xe^y} | 1
? | e^{2x} | \boxed{(e^x)^2} | 1
? | 2^{x+3} | \boxed{8\cdot 2^x} | 1
? | \sinh x | \boxed{\frac{e^x-e^{-x}}{2}} | 1
? | \log_2 x | \boxed{\frac{\ln x}{\ln 2}} | 1
? | \arcsin x | \boxed{\frac{\pi}{2}-\arccos x} | 1
? | \arcsin x | \boxed{\arccos x} | 0
? | \frac{1}{x-1}-\frac{1}{x+1} | \boxed{\frac{2}{x^2-1}} | 1
? | \sin(n\pi) | \boxed{0} | 1
? | \cos(n\pi) | \boxed{(-1)^n} | 1
? | \cos(2n\pi) | \boxed{1} | 1
? | \sin(\pi x) | \boxed{0} | 0
Let a and b be positive reals. | a^{n}b^{n} | \boxed{(ab)^n} | 1
? | x^y | \boxed{y^x} | 0
? | x^{a+b} | \boxed{x^a x^b} | 1
? | (x^a)^b | \boxed{x^{ab}} | 1
? | \sqrt{a}\sqrt{b} | \boxed{\sqrt{ab}} | 1
? | \frac{a^n-b^n}{a-b} | \boxed{a^{n-1}} | 0
? | 1101_2 | \boxed{13} | n
What is the number? | 13 | \boxed{1101_2} | 1
What is the number? | 1101_2 | \boxed{13} | 1
? | p \wedge q | \boxed{q\wedge p} | 1
? | p \wedge q | \boxed{p\wedge q} | 1
? | p \wedge q | \boxed{p\vee q} | 0
? | p\to q | \boxed{\neg p\vee q} | 1
? | p \land \lnot q | \boxed{\neg(\neg p\lor q)} | 1
? | P(A\cap B) | \boxed{P(B\cap A)} | 1
? | P(A\cap B) | \boxed{P(A\cup B)} | 0
? | P(A\cap B)=\frac14 | \boxed{\frac14} | 1
? | \{2n: n\in\mathbb{Z}\} | \boxed{\{2k \mid k\in\mathbb{Z}\}} | 1
? | \{2n: n\in\mathbb Z\} | \boxed{\{2n+1: n\in\mathbb Z\}} | 0
? | \{2n: n\in\mathbb Z\} | \boxed{\{4n: n\in\mathbb Z\}} | 0
? | \{2n: n\in\mathbb Z\} | \boxed{\{-2n : n \in \mathbb{Z}\}} | 1
? | 2\hat{\imath}+3\hat{\jmath} | \boxed{2\hat{i}+3\hat{j}} | 1
? | 2\hat\imath+3\hat\jmath | \boxed{\langle 2,3\rangle} | 1
? | 2\mathbf{i}+3\mathbf{j} | \boxed{2\hat\imath+3\hat\jmath} | 1
? | 2\hat\imath+3\hat\jmath | \boxed{3\hat\imath+2\hat\jmath} | 0
? | 20 \text{ J} | \boxed{20 \text{ N m}} | 1
? | 20 J | \boxed{20 N m} | 1
? | 20\text{ J} | \boxed{20\ \text{N}\cdot\text{m}} | 1
? | 20\text{ J} | \boxed{20\ \mathrm{N\,m}} | 1
? | 20\text{ J} | \boxed{20\text{ kg m}^2/\text{s}^2} | 1
? | 20\text{ J} | \boxed{20 \text{ N}} | 0
? | 5 \text{ W} | \boxed{5 \text{ J/s}} | 1
? | 5 \text{ N} | \boxed{5 \text{ kg m/s}^2} | 1
? | 5\text{ Pa} | \boxed{5\text{ N/m}^2} | 1
? | 5\text{ C} | \boxed{5\text{ A s}} | 1
? | 5\text{ V} | \boxed{5\text{ J/C}} | 1
In what year was it? | 1776 | \boxed{\text{July 4, 1776}} | 1
In what year was it? | 1776 | \boxed{\text{July 4, 1777}} | 0
In which year was it signed? | 1776 | It was signed on July 4, 1776. | 1
In which year? | 4 | July 4, 1776 | 0
? | \text{sgn}(x-7) | \boxed{\frac{|x-7|}{x-7}} | 1
? | |x^3-1000| | \boxed{1000-x^3} | 0
? | ||x|-5| | \boxed{5-|x|} | 0
? | ||x|-5| | \boxed{||x|-5|} | 1
? | \max(n,k) | \boxed{n} | 0
? | |2^x-1000| | \boxed{1000-2^x} | 0
? | \lfloor\frac{n^2}{4}\rfloor | \boxed{\frac{n^2}{4}} | 0
? | \lfloor\frac{n^2}{4}\rfloor | \boxed{\frac{2n^2-1+(-1)^n}{8}} | 1
? | \lfloor\frac{n^2}{4}\rfloor | \boxed{\lfloor\frac n2\rfloor\lceil\frac n2\rceil} | 1
? | (-1)^{n(n+1)/2} | \boxed{(-1)^n} | 0
? | (-1)^{n(n+1)/2} | \boxed{(-1)^{n(n-1)/2}} | 0
? | i^{2n} | \boxed{(-1)^n} | 1
? | e^{2\pi i n} | \boxed{1} | 1
? | \sqrt[3]{x^6} | \boxed{x^2} | 1
? | \sqrt{5-x} | \boxed{\sqrt{x-5}} | 0
? | \sqrt{100-x^2} | \boxed{10-x} | 0
? | \ln(1-x) | \boxed{\ln(x-1)} | 0
? | m+c | \boxed{m+C} | 0
Solve the differential equation y'=y^2. | y=\frac{1}{C-x} | \boxed{y=-\frac{1}{x+C}} | 1
Solve y''-2y'+y=0. | y=(C_1+C_2x)e^{x} | \boxed{y=Ae^x+Bxe^x} | 1
Solve $\frac{dy}{dx}=2y+1$. | y=Ce^{2x}-\frac12 | \boxed{y=Ae^{2x}-\frac12} | 1
Solve $\frac{dy}{dx}=2y+1$. | y=Ce^{2x}-\frac12 | \boxed{y=Ae^{2x}+\frac12} | 0
Solve the differential equation. | x^2+y^2=C | \boxed{x^2+y^2=C_1} | 1
Solve the differential equation. | y^2=x^2+C | \boxed{y^2-x^2=K} | 1
? | \ln|\sec x|+C | \boxed{-\ln|\cos x|+C} | 1
? | xe^x | \boxed{e^xx} | 1
Find the integral, using C for the constant of integration. | x^2+C | \boxed{x^2+K} | 1
? | x^2+C | \boxed{x^2+2C} | 1
? | x^2+C | \boxed{Cx^2} | 0
Solve the differential equation. | y^2=x^2+C | \boxed{y^2=-x^2+C} | 0
Solve the differential equation y'=y^2. | y=\frac{1}{C-x} | \boxed{y=\frac{1}{C+x}} | 0
? | 12 | $\log \boxed{12}$ | 0
? | 12 | $x_{\boxed{12}}$ | 0
? | 12 | $\boxed{12} \text{ or } 13$ | 0
? | 12 | $(\boxed{12},\boxed{13})$ | 0
? | 12 | $\Rightarrow\boxed{12}$ | 1
? | 12 | 5+7=12 \boxed{12} | 1
? | 12 | $5+7=12$ $\boxed{12}$ | 1
? | 12 | $$5+7=12$$ $$\boxed{12}$$ | 1
? | 12 | $$5+7=12 \quad \boxed{12}$$ | 1
? | 12 | $5+7=12 \ \boxed{12}$ | 1
? | y=2x+3 | $y=\boxed{2x}+3$ | 1
? | 2x+3 | $\boxed{2x}+3$ | 1
? | 2x | $\boxed{2x}+3$ | 0
? | \frac{3}{4} | $\frac{\boxed{3}}{\boxed{4}}$ | 1
? | 3 | $\frac{\boxed{3}}{\boxed{4}}$ | 0
? | 4 | $\frac{\boxed{3}}{\boxed{4}}$ | 0
? | 7 | $\boxed{3}+\boxed{4}$ | 1
? | 4 | $\boxed{3}+\boxed{4}$ | 0
? | 7 | $\boxed{3}+\boxed{4}=\boxed{7}$ | 1
Given $x \ge 0$, simplify. | x | \boxed{\sqrt{x^2}} | 1
Given $x<0$, simplify. | -x | \boxed{|x|} | 1
? | A\cap B | \boxed{B\cap A} | 1
? | A\cap B | \boxed{A\cup B} | 0
? | (A\cup B)^c | \boxed{A^c\cap B^c} | 1
? | p\leftrightarrow q | \boxed{(p\to q)\wedge(q\to p)} | 1
? | 20 \text{ mJ} | \boxed{20\text{ MJ}} | 0
? | 5\text{ Nm} | \boxed{5\text{ J}} | 1
? | 3.6\times10^6\text{ J} | \boxed{1\text{ kWh}} | 1
? | mean 5, median 6 | mean = \boxed{5}, median = \boxed{6} | 1
? | mean 5, median 6 | mean = \boxed{6}, median = \boxed{5} | 0
? | Alice: 5, Bob: 6 | Alice has \boxed{5} and Bob has \boxed{6}. | 1
? | Alice: 5, Bob: 6 | Bob has \boxed{5} and Alice has \boxed{6}. | 0
? | 2, 3 | Sum: \boxed{2}, Check: \boxed{3} | 1
? | (1) 2 (2) 3 | (1) \boxed{2}⏎(2) \boxed{3} | 1
? | \begin{pmatrix}1\\2\end{pmatrix} | \boxed{\begin{pmatrix}1\\\noalign{\medskip}2\end{pmatrix}} | 1
? | 5 \text{ cm} | $\boxed{5}\,\mathrm{m}$ | 0
? | 5 | \boxed{5} squared | 0
? | 5 | $\boxed{5}\checkmark$ | 1
? | 5 | \boxed{5} ✅ | 1
? | 5 | sqrt(\boxed{5}) | 0
? | 5 | It is greater than \boxed{5}. | 0
Find $\int kx\,dx$. | \frac{kx^2}{2}+C | \boxed{kx^2+C} | 0
Find $\int kx\,dx$. | \frac{kx^2}{2}+C | \boxed{\frac{kx^2}{2}+K} | 1
Solve $\frac{dy}{dx}=ky$, where $k$ is a constant. | y=Ce^{kx} | \boxed{y=Ae^{kx}} | 1
Solve $\frac{dy}{dx}=ky$, where $k$ is a constant. | y=Ce^{kx} | \boxed{y=Ae^{2kx}} | 0
Find the antiderivative of x, where C is the constant. | \frac{x^2}{2}+C | \boxed{\frac{x^2}{2}+C} | 1
Evaluate $\int_0^x (t+k)\,dt$. | kx+\frac{x^2}{2} | \boxed{kx+x^2} | 0
Evaluate $\int_0^x ct\,dt$. | \frac{c}{2}x^2 | \boxed{cx^2} | 0
Complete the square | x^2+c | \boxed{x^2+c+1} | 0
Find the energy by integration of F = kx from 0 to A. | \frac{1}{2}kA^2 | \boxed{\frac12 kB^2} | 0
Find the energy by integration of F = kx from 0 to A. | \frac{1}{2}kA^2 | \boxed{kA^2} | 0
Find the work as an integral of kx. | \frac12kx^2 | \boxed{kx^2} | 0
"""
"""The same of formulas: which are equal, of which letters, and on what that rests."""


def pairs(table: str) -> list[tuple[str, str]]:
    return [
        (gold, answer.replace(r".\n", ".\n").replace(r">\n\n", ">\n\n"))
        for line in table.strip().split("\n")
        for gold, _, answer in [line.partition(" | ")]
    ]


def worker_processes() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and "math_worker" in " ".join(child.cmdline())
    ]


@pytest.mark.parametrize(
    ("truth", "answer", "reward"),
    [
        ("4", r"The answer is $\boxed{4}$.", 1.0),
        ("0.5", r"$\boxed{\frac{1}{2}}$", 1.0),
        (r"$\frac{\sqrt{3}}{3}$", r"$\boxed{\frac{1}{\sqrt{3}}}$", 1.0),
        (r"2\pi", r"\boxed{2}", 0.0),
        ("1,234", r"\boxed{1234}", 1.0),
        (3, "3", 1.0),
        ("4", "The answer is 4.", 1.0),
        ("x^2+1", r"\boxed{1 + x^2}", 1.0),
        (1e-05, r"\boxed{0.00001}", 1.0),
        (1.23e20, r"\boxed{123000000000000000000}", 1.0),
        ("1e-05", r"\boxed{1e-5}", 1.0),
        ("10 dollars", r"\boxed{10}", 1.0),
        ("10 miles per hour", r"\boxed{10}", 1.0),
        ("10 dollars", r"\boxed{11}", 0.0),
        ("4", r"\boxed{4} (see \boxed{})", 1.0),
        # The last box counts, so many guesses gain nothing.
        ("42", r"First $\boxed{99}$, correction $\boxed{42}$.", 1.0),
        ("42", r"$\boxed{1}$ and $\boxed{2}$", 0.0),
        ("42", r"$\boxed{42}$, no, $\boxed{2}$", 0.0),
        ("42", " ".join(rf"\boxed{{{guess}}}" for guess in range(40, 60)), 0.0),
        (r"\{1, 2\}", r"\boxed{1} and \boxed{2}", 1.0),
    ],
)
async def test_equality_is_mathematical(truth: object, answer: str, reward: float) -> None:
    result = await MathRewardFunction().compute(action(truth), answered(answer))
    assert result.reward == reward
    assert result.info["matched"] is bool(reward)
    assert result.info["ground_truth"] == truth
    assert result.info["gold_parsed"]
    assert result.info["answer_parsed"]


@pytest.mark.parametrize(
    ("gold", "answer", "matched"),
    [*((*pair, True) for pair in pairs(RIGHT)), *((*pair, False) for pair in pairs(WRONG))],
)
def test_texts_are_read_whole_and_compared_by_what_they_denote(gold: str, answer: str, matched: bool) -> None:
    verdict = verify(gold, answer)
    assert bool(verdict.get("matched")) is matched, verdict
    assert verdict.get("reason") in (None, "answer_parse_failed", "answer_unreadable"), verdict


@pytest.mark.parametrize(
    "row",
    [*(f"? | {row}" for row in (FAMILIES + BOXES).split("\n") if row), *filter(None, (ASKED + FORMULAS).split("\n"))],
)
def test_each_way_of_writing_is_read_as_a_whole_and_as_it_was_asked(row: str) -> None:
    question, _, pair = row.partition(" | ")
    gold, answer, verdict = pair.rsplit(" | ", 2)
    found = verify(gold, answer.replace("⏎", "\n"), question)
    is_unscored = found.get("reason") in ("undecided", "gold_parse_failed")
    assert ("n" if is_unscored else str(int(bool(found.get("matched"))))) == verdict, found


@pytest.mark.parametrize(
    ("gold", "answer", "decided"),
    [
        ("x^2+2x+1", r"\boxed{(x+1)^2}", "proof"),
        ("|x-5|", r"\boxed{|5-x|}", "proof"),
        (r"\max(x,y)", r"\boxed{\frac{x+y+|x-y|}{2}}", "proof"),
        (r"\binom{n+1}{k+1}", r"\boxed{\binom{n}{k}+\binom{n}{k+1}}", "proof"),
        (r"\lfloor\frac n2\rfloor", r"\boxed{\frac{2n-1+(-1)^n}{4}}", "sample"),
        ("x+1", r"\boxed{x+1}", "text"),
        ("x+1", r"\boxed{x+2}", "proof"),
    ],
)
def test_a_verdict_says_whether_it_was_proved_or_sampled(gold: str, answer: str, decided: str) -> None:
    assert verify(gold, answer)["decided"] == decided


@pytest.mark.parametrize("gold", sorted({gold for gold, _ in (*pairs(RIGHT), *pairs(WRONG))}))
def test_a_ground_truth_wins_against_itself(gold: str) -> None:
    assert verify(gold, gold).get("matched")
    assert verify(gold, rf"So it is $\boxed{{{gold}}}$.").get("matched")


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\int_0^1 g(t)\,dt", r"\boxed{7}"),
        ("0.5", r"\boxed{0.5\%}"),
        ("9:30", r"\boxed{9:30 \text{ p.m.}}"),
        ("10101_2", r"\boxed{21}"),
        ("10101_2", r"\boxed{10101}"),
        ("4", r"\boxed{x^2 = 4}"),
        ("5", r"\boxed{|x| = 5}"),
        (r"10^{10^{10}}", r"\boxed{9^{9^{9^9}}}"),
        (r"3^{1000000}", r"\boxed{3^{1000001}}"),
        ("100000!", r"\boxed{99999!}"),
        (r"\binom{5000}{2500}", r"\boxed{\binom{5000}{2499}}"),
        ("1/0", r"\boxed{0/0}"),
        ("5", r"\boxed{f(x)-1 = 5}"),
        ("5", r"\boxed{\sin x = 5}"),
        ("2, 2, 3", r"\boxed{2, 3}"),
    ],
)
async def test_what_cannot_be_decided_has_no_reward_and_a_reason(gold: str, answer: str) -> None:
    result = await MathRewardFunction().compute(action(gold), answered(answer))
    assert result.reward is None
    assert result.info["reason"] in ("undecided", "gold_parse_failed")


@pytest.mark.parametrize(
    ("truth", "answer", "reason"),
    [
        (None, r"\boxed{4}", "invalid_ground_truth"),
        ("", r"\boxed{4}", "invalid_ground_truth"),
        (float("nan"), "4", "invalid_ground_truth"),
        ("4", None, "no_final_response"),
        (r"\unknown{4}{5", r"\boxed{4}", "gold_parse_failed"),
        ("4", "I don't know the answer.", "answer_parse_failed"),
        ("4", r"\boxed{}", "answer_parse_failed"),
        ("4", r"\boxed{4", "answer_parse_failed"),
    ],
)
@pytest.mark.parametrize("bad_ground_truth", [0.0, None])
async def test_nothing_to_compare_says_why_and_a_bad_ground_truth_may_abstain(truth, answer, reason, bad_ground_truth):
    result = await MathRewardFunction(bad_ground_truth=bad_ground_truth).compute(action(truth), answered(answer))
    is_bad = reason in ("invalid_ground_truth", "gold_parse_failed")
    assert (result.reward, result.info["reason"]) == (bad_ground_truth if is_bad else 0.0, reason)


@pytest.mark.parametrize("gold", ["all primes p with p congruent to 1 mod 4", r"\text{if } n \text{ is even}", "{18"])
async def test_a_gold_that_cannot_be_read_scores_no_answer(gold: str) -> None:
    for answer in (gold, rf"\boxed{{{gold}}}", r"\boxed{18}", "I do not know.", "?", "", None):
        result = await MathRewardFunction().compute(action(gold), answered(answer))
        assert (result.reward, result.info["reason"]) == (None, "gold_parse_failed"), answer


@pytest.mark.parametrize(
    ("truth", "digits"), [(10**5000 + 1, f"1{'0' * 4999}1"), ("9" * 6000, "9" * 6000)], ids=["integer", "text"]
)
async def test_a_ground_truth_of_thousands_of_digits_is_compared_within_its_time(truth: int | str, digits: str) -> None:
    for answer, reward in ((digits, 1.0), (digits[:-1] + "8", 0.0), ("7", 0.0)):
        result = await MathRewardFunction().compute(action(truth), answered(rf"\boxed{{{answer}}}"))
        assert (result.reward, result.info.get("reason")) == (reward, None)


async def test_thousands_of_spaces_behind_a_right_answer_are_no_time_out() -> None:
    result = await MathRewardFunction().compute(action("7"), answered(r"\boxed{7}" + " " * 60_000))
    assert (result.reward, result.info.get("reason")) == (1.0, None)


async def test_answers_that_explode_are_wrong_in_time_and_the_next_is_right() -> None:
    reward = MathRewardFunction(timeout=0.5)
    bombs = [
        r"\boxed{\pi^{\pi^{\pi^{\pi^{\pi^\pi}}}}}",
        r"\boxed{9^{9^{9^9}}}",
        r"\boxed{100000000!}",
        r"\boxed{" + "(" * 5000 + "4" + ")" * 5000 + "}",
    ]
    results = await asyncio.gather(*(reward.compute(action("3"), answered(bomb)) for bomb in bombs))
    assert [result.reward for result in results] == [0.0] * 4
    assert results[0].info["reason"] == "timeout"
    assert (await reward.compute(action("3"), answered(r"\boxed{3}"))).reward == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "How many are 3 and 4?",
        "how many are 3 and 4",
        '"How many are 3 and 4?"',
        "How many are 3 and 4? How many are 3 and 4?",
        "Question: How many are 3 and 4?",
        "many are 3 and 4?",
    ],
)
async def test_the_question_repeated_is_no_answer(answer: str) -> None:
    question = Action(message="How many are 3 and 4?", task_context=TaskContext(ground_truth="4"))
    result = await MathRewardFunction().compute(question, answered(answer))
    assert (result.reward, result.info["reason"]) == (0.0, "prompt_repeated")


async def test_a_noun_of_the_question_may_stand_behind_the_number() -> None:
    question = Action(message="How many dozen widgets?", task_context=TaskContext(ground_truth="42"))
    for answer, expected in ((r"\boxed{42 \text{ widgets}}", 1.0), (r"\boxed{42 \text{ dozen}}", 0.0)):
        assert (await MathRewardFunction().compute(question, answered(answer))).reward == expected


def test_workers_are_as_many_as_the_machine_has_room_for() -> None:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
    assert _WORKERS.threads.max_threads == max(1, cpus // 2)


async def test_a_worker_killed_from_outside_costs_nothing() -> None:
    reward = MathRewardFunction()
    await reward.compute(action("4"), answered("4"))
    for process in worker_processes():
        process.kill()
    assert (await reward.compute(action("4"), answered("4"))).reward == 1.0


async def test_workers_are_few_and_closing_leaves_no_process() -> None:
    reward = MathRewardFunction()
    await asyncio.gather(*(reward.compute(action("4"), answered(str(i))) for i in range(50)))
    assert 0 < len(worker_processes()) <= _WORKERS.threads.max_threads
    await asyncio.to_thread(close_math_workers)
    assert worker_processes() == []
    assert (await reward.compute(action("4"), answered("4"))).reward == 1.0


def test_interpreter_ends_at_once_and_takes_its_workers_along() -> None:
    script = (
        "import asyncio, psutil\n"
        "from tests.unit.strands_env.rewards.test_reward_math import action, answered, worker_processes\n"
        "from strands_env.rewards import MathRewardFunction\n"
        "print(asyncio.run(MathRewardFunction().compute(action('4'), answered('4'))).reward)\n"
        "print(*[process.pid for process in worker_processes()])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    reward, pids = done.stdout.splitlines()
    assert reward == "1.0"
    assert pids
    assert not [pid for pid in pids.split() if psutil.pid_exists(int(pid))]


async def test_where_a_harmless_answer_fails_too_the_reward_abstains() -> None:
    result = await MathRewardFunction(timeout=0.5).compute(
        action(r"\pi^{\pi^{\pi^{\pi^{\pi^\pi}}}}"), answered(r"\boxed{4}")
    )
    assert (result.reward, result.info["reason"]) == (None, "cannot_verify")
    with pytest.raises(ValueError, match="timeout must be a positive number"):
        MathRewardFunction(timeout=0)


async def test_an_answer_is_not_wrong_because_the_machine_is_busy() -> None:
    """The worker gets no CPU time for longer than its limit, as beside many other processes."""
    reward = MathRewardFunction(timeout=0.5)
    await reward.compute(action("4"), answered("4"))
    for process in worker_processes():
        process.suspend()
    scoring = asyncio.create_task(reward.compute(action("3/7"), answered(r"\boxed{6/14}")))
    await asyncio.sleep(1.5)
    for process in worker_processes():
        process.resume()
    assert (await scoring).reward == 1.0


async def test_requests_in_a_row_are_one_workers() -> None:
    """A worker takes seconds to start: one that is free is asked before another is started."""
    pool = VerifierPool(8)
    try:
        for _ in range(12):
            await pool.request({"gold": "4", "answer": r"\boxed{4}"}, 3.0)
        assert len(pool.workers) == 1
    finally:
        pool.close()


async def test_a_worker_that_gets_no_time_at_all_gives_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_reward, "STALL_SECONDS", 0.2)
    reward = MathRewardFunction(timeout=0.01)
    await reward.compute(action("4"), answered("4"))
    for process in worker_processes():
        process.suspend()
    result = await reward.compute(action("4"), answered("4"))
    assert (result.reward, result.info["reason"]) == (None, "cannot_verify")


async def test_the_first_verification_of_a_worker_is_as_cheap_as_the_next() -> None:
    await asyncio.to_thread(close_math_workers)
    result = await MathRewardFunction(timeout=0.5).compute(action(r"\frac{3}{7}"), answered(r"\boxed{6/14}"))
    assert result.reward == 1.0


@pytest.mark.parametrize(
    ("harmless", "reward", "reason"),
    [
        ({"matched": False}, 0.0, "worker_died"),
        ({"reason": "verifier_error", "error": "KeyError"}, None, "cannot_verify"),
    ],
)
async def test_answer_that_breaks_the_verifier_is_wrong_unless_a_harmless_one_does(
    harmless: Any, reward: float | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(fields: dict[str, str], seconds: float) -> Any:
        if "bomb" in fields["answer"]:
            return {"reason": "worker_died", "error": "worker died with code -11"}
        return harmless

    monkeypatch.setattr(_WORKERS, "request", die)
    result = await MathRewardFunction().compute(action("4"), answered("bomb"))
    assert (result.reward, result.info["reason"]) == (reward, reason)
    assert result.info["error"] == ("worker died with code -11" if reward == 0.0 else "KeyError")


@pytest.mark.parametrize("answer", [r"\boxed{" * 20_000, r"\boxed{" * 20_000 + "}" * 20_000, "{" * 100_000])
def test_finding_boxes_is_linear(answer: str) -> None:
    assert len(find_boxes(answer)) in (0, 20_000)
