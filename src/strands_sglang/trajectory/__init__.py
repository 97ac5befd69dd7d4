"""Exact token trajectories: turns, the forest they form, views and export. Pure data, no I/O."""

from .fingerprint import ReplyPrint, digest, encode_value
from .forest import Location, TrajectoryForest
from .history import RootReason
from .packed import LOGPROB_TYPECODE, TOKEN_TYPECODE, SamplingMask, Token, WeightSpan, pack_ids, pack_logprobs
from .turn import Completion, Finish, FinishType, LengthLimit, ToolCall, Turn
from .views import TokenManager, Trajectory, join_routed_experts

__all__ = [
    "LOGPROB_TYPECODE",
    "TOKEN_TYPECODE",
    "Completion",
    "Finish",
    "FinishType",
    "LengthLimit",
    "Location",
    "ReplyPrint",
    "RootReason",
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
    "pack_logprobs",
]
