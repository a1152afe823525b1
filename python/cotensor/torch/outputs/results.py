"""Outputs of modules in a store."""

from __future__ import annotations

import json
from typing import Any, List, Optional, Sequence, Tuple

import numpy
import torch

from ..._native import Store, Tensor, TensorBuilder, Ticket, content_hash
from ...errors import CorruptError
from .inputs import check_tensor
from .tree import NotShared

#: The longest description of an output, in bytes.
_DESCRIPTION_BYTES_MAX = 1 << 20


#: The longest wait for a result of another process, in seconds. Then the caller computes, because the other process may be
#: stopped.
_WAIT_SECONDS_MAX = 60.0


class Results:
    """Claims and publishes outputs under one name."""

    def __init__(self, store: Store, name: str, kind: str, holder: Optional[str]) -> None:
        self.name = name
        self._store = store
        self._kind = kind
        self._holder = holder

    def claim(self, key: str, held: List[Ticket]) -> List[Tensor]:
        """The result of a key, or an empty list if the caller has to compute it. Then ``held`` gets the ticket.

        Only that list holds the ticket, so that a stored traceback cannot keep other callers waiting.
        """
        claimed = self._store.claim(key, self._holder, _WAIT_SECONDS_MAX)
        if isinstance(claimed, Ticket):
            held.append(claimed)
            return []
        return claimed

    def publish(self, key: str, ticket: Ticket, described: Any, tensors: Sequence[torch.Tensor]) -> List[Tensor]:
        """Publishes a description and its tensors as the result of a key."""
        orders = [_order(tensor) for tensor in tensors]
        description = json.dumps([described, orders]).encode()
        if len(description) > _DESCRIPTION_BYTES_MAX:
            raise NotShared("the output has too many parts")
        builders: List[TensorBuilder] = []
        first = self._builder(key, 0, (len(description),), "uint8")
        first.numpy()[:] = numpy.frombuffer(description, numpy.uint8)
        builders.append(first)
        for number, (tensor, order) in enumerate(zip(tensors, orders), 1):
            laid = tensor.detach().resolve_neg().permute(order)
            builder = self._builder(key, number, tuple(laid.shape), str(laid.dtype))
            builder.write(laid)
            builders.append(builder)
        return ticket.publish(builders)

    def _builder(self, key: str, number: int, shape: Tuple[int, ...], dtype: str) -> TensorBuilder:
        return self._store.empty(
            f"{self.name}/{key[:16]}/{number}",
            shape,
            dtype,
            holder=self._holder,
            kind=self._kind,
            producer=self.name,
            provenance=content_hash(key, str(number)),
        )


def opened(results: Sequence[Tensor]) -> Tuple[Any, List[torch.Tensor]]:
    """The description and the tensors of a published result."""
    described, orders = json.loads(results[0].tobytes())
    if len(orders) != len(results) - 1:
        raise CorruptError("the tensors of an output do not match its description")
    shown = []
    for result, order in zip(results[1:], orders):
        back = sorted(range(len(order)), key=order.__getitem__)
        shown.append(result.torch().permute(back))
    return described, shown


def _order(tensor: torch.Tensor) -> List[int]:
    """The dimensions of an output in memory order, the outermost first; row-major for a tensor with gaps or overlaps."""
    check_tensor(tensor, "an output")
    strides = tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda dim: (-strides[dim], -tensor.shape[dim]))
    return list(range(tensor.ndim)) if tensor.is_contiguous() or not tensor.permute(order).is_contiguous() else order
