"""Exceptions in the backward pass, on a device whose guard is in Python.

PyTorch's engine leaves a guard of the device with the exception set, and the guard calls ``type_``. CPython makes the result of a
function that returns with an exception set a SystemError, which ends the process: guards must not raise. So type_ takes the
exception. PyTorch then finds none ("returned NULL without setting an exception"), and the engine's caller raises what was taken.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, List

import torch

#: The exception that ``type_`` took last.
_taken: List[BaseException] = []
#: CPython checks the result of a call of such an object in any case: the call raises if an exception is set.
_probe: Callable[[], Any] = functools.partial(int)


class Guard(torch._C._acc.DeviceGuard):
    """The guard of the device: it has no streams and no current device."""

    def type_(self) -> Any:
        """The kind of the device."""
        try:
            _probe()
        except SystemError as error:
            _taken[:] = [error.__cause__ or error]
        return torch._C._autograd.DeviceType.PrivateUse1


def install() -> None:
    """The backward pass raises exceptions of the device from now on."""
    graph: Any = torch.autograd.graph
    run = graph._engine_run_backward

    @functools.wraps(run)
    def raising(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except SystemError:
            if not _taken:
                raise
        try:
            raise _taken.pop()
        finally:
            # A cycle of the exception and this frame would keep the tensors of all callers.
            del args, kwargs

    graph._engine_run_backward = raising
    torch.autograd._engine_run_backward = raising  # type: ignore[attr-defined]
