"""Passes each function of PyTorch to the handler of its kind."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Tuple

import torch
from torch._C import _len_torch_function_stack

from . import transforms
from .arguments import Args, Kwargs
from .calls import Function, Handler
from .host_tensors import HostTensors
from .operations import Kind, kind_of
from .pauses import Pauses

_is_excluded, _VERSIONS = torch._C._dispatch_tls_is_dispatch_key_excluded, torch._C.DispatchKey.ADInplaceOrView
#: Whether this thread is in transforms of ``torch.func``.
_has_transforms = torch._C._are_functorch_transforms_active


class Dispatcher:
    """A table of handlers by the kind of a function."""

    def __init__(self, handlers: Mapping[Kind, Handler], tensors: HostTensors, pauses: Pauses) -> None:
        missing = [kind.name for kind in Kind if kind not in handlers]
        assert not missing, f"no handler for {missing}"
        self._handlers = handlers
        self._tensors = tensors
        self._pauses = pauses
        self._paused = pauses.frames
        #: What is known of each function, and its handler.
        self._functions: Dict[Any, Tuple[Function, Handler]] = {}

    def dispatch(self, func: Any, args: Args, kwargs: Optional[Kwargs]) -> Any:
        """Runs a function that the program calls."""
        try:
            function, handle = self._functions[func]
        except KeyError:
            function, handle = self._functions[func] = Function(func), self._handlers[kind_of(func)]
        if (self._paused and self._pauses.is_paused()) or (function.is_operator and _is_excluded(_VERSIONS)):
            # A dispatch mode runs its operators below versions and gradients: with the tensors that there are.
            return func(*args, **(kwargs or {}))
        if _has_transforms() and function.name not in ("backward", "grad"):
            with torch._C.DisableTorchFunction():
                return transforms.run(self._tensors, func, args, kwargs or {})
        if not _len_torch_function_stack():
            return handle(function, args, kwargs or {})
        # The other modes of this thread see the program's function, and not what this session does for it.
        with torch._C.DisableTorchFunction():
            return handle(function, args, kwargs or {})
