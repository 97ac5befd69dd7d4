"""The task, a tokenizer and a tiny model for it (or SmolLM2 with its own), and the supervised start.

Two-operand arithmetic through a calculator tool: the model must copy the question into a tool call and the tool's
result into an answer. The supervised data is tokenised with BPE dropout, so that the model samples token sequences its
tokenizer would never produce: the drift that large models show too, in a large dose.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from strands_sglang.backends.engine.templates import BRIEF_TEMPLATE

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
TOOL = "calculator"
CONTEXT_LENGTH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question such as `73-8` and its answer."""

    expression: str
    answer: str


def make_problem(rng: random.Random, *, held_out: bool = False) -> Problem:
    """Operands of one or two digits, and one of three signs, drawn from the training or the held-out problems."""
    while True:
        left, right = (rng.randrange(10 ** rng.randint(1, 2)) for _ in range(2))
        sign = rng.choice("+-*")
        expression = f"{left}{sign}{right}"
        if is_held_out(expression) == held_out:
            value = {"+": left + right, "-": left - right, "*": left * right}[sign]
            return Problem(expression=expression, answer=str(value))


def is_held_out(expression: str) -> bool:
    """A fifth of all problems, by checksum: neither supervision, nor GRPO, nor the tokenizer sees them."""
    return zlib.crc32(expression.encode()) % 5 == 0


def held_out_problems(seed: int, count: int) -> list[Problem]:
    """Distinct held-out problems."""
    rng = random.Random(f"evaluation {seed}")
    found: dict[str, Problem] = {}
    while len(found) < count:
        problem = make_problem(rng, held_out=True)
        found.setdefault(problem.expression, problem)
    return list(found.values())


def call_text(expression: str) -> str:
    """The reply that calls the tool."""
    return f'<tool_call>{{"name": "{TOOL}", "arguments": {{"expression": "{expression}"}}}}</tool_call>'


def conversation(problem: Problem) -> list[tuple[str, bool]]:
    """The ideal conversation as `(text, sampled by the model)` pieces, exactly as the chat template prints it."""
    return [
        (f"<|im_start|>system\nTools: {TOOL}.<|im_end|>\n", False),
        (f"<|im_start|>user\n{problem.expression}<|im_end|>\n<|im_start|>assistant\n", False),
        (call_text(problem.expression) + "<|im_end|>", True),
        (f"\n<|im_start|>user\n<tool_response>{problem.answer}</tool_response><|im_end|>\n", False),
        ("<|im_start|>assistant\n", False),
        (problem.answer + "<|im_end|>", True),
    ]


def make_tokenizer(vocab_size: int, seed: int = 0) -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on the task's own texts; digits stay single tokens, as in the Qwen family."""
    rng = random.Random(seed)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(CONTROL) - len(MARKS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = ("".join(text for text, _ in conversation(make_problem(rng))) for _ in range(4000))
    plain = (_without_marks(text) for text in texts)
    bpe.train_from_iterator(plain, trainer)
    bpe.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    bpe.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
        chat_template=BRIEF_TEMPLATE,
    )


def _without_marks(text: str) -> str:
    for mark in (*CONTROL, *MARKS):
        text = text.replace(mark, " ")
    return text


def make_model(tokenizer: Any, seed: int) -> Qwen3ForCausalLM:
    """A Qwen3 of 128 hidden units and 4 layers, 0.83 million parameters, with random weights."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.pad_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype=torch.float32,
    )
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(config).to(torch.float32)


def load_smollm2() -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct and its own tokenizer, with the template of this task."""
    from strands_sglang.backends.engine.loader import load_model

    loaded = load_model("smollm2")
    loaded.tokenizer.chat_template = BRIEF_TEMPLATE
    return loaded.model, loaded.tokenizer


class ExactTokenizer:
    """Encodes the model's lines as the tokenizer would: no dropout."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """The ids of the text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids


def speaker(tokenizer: Any, dropout: float, rng: random.Random) -> Any:
    """The tokenizer of the model's own words in the supervised data."""
    return DropoutTokenizer(tokenizer, dropout, rng) if dropout else ExactTokenizer(tokenizer)


def supervised_batch(exact: Any, noisy: Any, rng: random.Random, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded ids and labels of `size` conversations; labels are -100 where the model does not speak.

    What the model says is tokenised by `noisy`, what it reads by `exact`, as the chat template will be.
    """
    rows = []
    for _ in range(size):
        ids: list[int] = []
        labels: list[int] = []
        for text, sampled in conversation(make_problem(rng)):
            piece = noisy.encode(text) if sampled else exact.encode(text, add_special_tokens=False)
            ids += piece
            labels += piece if sampled else [-100] * len(piece)
        rows.append((ids, labels))
    longest = max(len(ids) for ids, _ in rows)
    pad = exact.pad_token_id
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row, _ in rows])
    labels = torch.tensor([row + [-100] * (longest - len(row)) for _, row in rows])
    return ids, labels


class DropoutTokenizer:
    """The same tokenizer with BPE dropout (Provilkov et al. 2020): each merge is left out with this probability.

    Written out because the dropout of `tokenizers` cannot be seeded.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, dropout: float, rng: random.Random) -> None:
        self._tokenizer = tokenizer
        self._dropout, self._rng = dropout, rng
        model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
        self._vocabulary = model["vocab"]
        self._ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}

    def encode(self, text: str) -> list[int]:
        """Ids of one of many tokenisations of the text."""
        backend = self._tokenizer.backend_tokenizer
        ids: list[int] = []
        for part in re.split(f"({'|'.join(map(re.escape, (*CONTROL, *MARKS)))})", text):
            if part in (*CONTROL, *MARKS):
                ids.append(backend.token_to_id(part))
            elif part:
                for word, _ in backend.pre_tokenizer.pre_tokenize_str(part):
                    ids += [self._vocabulary[piece] for piece in self._split(list(word))]
        return ids

    def _split(self, pieces: list[str]) -> list[str]:
        while True:
            found = [
                (self._ranks[pair], i)
                for i, pair in enumerate(pairwise(pieces))
                if pair in self._ranks and self._rng.random() >= self._dropout
            ]
            if not found:
                return pieces
            _, i = min(found)
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


_COPIES = 0.25
"""Chance of copying everything right below which right answers are rare, so that none are sampled to see."""


async def supervise(
    model: Any,
    tokenizer: PreTrainedTokenizerFast,
    *,
    is_enough: Callable[[], Awaitable[bool]],
    dropout: float,
    seed: int,
    max_steps: int = 400,
    batch_size: int = 32,
    rate: float = 3e-3,
    copy_weight: float = 5.0,
) -> int:
    """Teach the task until it is enough; the number of steps.

    What must be copied (digits and signs) counts `copy_weight` times, for it is what takes long to learn.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        is_enough: Asked every 5 steps, as soon as the model copies well enough for right answers to be likely.
        dropout: BPE dropout of what the model is to say.
        seed: Of the data.
        max_steps: The end in any case.
        batch_size: Conversations a step.
        rate: Learning rate.
        copy_weight: See above.
    """
    rng = random.Random(seed)
    noisy = speaker(tokenizer, dropout, rng)
    weights = torch.ones(model.get_output_embeddings().out_features, device=model.device)
    weights[_copied(tokenizer)] = copy_weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    for step in range(1, max_steps + 1):
        ids, labels = (part.to(model.device) for part in supervised_batch(tokenizer, noisy, rng, batch_size))
        logits = model(input_ids=ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, weight=weights
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        likely = step % 5 == 0 and chance(model, tokenizer, dropout=dropout, seed=seed, count=batch_size) >= _COPIES
        if likely and await is_enough():
            return step
    return max_steps


@torch.no_grad()
def chance(model: Any, tokenizer: PreTrainedTokenizerFast, *, dropout: float, seed: int, count: int = 64) -> float:
    """Mean probability, over other training conversations, of sampling everything right that must be copied."""
    rng = random.Random(f"chance {seed}")
    batch = supervised_batch(tokenizer, speaker(tokenizer, dropout, rng), rng, count)
    ids, labels = (part.to(model.device) for part in batch)
    logprobs = torch.log_softmax(model(input_ids=ids).logits[:, :-1], dim=-1)
    labels = labels[:, 1:]
    chosen = logprobs.gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)
    copied = torch.isin(labels, torch.tensor(_copied(tokenizer), device=model.device))
    return float((chosen * copied).sum(1).exp().mean())


def _copied(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    ids: list[int] = tokenizer.convert_tokens_to_ids(list("0123456789+-*"))
    return ids
