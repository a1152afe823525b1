"""The parameters and buffers of a model: their memory on the host, and copies of it on the device."""

from __future__ import annotations

from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from ..torch.weights.collect import is_plain
from .copies import Copies, Landing
from .known import MEMORY, TENSORS, Holder
from .shared_copies import SharedCopies
from .simulated.tensor import raw_storage

#: The address of a tensor that may show other memory than before, or that is not a weight any more.
NOWHERE = -1


class Weight:
    """A range of host memory that tensors of a model share, and its copy on the device.

    One that has lost its tensors gets the memory of a later one (:meth:`take`): drivers count what they have ever managed, and
    plans know weights by their numbers."""

    __slots__ = (
        "copy", "dtype", "edits", "end", "exposed", "is_leased", "is_private", "key", "landing", "name", "number", "owners",
        "seen", "source", "start",
    )

    def __init__(self, number: int, name: str, tensor: torch.Tensor, start: int, end: int) -> None:
        self.number = number
        #: The tensors of the model in this range.
        self.owners: List[Part] = []
        #: Writes that no version shows.
        self.edits = 0
        self.copy: Optional[torch.Tensor] = None
        #: Whether ``copy`` is one that programs share.
        self.is_leased = False
        #: The copy on its way, if the device copies beside operations.
        self.landing: Optional[Landing] = None
        #: The memory of ``copy``.
        self.key = 0
        self.take(name, tensor, start, end)

    def take(self, name: str, tensor: torch.Tensor, start: int, end: int) -> None:
        """Gets the memory of a tensor: the elements from ``start`` to ``end`` of its storage."""
        self.name = name
        self.dtype = tensor.dtype
        self.start, self.end = start, end
        self.source = tensor.detach().as_strided((end - start,), (1,), start)
        self.edits += 1
        #: The state of the host's memory that ``copy`` has.
        self.seen = -1
        #: Whether a program may write the memory unseen; then each use copies.
        self.exposed = False
        #: Whether operations on the device write copies.
        self.is_private = False

    @property
    def size_bytes(self) -> int:
        """Bytes of a copy."""
        return (self.end - self.start) * self.source.element_size()

    def state(self) -> int:
        """A number that changes when the host's memory does."""
        owners = self.owners
        if len(owners) == 1:
            return self.edits + owners[0].tensor._version
        return self.edits + sum([owner.tensor._version for owner in owners])

    def is_stale(self) -> bool:
        """Whether the copy may differ from the host's memory."""
        if self.exposed:
            return True
        owners = self.owners
        if len(owners) == 1:
            # As :meth:`state`, without its call: each operation asks for each of its weights.
            return self.seen != self.edits + owners[0].tensor._version
        return self.seen != self.state()

    def fetch(self, device: torch.device, copies: Copies) -> None:
        """Copies to the device."""
        self.drop()
        # Also where a transform of ``torch.func`` would wrap the copy.
        with torch.inference_mode(False), torch.no_grad(), torch._C._DisableFuncTorch():
            self.seen = self.state()
            self.copy, self.landing = copies.fetch(self.source, device, None if self.exposed else self.seen)

    def lease(self, shared: SharedCopies) -> Optional[int]:
        """Uses the copy that programs share. Returns the bytes that were copied for it; None: there is no such copy."""
        if self.exposed or self.is_private:
            return None
        with torch.inference_mode(False), torch.no_grad(), torch._C._DisableFuncTorch():
            seen = self.state()
            found = shared.lease(self.source)
            if found is None:
                return None
            self.seen, self.is_leased = seen, True
            self.copy, copied_bytes = found
        return copied_bytes

    def drop(self) -> None:
        """Frees the copy, as soon as no operation uses it."""
        self.copy = self.landing = None
        self.is_leased = False
        for owner in self.owners:
            owner.plain = owner.linked = None

    def part(self, view: "View") -> torch.Tensor:
        """A part of the copy, by a view of the host's storage."""
        assert self.copy is not None
        return view.of(self.copy, self.start)


class View:
    """How a tensor shows the elements of a storage. ``moved``: elements of it before those that the tensor's own storage has;
    ``is_real``: the tensor shows the real and imaginary parts of complex elements, as those of ``view_as_real``."""

    __slots__ = ("is_conj", "is_neg", "is_real", "offset", "size", "stride")

    def __init__(self, tensor: torch.Tensor, moved: int = 0, is_real: bool = False) -> None:
        moved = 2 * moved if is_real else moved
        self.size, self.stride, self.offset = tensor.size(), tensor.stride(), int(tensor.storage_offset()) + moved
        self.is_conj, self.is_neg, self.is_real = tensor.is_conj(), tensor.is_neg(), is_real

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor without such bits, in the same storage, is this view."""
        same = self.offset == tensor.storage_offset() and self.size == tensor.size() and self.stride == tensor.stride()
        return same and not (self.is_conj or self.is_neg)

    def is_inside(self, tensor: torch.Tensor) -> bool:
        """Whether all elements are between those of a tensor in the same storage."""
        if 0 in self.size or tensor.numel() == 0:
            return False
        start, end = extent(tensor)
        own_end = self.offset + 1 + sum([(size - 1) * stride for size, stride in zip(self.size, self.stride)])
        return start <= self.offset and own_end <= end

    def of(self, elements: torch.Tensor, start: int) -> torch.Tensor:
        """The same view of other memory, whose first element is number ``start`` of the storage."""
        with torch.inference_mode(False), torch.no_grad():
            if self.is_real:
                elements, start = torch.view_as_real(elements), 2 * start
            shown = elements.as_strided(self.size, self.stride, self.offset - start)
            shown = shown.conj() if self.is_conj else shown
            return torch._neg_view(shown) if self.is_neg else shown


class Part:
    """A tensor of the program in the memory of a weight, with the same part of the weight's copy."""

    __slots__ = ("address", "linked", "plain", "requires_grad", "tensor", "weight")

    def __init__(self, tensor: torch.Tensor, weight: Weight) -> None:
        self.tensor, self.weight = tensor, weight
        #: Where its elements are: ``set_`` and ``swap_tensors`` give a tensor other memory.
        self.address = tensor.data_ptr()
        #: The part of the copy without a gradient, and with one to ``tensor``.
        self.plain: Optional[torch.Tensor] = None
        self.linked: Optional[torch.Tensor] = None
        #: That of ``plain``; None: not known.
        self.requires_grad: Optional[bool] = None

    def copy(self) -> torch.Tensor:
        """The part of the copy, without a gradient to the tensor."""
        tensor, found = self.tensor, self.plain
        if found is None:
            found = self.plain = self.weight.part(View(tensor))
        self.requires_grad = tensor.requires_grad
        if found.requires_grad != self.requires_grad:
            # Some functions choose their algorithm by it, also without gradients.
            found.requires_grad_(self.requires_grad)
        return found

    def write_back(self) -> None:
        """Copies the part to the host; the copy stays valid."""
        with torch.no_grad():
            self.tensor.detach().copy_(self.copy())
        self.weight.seen = self.weight.state()


class Weights(Holder):
    """Finds the weight of a tensor, by its identity or its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.all: List[Weight] = []
        #: How often the address of an owner was forgotten.
        self.forgotten = 0
        #: The tensors of the model, by their ids.
        self.owners: Dict[int, Part] = {}
        #: The storages of owners without elements, by their numbers.
        self.empty: Dict[int, torch.UntypedStorage] = {}
        #: By storage; most storages are one weight.
        self.by_storage: Dict[int, List[Weight]] = {}
        #: Weights without tensors, by their bytes.
        self._free: Dict[int, List[Weight]] = {}

    def add(self, name: str, tensor: torch.Tensor) -> Optional[Weight]:
        """Manages a tensor on the host. Returns its weight if that has a new number."""
        if id(tensor) in self.owners or not manageable(tensor):
            return None
        if tensor.numel() == 0:
            self.empty[raw_storage(tensor)] = tensor.untyped_storage()
            MEMORY.add(raw_storage(tensor), self.key)
            return None
        start, end = extent(tensor)
        ranges = self.by_storage.setdefault(raw_storage(tensor), [])
        for weight in ranges:
            if weight.start <= start and end <= weight.end and weight.dtype == tensor.dtype:
                self._own(tensor, weight)
                return None
        if any(weight.start < end and start < weight.end for weight in ranges):
            # Overlaps in part: it is copied for each use.
            return None
        added: Optional[Weight] = None
        free = self._free.get((end - start) * tensor.element_size())
        if free:
            weight = free.pop()
            weight.take(name, tensor, start, end)
        else:
            weight = added = Weight(len(self.all), name, tensor, start, end)
            self.all.append(weight)
        ranges.append(weight)
        MEMORY.add(raw_storage(tensor), self.key)
        self._own(tensor, weight)
        return added

    def _own(self, tensor: torch.Tensor, weight: Weight) -> None:
        part = self.owners[id(tensor)] = Part(tensor, weight)
        weight.owners.append(part)
        TENSORS.add(id(tensor), self.key)

    def keeps(self, owner: Part) -> bool:
        """Whether an owner's memory is still that of its weight."""
        weight, tensor = owner.weight, owner.tensor
        has_elements = manageable(tensor) and tensor.numel() > 0
        ranges = self.by_storage.get(tensor.untyped_storage()._cdata, ()) if has_elements else ()
        if weight not in ranges or weight.dtype != tensor.dtype:
            return False
        start, end = extent(tensor)
        return weight.start <= start and end <= weight.end

    def forget_address(self, owner: Part) -> None:
        """The next operation looks where the memory of an owner is."""
        owner.address = NOWHERE
        self.forgotten += 1

    def remove(self, owner: Part) -> None:
        """A tensor no longer owns its weight; a weight without owners frees its memory."""
        weight = owner.weight
        weight.owners.remove(owner)
        self.forget_address(owner)
        owner.plain = owner.linked = None
        del self.owners[id(owner.tensor)]
        TENSORS.discard(id(owner.tensor), self.key)
        if not weight.owners:
            memory = raw_storage(weight.source)
            self.by_storage[memory].remove(weight)
            if not self.by_storage[memory]:
                del self.by_storage[memory]
                MEMORY.discard(memory, self.key)
            weight.source = torch.empty(0, dtype=weight.dtype)
            self._free.setdefault(weight.size_bytes, []).append(weight)

    def part(self, tensor: torch.Tensor) -> Optional[Part]:
        """A host tensor as a part of the weight whose memory it shows."""
        found = self.owners.get(id(tensor))
        if found is not None:
            return found
        ranges = self.sharing(tensor)
        if not ranges or tensor.numel() == 0:
            return None
        start, end = extent(tensor)
        for weight in ranges:
            if weight.start <= start and end <= weight.end and weight.dtype == tensor.dtype:
                return Part(tensor, weight)
        return None

    def belongs(self, tensor: torch.Tensor) -> bool:
        """Whether a host tensor is a part of the model: perhaps without elements, or of another type, such as the real part."""
        if id(tensor) in self.owners:
            return True
        memory = memory_of(tensor)
        return bool(self.by_storage.get(memory)) or memory in self.empty  # type: ignore[arg-type]

    def sharing(self, tensor: torch.Tensor) -> Sequence[Weight]:
        """The weights in the same storage as a tensor."""
        memory = memory_of(tensor)
        return () if memory is None else self.by_storage.get(memory, ())


def memory_of(tensor: torch.Tensor) -> Optional[int]:
    """The number of the memory of a tensor of the host; None: it has none that a weight may have."""
    if tensor.layout != torch.strided or not tensor.is_cpu or torch.nn.parameter.is_lazy(tensor):
        return None
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:
        # One of a transform that ``torch.func`` does not count: batched gradients of ``gradcheck``.
        return None


def manageable(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a plain one on the host."""
    return is_plain(tensor) and (
        tensor.is_cpu
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_inference()
        and not (tensor.is_conj() or tensor.is_neg())
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
