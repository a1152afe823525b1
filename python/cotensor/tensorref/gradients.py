"""Gradients through moves, and tensors that wait for the backward pass."""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable, List, Optional, Tuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .arguments import is_copied_as, to_device
from .mover import Mover
from .simulated.tensor import raw_storage, storage_of, weakly
from .weights import View, Weight

#: The operation of each thread.
_local = threading.local()


class ToDevice(torch.autograd.Function):
    """A tensor of the host as its copy on the device; the gradient goes back to the host."""

    @staticmethod
    def forward(ctx: Any, host: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
        ctx.device, ctx.target = host.device, copy.device
        # As without a copy, no gradient is none and not zeros.
        ctx.set_materialize_grads(False)
        return copy.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Optional[torch.Tensor]) -> Tuple[Optional[torch.Tensor], None]:
        if gradient is None:
            return None, None
        # No session sees the move. With the same strides: functions of the backward pass round differently for others.
        with torch._C.DisableTorchFunction():
            return to_device(gradient, ctx.device), None

    @staticmethod
    def jvp(ctx: Any, host: torch.Tensor, copy: Any) -> Any:
        """The tangent of the copy."""
        return host.to(ctx.target)


def transfer(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor on another device, with its gradient."""
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        return to_device(tensor, device)
    return ToDevice.apply(tensor, to_device(tensor.detach(), device))  # type: ignore[no-any-return]


def without_inference(make: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
    """The result of ``make`` as a tensor whose version shows writes, also in inference mode."""
    if not torch.is_inference_mode_enabled():
        return make(*args)
    with torch.inference_mode(False), torch.no_grad():
        return make(*args)


def as_linked(copy: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A copy that requires gradients as its tensor does: some functions choose their algorithm by it, also without gradients."""
    if copy.requires_grad != tensor.requires_grad and not copy.is_inference():
        copy.requires_grad_(tensor.requires_grad)
    return copy


def in_backward() -> bool:
    """Whether this thread computes gradients, and no forward pass again, as ``checkpoint`` does."""
    return torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled()


class SavedWeight:
    """A part of a weight that the backward pass needs, instead of its copy on the device."""

    __slots__ = ("mover", "name", "owner", "source", "versions", "view", "weight")

    def __init__(self, mover: Mover, weight: Weight, tensor: torch.Tensor) -> None:
        self.mover, self.weight = mover, weight
        self.view = View(tensor, weight.start, is_real=weight.dtype != tensor.dtype)
        #: The weight's memory: it may get another one.
        self.name, self.source = weight.name, weight.source
        #: The owner that is saved itself, not a view of it: PyTorch then takes the memory that it has in the backward pass.
        self.owner = next((owner for owner in weight.owners if tensor is owner.linked or tensor is owner.plain), None)
        #: Aliases count the writes of the tensors that were saved, also after ``set_`` and ``swap_tensors``. Writes without a
        #: version are none for PyTorch, either.
        self.versions = [(owner.tensor.detach(), owner.tensor._version) for owner in weight.owners]

    def changed(self) -> Optional[RuntimeError]:
        """The error for a weight that was changed after the forward pass."""
        changed = any([alias._version != version for alias, version in self.versions])
        return _modified(self.name, self.view.size) if changed else None

    @property
    def has_left(self) -> bool:
        """Whether the weight no longer has the memory that was saved."""
        return self.weight.source is not self.source

    def on_host(self) -> torch.Tensor:
        """The part in the memory of the host."""
        if self.has_left and self.owner is not None:
            return self.owner.tensor.detach()
        return self.view.of(self.source, 0)


class SavedTensor:
    """A tensor that the backward pass needs. Where an operation got a copy of a tensor of the program, or gave another one for a
    result, it is read from the program's tensor: PyTorch would have saved this, and would see writes without a version.

    PyTorch compares versions of tensors that it saves by itself, but not of those that a session saves for it."""

    __slots__ = ("device", "dtype", "follows", "part", "program", "size", "start", "tensor", "version", "watched")

    def __init__(self, tensor: torch.Tensor, device: torch.device) -> None:
        #: The operation's own tensor, perhaps on another device; None: the program's lives as long.
        self.tensor: Optional[torch.Tensor] = tensor
        #: Where the backward pass needs it.
        self.device, self.dtype, self.size = device, tensor.dtype, tensor.size()
        #: Gives the program's tensor for its elements, as long as its memory lives. ``follows``: it is another one.
        self.program: Optional[Callable[[], Optional[torch.Tensor]]] = None
        self.follows = False
        #: Has the version of the program's tensor.
        self.watched = tensor
        #: The part of a copy of the program's tensor, which begins at ``start``; None: the whole.
        self.part: Optional[View] = None
        self.start = 0
        self.version = version_of(tensor)

    def watch(self, program: torch.Tensor, own: torch.Tensor, view: Optional[View]) -> None:
        """The program has ``program`` instead of ``own``, of whose storage the operation saved a view."""
        self.version = version_of(program)
        # A leaf may get other memory until then. Another tensor would keep the function that saves it: neither would be freed.
        self.watched = program if program.is_cpu and program.is_leaf else program.detach()
        alive: Callable[[], Optional[torch.Tensor]] = functools.partial(_itself, self.watched)
        if not program.is_cpu and program.layout == torch.strided:
            alive, self.watched = weakly(program), _with_version(program)
        if view is not None and self.dtype == own.dtype and is_copied_as(program, own):
            is_whole = view.is_of(own)
            if is_whole or view.is_inside(own):
                self.program, self.part, self.start = alive, None if is_whole else view, int(own.storage_offset())
                self.follows = True
                if program.is_cpu:
                    self.tensor = None

    def wait(self, elsewhere: torch.Tensor, own: torch.Tensor) -> None:
        """``elsewhere`` has the elements when the device no longer does. The program may have the own tensor itself."""
        if self.watched is self.tensor:
            self.watched = _with_version(own)
            if own.layout == torch.strided and not (own.is_conj() or own.is_neg()):
                self.program = weakly(own)
        self.tensor = elsewhere

    def get(self, move: Callable[[torch.Tensor, torch.device], torch.Tensor]) -> torch.Tensor:
        """The tensor where the backward pass needs it. ``move`` moves one to a device."""
        program = None if self.program is None else self.program()
        if program is None:
            assert self.tensor is not None
            return self.tensor if self.tensor.device == self.device else move(self.tensor, self.device)
        copy = program.detach()
        copy = copy if copy.device == self.device else move(copy, self.device)
        return copy if self.part is None else self.part.of(copy, self.start - int(copy.storage_offset()))

    def changed(self) -> Optional[RuntimeError]:
        """The error for a tensor that was changed after the forward pass."""
        version = version_of(self.watched)
        if version == self.version:
            return None
        return _modified(f"a tensor at version {version} instead of {self.version}", self.size)


def _with_version(tensor: torch.Tensor) -> torch.Tensor:
    """An alias that has the version of a tensor, and keeps no memory."""
    alias = tensor.detach()
    if tensor.layout == torch.strided:
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        if torch._has_compatible_shallow_copy_type(alias, empty):
            alias.data = empty
    return alias


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def version_of(tensor: torch.Tensor) -> int:
    """The version of a tensor; those of inference mode have none."""
    return 0 if tensor.is_inference() else tensor._version


def _modified(name: str, size: Any) -> RuntimeError:
    """PyTorch's error."""
    text = "one of the variables needed for gradient computation has been modified by an inplace operation"
    return RuntimeError(f"{text}: {name}, of shape {list(size)}")


class Substitution:
    """One operation that gets other tensors than the program passed, and gives others than the program gets. What a thread saves
    until :meth:`end` belongs to the operation, whichever session PyTorch asks."""

    __slots__ = ("arguments", "numbers", "outer", "saved", "saves_early")

    def __init__(self, saves_early: bool = False) -> None:
        #: Whether it writes what it has saved, so that this must not be copied before.
        self.saves_early = saves_early
        self.outer = Substitution.current()
        #: Tensors of the program with those that the operation gets instead.
        self.arguments: List[Tuple[torch.Tensor, torch.Tensor]] = []
        #: What the operation saved, with the memory of its own tensors, and how they show that.
        self.saved: List[Tuple[int, SavedTensor, Optional[View]]] = []
        #: While it has these, no other memory gets the number of one that is freed, because its elements wait elsewhere.
        self.numbers: List[StorageWeakRef] = []
        _local.substitution = self

    @staticmethod
    def current() -> Optional["Substitution"]:
        """The operation of this thread, if one gets other tensors."""
        return getattr(_local, "substitution", None)

    def end(self) -> None:
        """The operation has run."""
        _local.substitution = self.outer

    def save(self, saved: SavedTensor, tensor: torch.Tensor) -> None:
        """The operation saves one of its own tensors."""
        key, view = raw_storage(tensor), View(tensor) if tensor.layout == torch.strided else None
        self.saved.append((key, saved, view))
        operation: Optional[Substitution] = self
        while operation is not None and saved.watched is saved.tensor:
            for program, own in operation.arguments:
                if raw_storage(own) == key:
                    saved.watch(program, own, view)
            operation = operation.outer

    def leave(self, tensor: torch.Tensor) -> None:
        """The elements of an own tensor that is saved wait elsewhere."""
        self.numbers.append(StorageWeakRef(storage_of(tensor)))  # type: ignore[no-untyped-call]

    def give(self, own: torch.Tensor, program: torch.Tensor, is_written: bool = False) -> None:
        """The program gets one tensor instead of a result of the operation, or of an argument that this has written."""
        if self.saved:
            key = raw_storage(own)
            for memory, saved, view in self.saved:
                if memory == key and (is_written or not saved.follows):
                    saved.watch(program, own, view)
