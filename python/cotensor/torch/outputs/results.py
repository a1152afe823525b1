"""Outputs of modules in the store."""

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


#: The longest wait for a result that another process computes, in seconds. Past it, the caller computes: the other process may
#: be stopped.
_WAIT_SECONDS_MAX = 60.0


class Results:
    """Publishes outputs under one name, and opens them."""

    def __init__(self, store: Store, name: str, kind: str, holder: Optional[str]) -> None:
        self.name = name
        self._store = store
        self._kind = kind
        self._holder = holder

    def claim(self, key: str, held: List[Ticket]) -> List[Tensor]:
        """The result of a key. Where it is to be computed: nothing, and ``held`` gets the ticket.

        Only that list has the ticket: a traceback that is kept must not keep other callers waiting.
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
            raise NotShared("an output of too many parts")
        drafts: List[TensorBuilder] = []
        first = self._draft(key, 0, (len(description),), "uint8")
        first.numpy()[:] = numpy.frombuffer(description, numpy.uint8)
        drafts.append(first)
        for number, (tensor, order) in enumerate(zip(tensors, orders), 1):
            laid = tensor.detach().resolve_neg().permute(order)
            draft = self._draft(key, number, tuple(laid.shape), str(laid.dtype))
            draft.write(laid)
            drafts.append(draft)
        return ticket.publish(drafts)

    def _draft(self, key: str, number: int, shape: Tuple[int, ...], dtype: str) -> TensorBuilder:
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
    """A published description and its tensors, as :meth:`Results.publish` got them."""
    described, orders = json.loads(results[0].tobytes())
    if len(orders) != len(results) - 1:
        raise CorruptError("an output with other tensors than it describes")
    shown = []
    for result, order in zip(results[1:], orders):
        back = sorted(range(len(order)), key=order.__getitem__)
        shown.append(result.torch().permute(back))
    return described, shown




def _order(tensor: torch.Tensor) -> List[int]:
    """The dimensions of an output in the order of memory, the outermost first. A tensor with gaps, or whose elements share
    memory, is written in row-major order."""
    check_tensor(tensor, "an output")
    strides = tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda dim: (-strides[dim], -tensor.shape[dim]))
    return list(range(tensor.ndim)) if tensor.is_contiguous() or not tensor.permute(order).is_contiguous() else order
