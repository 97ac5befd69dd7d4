"""verifiers: the message graph of its `Trace`. Written against verifiers 0.4.0.

```python
from verifiers.v1.graph import MessageNode

trace.nodes = [MessageNode(**fields) for fields in message_nodes(samples, decode=tokenizer.decode)]
```
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from strands_env.training.export import check_fields, reference_logprobs, small_experts, with_all_sampled_tokens
from strands_env.training.sample import TrainingSample


def message_nodes(
    samples: Sequence[TrainingSample],
    *,
    decode: Callable[[list[int]], str] | None = None,
    advantage: float | None = None,
    routed_experts: bool = False,
) -> list[dict[str, Any]]:
    """The fields of the `MessageNode`s of one rollout, parents before children.

    The ids of the nodes from a root to a leaf are those of a path. What was sampled in one go is one node and what the
    environment added in between is one: samples hold tokens, not messages. Nodes that paths share are there once, so
    that every sampled token is trained once. The teacher's log-probabilities (`score_with_teacher`) are
    `reference_logprobs`, where every sample of the rollout has them.

    Args:
        decode: Makes the texts of messages, which are empty without it. Nothing is trained on them.
        advantage: Advantage of the rollout, put on every trained token; None leaves it to the trainer.
        routed_experts: Add routed experts, a row per token. The last token of a path was never fed: its row copies
            the one before, as in verifiers.

    Raises:
        InvalidSampleError: A trained token has no log-probability, or routed experts are missing.
    """
    nodes: list[dict[str, Any]] = []
    known: dict[tuple[int | None, bool, tuple[int, ...]], int] = {}
    weighted = any(sample.loss_weight != 1 for sample in samples)
    for sample in samples:
        mask, logprobs = sample.trained_mask(weight_follows=True), sample.full_logprobs()
        reference = None if sample.teacher_logprobs is None else reference_logprobs(sample)
        experts = None
        if routed_experts:
            rows = small_experts(sample, np.uint8, np.uint16)
            experts = np.concatenate([rows, rows[-1:]])
        parent: int | None = None
        output = with_all_sampled_tokens(sample).loss_mask  # what was sampled and what was not, in turns
        edges = [0, *(np.flatnonzero(np.diff(output)) + 1).tolist(), len(output)]
        for start, end in itertools.pairwise(edges) if len(output) else ():
            ids, sampled = sample.token_ids[start:end].tolist(), bool(output[start])
            key = (parent, sampled, tuple(ids))
            if key not in known:
                known[key] = len(nodes)
                message = {"role": "assistant" if sampled else "user", "content": decode(ids) if decode else ""}
                nodes.append(
                    {
                        "parent": parent,
                        "message": message,
                        "sampled": sampled,
                        "token_ids": ids,
                        "mask": [False] * len(ids),
                        "logprobs": [],
                        "advantages": None,
                        "reference_logprobs": None,
                        "loss_weights": None,
                        "routed_experts": None if experts is None else experts[start:end],
                    }
                )
            parent = known[key]
            _train(nodes[parent], mask[start:end], logprobs[start:end], advantage)
            if weighted and any(mask[start:end]):  # a node without weights counts as one of weight 0 there
                weights = (nodes[parent]["loss_weights"] or {"rl": [0.0] * len(ids)})["rl"]
                both = zip(mask[start:end], weights, strict=True)
                nodes[parent]["loss_weights"] = {"rl": [sample.loss_weight if own else held for own, held in both]}
            # verifiers aligns these with the trained tokens of a node, not with all of them.
            if reference is not None and any(nodes[parent]["mask"]):
                values = zip(nodes[parent]["mask"], reference[start:end], strict=True)
                nodes[parent]["reference_logprobs"] = [value for trained, value in values if trained]
    check_fields("verifiers", "verifiers.v1.graph", "MessageNode", nodes[0] if nodes else ())
    return nodes


def _train(node: dict[str, Any], mask: Sequence[int], logprobs: Sequence[float], advantage: float | None) -> None:
    """Adds what a path trains of a node. The path that came first with it need not be the one that trains it."""
    trained = dict(zip(np.flatnonzero(node["mask"]).tolist(), node["logprobs"], strict=True))
    added = {place: logprobs[place] for place, value in enumerate(mask) if value and place not in trained}
    if not added:
        return
    trained |= added
    node["mask"] = [place in trained for place in range(len(mask))]
    node["logprobs"] = [trained[place] for place in sorted(trained)]
    node["advantages"] = None if advantage is None else [advantage] * len(trained)
