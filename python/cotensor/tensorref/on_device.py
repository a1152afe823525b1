"""Runs one operation on a device, with copies of the host's tensors."""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.autograd import forward_ad

from .arguments import Args, Kwargs, Uses, mapped, nested, replace, replace_values, to_device, with_copies
from .calls import Function, call, call_once, can_repeat
from .gradients import Substitution, ToDevice, as_linked, transfer, without_inference
from .host_tensors import HostTensors
from .mover import Mover
from .on_host import HOST, OnHost
from .random_numbers import kept
from .simulated.tensor import raw_storage
from .views import has_views, restored
from .weights import Part

_is_grad_enabled = torch.is_grad_enabled
#: What an operation gets: a tensor of the host, its part of a weight, its copy, and the version of that before the operation.
_Given = List[Tuple[torch.Tensor, Optional[Part], torch.Tensor, int]]
#: What an operation has written: a tensor of the host, its part of a weight, its copy, and whether that has a new version.
_Written = List[Tuple[torch.Tensor, Optional[Part], torch.Tensor, bool]]


class OnDevice:
    """Runs operations on devices, with copies instead of tensors of the host."""

    def __init__(self, tensors: HostTensors, host: OnHost) -> None:
        self._tensors = tensors
        self._host = host
        self._devices = tensors.devices

    def run(self, function: Function, args: Args, kwargs: Kwargs, uses: Uses, mover: Mover) -> Any:
        """Runs an operation on the device of ``mover``; once more if it finds no memory."""
        restore = kept([mover.device], kwargs) if function.is_random else None
        try:
            return self._with_copies(function, args, kwargs, uses, mover)
        except torch.OutOfMemoryError:
            # The error keeps the copies until here.
            if not can_repeat(of_device(function.written(args, kwargs))):
                self._devices.free(mover)
                raise
        self._devices.free(mover)
        if restore is not None:
            restore()
        return self._with_copies(function, args, kwargs, uses, mover)

    def _with_copies(self, function: Function, args: Args, kwargs: Kwargs, uses: Uses, mover: Mover) -> Any:
        func, runs_code = function.call, self._devices.runs_code
        statistics = function.written(args, kwargs) if function.may_write else []
        # Tensors with a tangent need no gradient.
        dual, with_gradients = forward_ad._current_level >= 0, _is_grad_enabled()
        operation = Substitution(function.saves_early) if with_gradients or runs_code else None
        copies: Dict[int, torch.Tensor] = {}
        given: _Given = []
        try:
            for key, (tensor, part) in uses.items():
                linked = dual or (with_gradients and tensor.requires_grad)
                if part is None:
                    copy = _copied(tensor, mover.device, linked)
                    if operation is not None:
                        operation.arguments.append((tensor, copy))
                elif linked:
                    copy = _linked(part, dual)
                else:
                    plain = part.plain
                    copy = plain if plain is not None and part.requires_grad is tensor.requires_grad else part.copy()
                    if runs_code:
                        # It may change that of the copy.
                        part.requires_grad = None
                copies[key] = copy
                given.append((tensor, part, copy, copy._version))
            given_args, given_kwargs = replace(args, copies), replace_values(kwargs, copies) if kwargs else kwargs
            if statistics:
                result = call_once(func, given_args, given_kwargs, of_device(statistics))
            else:
                result = call(func, given_args, given_kwargs)
        except torch.OutOfMemoryError:
            # Code of several operations may have written copies before it failed.
            for tensor, _, copy, _ in _written(given, statistics):
                with torch.no_grad():
                    copy.detach().copy_(tensor.detach())
            raise
        except BaseException:
            self._write_back(_written(given, statistics), mover)
            raise
        finally:
            if operation is not None:
                operation.end()
        is_written, returned = bool(statistics), None
        for tensor, _, copy, version in given:
            if copy is result:
                # Some functions return an argument.
                returned = tensor
            if copy._version != version:
                is_written = True
        if is_written:
            changed = _written(given, statistics)
            self._write_back(changed, mover)
            if operation is not None:
                for tensor, _, copy, _ in changed:
                    operation.give(copy, tensor, True)
        if returned is not None:
            return returned
        if isinstance(result, torch.Tensor):
            shows = result._is_view() or result.is_inference()
        else:
            result = with_copies(result, {id(copy): tensor for tensor, _, copy, _ in given})
            shows = has_views(result)
        if shows and not runs_code:
            belongs = self._tensors.belongs
            keys = [raw_storage(copy) for tensor, part, copy, _ in given if part is None and belongs(tensor)]
            again = functools.partial(self._host.run, function, args, kwargs, mover)
            result = restored(result, lambda key: key in mover.by_copy or key in keys, again)
        return self._home(result, args, kwargs, operation) if self._tensors.results_on_host else result

    def _write_back(self, written: _Written, mover: Mover) -> None:
        """Copies to the host what an operation has written."""
        for tensor, part, copy, has_version in written:
            if not has_version:
                # As in PyTorch, the version of the tensor stays.
                with torch.no_grad():
                    tensor.data.copy_(copy.detach())
                self._tensors.changed(tensor, mover)
            elif part is not None:
                part.write_back()
            else:
                # With the gradient of what the operation did.
                tensor.copy_(copy)

    def _home(self, result: Any, args: Args, kwargs: Kwargs, operation: Optional[Substitution]) -> Any:
        """Results as tensors of the host that belong to the device. Arguments stay where they are."""
        given = {id(tensor) for tensor in nested((args, kwargs))}

        def home(value: torch.Tensor) -> Any:
            if value.is_cpu or id(value) in given:
                return value
            result = transfer(value, HOST)
            if operation is not None:
                operation.give(value, result)
            return self._tensors.marks.add(result)

        return mapped(home, result)


def of_device(tensors: List[torch.Tensor]) -> List[torch.Tensor]:
    """Those that are not of the host."""
    return [tensor for tensor in tensors if not tensor.is_cpu]


def _copied(tensor: torch.Tensor, device: torch.device, linked: bool) -> torch.Tensor:
    """A copy of a tensor that is not part of a weight, for one operation; ``linked``: with a gradient to it."""
    copy = without_inference(to_device, tensor.detach(), device)
    return ToDevice.apply(tensor, copy) if linked else as_linked(copy, tensor)


def _linked(part: Part, dual: bool) -> torch.Tensor:
    """The copy of a part of a weight with a gradient to it, or with a tangent (``dual``)."""
    # Without the gradient of the view: the graph would keep the copy.
    if dual:
        return ToDevice.apply(part.tensor, part.copy().detach())  # type: ignore[no-any-return]
    if part.linked is None:
        part.linked = ToDevice.apply(part.tensor, part.copy().detach())
    return part.linked


def _written(given: _Given, statistics: List[torch.Tensor]) -> _Written:
    """The tensors of the host whose copies an operation has written, or may have, and these copies."""
    return [
        (tensor, part, copy, copy._version != version)
        for tensor, part, copy, version in given
        if copy._version != version or (statistics and any([tensor is one for one in statistics]))
    ]
