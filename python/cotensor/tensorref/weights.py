"""The parameters and buffers of a model: their memory on the host, and copies of it on the device."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from ..torch.weights.collect import is_plain
from .copies import Copies, Landing
from .simulated.tensor import raw_storage


class Weight:
    """A range of host memory that tensors of a model share, and its copy on the device."""

    __slots__ = (
        "copy", "dtype", "edits", "end", "exposed", "key", "landing", "linked", "name", "number", "owners", "seen", "source",
        "start", "views",
    )

    def __init__(self, number: int, name: str, tensor: torch.Tensor, start: int, end: int) -> None:
        self.number = number
        self.name = name
        self.dtype = tensor.dtype
        #: Elements of the storage.
        self.start, self.end = start, end
        self.source = tensor.detach().as_strided((end - start,), (1,), start)
        #: The tensors of the model in this range.
        self.owners: List[torch.Tensor] = [tensor]
        #: Writes that no version shows.
        self.edits = 0
        #: The state of the host's memory that ``copy`` has.
        self.seen = -1
        #: Whether a program may write the memory unseen; then each use copies.
        self.exposed = False
        self.copy: Optional[torch.Tensor] = None
        #: The copy on its way, if the device copies beside operations.
        self.landing: Optional[Landing] = None
        #: The memory of ``copy``.
        self.key = 0
        #: By the id of an owner: the same view of ``copy``; with a gradient to the owner.
        self.views: Dict[int, torch.Tensor] = {}
        self.linked: Dict[int, torch.Tensor] = {}

    @property
    def size_bytes(self) -> int:
        """Bytes of a copy."""
        return (self.end - self.start) * self.source.element_size()

    def state(self) -> int:
        """A number that changes when the host's memory does."""
        if len(self.owners) == 1:
            return self.edits + self.owners[0]._version
        return self.edits + sum(owner._version for owner in self.owners)

    def fetch(self, device: torch.device, copies: Copies) -> None:
        """Copies to the device."""
        with torch.inference_mode(False), torch.no_grad():
            self.views.clear()
            self.linked.clear()
            self.seen = self.state()
            self.copy, self.landing = copies.fetch(self.source, device, None if self.exposed else self.seen)

    def drop(self) -> None:
        """Frees the copy, as soon as no operation uses it."""
        self.copy = self.landing = None
        self.views.clear()
        self.linked.clear()

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of the copy for ``tensor``, without a gradient."""
        found = self.views.get(id(tensor))
        if found is None:
            found = self.strided(tensor.size(), tensor.stride(), int(tensor.storage_offset()))
            if any(tensor is owner for owner in self.owners):
                self.views[id(tensor)] = found
        if found.requires_grad != tensor.requires_grad:
            # Some functions choose their algorithm by it, also without gradients.
            found.requires_grad_(tensor.requires_grad)
        return found

    def strided(self, size: Any, stride: Any, offset: int) -> torch.Tensor:
        """A part of the copy; ``offset`` counts elements of the host's storage."""
        assert self.copy is not None
        with torch.inference_mode(False), torch.no_grad():
            return self.copy.as_strided(size, stride, offset - self.start)

    def write_back(self, tensor: torch.Tensor) -> None:
        """Copies the part for ``tensor`` to the host; the copy stays valid."""
        with torch.no_grad():
            tensor.detach().copy_(self.view(tensor))
        self.seen = self.state()


class Weights:
    """Finds the weight of a tensor, by its identity or its memory."""

    def __init__(self) -> None:
        self.all: List[Weight] = []
        self.by_id: Dict[int, Weight] = {}
        #: The storages of owners without elements, by their numbers.
        self.empty: Dict[int, torch.UntypedStorage] = {}
        #: The addresses of these tensors: ``set_`` and ``swap_tensors`` give a tensor other memory.
        self._addresses: Dict[int, int] = {}
        #: By storage; most storages are one weight.
        self._by_storage: Dict[int, List[Weight]] = {}

    def add(self, name: str, tensor: torch.Tensor) -> Optional[Weight]:
        """Manages a tensor on the host. Returns its weight if it is a new one."""
        if id(tensor) in self.by_id or not manageable(tensor):
            return None
        if tensor.numel() == 0:
            self.empty[raw_storage(tensor)] = tensor.untyped_storage()
            return None
        start, end = extent(tensor)
        ranges = self._by_storage.setdefault(raw_storage(tensor), [])
        for weight in ranges:
            if weight.start <= start and end <= weight.end and weight.dtype == tensor.dtype:
                weight.owners.append(tensor)
                self.own(tensor, weight)
                return None
        if any(weight.start < end and start < weight.end for weight in ranges):
            # Overlaps in part: it is copied for each use.
            return None
        weight = Weight(len(self.all), name, tensor, start, end)
        ranges.append(weight)
        self.all.append(weight)
        self.own(tensor, weight)
        return weight

    def own(self, tensor: torch.Tensor, weight: Weight) -> None:
        """``tensor`` is an owner of ``weight``, at the address that it has now."""
        self.by_id[id(tensor)] = weight
        self._addresses[id(tensor)] = tensor.data_ptr()

    def has_moved(self, tensor: torch.Tensor) -> bool:
        """Whether an owner has other memory now."""
        address = self._addresses.get(id(tensor))
        return address is not None and address != tensor.data_ptr()

    def keeps(self, weight: Weight, tensor: torch.Tensor) -> bool:
        """Whether an owner's memory is still that of its weight."""
        has_elements = manageable(tensor) and tensor.numel() > 0
        ranges = self._by_storage.get(tensor.untyped_storage()._cdata, ()) if has_elements else ()
        if weight not in ranges or weight.dtype != tensor.dtype:
            return False
        start, end = extent(tensor)
        return weight.start <= start and end <= weight.end

    def remove(self, weight: Weight, tensor: torch.Tensor) -> None:
        """``tensor`` no longer owns ``weight``; a weight without owners frees its memory."""
        weight.owners = [owner for owner in weight.owners if owner is not tensor]
        weight.views.pop(id(tensor), None)
        weight.linked.pop(id(tensor), None)
        del self.by_id[id(tensor)], self._addresses[id(tensor)]
        if not weight.owners:
            self._by_storage[raw_storage(weight.source)].remove(weight)
            weight.source = torch.empty(0, dtype=weight.dtype)

    def find(self, tensor: torch.Tensor) -> Optional[Weight]:
        """The weight whose memory a host tensor shows a part of."""
        found = self.by_id.get(id(tensor))
        if found is not None:
            return found
        if tensor.layout != torch.strided or torch.nn.parameter.is_lazy(tensor):
            return None
        ranges = self._by_storage.get(tensor.untyped_storage()._cdata)
        if ranges is None or tensor.numel() == 0:
            return None
        start, end = extent(tensor)
        for weight in ranges:
            if weight.start <= start and end <= weight.end and weight.dtype == tensor.dtype:
                return weight
        return None

    def belongs(self, tensor: torch.Tensor) -> bool:
        """Whether a host tensor is a part of the model: perhaps without elements, or of another type, such as the real part."""
        if id(tensor) in self.by_id or self.sharing(tensor):
            return True
        if not self.empty or tensor.layout != torch.strided or torch.nn.parameter.is_lazy(tensor):
            return False
        return raw_storage(tensor) in self.empty

    def sharing(self, tensor: torch.Tensor) -> Sequence[Weight]:
        """The weights in the same storage as a tensor."""
        if tensor.layout != torch.strided or not tensor.is_cpu or torch.nn.parameter.is_lazy(tensor):
            return ()
        return self._by_storage.get(tensor.untyped_storage()._cdata, ())


def manageable(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a plain one on the host."""
    return is_plain(tensor) and (
        tensor.is_cpu
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_inference()
    )


def extent(tensor: torch.Tensor) -> Tuple[int, int]:
    """The first element of the storage that a tensor of at least one element shows, and the one after its last."""
    start = int(tensor.storage_offset())
    return start, start + 1 + sum([(size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride())])


def tensors_of(module: torch.nn.Module) -> Iterator[Tuple[str, torch.Tensor]]:
    """The parameters and buffers of a module with their names; a tensor may have several."""
    # Without ``remove_duplicate=False``, which never ends for a module that contains itself.
    for prefix, part in module.named_modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    yield f"{prefix}.{name}" if prefix else name, tensor
