"""`TokenManager`: the linear view of the current path. NumPy is imported when something is read."""

from __future__ import annotations

import inspect
import math
import weakref
from array import array
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..exceptions import TrajectoryError
from .forest import TrajectoryForest
from .packed import LOGPROB_TYPECODE, Token, TokenRun, TokenView, WeightSpan, pack_ids
from .turn import Turn

if TYPE_CHECKING:
    from .tokens import TokenSequence


class TokenManager(TokenView):
    """Token ids, loss mask and log-probabilities of one trajectory.

    A model's manager is a live view of the path its last call extended. A manager made without a model is filled by
    hand with `add_prompt` and `add_response`.

    Args:
        forest: The forest to view, or None for a manager filled by hand.
        on_reset: Called by `reset` on a view; by default the forest is reset. The object of a bound method is not kept
            alive, for it is the model that holds the manager.
    """

    def __init__(self, forest: TrajectoryForest | None = None, *, on_reset: Callable[[], None] | None = None) -> None:
        self._forest = forest
        self._on_reset = weakref.WeakMethod(on_reset) if inspect.ismethod(on_reset) else on_reset
        self._own: list[TokenRun] = []
        self._end: Turn | None = None
        self._sequence: TokenSequence | None = None

    @property
    def sequence(self) -> TokenSequence:
        """The tokens as arrays, made again when the path has changed."""
        from .tokens import TokenSequence  # loads NumPy

        current = None if self._forest is None else self._forest.current
        if self._sequence is None or self._end is not current:
            runs = self._own
            if current is not None:
                runs = [run for position, turn in enumerate(current.path()) for run in turn.runs(position)]
            self._sequence, self._end = TokenSequence.from_runs(runs), current
        return self._sequence

    def __len__(self) -> int:
        if self._forest is None:
            return sum(len(run.ids) for run in self._own)
        return 0 if self._forest.current is None else self._forest.current.expanded_end

    @property
    def segments(self) -> list[list[Token]]:
        """The tokens of every segment."""
        tokens = self.tokens
        return [tokens[part.start : part.end] for part in self.sequence.segments]

    @property
    def tokens(self) -> list[Token]:
        """All tokens in order."""
        return [Token(*each) for each in zip(self.token_ids, self.logprobs, map(bool, self.loss_mask), strict=True)]

    @property
    def initial_prompt(self) -> list[Token]:
        """The tokens before the first sampled one."""
        return self.tokens[: self.initial_prompt_length]

    def add_prompt(self, token_ids: Iterable[int], logprobs: Iterable[float | None] | None = None) -> None:
        """Append tokens the model did not sample; nothing happens for an empty list.

        Args:
            logprobs: One value a token, or None.

        Raises:
            ValueError: `logprobs` has another length.
            TrajectoryError: The manager is the view of a model, which records its tokens itself.
        """
        self._add(token_ids, logprobs, is_output=False, weight_version=None)

    def add_response(
        self,
        token_ids: Iterable[int],
        logprobs: Iterable[float | None] | None = None,
        *,
        weight_version: str | None = None,
    ) -> None:
        """Append tokens the model sampled; nothing happens for an empty list.

        Args:
            logprobs: One value a token, or None.

        Raises:
            ValueError: `logprobs` has another length.
            RuntimeError: There is no prompt yet.
            TrajectoryError: The manager is the view of a model.
        """
        self._add(token_ids, logprobs, is_output=True, weight_version=weight_version)

    def _add(
        self,
        token_ids: Iterable[int],
        logprobs: Iterable[float | None] | None,
        *,
        is_output: bool,
        weight_version: str | None,
    ) -> None:
        if self._forest is not None:
            raise TrajectoryError("this token manager shows the tokens of its model; none can be added by hand")
        ids = pack_ids(list(token_ids))
        packed = None
        if logprobs is not None:
            packed = array(LOGPROB_TYPECODE, (math.nan if value is None else value for value in logprobs))
            if len(packed) != len(ids):
                raise ValueError(f"logprobs length ({len(packed)}) must match token_ids length ({len(ids)})")
        if not ids:
            return
        if is_output and not self._own:
            raise RuntimeError("First segment must be a prompt: call add_prompt before add_response")
        turn = self._own[-1].turn + (self._own[-1].is_output and not is_output) if self._own else 0
        spans = (WeightSpan(version=weight_version, start=0, end=len(ids)),) if is_output else ()
        self._sequence = None
        self._own.append(
            TokenRun(ids=ids, logprobs=packed, is_output=is_output, is_trained=is_output, turn=turn, weight_spans=spans)
        )

    def reset(self) -> None:
        """Forget all tokens; on a model's view this is the model's `reset`."""
        self._own, self._sequence = [], None
        on_reset = self._on_reset() if isinstance(self._on_reset, weakref.WeakMethod) else self._on_reset
        if on_reset is not None:
            on_reset()
        elif self._forest is not None:
            self._forest.reset()

    def __repr__(self) -> str:
        sampled = sum(length for is_output, length in self.segment_info if is_output)
        return f"TokenManager(segments={len(self.segment_info)}, tokens={len(self)}, output_tokens={sampled})"
