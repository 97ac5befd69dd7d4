"""Tools for environments: a calculator, code in a sandbox, and limits and a cache around any tool."""

import sys

from strands_env.core.limits import with_limits
from strands_env.core.threads import DaemonThreads

from .cache import cached
from .calculator import CalculatorError, calculate, calculator

if sys.platform != "win32":  # where no sandbox can be imported
    from strands_env.sandbox.agentcore import CodeInterpreterQuotas

    from .code import CodeTools
    from .code_interpreter import CodeInterpreterToolkit

__all__ = [
    "CalculatorError",
    "CodeInterpreterQuotas",
    "CodeInterpreterToolkit",
    "CodeTools",
    "DaemonThreads",
    "cached",
    "calculate",
    "calculator",
    "with_limits",
]
