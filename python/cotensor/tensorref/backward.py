"""Handles functions of PyTorch that run gradients."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator

import torch
from torch.overrides import TorchFunctionMode

from . import threads
from .arguments import Args, Kwargs
from .calls import Function, Handler, call
from .hooks import passes
from .host_tensors import HostTensors
from .operations import Kind
from .simulated import memory as simulated


class Backward:
    """Runs backward passes, which read tensors that a session saved. ``mode`` intercepts the functions of a pass."""

    def __init__(self, mode: TorchFunctionMode, tensors: HostTensors) -> None:
        self._mode = mode
        self._tensors = tensors
        self._devices = tensors.devices
        self._simulates = self._devices.target.type == "simulated"

    def handlers(self) -> Dict[Kind, Handler]:
        """The kinds of functions that it handles."""
        return {Kind.BACKWARD: self._run}

    def _run(self, function: Function, args: Args, kwargs: Kwargs) -> Any:
        with self.running(), threads.backward_in(self._mode):
            result = call(function.call, args, kwargs)
        self.show_gradients(args, kwargs, result)
        return result

    def show_gradients(self, args: Args, kwargs: Kwargs, result: Any) -> None:
        """Shows the results of ``torch.autograd.grad`` where their inputs are shown. They are on the host, as ``grad`` is."""
        inputs = args[1] if len(args) > 1 else kwargs.get("inputs")
        for tensor, gradient in zip([inputs] if isinstance(inputs, torch.Tensor) else inputs or (), result or ()):
            if isinstance(tensor, torch.Tensor) and tensor.is_cpu and self._tensors.belongs(tensor):
                self._tensors.marks.add(gradient)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A backward pass of this thread. Raises the errors of saved tensors at its end."""
        with self._devices.lock:
            for mover in self._devices.movers:
                mover.begin_backward()
        try:
            with passes.errors() as errors:
                try:
                    # Without a second thread, gradients are added in the order of the CPU.
                    with torch.autograd.set_multithreading_enabled(False) if self._simulates else contextlib.nullcontext():
                        yield
                except RuntimeError:
                    if not errors:
                        raise
                if errors:
                    # What keeps the list must not keep the frames of the error, which have the graph and its weights.
                    del errors[1:]
                    raise errors.pop()
        except BaseException:
            simulated.forget_failures()
            raise
        if self._simulates:
            simulated.check()
