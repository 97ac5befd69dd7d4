"""`RolloutTree`: the samples of a rollout, or of a group, with their shared tokens held and computed once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strands_env.core.types import WeightVersionSpan
from strands_env.training.export import with_all_sampled_tokens
from strands_env.training.sample import TrainingSample
from strands_sglang.trajectory import Role


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeNode:
    """A run of tokens that the same samples hold behind the same tokens; all of it was sampled, or none.

    Attributes:
        parent: Index of the node before it, or None for a root.
        start: Position of its first token in each sample that holds it.
        token_ids: int32[tokens].
        sampled: The model sampled these tokens; otherwise they are prompts and results of tools.
        trained_by: int32[tokens], the leaf whose sample trains the token; -1 where none does.
        logprobs: float64[tokens], NaN where there is none.
        weight_versions: Spans over its own tokens.
        leaf: The first sample that holds it.
        agent_name, role: Those of that sample.
    """

    parent: int | None
    leaf: int
    start: int
    token_ids: NDArray[np.int32]
    sampled: bool
    trained_by: NDArray[np.int32]
    logprobs: NDArray[np.float64]
    weight_versions: tuple[WeightVersionSpan, ...]
    agent_name: str
    role: Role

    @property
    def loss_mask(self) -> NDArray[np.uint8]:
        """uint8[tokens], 1 where a sample trains the token."""
        return (self.trained_by >= 0).astype(np.uint8)

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutTree:
    """The samples of a rollout as a tree, or several where roots differ; `rows` gives the samples back.

    Each sampled token has its loss once, in the tree as in the rows: tokens that two samples train are two nodes, also
    where their ids are equal. Equal tokens with other images before them are not shared.

    Attributes:
        nodes: Parents before children.
        leaves: The last node of each sample, in the order of the samples; None for a sample without tokens.
        samples: The samples, for their other fields: rewards, ends, images, ids.

    Example:
        tree = RolloutTree.of(samples_from_step(result))
        print(len(tree), "tokens to compute, instead of", sum(map(len, tree.rows())))
    """

    nodes: tuple[TreeNode, ...]
    leaves: tuple[int | None, ...]
    samples: tuple[TrainingSample, ...] = field(repr=False)

    @classmethod
    def of(cls, samples: Sequence[TrainingSample]) -> RolloutTree:
        """The tree of these samples: those of one rollout, or of a group, which share their prompt."""
        roots: list[_Run] = []
        images: dict[str, int] = {}
        ends = [_insert(roots, sample, leaf, images) for leaf, sample in enumerate(samples)]
        order: dict[int, int] = {}
        nodes: list[TreeNode] = []
        for run, parent in _walk(roots):
            order[id(run)] = len(nodes)
            nodes.append(run.node(samples[run.leaf], None if parent is None else order[id(parent)]))
        leaves = tuple(
            None if end is None else order[id(end.until(len(sample)))]
            for end, sample in zip(ends, samples, strict=True)
        )
        return cls(nodes=tuple(nodes), leaves=leaves, samples=tuple(samples))

    def __len__(self) -> int:
        """Number of tokens."""
        return sum(map(len, self.nodes))

    def path(self, leaf: int) -> list[int]:
        """The nodes of a sample, from the root on."""
        found, node = [], self.leaves[leaf]
        while node is not None:
            found.append(node)
            node = self.nodes[node].parent
        return found[::-1]

    def rows(self) -> list[TrainingSample]:
        """The samples, with their tokens, masks and log-probabilities read from the tree."""
        return [self._row(leaf) for leaf in range(len(self.leaves))]

    def _row(self, leaf: int) -> TrainingSample:
        path, sample = [self.nodes[index] for index in self.path(leaf)], self.samples[leaf]
        if not path:
            return sample
        owner = np.concatenate([node.trained_by for node in path])
        sampled = np.concatenate([np.full(len(node), node.sampled) for node in path])
        mask = (owner == leaf).astype(np.uint8)
        elsewhere = sampled.astype(np.uint8) & (1 - mask)
        return replace(
            sample,
            token_ids=np.concatenate([node.token_ids for node in path]),
            loss_mask=mask,
            trained_elsewhere=elsewhere if elsewhere.any() else None,
            logprobs=None if sample.logprobs is None else np.concatenate([node.logprobs for node in path]),
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The tokens of all nodes one behind the other, for attention over a tree.

        Returns:
            `token_ids` int32, `parents` int32 (the token before, as an index into these arrays; -1 at a root),
            `positions` int32, `loss_mask` uint8, `logprobs` float64 and `leaves` int32 (whose sample trains the token;
            -1 for none), all `[tokens]`.
        """
        offsets = np.cumsum([0, *map(len, self.nodes)]).astype(np.int32)
        parents, positions = [], []
        for index, node in enumerate(self.nodes):
            before = np.arange(offsets[index] - 1, offsets[index + 1] - 1, dtype=np.int32)
            before[0] = -1 if node.parent is None else offsets[node.parent + 1] - 1
            parents.append(before)
            positions.append(np.arange(node.start, node.start + len(node), dtype=np.int32))
        joined = {
            "token_ids": [node.token_ids for node in self.nodes],
            "parents": parents,
            "positions": positions,
            "loss_mask": [node.loss_mask for node in self.nodes],
            "logprobs": [node.logprobs for node in self.nodes],
            "leaves": [node.trained_by for node in self.nodes],
        }
        return {name: np.concatenate(values) if values else np.zeros(0) for name, values in joined.items()}


@dataclass(eq=False, slots=True)
class _Run:
    """A node that may still be split, and its children."""

    start: int
    keys: NDArray[np.int64]
    sampled: bool
    trained_by: NDArray[np.int32]
    logprobs: NDArray[np.float64]
    leaf: int
    children: list[_Run] = field(default_factory=list)
    rest: _Run | None = None

    def until(self, stop: int) -> _Run:
        """The part that ends at a place, of a run that may have been split since."""
        part = self
        while part.start + len(part.keys) < stop and part.rest is not None:
            part = part.rest
        return part

    def split(self, at: int) -> None:
        """Make the tokens from a place on a child."""
        self.rest = _Run(
            self.start + at, self.keys[at:], self.sampled, self.trained_by[at:], self.logprobs[at:], self.leaf,
            self.children, self.rest,
        )  # fmt: skip
        self.keys, self.trained_by, self.logprobs = self.keys[:at], self.trained_by[:at], self.logprobs[:at]
        self.children = [self.rest]

    def shared(self, other: _Run) -> int:
        """Number of tokens at the beginning that both are, without a token that both train."""
        if self.sampled != other.sampled:
            return 0
        count = min(len(self.keys), len(other.keys))
        differs = self.keys[:count] != other.keys[:count]
        differs |= (self.trained_by[:count] >= 0) & (other.trained_by[:count] >= 0)
        differs |= np.abs(self.logprobs[:count] - other.logprobs[:count]) > 0  # sampled again, with other weights
        return int(differs.argmax()) if differs.any() else count

    def node(self, sample: TrainingSample, parent: int | None) -> TreeNode:
        end = self.start + len(self.keys)
        spans = tuple(
            replace(span, start=max(span.start, self.start) - self.start, end=min(span.end, end) - self.start)
            for span in sample.weight_versions
            if span.start < end and span.end > self.start
        )
        return TreeNode(
            parent=parent,
            leaf=self.leaf,
            start=self.start,
            token_ids=sample.token_ids[self.start : end],
            sampled=self.sampled,
            trained_by=self.trained_by,
            logprobs=self.logprobs,
            weight_versions=spans,
            agent_name=sample.agent_name,
            role=sample.role,
        )


def _insert(roots: list[_Run], sample: TrainingSample, leaf: int, images: dict[str, int]) -> _Run | None:
    """Add a sample to the tree; its last run, or None where it has no tokens."""
    keys = sample.token_ids.astype(np.int64)
    for image in sample.media:  # placeholders are equal where images are not
        number = images.setdefault(image.digest, len(images) + 1)
        keys[image.offset : image.offset + image.length] = -(number << 32) - np.arange(image.length)
    owner = np.where(sample.loss_mask == 1, leaf, -1).astype(np.int32)
    logprobs = np.full(len(sample), np.nan) if sample.logprobs is None else sample.logprobs.copy()
    sampled = with_all_sampled_tokens(sample).loss_mask
    edges = [0, *(np.flatnonzero(np.diff(sampled)) + 1).tolist(), len(sample)]
    level, end = roots, None
    for start, stop in itertools.pairwise(edges):
        while start < stop:
            run = _Run(start, keys[start:stop], bool(sampled[start]), owner[start:stop], logprobs[start:stop], leaf)
            held = max(level, key=run.shared, default=None)
            count = 0 if held is None else run.shared(held)
            if held is None or not count:
                level.append(run)
                end, level, start = run, run.children, stop
                continue
            if count < len(held.keys):
                held.split(count)
            held.trained_by = np.maximum(held.trained_by, run.trained_by[:count])
            known, own = held.logprobs, run.logprobs[:count]
            held.logprobs = np.where((run.trained_by[:count] >= 0) | np.isnan(known), own, known)
            end, level, start = held, held.children, start + count
    return end


def _walk(level: Sequence[_Run]) -> Iterator[tuple[_Run, _Run | None]]:
    """Runs with their parents, each before its children."""
    todo: list[tuple[_Run, _Run | None]] = [(run, None) for run in reversed(level)]
    while todo:
        run, parent = todo.pop()
        yield run, parent
        todo += [(child, run) for child in reversed(run.children)]
