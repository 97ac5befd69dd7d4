"""A task of inspect_ai: sums, with a tool. Any task serves as well (see docs/environments-of-others.md).

inspect eval examples/inspect_sums.py --model strands-rollout/smollm2
strands-env eval inspect:examples/inspect_sums.py --limit 4
"""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import match
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import Tool, tool


@tool
def add() -> Tool:
    """Make the tool."""

    async def execute(a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: One number.
            b: Another.
        """
        return str(a + b)

    return execute


@task
def sums(count: int = 20) -> Task:
    """Sums of two numbers below a hundred."""
    pairs = [(7 * n % 97, 13 * n % 89) for n in range(1, count + 1)]
    return Task(
        dataset=[Sample(input=f"What is {a} + {b}? Use the tool.", target=str(a + b)) for a, b in pairs],
        solver=[use_tools(add()), generate(max_tokens=256)],
        scorer=match(numeric=True),
        message_limit=12,
    )
