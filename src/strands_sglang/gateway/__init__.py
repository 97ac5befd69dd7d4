"""A gateway for agents of any make: OpenAI, Anthropic and Google dialects in front of exact token trajectories.

`Gateway` serves, `Session` is one rollout behind a key; `strands-sglang gateway` runs it as a command.
"""

from .counters import Counters
from .passing import OtherBackend
from .server import Gateway
from .session import Session

__all__ = ["Counters", "Gateway", "OtherBackend", "Session"]
