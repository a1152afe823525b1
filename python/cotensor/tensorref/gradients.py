"""Gradients through moves, and tensors that wait for the backward pass."""

from __future__ import annotations

import threading
from typing import Any, Callable, List, Optional, Tuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import TensorWeakRef

from .arguments import to_device
from .mover import Mover
from .simulated.tensor import raw_storage, storage_of
from .weights import View, Weight


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

    __slots__ = ("mover", "owner", "source", "versions", "view", "weight")

    def __init__(self, mover: Mover, weight: Weight, tensor: torch.Tensor) -> None:
        self.mover, self.weight = mover, weight
        self.view = View(tensor, weight.start)
        #: The weight's memory, which may lose its owners.
        self.source = weight.source
        #: The owner that is saved itself, not a view of it: PyTorch then takes the memory that it has in the backward pass.
        self.owner = next((owner for owner in weight.owners if tensor is owner.linked or tensor is owner.plain), None)
        #: Aliases count the writes of the tensors that were saved, also after ``set_`` and ``swap_tensors``. Writes without a
        #: version are none for PyTorch, either.
        self.versions = [(owner.tensor.detach(), owner.tensor._version) for owner in weight.owners]

    def changed(self) -> Optional[RuntimeError]:
        """The error for a weight that was changed after the forward pass."""
        changed = any([alias._version != version for alias, version in self.versions])
        return _modified(self.weight.name, self.view.size) if changed else None

    @property
    def has_left(self) -> bool:
        """Whether the weight no longer has the memory that was saved."""
        return self.weight.source is not self.source

    def on_host(self) -> torch.Tensor:
        """The part in the memory of the host."""
        if self.has_left and self.owner is not None:
            return self.owner.tensor.detach()
        return self.view.of(self.source, self.weight.start)


class SavedTensor:
    """A tensor that the backward pass needs, and the version of the program's tensor with the same values.

    PyTorch compares versions of tensors that it saves by itself, but not of those that a session saves for it."""

    __slots__ = ("device", "tensor", "version", "watched")

    def __init__(self, tensor: torch.Tensor, device: Optional[torch.device]) -> None:
        #: ``device``: where the backward pass needs it, if it waits elsewhere.
        self.tensor, self.device = tensor, device
        #: Gives the program's tensor, if it is another one and lives.
        self.watched: Optional[Callable[[], Optional[torch.Tensor]]] = None
        self.version = version_of(tensor)

    def watch(self, tensor: torch.Tensor) -> None:
        """The program has ``tensor``, which is another one."""
        self.version = version_of(tensor)
        if tensor.is_cpu:
            # The tensor itself would keep the function that saves it, and neither would ever be freed.
            alias = tensor.detach()
            self.watched = lambda: alias
        else:
            # An alias would keep memory of the device.
            self.watched = TensorWeakRef(tensor)

    def changed(self) -> Optional[RuntimeError]:
        """The error for a tensor that was changed after the forward pass."""
        watched = self.tensor if self.watched is None else self.watched()
        if watched is None or version_of(watched) == self.version:
            return None
        return _modified(f"a tensor at version {version_of(watched)} instead of {self.version}", watched.size())


def version_of(tensor: torch.Tensor) -> int:
    """The version of a tensor; those of inference mode have none."""
    return 0 if tensor.is_inference() else tensor._version


def _modified(name: str, size: Any) -> RuntimeError:
    """PyTorch's error."""
    text = "one of the variables needed for gradient computation has been modified by an inplace operation"
    return RuntimeError(f"{text}: {name}, of shape {list(size)}")


class Substitution:
    """One operation that gets other tensors than the program passed, and gives others than the program gets. What a thread saves
    until :meth:`end` belongs to the operation."""

    __slots__ = ("arguments", "local", "numbers", "outer", "saved", "saves_early")

    def __init__(self, local: threading.local, saves_early: bool = False) -> None:
        self.local = local
        #: Whether it writes what it has saved, so that this must not be copied before.
        self.saves_early = saves_early
        self.outer = Substitution.current(local)
        #: Tensors of the program with those that the operation gets instead.
        self.arguments: List[Tuple[torch.Tensor, torch.Tensor]] = []
        #: What the operation saved, by the memory of its own tensors.
        self.saved: List[Tuple[int, SavedTensor]] = []
        #: While it has these, no other memory gets the number of one that is freed, because its elements wait elsewhere.
        self.numbers: List[StorageWeakRef] = []
        local.substitution = self

    @staticmethod
    def current(local: threading.local) -> Optional["Substitution"]:
        """The operation of this thread, if one gets other tensors."""
        return getattr(local, "substitution", None)

    def end(self) -> None:
        """The operation has run."""
        self.local.substitution = self.outer

    def save(self, saved: SavedTensor, tensor: torch.Tensor) -> None:
        """The operation saves one of its own tensors."""
        key = raw_storage(tensor)
        for program, own in self.arguments:
            if raw_storage(own) == key:
                saved.watch(program)
        self.saved.append((key, saved))
        if saved.device is not None:
            self.numbers.append(StorageWeakRef(storage_of(tensor)))  # type: ignore[no-untyped-call]

    def give(self, own: torch.Tensor, program: torch.Tensor) -> None:
        """The program gets one tensor instead of a result of the operation."""
        if self.saved:
            key = raw_storage(own)
            for memory, saved in self.saved:
                if memory == key:
                    saved.watch(program)
