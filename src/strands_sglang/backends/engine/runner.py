"""The forward pass: the new tokens of all sequences of a step as one row of tokens, without padding between them.

transformers lets a model use a registered attention function. Ours gives every sequence its own keys and values and its
own call of `scaled_dot_product_attention`; all other layers work on the packed row. So a sequence's attention is
computed the same way beside any other sequence. The one thing left to differ is the matrix product, which on CPUs takes
another path for few rows than for many: `row_multiple` is the number of rows from which on each row comes out the same
bit for bit, found by trying at start-up, and the packed row is filled up to a multiple of it.

Linear layers compute on weights laid out once for oneDNN. PyTorch hands a float32 product with few rows to MKL, which
lays the weights out again on every call, and takes slow paths on processors of other vendors. With the layout done
beforehand (by the operators that PyTorch's own compiler uses) decoding was 2.5 to 3 times as fast, for a second copy of
the weights in memory.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from .vision import SeenPrompt

logger = logging.getLogger(__name__)

ATTENTION = "strands_packed"
_UNKNOWN_ATTENTION_OPTIONS = ("softcap", "s_aux")


class SequenceKV:
    """Keys and values of one sequence: per layer two tensors `[kv_heads, capacity, head_dim]` that grow by half.

    One tensor per sequence means no padding in attention, at the price of a copy when a prefix is used
    by a second sequence.
    """

    def __init__(self, layers: int) -> None:
        self.length = 0
        """Positions whose keys and values are complete in every layer."""
        self._pairs: list[tuple[torch.Tensor, ...] | None] = [None] * layers

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[kv_heads, n, head_dim]` behind `length`, and return all keys and values including them."""
        end = self.length + keys.shape[1]
        pair = self._pairs[layer]
        if pair is None or pair[0].shape[1] < end:
            old, capacity = pair, max(64, end + end // 2)
            pair = tuple(each.new_empty(each.shape[0], capacity, each.shape[2]) for each in (keys, values))
            for target, source in zip(pair, old or (), strict=False):
                target[:, : self.length] = source[:, : self.length]
            self._pairs[layer] = pair
        pair[0][:, self.length : end] = keys
        pair[1][:, self.length : end] = values
        return pair[0][:, :end], pair[1][:, :end]

    def copy_prefix(self, length: int) -> SequenceKV:
        """An independent copy of the first `length` positions."""
        copy = SequenceKV(len(self._pairs))
        for layer, pair in enumerate(self._pairs):
            if pair is not None:
                copy.write(layer, pair[0][:, :length], pair[1][:, :length])
        copy.length = length
        return copy


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceChunk:
    """New tokens of one sequence.

    Attributes:
        kv: Keys and values of the earlier tokens; the new ones are added.
        logits_from: First of the new positions whose logits are wanted; `len(tokens)` for none.
        seen: The images of the sequence, or None.
    """

    kv: SequenceKV
    tokens: Sequence[int]
    logits_from: int
    seen: SeenPrompt | None = None


class Runner:
    """Runs a causal language model on packed segments.

    Args:
        model: A `PreTrainedModel` whose attention goes through transformers' attention interface. From now on it is
            the runner's own: attention and linear layers are exchanged.
        batch_invariant: Fill up rows so that results do not depend on the other sequences of a step.
    """

    def __init__(self, model: Any, *, batch_invariant: bool = True) -> None:
        if not getattr(model, "_supports_attention_backend", False):
            raise ValueError(
                f"{type(model).__name__} does not use transformers' attention interface; "
                f"expected a model that does, such as Llama, Qwen or Mistral"
            )
        AttentionInterface.register(ATTENTION, _packed_attention)
        self._text_tower = getattr(model.model, "language_model", None)  # of a vision model
        (self._text_tower or model).set_attn_implementation(ATTENTION)
        self.device = next(model.parameters()).device
        pack_linears(model)
        self.model = model
        self.layers: int = model.config.get_text_config().num_hidden_layers
        with torch.inference_mode():
            self.row_multiple = _row_multiple(model) if batch_invariant else 1
            self.forward(
                [SequenceChunk(kv=SequenceKV(self.layers), tokens=[0], logits_from=0)]
            )  # a missing operator fails here

    def forward(self, segments: Sequence[SequenceChunk]) -> list[torch.Tensor]:
        """Run one step, and return the wanted logits of each segment, float32 `[positions, vocabulary]` on the CPU."""
        ids: list[int] = []
        positions: list[int] = []
        logit_rows: list[int] = []
        for segment in segments:
            logit_rows.extend(range(len(ids) + segment.logits_from, len(ids) + len(segment.tokens)))
            positions.extend(range(segment.kv.length, segment.kv.length + len(segment.tokens)))
            ids.extend(segment.tokens)
        counts = [len(segment.tokens) - segment.logits_from for segment in segments]
        # Filled up, so that the bits of a row do not depend on how many rows stand beside it.
        filler = -len(ids) % self.row_multiple
        logit_rows += [0] * (-len(logit_rows) % self.row_multiple)
        row = torch.tensor([ids + [0] * filler], device=self.device)
        keep = torch.tensor(logit_rows, dtype=torch.long, device=self.device)
        if self._text_tower is not None:
            logits = self._forward_seeing(segments, row, keep)
        else:
            logits = self.model(
                input_ids=row,
                position_ids=torch.tensor([positions + [0] * filler], device=self.device),
                use_cache=False,
                logits_to_keep=keep,
                strands_segments=segments,
            ).logits[0]
        for segment in segments:
            segment.kv.length += len(segment.tokens)
        return list(logits[: sum(counts)].float().cpu().split(counts))

    def _forward_seeing(self, segments: Sequence[SequenceChunk], row: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        """The step of a vision model: images in place of embeddings, and positions in three dimensions."""
        tower: Any = self._text_tower
        embeddings = tower.embed_tokens(row)
        positions = torch.zeros(3, 1, row.shape[1], dtype=torch.long)
        is_image = torch.zeros(1, row.shape[1], dtype=torch.bool)
        deep: list[list[torch.Tensor]] = []
        first = 0
        for segment in segments:
            start, end = segment.kv.length, segment.kv.length + len(segment.tokens)
            if segment.seen is None:
                positions[:, 0, first : first + end - start] = torch.arange(start, end)
            else:
                positions[:, 0, first : first + end - start] = segment.seen.positions_of(start, end)
            for image in segment.seen.images if segment.seen is not None else ():
                low, high = max(start, image.offset), min(end, image.end)
                if low < high:
                    at, of = (
                        slice(first + low - start, first + high - start),
                        slice(low - image.offset, high - image.offset),
                    )
                    embeddings[0, at] = image.features[of]
                    is_image[0, at] = True
                    deep.append([layer[of] for layer in image.deep])
            first += end - start
        added = [torch.cat(layer) for layer in zip(*deep, strict=True)]
        more = {"visual_pos_masks": is_image.to(self.device), "deepstack_visual_embeds": added} if added else {}
        hidden = tower(
            inputs_embeds=embeddings,
            position_ids=positions.to(self.device),
            use_cache=False,
            strands_segments=segments,
            **more,
        ).last_hidden_state
        return self.model.lm_head(hidden[0, keep])


def _packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    *,
    strands_segments: Sequence[SequenceChunk],
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of packed segments: query `[1, heads, rows, dim]` to output `[1, rows, heads, dim]`."""
    for name in _UNKNOWN_ATTENTION_OPTIONS:
        if options.get(name) is not None:
            raise ValueError(f"{type(module).__name__} uses the attention option {name!r}, which is not built")
    output = query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3])
    row = 0
    for segment in strands_segments:
        end = row + len(segment.tokens)
        keys, values = segment.kv.write(module.layer_idx, key[0, :, row:end], value[0, :, row:end])
        # The last token on its own, as if all before came from the prefix cache: a repeated prompt gives the same bits.
        for first, last in ((row, end - 1), (end - 1, end)):
            if first < last:
                visible = keys.shape[1] - (end - last)
                attended = F.scaled_dot_product_attention(
                    query[:, :, first:last],
                    keys[None, :, :visible],
                    values[None, :, :visible],
                    attn_mask=_mask(last - first, visible, sliding_window, query.device),
                    scale=scaling,
                    enable_gqa=True,
                )
                output[:, first:last] = attended.transpose(1, 2)
        row = end
    return output, None


def _mask(queries: int, keys: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """Attention mask of the last `queries` of `keys` positions; None where each sees all."""
    if queries == 1 and (window is None or keys <= window):
        return None
    mask = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
    return mask if window is None else mask.triu(keys - queries - window + 1)


def _row_multiple(model: Any) -> int:
    """Smallest multiple of rows at which every linear layer of the model gives each row the same bits."""
    shapes = {(*layer.weight.shape, layer.bias is None): layer for layer in linears(model)}
    generator = torch.Generator().manual_seed(0)
    multiple, most = 1, 48
    for layer in shapes.values():
        rows = torch.randn(most, layer.in_features, generator=generator).to(layer.weight)
        expected = layer(rows)
        while multiple and not all(
            torch.equal(layer(rows[:count]), expected[:count])
            for count in range(multiple, most, multiple if multiple < 8 else most // 3)
        ):
            multiple = next((candidate for candidate in (2, 4, 8, 16) if candidate > multiple), 0)
        if not multiple:
            logger.warning("layer=<%s> | no batch-invariant row count, greedy output may depend on the batch", layer)
            return 1
    return multiple


def pack_linears(model: Any) -> None:
    """Let the plain linear layers of a model compute on packed copies of their weights, where this PyTorch can.

    To be called again after every change of the weights.
    """
    if next(model.parameters()).device.type != "cpu":
        return
    try:
        with torch.inference_mode():
            for layer in linears(model):
                packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), 16)
                forward = functools.partial(_compute_packed, packed, layer.bias)
                forward(layer.weight.new_zeros(1, layer.in_features))  # an operator may exist and refuse to run here
                layer.forward = forward
    except (AttributeError, NotImplementedError, RuntimeError) as error:  # private operators, which builds may lack
        logger.info("error=<%s> | no packed linear layers here, using plain ones", error)


def _compute_packed(packed: torch.Tensor, bias: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")


def linears(model: Any) -> Iterator[Any]:
    """The linear layers of a model that compute nothing beyond the product."""
    return (module for module in model.modules() if type(module) is torch.nn.Linear)
