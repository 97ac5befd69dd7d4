"""`Trajectory`: one path as it is exported. Its tokens are built, and NumPy is imported, when something is read."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema

from .media import PlacedMedium
from .packed import SamplingMask, TokenView, closed_schema
from .turn import Finish, Role, ToolCall, Turn

if TYPE_CHECKING:
    from .tokens import TokenSequence

_FACTS = (
    *("agent_name", "agent_id", "role", "parent", "trainable"),
    *("is_main", "is_discarded", "finish_reason", "order"),
)
_FIELDS = frozenset((*_FACTS, "tokens", "media", "routed_experts"))


@dataclass(kw_only=True)
class Trajectory(TokenView):
    """A path from a root to a leaf: its tokens and the facts about them.

    An episode has several where sub-agents ran, a history was rewritten, or a call was sampled again. Each sampled
    token carries loss in exactly one of them: where paths share a prefix, the first exported one trains its sampled
    tokens; in the others they are context (`output_mask` True, `loss_mask` 0). Used paths come before thrown-away
    samples, so leaving the latter out never loses a token of the former.

        for trajectory in model.trajectories:
            trajectory.token_ids, trajectory.loss_mask, trajectory.logprobs     # lists, for reading
            trajectory.tokens.token_ids_array                                   # arrays, for computing

    Attributes:
        tokens: The tokens as arrays.
        agent_name: Name of the agent, or of the one that it works for where no agent made the call.
        agent_id: Identity of the agent within the episode, or None; agents may share a name.
        role: The agent's part in the episode.
        parent: The `agent_id` of the agent that it works for, or None.
        trainable: Its tokens are meant to be trained: those of agents are, of summaries and tools not, unless an
            environment decides otherwise (`Environment.is_trained`).
        is_main: It is the path of the last answer of the main agent: the one that `observation.tokens` shows and that
            rewards of turns and spans refer to. True for at most one of an episode.
        is_discarded: The last sample was thrown away (a retry, a cancelled answer); see `forest` for the proof.
        finish_reason: End of the last completion: `stop`, `length`, `abort` or `unknown`; None where not known.
        order: For every turn its place among all model calls of its model: paths that share a turn name the same
            place. Empty where not known.
        media: Images in order, each with its place in `tokens`.
        routed_experts: Raw int32 rows of the routed experts of a mixture-of-experts model for all positions but the
            last, or None.
        sampling_mask: The tokens that survived top-k and top-p at each position, or None. Not part of any file.
        turns: The turns, root first, where a model exports it; results and files keep none.
        trained: For every turn whether this trajectory trains its sampled tokens.
        tokenizer: The model's tokenizer, by which a notebook shows texts; not part of any file, copy or message.
    """

    tokens: TokenSequence
    agent_name: str | None = None
    agent_id: str | None = None
    role: Role = Role.MAIN
    parent: str | None = None
    trainable: bool = True
    is_main: bool = False
    is_discarded: bool = False
    finish_reason: str | None = None
    order: tuple[int, ...] = ()
    media: Sequence[PlacedMedium] = field(default=(), repr=False)
    routed_experts: bytes | None = field(default=None, repr=False)
    sampling_mask: SamplingMask | None = field(default=None, repr=False, compare=False)
    turns: tuple[Turn, ...] = field(default=(), repr=False, compare=False)
    trained: tuple[bool, ...] = field(default=(), repr=False, compare=False)
    tokenizer: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.role = Role(self.role)
        self.media = list(self.media)
        self.order = tuple(self.order)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "tokenizer": None}

    def _repr_html_(self) -> str:
        from .html import tokens_html  # loads NumPy

        facts = [
            self.agent_name or "agent",
            f"{len(self.tokens.token_ids):,} tokens",
            f"{sum(self.tokens.loss_mask):,} with loss",
            *([self.finish_reason] if self.finish_reason else []),
            *(["discarded"] if self.is_discarded else []),
        ]
        return tokens_html(self.tokens, self.tokenizer, facts)

    @classmethod
    def from_turns(
        cls, turns: tuple[Turn, ...], *, trained: tuple[bool, ...], is_discarded: bool, is_main: bool
    ) -> Trajectory:
        """The trajectory of a path of a forest."""
        from .tokens import TokenSequence  # loads NumPy

        runs = [run for i, turn in enumerate(turns) for run in turn.runs(i, trained=trained[i])]
        # Turns know places in held tokens; results have images expanded, so each image shifts the next.
        placed, growth = [], 0
        for start, medium in [(turn.start, medium) for turn in turns for medium in turn.media]:
            placed.append(medium.place(start + growth))
            growth += medium.growth
        return cls(
            tokens=TokenSequence.from_runs(runs),
            agent_name=turns[-1].agent,
            agent_id=turns[-1].agent_id,
            role=turns[-1].role,
            parent=turns[-1].parent_agent,
            trainable=turns[-1].role.is_agent,
            is_main=is_main,
            is_discarded=is_discarded,
            finish_reason=turns[-1].completion.finish.type.value,
            order=tuple(turn.index for turn in turns),
            media=placed,
            routed_experts=join_routed_experts(turns),
            sampling_mask=_join_sampling_masks(turns),
            turns=turns,
            trained=trained,
        )

    @property
    def sequence(self) -> TokenSequence:
        """The same as `tokens`."""
        return self.tokens

    @property
    def images(self) -> list[str]:
        """Data URLs of all images in order."""
        return [medium.data for medium in self.media]

    @property
    def finish(self) -> Finish:
        """End of the last completion, of the turns of a forest."""
        return self.turns[-1].completion.finish

    @property
    def calls(self) -> list[ToolCall]:
        """All tool calls in order, of the turns of a forest."""
        return [call for turn in self.turns for call in turn.calls]

    @property
    def request_ids(self) -> list[str]:
        """Request ids of every model call in order, of the turns of a forest."""
        return [rid for turn in self.turns for rid in turn.completion.request_ids]

    # ---- for results and files ------------------------------------------------

    def with_labels(self, **labels: Any) -> Trajectory:
        """The trajectory under the labels of an episode, without its turns."""
        return replace(self, **labels, turns=(), trained=())

    def facts(self) -> dict[str, Any]:
        """Everything that a file keeps beside tokens and routed experts, as JSON values."""
        return {**{name: getattr(self, name) for name in _FACTS}, "media": [asdict(medium) for medium in self.media]}

    def to_dict(self) -> dict[str, Any]:
        """A JSON object; `from_dict` gives an equal trajectory back."""
        experts = self.routed_experts
        return {
            **self.facts(),
            "tokens": self.tokens.to_dict(),
            "routed_experts": None if experts is None else base64.b64encode(experts).decode(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trajectory:
        """The trajectory of `to_dict`, or of `facts` with `tokens` and `routed_experts` (bytes), or `ValueError`."""
        from .tokens import TokenSequence

        if unknown := sorted(set(data) - _FIELDS):
            raise ValueError(f"unknown keys {unknown!r} of a trajectory; known are {sorted(_FIELDS)!r}")
        tokens, experts = data["tokens"], data.get("routed_experts")
        return cls(
            **{name: data[name] for name in _FACTS if name in data},
            tokens=tokens if isinstance(tokens, TokenSequence) else TokenSequence.from_dict(tokens),
            media=[
                item
                if isinstance(item, PlacedMedium)
                else PlacedMedium(**{**item, "grid": None if item["grid"] is None else tuple(item["grid"])})
                for item in data.get("media", ())
            ],
            routed_experts=base64.b64decode(experts, validate=True) if isinstance(experts, str) else experts,
        )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return closed_schema(cls)


def join_routed_experts(turns: Sequence[Turn]) -> bytes | None:
    """The experts of a path: the slices of its turns touch without gap or overlap."""
    slices = [turn.completion.routed_experts for turn in turns]
    if not slices or any(piece is None for piece in slices):  # trainers that replay need a row for every token
        return None
    return b"".join(piece for piece in slices if piece is not None)


def _join_sampling_masks(turns: Sequence[Turn]) -> SamplingMask | None:
    parts: list[SamplingMask] = []
    for turn in turns:
        if turn.completion.sampling_mask is None:
            return None
        # Prompt tokens were not sampled, so nothing survived there.
        parts += [SamplingMask.empty(turn.prompt_length), turn.completion.sampling_mask]
    return SamplingMask.join(parts)
