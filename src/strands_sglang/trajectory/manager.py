"""`TokenManager`: the linear view of the current trajectory."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Sequence

from ..exceptions import TrajectoryError
from .forest import TrajectoryForest
from .segments import Segment, SegmentSequence, WeightSpan, pack_ids, pack_logprobs


class TokenManager(SegmentSequence):
    """Token ids, loss mask and log-probabilities of one trajectory.

    A model's manager is a live view of the path its last call extended. A manager made without a model is filled by
    hand with `add_prompt` and `add_response`.

    Args:
        forest: The forest to view, or None for a manager filled by hand.
        on_reset: What `reset` does on a view; by default the forest is reset. The object of a bound method is not kept
            alive, for it is the model that holds the manager.
    """

    def __init__(self, forest: TrajectoryForest | None = None, *, on_reset: Callable[[], None] | None = None) -> None:
        self._forest = forest
        self._on_reset = weakref.WeakMethod(on_reset) if inspect.ismethod(on_reset) else on_reset
        self._own: list[Segment] = []
        self._cached: tuple[int, int, list[Segment]] | None = None

    def _get_segments(self) -> Sequence[Segment]:
        if self._forest is None:
            return self._own
        current = self._forest.current
        state = (self._forest.epoch, -1 if current is None else current.index)
        if self._cached is None or self._cached[:2] != state:
            self._cached = (*state, self._forest.current_segments())
        return self._cached[2]

    def add_prompt(self, token_ids: Iterable[int], logprobs: Iterable[float | None] | None = None) -> None:
        """Append tokens the model did not sample; nothing happens for an empty list.

        Args:
            token_ids: Token ids.
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
            token_ids: Token ids.
            logprobs: One value a token, or None.
            weight_version: Version of the weights that sampled them.

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
            raise TrajectoryError("this token manager shows what its model sampled; tokens cannot be added by hand")
        ids = pack_ids(token_ids)
        packed = pack_logprobs(logprobs, len(ids), "token_ids")
        if not ids:
            return
        if is_output and not self._own:
            raise RuntimeError("First segment must be a prompt: call add_prompt before add_response")
        turn = 0
        if self._own:
            last = self._own[-1]
            turn = last.turn + int(last.is_output and not is_output)
        spans = (WeightSpan(version=weight_version, start=0, end=len(ids)),) if is_output else ()
        self._own.append(
            Segment(ids=ids, logprobs=packed, is_output=is_output, is_trained=is_output, turn=turn, weight_spans=spans)
        )

    def reset(self) -> None:
        """Forget all tokens; on a model's view this is the model's `reset`."""
        self._own = []
        self._cached = None
        on_reset = self._on_reset() if isinstance(self._on_reset, weakref.WeakMethod) else self._on_reset
        if on_reset is not None:
            on_reset()
        elif self._forest is not None:
            self._forest.reset()

    def __repr__(self) -> str:
        segments = self._get_segments()
        sampled = sum(len(segment.ids) for segment in segments if segment.is_output)
        return f"TokenManager(segments={len(segments)}, tokens={len(self)}, output_tokens={sampled})"
