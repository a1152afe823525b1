"""The errors of backward passes, which have saved tensors of a session."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Iterator, List

import torch

_tls: Any = torch._C
#: What a thread has in this place, PyTorch gives to the threads of devices that compute a part of its backward pass.
_PLACE = "cotensor.tensorref: the errors of a backward pass"


@contextlib.contextmanager
def errors() -> Iterator[List[Exception]]:
    """A backward pass of this thread. Yields the list of its errors; a pass inside of it, as of a checkpoint, has its own."""
    found: List[Exception] = []
    outer = _tls._get_obj_in_tls(_PLACE) if _tls._is_key_in_tls(_PLACE) else None
    _tls._stash_obj_in_tls(_PLACE, found)
    try:
        yield found
    finally:
        if outer is None and hasattr(_tls, "_remove_obj_from_tls"):
            # The end of a thread may wait for ever for the lock of the interpreter, to free what is there.
            _tls._remove_obj_from_tls(_PLACE)
        else:
            _tls._stash_obj_in_tls(_PLACE, outer)


def add_error(error: Exception) -> None:
    """The current pass goes on, and raises an error of saved tensors at its end: in a thread of the device, an exception of their
    hooks would end the process."""
    found = _tls._get_obj_in_tls(_PLACE) if _tls._is_key_in_tls(_PLACE) else None
    if found is not None:
        found.append(error)
    else:
        # A thread that is not in the session has begun it.
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(functools.partial(_raise, error))


def _raise(error: Exception) -> None:
    try:
        raise error
    finally:
        # A cycle of the error and this frame would keep the tensors of all callers.
        del error
