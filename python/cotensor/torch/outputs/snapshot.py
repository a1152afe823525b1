"""A module as it was at one moment: a copy of its structure, its weights in shared memory."""

from __future__ import annotations

import copy
import logging
from typing import Any, Dict, List, Optional, Tuple

import torch

from ..._native import Store, Tensor, Ticket, content_hash, published_at
from ...errors import CotensorError, NotFoundError, UnsupportedError
from ..modes import plainly
from ..weights import write
from ..weights.collect import check, gather, slots
from ..weights.manifest import ALIGNMENT_BYTES, read_manifest, span

_logger = logging.getLogger("cotensor.torch")


class Snapshot:
    """A copy of a module whose weights this process cannot change through the module itself.

    A weight that lies in a published tensor, on pages that this process has not written, is mapped once more; the others are
    published, and the module uses that memory from then on. Where the store refuses them they are copied.
    """

    def __init__(self, module: torch.nn.Module, store: Store, name: str) -> None:
        found: Dict[int, Tuple[str, str, torch.Tensor]] = {}
        for slot in slots(module):
            found.setdefault(id(slot[2]), slot[:3])
        for label, _, tensor in found.values():
            check(label, tensor)
        #: Mappings that no one else has, by the tensor that they show.
        self._mapped: Dict[Tuple[int, int], Tuple[Tensor, torch.Tensor]] = {}
        own: Dict[int, torch.Tensor] = {}
        with plainly():
            for which, (_, _, tensor) in found.items():
                shown = self._published(tensor)
                if shown is not None:
                    own[which] = shown
            loose = {which: slot for which, slot in found.items() if which not in own}
            if loose:
                own.update(self._placed(loose, store, name))
        self._weights = list(own.values())
        self._identities = {_place(tensor): _identity(tensor) for tensor in self._weights}
        self._versions = [tensor._version for tensor in self._weights]
        self.module = self._copied(module, {which: _like(found[which][2], tensor) for which, tensor in own.items()})

    def _published(self, tensor: torch.Tensor) -> Optional[torch.Tensor]:
        """A second view of a weight that is in published memory already."""
        count = span(tensor.shape, tensor.stride())
        known = published_at(tensor.data_ptr(), count * tensor.element_size()) if count else None
        if known is None:
            return None
        whole, offset = known
        whole, memory = self._mapped.setdefault(whole.id, (whole, whole.torch()))
        if (memory.data_ptr() + offset) % tensor.element_size() or offset % tensor.element_size():
            return None
        view = torch.empty(0, dtype=tensor.dtype)
        return view.set_(memory.untyped_storage(), offset // tensor.element_size(), tensor.shape, tensor.stride())

    def _placed(
        self, loose: Dict[int, Tuple[str, str, torch.Tensor]], store: Store, name: str
    ) -> Dict[int, torch.Tensor]:
        """Weights of this process alone, put into shared memory under a name that their content gives."""
        try:
            # By number: the same weights may have other names in another module.
            numbered = [(str(number), kind, tensor) for number, (_, kind, tensor) in enumerate(loose.values())]
            manifest, sources = gather(numbered, name)
            content = content_hash(*(part for _, _, tensor in numbered for part in _described(tensor)))
            label = f"weights/{content[:32]}"
            # Of several processes, one publishes at a time: a claim without a result.
            claimed = store.claim(content_hash("cotensor.torch: weights of a shared module", content))
            try:
                whole = store.get(label)
            except NotFoundError:
                whole = write.write(store, label, manifest, sources, True, name, False)
            finally:
                if isinstance(claimed, Ticket):
                    claimed.abandon()
            read, data = read_manifest(whole)
            shown, live = write.views(whole, read, data), write.views(store.lease(whole.id), read, data)
            places = {place[0]: number for number, entry in enumerate(read.tensors) for place in entry.places}
            order = [places[number] for number, _, _ in numbered]
            own = {which: _strided(shown[at], slot[2]) for at, (which, slot) in zip(order, loose.items())}
            after = content_hash(*(part for tensor in own.values() for part in _described(tensor)))
            if after != content:
                raise UnsupportedError("the weights changed while they were copied")
        except (CotensorError, KeyError) as error:
            _logger.info("%s: its weights are not in shared memory: %s", name, error)
            return {which: slot[2].detach().clone() for which, slot in loose.items()}
        self._mapped[whole.id] = (whole, shown[0])
        for at, slot in zip(order, loose.values()):
            _move(slot[2], live[at])
        return own

    @staticmethod
    def _copied(module: torch.nn.Module, weights: Dict[int, torch.Tensor]) -> torch.nn.Module:
        memo: Dict[int, Any] = dict(weights)
        try:
            with plainly():
                made = copy.deepcopy(module, memo)
        except Exception as error:
            message = f"this module cannot be copied ({type(error).__name__}: {error}): state a key, share(module, key=…)"
            raise UnsupportedError(message, field="module") from error
        for part in made.modules():
            part.training = False
            for hooks in (part._forward_hooks, part._forward_pre_hooks):
                # Those of the module itself run outside of what is shared.
                for number in [number for number, hook in hooks.items() if part is made or not is_own_hook(hook)]:
                    del hooks[number]
        return made

    def identity(self, weight: torch.Tensor) -> str:
        """The content of one of the copy's weights, in 64 hexadecimal digits."""
        return self._identities.get(_place(weight)) or _identity(weight)

    def is_intact(self) -> bool:
        """Whether the weights are what they were: no page of the mappings was written, which the kernel knows."""
        written = any(whole.private_bytes for whole, _ in self._mapped.values())
        return not written and [tensor._version for tensor in self._weights] == self._versions


def is_own_hook(hook: Any) -> bool:
    """Whether a hook is part of what the module computes: transformers collects hidden states by hooks on the layers."""
    return getattr(hook, "__module__", "") == "transformers.utils.output_capturing"


def _place(tensor: torch.Tensor) -> Tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _identity(tensor: torch.Tensor) -> str:
    # Kernels add in another order where memory begins elsewhere in a cache line.
    return content_hash(tensor.detach(), f"{tensor.stride()} {tensor.data_ptr() % ALIGNMENT_BYTES}")


def _described(tensor: torch.Tensor) -> List[Any]:
    return [tensor.detach(), str(tensor.stride())]


def _like(tensor: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, torch.nn.Parameter):
        return view
    made = torch.nn.Parameter(view, requires_grad=tensor.requires_grad)
    made.__dict__.update(vars(tensor))
    return made


def _strided(view: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """With the strides of the original, which dimensions of size 1 may have as they like."""
    return view if view.stride() == tensor.stride() else view.as_strided(tensor.shape, tensor.stride())


def _move(tensor: torch.Tensor, view: torch.Tensor) -> None:
    """Makes a module's weight use shared memory; optimizers know it by its identity."""
    if not tensor.is_inference() and tensor._base is None:
        tensor.data = _strided(view, tensor)
