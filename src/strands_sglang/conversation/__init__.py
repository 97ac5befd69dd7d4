"""The core of a rollout: `Conversation`, and its parts. It knows neither events of an SDK nor HTTP."""

from .conversation import Conversation
from .prompts import PreparedTurn, TurnRequest
from .reply import SampledTurn

__all__ = ["Conversation", "PreparedTurn", "SampledTurn", "TurnRequest"]
