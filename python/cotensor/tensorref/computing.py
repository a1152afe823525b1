"""Handles functions of PyTorch that make tensors: each runs on a device or on the host, while weights stay on the host."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import torch

from .arguments import Args, Kwargs, Uses, argument, collect, gather, known_weights, tensors
from .calls import Calls, Function, Handler, call
from .execution import Execution
from .gathering import devices_of
from .gradients import in_backward
from .host_tensors import HostTensors
from .on_host import OnHost
from .operations import Kind, lengths_of
from .simulated.tensor import raw_storage
from .views import is_new
from .weights import Weight


class Computing:
    """Substitutes arguments: an operation gets copies on the device, and the program keeps its tensors."""

    def __init__(self, tensors: HostTensors, calls: Calls, execution: Execution, host: OnHost) -> None:
        self._tensors = tensors
        self._weights = tensors.weights
        self._owners = tensors.weights.owners
        self._devices = tensors.devices
        self._results_on_host = tensors.results_on_host
        self._calls = calls
        self._execution = execution
        self._host = host

    def handlers(self) -> Dict[Kind, Handler]:
        """The kinds of functions that it handles."""
        return {
            Kind.PLAIN: self._plain,
            Kind.COMPUTE: self.compute,
            Kind.FACTORY: self._factory,
            Kind.LIKE: self._like,
            Kind.VIEW: self._view,
            Kind.IN_PLACE: self._in_place,
        }

    @staticmethod
    def _plain(function: Function, args: Args, kwargs: Kwargs) -> Any:
        return call(function.call, args, kwargs)

    def compute(self, function: Function, args: Args, kwargs: Kwargs) -> Any:
        """Runs a function on the device if an argument is there or belongs to the model."""
        uses: Uses = {}
        weights: List[Weight] = []
        others: List[torch.Tensor] = []
        forgotten = self._weights.forgotten
        on_device = gather(args, self._owners, uses, weights, others)
        if kwargs:
            on_device = gather(kwargs.values(), self._owners, uses, weights, others) or on_device
        if function.takes_lengths and uses.pop(id(lengths_of(function.name, args)), None) is not None:
            weights, others = known_weights(uses)
        if not uses:
            return self._execution.run_on_devices(function, args, kwargs) if on_device else self._factory(function, args, kwargs)
        if not (on_device or self._results_on_host) and in_backward():
            # The gradient of what ran on the host.
            return call(function.call, args, kwargs)
        if kwargs and kwargs.get("out") is not None:
            out = tensors(kwargs["out"])
            if any([tensor.is_cpu for tensor in out]):
                return self._write(function, args, kwargs, out, uses)
        with self._devices.lock:
            if self._weights.forgotten != forgotten:
                # By another thread.
                weights, others = known_weights(uses)
            if others:
                others = self._tensors.find_weights(uses, others, weights)
            if weights or on_device or any([self._tensors.belongs(tensor) for tensor in others]):
                for tensor in others:
                    # One without dimensions may be on the host in any program.
                    if tensor.dim() and tensor not in self._tensors.marks:
                        self._tensors.read.add(tensor)
                return self._execution.run(function, args, kwargs, uses, weights)
        return self._factory(function, args, kwargs)

    def run_code(self, func: Any, args: Args) -> Any:
        """Runs the code of several operations as one."""
        self._devices.runs_code = True
        try:
            return self.compute(Function(func), args, {})
        finally:
            self._devices.runs_code = False

    def on_host(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Runs a function on the host whose operations are not intercepted."""
        with torch._C.DisableTorchFunction(), self._devices.lock:
            return self._host.run(Function(func), args, kwargs, self._devices.movers[0])

    def for_function(self, args: Args) -> List[Any]:
        """What a function of the program, with a backward pass of its own, gets for its arguments."""
        # ``requires_grad`` passes the mode of references, which marks the tensor.
        linked = [value for value in args if isinstance(value, torch.Tensor) and value.requires_grad]
        if self._results_on_host or not linked:
            return list(args)
        with torch._C.DisableTorchFunction():
            on_host = [value for value in linked if value.is_cpu]
            marks = self._tensors.marks
            known = {id(value) for value in on_host if self._tensors.part(value) is not None or value in marks}
            if not (known or devices_of(args)):
                return list(args)
        # Through the session, so that the gradient goes back to the host.
        target = self._devices.target
        copies = {id(value): torch.clone(value) if id(value) in known else value.to(target) for value in on_host}
        return [copies.get(id(value), value) for value in args]

    def _factory(self, function: Function, args: Args, kwargs: Kwargs, belongs: bool = False) -> Any:
        """Makes a tensor; ``belongs``: on the device, unless the arguments name another one."""
        named = kwargs.get("device")
        device = self._devices.target if named is None and belongs else self._devices.named(named)
        if device is None:
            return call(function.call, args, kwargs)
        if self._results_on_host:
            return self._tensors.marks.add(call(function.call, args, {**kwargs, "device": "cpu"}))
        return self._calls.run(function, args, {**kwargs, "device": device}, device)

    def _like(self, function: Function, args: Args, kwargs: Kwargs) -> Any:
        tensor = args[0] if args else kwargs.get("input")
        if isinstance(tensor, torch.Tensor) and tensor.is_cpu:
            return self._factory(function, args, kwargs, self._tensors.belongs(tensor))
        return self.compute(function, args, kwargs)

    def _view(self, function: Function, args: Args, kwargs: Kwargs) -> Any:
        tensor = argument(args, kwargs, 0, "input")
        if tensor is not None and tensor.is_cpu:
            # The view is one of a weight, and of the memory that this has now.
            self._tensors.refresh(tensor)
        if len(args) > 1 and tensor is not None:
            others, on_device = collect(args[1:])
            if (others or (on_device and tensor.is_cpu)) and function.name == "__getitem__":
                return self.compute(function, args, kwargs)
            if self._devices.division is not None and len(devices_of(args)) > 1:
                return self._execution.run_on_devices(function, args, kwargs)
        result = self._calls.run(function, args, kwargs)
        if tensor is not None and is_new(result) and self._tensors.belongs(tensor):
            if raw_storage(tensor) != raw_storage(result):
                # Such as ``reshape`` of a transposed tensor, or an index that is a list.
                return self.compute(function, args, kwargs)
        if self._results_on_host and any([one in self._tensors.marks for one in tensors(args)]):
            self._tensors.marks.add(result)
        return result

    def _in_place(self, function: Function, args: Args, kwargs: Kwargs) -> Any:
        targets = tensors(args[0] if args else next(iter(kwargs.values()), None))
        if not targets or not all([tensor.is_cpu for tensor in targets]):
            return self.compute(function, args, kwargs)
        uses: Uses = {}
        on_device = gather([*args, *kwargs.values()], self._owners, uses, [], [])
        if not on_device and not any([self._tensors.belongs(tensor) for tensor, _ in uses.values()]):
            return call(function.call, args, kwargs)
        return self._write(function, args, kwargs, targets, uses)

    def _write(self, function: Function, args: Args, kwargs: Kwargs, targets: Sequence[torch.Tensor], uses: Uses) -> Any:
        """Writes tensors of the host, on the host. Parameters that it only reads are weights from now on, as elsewhere."""
        for tensor in targets:
            uses.pop(id(tensor), None)
        weights, others = known_weights(uses)
        self._tensors.find_weights(uses, others, weights)
        result = self._host.run(function, args, kwargs, None)
        for tensor in (*targets, *function.written(args, kwargs)):
            self._tensors.changed(tensor)
        for tensor in targets:
            self._tensors.rebound(tensor)
        return result
