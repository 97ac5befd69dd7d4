"""Shared by the tests of the embedded engine: log-probabilities are proved by a separate forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch

SMALL: dict[str, Any] = {
    "vocab_size": 1024, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "initializer_range": 0.5,
}  # fmt: skip
"""Configuration of a small model of any family."""


def forward(model: Any, ids: list[int], **inputs: Any) -> Any:
    """Logits of a plain forward pass of transformers, `[positions, vocabulary]`."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), **inputs).logits[0].float()


def assert_exact(answer: dict[str, Any], prompt: list[int], model: Any, temperature: float = 1.0, since: int = 0):
    """Log-probabilities of the prompt, and of the output from `since` on, are those of a forward pass of the model."""
    meta, logits = answer["meta_info"], forward(model, prompt + answer["output_ids"])
    sampled, scored = meta["output_token_logprobs"], meta["input_token_logprobs"]
    assert [entry[1] for entry in sampled] == answer["output_ids"]
    assert [entry[1] for entry in scored] == (prompt if scored else [])
    tempered, plain = torch.log_softmax(logits / temperature, dim=-1), torch.log_softmax(logits, dim=-1)
    for place, (logprob, token, _) in enumerate(sampled[since:], len(prompt) + since):
        assert logprob == pytest.approx(float(tempered[place - 1, token]), abs=1e-4)
    for place, (logprob, token, _) in enumerate(scored):
        assert logprob == (pytest.approx(float(plain[place - 1, token]), abs=1e-4) if place else None)
