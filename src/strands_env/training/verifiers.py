"""verifiers: the message graph of its `Trace`. Written against verifiers 0.4.0.

```python
from verifiers.v1.graph import MessageNode

trace.nodes = [MessageNode(**fields) for fields in message_nodes(samples, decode=tokenizer.decode)]
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from strands_env.training.export import check_fields, reference_logprobs, small_experts
from strands_env.training.sample import TrainingSample
from strands_env.training.tree import RolloutTree


def message_nodes(
    samples: Sequence[TrainingSample],
    *,
    decode: Callable[[list[int]], str] | None = None,
    advantage: float | None = None,
    routed_experts: bool = False,
) -> list[dict[str, Any]]:
    """The fields of the `MessageNode`s of one rollout, parents before children.

    The ids of the nodes from a root to a leaf are those of a path. The tokens of one reply are one node, and those the
    environment added in between are one: samples hold tokens, not messages. Nodes that paths share are there once, so
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
    tree = RolloutTree.of(samples)
    logprobs = [np.array(sample.full_logprobs()) for sample in samples]
    masks = [np.array(sample.trained_mask(weight_follows=True), dtype=bool) for sample in samples]
    references = [
        None if sample.teacher_logprobs is None else np.array(reference_logprobs(sample)) for sample in samples
    ]
    weighted = any(sample.loss_weight != 1 for sample in samples)
    experts: dict[int, Any] = {}
    nodes: list[dict[str, Any]] = []
    for node in tree.nodes:
        end, owners = node.start + len(node), node.trained_by.tolist()
        # The sample that trains a token, unless it may not be trained at all, and the token's place there.
        trained = [(leaf, place) for place, leaf in enumerate(owners, node.start) if leaf >= 0 and masks[leaf][place]]
        mask = [leaf >= 0 and bool(masks[leaf][place]) for place, leaf in enumerate(owners, node.start)]
        reference = [None if (row := references[leaf]) is None else float(row[place]) for leaf, place in trained]
        if routed_experts and node.leaf not in experts:
            rows = small_experts(samples[node.leaf], np.uint8, np.uint16)
            experts[node.leaf] = np.concatenate([rows, rows[-1:]])
        ids = node.token_ids.tolist()
        nodes.append(
            {
                "parent": node.parent,
                "message": {
                    "role": "assistant" if node.sampled else "user",
                    "content": decode(ids) if decode else "",
                },
                "sampled": node.sampled,
                "token_ids": ids,
                "mask": mask,
                "logprobs": [float(logprobs[leaf][place]) for leaf, place in trained],
                "advantages": None if advantage is None or not trained else [advantage] * len(trained),
                # verifiers aligns these with the trained tokens of a node, not with all of them.
                "reference_logprobs": None if not trained or None in reference else reference,
                # A node without weights counts as one of weight 0 there.
                "loss_weights": {
                    "rl": [samples[leaf].loss_weight if own else 0.0 for own, leaf in zip(mask, owners, strict=True)]
                }
                if weighted and trained
                else None,
                "routed_experts": experts[node.leaf][node.start : end] if routed_experts else None,
            }
        )
    check_fields("verifiers", "verifiers.v1.graph", "MessageNode", nodes[0] if nodes else ())
    return nodes
