"""Tools for environments: a calculator, code in a sandbox, and limits around any tool."""

import sys

from strands_env.core.limits import with_limits
from strands_env.core.threads import DaemonThreads

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
    "calculate",
    "calculator",
    "with_limits",
]
