"""Methods of PyTorch that compute, but that no mode sees: while a session is entered, they are replaced."""

from __future__ import annotations

import threading
from typing import Any, Dict

import torch

from . import threads
from .arguments import to_host

_lock = threading.Lock()
_sessions = 0
_copy: Any = torch.nn.Parameter.__deepcopy__
_apply: Any = torch.autograd.Function.__dict__["apply"]


def begin() -> None:
    """Replaces the methods, until :func:`end`."""
    global _sessions, _copy, _apply
    with _lock:
        _sessions += 1
        if _sessions > 1:
            return
        _copy, _apply = torch.nn.Parameter.__deepcopy__, torch.autograd.Function.__dict__["apply"]
        torch.nn.Parameter.__deepcopy__ = _copy_on_host  # type: ignore[method-assign]
        torch.autograd.Function.apply = classmethod(_apply_on_device)
        torch.Tensor.set_ = _set_on_host  # type: ignore[method-assign,assignment]


def end() -> None:
    """Ends :func:`begin`."""
    global _sessions
    with _lock:
        _sessions -= 1
        # Another library may have replaced them as well.
        if _sessions == 0 and torch.nn.Parameter.__deepcopy__ is _copy_on_host:
            torch.nn.Parameter.__deepcopy__ = _copy  # type: ignore[method-assign]
        applied = torch.autograd.Function.__dict__["apply"]
        if _sessions == 0 and getattr(applied, "__func__", None) is _apply_on_device:
            torch.autograd.Function.apply = _apply
        if _sessions == 0 and torch.Tensor.__dict__.get("set_") is _set_on_host:
            del torch.Tensor.set_


def _copy_on_host(parameter: Any, memo: Dict[int, Any]) -> Any:
    """The copy of a parameter is where the parameter is: it is managed when it is used."""
    if not threads.entered():
        return _copy(parameter, memo)
    with torch._C.DisableTorchFunction():
        return _copy(parameter, memo)


def _set_on_host(tensor: Any, *sources: Any, **named: Any) -> Any:
    """A tensor of the host gets memory of the host, also where the program sees it on the device."""
    with torch._C.DisableTorchFunction():
        if threads.entered() and tensor.is_cpu:
            sources, named = tuple(map(to_host, sources)), {name: to_host(value) for name, value in named.items()}
        return torch._C.TensorBase.set_(tensor, *sources, **named)


def _apply_on_device(function: Any, *args: Any, **kwargs: Any) -> Any:
    """A function of the program with weights that need gradients gets copies of them: gradients of its arguments must be on one
    device."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        for session in threads.entered():
            args = tuple([session.for_function(value) for value in args])
    return _apply.__get__(None, function)(*args, **kwargs)
