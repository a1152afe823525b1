"""Offloads the models of tests that are not written for it.

A test runs on the device "simulated" as its project's tests choose a device. A model is offloaded where a program would do it:

- "moved": ``model.to(device)`` enables the model (:func:`cotensor.tensorref.enable`) instead of moving its weights, and goes on
  in the session. ``model.to("cpu")`` disables it first.
- "made": for tests that name no device. Tensors are made on the device (``torch.set_default_device``), and a module is enabled
  when its constructor returns, with weights on the host. It can be moved, too.

A module within an enabled one is offloaded with that. If an enabled module is a part of one that is offloaded later, only the
later one stays enabled. All models are disabled at the end of the test.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import Any, List

import torch

import cotensor.tensorref

DEVICE = "simulated"
_AMPLE = 1 << 30


class Offloading:
    """What is offloaded in this process."""

    def __init__(self, strategy: str, memory: str) -> None:
        self._strategy = strategy
        self._memory = memory
        self._enabled: List[torch.nn.Module] = []
        #: Models that were offloaded since it was set to 0.
        self.count = 0

    def enable(self, model: torch.nn.Module) -> None:
        """Offloads a model, if it is not part of one that is."""
        parts = list(model.modules())
        if any([model is part for other in self._enabled for part in other.modules()]):
            return
        if isinstance(model, torch.jit.ScriptModule) or any([tensor.is_meta for tensor in _tensors(model)]):
            return
        for other in [other for other in self._enabled if any([other is part for part in parts])]:
            self.disable(other)
        cotensor.tensorref.enable(model, DEVICE, strategy=self._strategy, memory=self._bytes(model))
        self._enabled.append(model)
        self.count += 1

    def disable(self, model: torch.nn.Module) -> None:
        """Ends :meth:`enable` of this model."""
        if any([model is other for other in self._enabled]):
            self._enabled[:] = [other for other in self._enabled if other is not model]
            cotensor.tensorref.disable(model)

    def disable_all(self) -> None:
        """Disables all models."""
        for model in reversed(self._enabled[:]):
            self.disable(model)

    def _bytes(self, model: torch.nn.Module) -> int:
        if self._memory == "ample":
            return _AMPLE
        return max(sum([tensor.nbytes for tensor in _tensors(model) if not torch.nn.parameter.is_lazy(tensor)]) // 2, 1)


def _tensors(model: torch.nn.Module) -> List[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def offload_moved(offloading: Offloading) -> None:
    """Offloads modules that are moved to the device."""
    move: Any = torch.nn.Module.to

    @functools.wraps(move)
    def to(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        device = torch._C._nn._parse_to(*args, **kwargs)[0]
        if device is not None and device.type == DEVICE:
            offloading.enable(module)
        elif device is not None:
            offloading.disable(module)
        return move(module, *args, **kwargs)

    setattr(torch.nn.Module, "to", to)  # noqa: B010
    setattr(torch.nn.Module, "cpu", lambda module: module.to("cpu"))  # noqa: B010


def offload_made(offloading: Offloading) -> None:
    """Offloads modules whose constructor returns."""
    local = threading.local()
    move: Any = torch.nn.Module.to

    def wrap(kind: Any) -> None:
        make = vars(kind).get("__init__")
        if make is None or issubclass(kind, (torch.jit.ScriptModule, torch.nn.DataParallel)):
            return

        @functools.wraps(make)
        def construct(module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
            depth = getattr(local, "depth", 0)
            local.depth = depth + 1
            try:
                # A program may have chosen another device, such as "meta".
                on_device = not depth and torch.get_default_device().type == DEVICE
                with torch.device("cpu") if on_device else contextlib.nullcontext():
                    make(module, *args, **kwargs)
            finally:
                local.depth = depth
            if not depth and "_parameters" in vars(module):
                # Weights of enabled parts only show the device.
                with torch._C.DisableTorchFunction():
                    if any([tensor.device.type == DEVICE for tensor in _tensors(module)]):
                        move(module, "cpu")
                offloading.enable(module)

        kind.__init__ = construct

    def below(kind: Any) -> List[Any]:
        return [kind, *[other for child in kind.__subclasses__() for other in below(child)]]

    for kind in dict.fromkeys(below(torch.nn.Module)):
        if kind is not torch.nn.Module:
            wrap(kind)

    def init_subclass(cls: Any, **kwargs: Any) -> None:
        super(torch.nn.Module, cls).__init_subclass__(**kwargs)
        wrap(cls)

    setattr(torch.nn.Module, "__init_subclass__", classmethod(init_subclass))  # noqa: B010
