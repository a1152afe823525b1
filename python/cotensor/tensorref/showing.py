"""Handles functions of PyTorch that show, move or give out tensors."""

from __future__ import annotations

from typing import Any, Dict

import torch

from .arguments import Args, Kwargs, to_host
from .calls import Calls, Function, Handler, call
from .computing import Computing
from .host_tensors import HostTensors
from .operations import Kind


class Showing:
    """Shows the weights as tensors of the device, where only their copies are."""

    def __init__(self, tensors: HostTensors, calls: Calls, computing: Computing) -> None:
        self._tensors = tensors
        self._devices = tensors.devices
        self._target = tensors.devices.target
        self._calls = calls
        self._computing = computing
        self._clone, self._to = Function(torch.Tensor.clone), Function(torch.Tensor.to)

    def handlers(self) -> Dict[Kind, Handler]:
        """The kinds of functions that it handles."""
        return {
            Kind.DEVICE: self._device,
            Kind.MOVE: self._move,
            Kind.COMPATIBLE: self._compatible,
            Kind.ESCAPE: self._escape,
            Kind.SET_DATA: self._set_data,
        }

    def _device(self, function: Function, args: Args, kwargs: Kwargs) -> Any:
        # ``torch.device`` has no tensor.
        tensor = args[0] if args else None
        if not (isinstance(tensor, torch.Tensor) and tensor.is_cpu and self._tensors.belongs(tensor)):
            return call(function.call, args, kwargs)
        name = function.name
        if name == "device":
            return self._target
        if name == "get_device":
            return self._target.index
        return name == f"is_{self._target.type}" if name.startswith("is_") else call(function.call, args, kwargs)

    def _move(self, function: Function, args: Args, kwargs: Kwargs) -> Any:
        tensor, rest = args[0], list(args[1:])
        if not tensor.is_cpu:
            return self._calls.run(function, args, kwargs)
        options = dict(kwargs)
        if function.name == "to":
            named = [value for value in rest if isinstance(value, (str, torch.device)) or type(value) is int]
            other = next((value for value in [*rest, options.get("other")] if isinstance(value, torch.Tensor)), None)
            named += [options.pop("device")] if options.get("device") is not None else []
            if other is not None:
                named.append(self._target if other.is_cpu and self._tensors.belongs(other) else other.device)
                options["dtype"] = other.dtype
                options.pop("other", None)
            rest = [value for value in rest if isinstance(value, torch.dtype)]
        else:
            place = rest[0] if rest else options.pop("device", None)
            if place is None or isinstance(place, int):
                place = function.name if place is None else torch.device(function.name, place)
            named, rest = [place], []
        if rest:
            options["dtype"] = rest[0]
        place = named[0] if named else None
        belongs, device = self._tensors.belongs(tensor), self._devices.named(place)
        ours = device is not None
        copy = bool(options.pop("copy", False))
        if not belongs and not ours:
            return call(function.call, args, kwargs)
        # The backward pass itself, with hooks of saved tensors, has its tensors on the device.
        if not belongs and (not self._tensors.results_on_host or torch._C._current_graph_task_id() != -1):
            return self._calls.run(self._to, (tensor, device), {**options, "copy": copy})
        if ours and not belongs:
            return self._tensors.marks.add(tensor.clone().to(**options))
        if not ours and place is not None:
            moved = tensor.clone().to("cpu", **options)
            return moved if torch.device(place).type == "cpu" else call(function.call, args, kwargs)
        if options.get("dtype") in (None, tensor.dtype) and not copy and options.get("memory_format") is None:
            return tensor
        options.pop("non_blocking", None)
        if options.get("dtype") in (None, tensor.dtype):
            options.pop("dtype", None)
            return self._computing.compute(self._clone, (tensor,), options)
        return self._computing.compute(self._to, (tensor,), options)

    def _compatible(self, function: Function, args: Args, kwargs: Kwargs) -> Any:
        # ``Module.to`` asks it of a tensor and of what it becomes: parameters of the host get memory of the host in any case.
        before, after = args
        if before.is_meta or after.is_meta:
            return call(function.call, args, kwargs)
        if type(before) is torch.nn.Parameter and before.is_cpu and self._devices.named(after.device) is not None:
            return True
        weights = [tensor for tensor in args if tensor.is_cpu and self._tensors.belongs(tensor)]
        return len(weights) == 1 or call(function.call, args, kwargs)

    def _escape(self, function: Function, args: Args, kwargs: Kwargs) -> Any:
        if args and isinstance(args[0], torch.Tensor):
            self._tensors.exposed(args[0])
        return call(function.call, args, kwargs)

    def _set_data(self, function: Function, args: Args, kwargs: Kwargs) -> Any:
        tensor, value = args
        tensors, belongs = self._tensors, self._tensors.belongs
        shown = isinstance(value, torch.Tensor) and (not value.is_cpu or belongs(value))
        if tensor.is_cpu and (isinstance(tensor, torch.nn.Parameter) or belongs(tensor) or self._is_gradient(tensor)):
            value = to_host(value)
        call(function.call, (tensor, value), {})
        if function.name == "grad":
            return None
        owner = tensors.weights.owners.get(id(tensor))
        if owner is not None and not shown and not any([one is tensor for one in tensors.of_models()]):
            # A parameter of another module is where its data is, until it is used again.
            tensors.released(owner)
            tensors.show(tensor, False)
        elif owner is not None:
            tensors.replaced(owner)
        elif shown and not tensors.results_on_host and type(tensor) is torch.nn.Parameter and tensor.is_cpu:
            tensors.add("parameter", tensor)
        elif tensor.is_cpu and (tensors.results_on_host or isinstance(tensor, torch.nn.Parameter)):
            # ``Module.to`` gives a parameter of another module new data: it is where the data is for the program. A parameter of
            # the program's own class is not a weight.
            tensors.show(tensor, shown)
        elif self._devices.division is not None:
            self._devices.division.kept.clear()
        return None

    def _is_gradient(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is the gradient of a weight: ``Module.to`` assigns its elements."""
        # A list at once: other threads add weights.
        managed = [owner.tensor for owner in list(self._tensors.weights.owners.values())]
        return any([owner.grad is tensor for owner in [*managed, *self._tensors.of_models()] if owner.is_leaf])
