"""Seeds of samples: each has its own, by the seed of the run and by which sample it is, not by when it runs.

The seed travels in the task context, so that it reaches every executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strands_env.core.seeds import derive_seed
from strands_env.eval.identity import Prompt


def sample_seed(seed: int, prompt: Prompt, index: int) -> int:
    """The seed of one sample: the same in every run over the same data, here and on every executor."""
    return derive_seed(seed, prompt.digest, prompt.id, index)


def fixed_seed(config: Any, n_samples: int) -> str | None:
    """What is wrong with a model's configuration whose seed is fixed while prompts have several samples, or None.

    Args:
        config: The model's configuration, with its `sampling_params`.
        n_samples: Samples of each prompt.
    """
    params = config.get("sampling_params") if isinstance(config, Mapping) else None
    if n_samples < 2 or not isinstance(params, Mapping):
        return None
    for name in ("sampling_seed", "seed"):
        if (seed := params.get(name)) is not None:
            return (
                f"{name}={seed!r} in the sampling parameters would make all {n_samples} samples of a prompt the same: "
                "leave it out, for every sample gets its own seed from that of the run (sampling_seed of the "
                "evaluator, --seed)"
            )
    return None
