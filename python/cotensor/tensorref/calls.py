"""Functions of PyTorch and of the program: what is known of them, and how a session calls them."""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Optional, Sequence

import torch
from torch._C import _len_torch_function_stack

from .arguments import Args, Kwargs
from .devices import Devices
from .operations import SAVES_EARLY, TAKE_LENGTHS, Kind, kind_of, may_write, name_of, written_by
from .random_numbers import draws, kept

#: Tensors that an operation writes are kept, to be restored before it runs again, up to so many bytes together.
_KEPT_BYTES_MAX = 1 << 20


class Function:
    """A function of PyTorch or of the program, and what is known of its calls."""

    __slots__ = ("call", "is_in_place", "is_operator", "is_random", "may_write", "name", "saves_early", "takes_lengths")

    def __init__(self, func: Any) -> None:
        #: The function itself, for :func:`call`.
        self.call, self.name, self.may_write = func, name_of(func), may_write(func)
        self.takes_lengths = self.name in TAKE_LENGTHS
        self.saves_early = self.name in SAVES_EARLY
        self.is_operator = isinstance(func, torch._ops.OpOverload)
        #: Whether it writes its first argument, by its name.
        self.is_in_place = kind_of(func) is Kind.IN_PLACE
        #: Whether it may draw random numbers.
        self.is_random = draws(func)

    def written(self, args: Args, kwargs: Kwargs) -> List[torch.Tensor]:
        """The arguments that a call writes, perhaps without a new version, such as statistics."""
        return written_by(self.call, args, kwargs) if self.may_write else []


#: Handles the calls of functions of one kind.
Handler = Callable[[Function, Args, Kwargs], Any]


def call(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Calls a function of the program."""
    if not _len_torch_function_stack():
        return func(*args, **kwargs)
    with torch._C._EnableTorchFunction():
        return func(*args, **kwargs)


def can_repeat(written: Sequence[torch.Tensor]) -> bool:
    """Whether a function that writes these tensors of the device is called again if it finds no memory. Copies of large ones,
    such as the parameters of a fused optimizer, would take more memory than it needs."""
    return sum([tensor.nbytes for tensor in written]) <= _KEPT_BYTES_MAX


def call_once(func: Any, args: Args, kwargs: Kwargs, statistics: Sequence[torch.Tensor]) -> Any:
    """Calls a function that is called again if it finds no memory and :func:`can_repeat`: ``statistics``, the tensors of the
    device that it writes, are then as before."""
    if not statistics or not can_repeat(statistics):
        return call(func, args, kwargs)
    kept = [(tensor, tensor.detach().clone()) for tensor in statistics]
    try:
        return call(func, args, kwargs)
    except torch.OutOfMemoryError:
        for tensor, before in kept:
            with torch.no_grad():
                tensor.detach().copy_(before)
        raise


class Calls:
    """Calls functions whose tensors are all on one device; once more with freed memory if that has none."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices

    def run(self, function: Function, args: Args, kwargs: Kwargs, device: Optional[torch.device] = None) -> Any:
        """Calls a function of the program; None: its tensors may be on any device."""
        restore = kept([mover.device for mover in self._devices.movers], kwargs) if function.is_random else None
        return self.with_memory(function.call, args, kwargs, device, function.written(args, kwargs), restore)

    def with_memory(
        self,
        func: Any,
        args: Args,
        kwargs: Kwargs,
        device: Optional[torch.device],
        statistics: Sequence[torch.Tensor] = (),
        restore: Optional[Callable[[], None]] = None,
    ) -> Any:
        """Calls any function that makes tensors on a device. ``restore`` is called before a second call."""
        try:
            return call_once(func, args, kwargs, statistics)
        except torch.OutOfMemoryError:
            self._devices.free_all(device)
            if not can_repeat(statistics):
                raise
            if restore is not None:
                restore()
            return call(func, args, kwargs)


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Work of a session: it sees tensors where they are, and not as the program does in this session or another one."""

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*args)

    return run
