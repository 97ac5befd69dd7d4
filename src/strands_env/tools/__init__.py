"""Tools for environments: a calculator, code in a sandbox, and limits around any tool."""

from typing import TYPE_CHECKING

from strands_env.core.limits import with_limits
from strands_env.core.threads import DaemonThreads
from strands_sglang.compat import names_on_use

from .calculator import CalculatorError, calculate, calculator

if TYPE_CHECKING:
    from strands_env.sandbox.agentcore import CodeInterpreterQuotas

    from .code import CodeTools
    from .code_interpreter import CodeInterpreterToolkit

__all__ = [
    "CalculatorError",
    "CodeInterpreterQuotas",
    "CodeInterpreterToolkit",
    "CodeTools",
    "DaemonThreads",
    "calculate",
    "calculator",
    "with_limits",
]

# A calculator needs no sandbox, which is not on every system.
__getattr__, __dir__ = names_on_use(
    __name__,
    {
        "strands_env.sandbox.agentcore": ("CodeInterpreterQuotas",),
        ".code": ("CodeTools",),
        ".code_interpreter": ("CodeInterpreterToolkit",),
    },
)
