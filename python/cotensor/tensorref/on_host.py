"""Runs one operation on the host."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch

from .arguments import Args, Kwargs, collect, mapped
from .autocast import as_on
from .calls import Calls, Function, call
from .gathering import written
from .gradients import Substitution, as_linked, transfer, without_inference
from .host_tensors import HostTensors
from .mover import Mover
from .operations import PACKING

HOST = torch.device("cpu")


class OnHost:
    """Runs operations on the host, with copies of tensors of devices."""

    def __init__(self, tensors: HostTensors, calls: Calls) -> None:
        self._tensors = tensors
        self._calls = calls
        self._devices = tensors.devices
        self._device_type = self._devices.target.type

    def run(self, function: Function, args: Args, kwargs: Kwargs, results_to: Optional[Mover]) -> Any:
        """Runs an operation. Its results go to a device, if any."""
        func, device = function.call, self._devices.target if results_to is None else results_to.device
        #: Tensors of devices by their ids, with their copies and the versions of these.
        moved: Dict[int, Tuple[torch.Tensor, torch.Tensor, int]] = {}
        statistics = function.written(args, kwargs)
        targets = written(func, args, kwargs, statistics)

        def home(value: torch.Tensor) -> torch.Tensor:
            if value.is_cpu:
                return value
            if id(value) not in moved:
                copy = as_linked(without_inference(transfer, value, HOST), value)
                moved[id(value)] = value, copy, copy._version
            return moved[id(value)][1]

        given, _ = collect([*args, *kwargs.values()])
        args, kwargs = mapped(home, (list(args), dict(kwargs)))
        if self._devices.named(kwargs.get("device")) is not None:
            kwargs["device"] = "cpu"  # type: ignore[index]
        elif kwargs.get("device") is not None:
            # The program names another one.
            results_to = None
        operation = Substitution()
        operation.arguments += [(tensor, copy) for tensor, copy, _ in moved.values()]
        try:
            result = call(as_on, (self._device_type, func, args, kwargs), {})
        finally:
            operation.end()
        # Some functions return an argument.
        originals = {id(tensor): tensor for tensor in given}
        originals.update({id(copy): tensor for tensor, copy, _ in moved.values()})
        for tensor, copy, version in moved.values():
            if copy._version == version and any(tensor is one for one in statistics):
                tensor.data.copy_(copy.detach())
            elif copy._version != version or any(tensor is one for one in targets):
                # As the operation did, with its gradient.
                if tensor.shape != copy.shape:
                    tensor.resize_(copy.shape)
                tensor.copy_(copy)
                operation.give(copy, tensor, True)
        tensors = self._tensors

        def away(value: torch.Tensor) -> Any:
            if not value.is_cpu:
                return value
            original = originals.get(id(value))
            if original is not None or results_to is None:
                return value if original is None else original
            if tensors.results_on_host or (value._is_view() and tensors.weights.belongs(value)):
                return tensors.marks.add(value) if tensors.results_on_host else value
            result = transfer(value, device)
            operation.give(value, result)
            return result

        if function.name in PACKING:
            # The lengths stay.
            return self._calls.with_memory(away, result[:1], {}, device), result[1]
        return self._calls.with_memory(mapped, (away, result), {}, device)
