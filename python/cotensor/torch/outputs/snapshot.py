"""A snapshot of a module: a copy of its structure, with its weights in shared memory."""

from __future__ import annotations

import copy
import logging
from typing import Any, Dict, List, Optional, Tuple

import torch

from ..._native import Store, Tensor, Ticket, content_hash, published_at
from ...errors import CotensorError, NotFoundError, UnsupportedError
from ..modes import default_modes
from ..weights import write
from ..weights.collect import check, gather, named_tensors
from ..weights.manifest import ALIGNMENT_BYTES, read_manifest, span

_logger = logging.getLogger("cotensor.torch")


class Snapshot:
    """A copy of a module whose weights do not change with the module.

    A weight in unwritten pages of a published tensor is mapped a second time. The other weights are published, and the module
    then uses that memory. Weights that the store refuses are copied.
    """

    def __init__(self, module: torch.nn.Module, store: Store, name: str) -> None:
        found: Dict[int, Tuple[str, str, torch.Tensor]] = {}
        for each in named_tensors(module):
            found.setdefault(id(each[2]), each[:3])
        for label, _, tensor in found.values():
            if not check(label, tensor).is_host:
                message = f"{label}: the tensor is on {tensor.device}, and shared modules compute on the host: use cpu()"
                raise UnsupportedError(message, field=label)
        #: Mappings that only this snapshot uses, by tensor id.
        self._mapped: Dict[Tuple[int, int], Tuple[Tensor, torch.Tensor]] = {}
        own: Dict[int, torch.Tensor] = {}
        with default_modes():
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
        """A second mapping of a weight in published memory; ``None`` for other weights."""
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
        """Publishes private weights under a name from their content hash, and moves the module to that memory."""
        try:
            # By number: another module can have the same weights under other names.
            numbered = [(str(number), kind, tensor) for number, (_, kind, tensor) in enumerate(loose.values())]
            gathered = gather(numbered, name)
            content = content_hash(*(part for _, _, tensor in numbered for part in _described(tensor)))
            label = f"weights/{content[:32]}"
            # A claim without a result, so that one process publishes at a time.
            claimed = store.claim(content_hash("cotensor.torch: weights of a shared module", content))
            try:
                whole = store.get(label)
            except NotFoundError:
                whole = write.write(store, label, gathered, True, name, False)
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
                raise UnsupportedError("the weights changed during the copy")
        except (CotensorError, KeyError) as error:
            _logger.info("%s: weights stay private: %s", name, error)
            return {which: slot[2].detach().clone() for which, slot in loose.items()}
        self._mapped[whole.id] = (whole, shown[0])
        for at, slot in zip(order, loose.values()):
            _move(slot[2], live[at])
        return own

    @staticmethod
    def _copied(module: torch.nn.Module, weights: Dict[int, torch.Tensor]) -> torch.nn.Module:
        memo: Dict[int, Any] = dict(weights)
        try:
            with default_modes():
                made = copy.deepcopy(module, memo)
        except Exception as error:
            message = f"this module cannot be copied ({type(error).__name__}: {error}): use share(module, key=…)"
            raise UnsupportedError(message, field="module") from error
        for part in made.modules():
            part.training = False
            for hooks in (part._forward_hooks, part._forward_pre_hooks):
                # Hooks of the module itself run outside of the shared call.
                for number in [number for number, hook in hooks.items() if part is made or not is_own_hook(hook)]:
                    del hooks[number]
        return made

    def identity(self, weight: torch.Tensor) -> str:
        """The content hash of a weight of the copy, in 64 hexadecimal digits."""
        return self._identities.get(_place(weight)) or _identity(weight)

    def is_intact(self) -> bool:
        """Whether the weights are unchanged: the kernel reports no written page, and torch no write."""
        written = any(whole.private_bytes for whole, _ in self._mapped.values())
        return not written and [tensor._version for tensor in self._weights] == self._versions


def is_own_hook(hook: Any) -> bool:
    """Whether a hook belongs to the module's computation: transformers collects hidden states by hooks on layers."""
    return getattr(hook, "__module__", "") == "transformers.utils.output_capturing"


def _place(tensor: torch.Tensor) -> Tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _identity(tensor: torch.Tensor) -> str:
    # Kernels sum in an order that depends on the alignment of memory.
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
    """The view with the strides of the original, also for dimensions of size 1."""
    return view if view.stride() == tensor.stride() else view.as_strided(tensor.shape, tensor.stride())


def _move(tensor: torch.Tensor, view: torch.Tensor) -> None:
    """Moves a weight to shared memory. It stays the same object, because optimizers refer to it by identity."""
    if not tensor.is_inference() and tensor._base is None:
        tensor.data = _strided(view, tensor)
