"""Linear layers on weights laid out once for oneDNN.

PyTorch hands a float32 product with few rows to MKL, which lays the weights out anew on every call, and takes slow
paths on processors of other makers. With the layout done beforehand (by the operators that PyTorch's own compiler uses)
decoding was 2.5 to 3 times as fast, for a second copy of the weights in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch

logger = logging.getLogger(__name__)


class PackedLinear(torch.nn.Linear):  # type: ignore[misc]  # torch is not type-checked here
    """A linear layer that computes with a packed copy of its weight; `pack` after every change of the weight."""

    def pack(self) -> None:
        """Lay the weight out anew."""
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), 16)

    def forward(self, input: Any) -> Any:
        """Compute `input @ weight.T + bias`."""
        return torch.ops.mkldnn._linear_pointwise(input, self.packed, self.bias, "none", [], "")


def pack_linears(model: Any) -> bool:
    """Turn the plain linear layers of a model into packed ones, or pack them again; False where that is impossible."""
    try:
        with torch.inference_mode():
            for layer in linears(model):
                PackedLinear.pack(layer)
                PackedLinear.forward(layer, layer.weight.new_zeros(1, layer.in_features))
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        logger.info("error=<%s> | no packed linear layers here, using plain ones", error)
        return False
    for layer in linears(model):
        layer.__class__ = PackedLinear
    return True


def linears(model: Any) -> Iterator[Any]:
    """The linear layers of a model that compute nothing else."""
    return (module for module in model.modules() if type(module) in (torch.nn.Linear, PackedLinear))
