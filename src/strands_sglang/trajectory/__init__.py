"""Exact token trajectories: turns, the forest they form, views and export. Pure data, no I/O."""

from .forest import Location, TrajectoryForest
from .history import History, RootReason
from .manager import TokenManager
from .message import Call, Image, Message, Result, digest, encode_value
from .packed import SamplingMask, Token, WeightSpan, pack_ids
from .turn import CallOrigin, Completion, Finish, FinishType, LengthLimit, Role, SampledTokens, ToolCall, Turn
from .views import Trajectory, join_routed_experts

__all__ = [
    "Call",
    "CallOrigin",
    "Completion",
    "Finish",
    "FinishType",
    "History",
    "Image",
    "LengthLimit",
    "Location",
    "Message",
    "Result",
    "Role",
    "RootReason",
    "SampledTokens",
    "SamplingMask",
    "Token",
    "TokenManager",
    "ToolCall",
    "Trajectory",
    "TrajectoryForest",
    "Turn",
    "WeightSpan",
    "digest",
    "encode_value",
    "join_routed_experts",
    "pack_ids",
]
