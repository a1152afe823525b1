"""What a session keeps of the tensors that PyTorch saves for backward passes."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from .. import transforms
from ..arguments import to_device
from ..gradients import SavedTensor, SavedWeight, Substitution
from ..host_tensors import HostTensors
from ..simulated.tensor import raw_storage
from .passes import add_error


class SavedTensors:
    """Saves weights without their copies, and other tensors as the program has them."""

    def __init__(self, tensors: HostTensors) -> None:
        self._tensors = tensors
        self._devices = tensors.devices

    def pack(self, tensor: torch.Tensor) -> Any:
        """What is kept of a tensor."""
        if transforms.active() is not None:
            # It may have no memory, and it is not a copy of a weight that the session knows.
            return tensor
        with torch._C.DisableTorchFunction():
            if not tensor.is_cpu:
                key = raw_storage(tensor)
                # PyTorch asks the session only that was entered last.
                for mover in self._devices.everywhere():
                    weight = mover.by_copy.get(key)
                    # Complex convolutions save the real and imaginary parts.
                    if weight is not None and tensor.dtype in (weight.dtype, weight.dtype.to_real()):
                        return SavedWeight(mover, weight, tensor)
            operation = Substitution.current()
            # A leaf may get other memory until then.
            saved = SavedTensor(tensor if tensor.is_cpu and tensor.is_leaf else tensor.detach(), tensor.device)
            if operation is not None:
                operation.save(saved, tensor)
            if self._tensors.results_on_host and not tensor.is_cpu and not saved.follows:
                if operation is None or not operation.saves_early:
                    # With the same strides: functions round differently for others.
                    saved.wait(to_device(tensor.detach(), torch.device("cpu")), tensor)
                    if operation is not None:
                        operation.leave(tensor)
            return saved

    def unpack(self, saved: Any) -> Any:
        """The tensor where the backward pass needs it."""
        if isinstance(saved, torch.Tensor):
            return saved
        with torch._C.DisableTorchFunction():
            changed = saved.changed()
            if changed is not None:
                add_error(changed)
            if isinstance(saved, SavedTensor):
                tensor = saved.get(self._returned)
                if tensor.is_cpu and self._tensors.weights.belongs(tensor):
                    # On the device, a function saves the copy.
                    self._tensors.node_of_host()
                return tensor
            # Compiled code that waits for this pass has the lock.
            in_code = self._devices.runs_code
            try:
                with contextlib.nullcontext() if in_code else saved.mover.lock:
                    if in_code or saved.has_left:
                        return to_device(saved.on_host(), saved.mover.device)
                    return saved.mover.need(saved.weight, saved.view)
            except torch.OutOfMemoryError as failure:
                add_error(failure)
                return saved.on_host()

    def _returned(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        for attempt in range(2):
            try:
                return to_device(tensor, device)
            except torch.OutOfMemoryError as failure:
                if not self._devices.runs_code:
                    with self._devices.lock:
                        self._devices.mover_of(device).no_memory()
                if attempt:
                    add_error(failure)
        return tensor
