"""Decides for each function of PyTorch where it runs, while weights stay on the host."""

from __future__ import annotations

from typing import Any, Iterable, List, Optional, Sequence, Set

import torch
from torch._C import _len_torch_function_stack

from . import transforms
from .arguments import Args, Kwargs, Uses, argument, collect, gather, tensors
from .execution import Execution, Function
from .gathering import devices_of
from .gradients import in_backward
from .operations import kind_of, lengths_of
from .simulated.tensor import raw_storage
from .views import is_new
from .weights import Part, Weight

_is_excluded, _VERSIONS = torch._C._dispatch_tls_is_dispatch_key_excluded, torch._C.DispatchKey.ADInplaceOrView
#: The transforms of ``torch.func`` that this thread is in.
_transforms = transforms.active


class Computing(Execution):
    """Substitutes arguments: an operation gets copies on the device, and the program keeps its tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Args = (), kwargs: Optional[Kwargs] = None) -> Any:
        try:
            known = self.functions[func]
        except KeyError:
            known = self.functions[func] = Function(func, getattr(self, f"_{kind_of(func).name.lower()}"))
        if (self.paused and self.is_paused()) or (known.is_operator and _is_excluded(_VERSIONS)):
            # A dispatch mode runs its operators below versions and gradients: with the tensors that there are.
            return func(*args, **(kwargs or {}))
        if _transforms() is not None and known.name not in ("backward", "grad"):
            with torch._C.DisableTorchFunction():
                return transforms.run(self, func, args, kwargs or {})
        if not _len_torch_function_stack():
            return known.handle(func, args, kwargs or {})
        # The other modes of this thread see the program's function, and not what this session does for it.
        with torch._C.DisableTorchFunction():
            return known.handle(func, args, kwargs or {})

    def _plain(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        return self.call(func, args, kwargs)

    def _compute(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        uses: Uses = {}
        on_device = gather(args, self.weights.owners, uses)
        if kwargs:
            on_device = gather(kwargs.values(), self.weights.owners, uses) or on_device
        if self.functions[func].takes_lengths:
            uses.pop(id(lengths_of(self.functions[func].name, args)), None)
        if not uses:
            return self.run_on_devices(func, args, kwargs) if on_device else self._factory(func, args, kwargs)
        if not (on_device or self.results_on_host) and in_backward():
            # The gradient of what ran on the host.
            return self.call(func, args, kwargs)
        out = tensors(kwargs["out"]) if kwargs and kwargs.get("out") is not None else ()
        if any([tensor.is_cpu for tensor in out]):
            return self._write(func, args, kwargs, out, uses)
        weights = self._weights_of(uses)
        if not weights and not on_device and not any([self.belongs(tensor) for tensor, _ in uses.values()]):
            return self._factory(func, args, kwargs)
        for tensor, part in uses.values():
            # One without dimensions may be on the host in any program.
            if part is None and tensor.dim() and tensor not in self.marks:
                self.read.add(tensor)
        with self.lock:
            return self.run(func, args, kwargs, uses, weights)

    def _weights_of(self, uses: Uses) -> List[Weight]:
        """The weights among the tensors of the host that an operation uses, which get their parts in ``uses``."""
        weights: List[Weight] = []
        for key, (tensor, part) in uses.items():
            if part is None:
                part = self._part(tensor)
                if part is None:
                    continue
                uses[key] = tensor, part
            if part.weight not in weights:
                weights.append(part.weight)
        return weights

    def refresh(self, tensor: torch.Tensor) -> None:
        """Manages a tensor of the host with the memory that it has now, if it is a weight."""
        owner = self.weights.owners.get(id(tensor))
        if type(tensor) is torch.nn.Parameter if owner is None else owner.address != tensor.data_ptr():
            self._part(tensor)

    def _part(self, tensor: torch.Tensor) -> Optional[Part]:
        """The part of a weight that a tensor of the host shows now. Parameters are weights from their first use on."""
        owner = self.weights.owners.get(id(tensor))
        if owner is not None:
            self.replaced(owner)
        part = self.weights.part(tensor)
        if part is None and (type(tensor) is torch.nn.Parameter or getattr(tensor, "_is_param", False)):
            self.add("parameter", tensor)
            part = self.weights.part(tensor)
        return part

    def operation(self, func: Any, args: Args) -> Any:
        """Runs the code of several operations as one."""
        self.functions[func] = Function(func, self._compute)
        self.runs_code = True
        try:
            return self._compute(func, args, {})
        finally:
            self.runs_code = False

    def on_host(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Runs a function on the host whose operations are not intercepted."""
        self.functions[func] = Function(func, self._compute)
        with torch._C.DisableTorchFunction(), self.lock:
            return self.run_on_host(func, args, kwargs, self.movers[0])

    def fit(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether tensors of the host fit on each device together, beside activations."""
        weights: Set[Weight] = set()
        others = 0
        for tensor in tensors:
            if torch.nn.parameter.is_lazy(tensor):
                return False
            part = self.weights.part(tensor)
            if part is None:
                others += tensor.nbytes
            else:
                weights.add(part.weight)
        size_bytes = others + sum([weight.size_bytes for weight in weights])
        return all([size_bytes <= mover.placement.budget for mover in self.movers])

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Manages a tensor of the host on all devices."""
        # The lock: threads may read one parameter for the first time.
        with self.lock:
            for mover in self.movers:
                mover.add(name, tensor)

    def add_read(self, tensors: Iterable[Optional[torch.Tensor]]) -> None:
        """Manages those of some buffers that operations have read: without the session, they would be on the device already."""
        for tensor in tensors:
            if tensor is not None and tensor in self.read and not self.belongs(tensor):
                self.add("buffer", tensor)

    def replaced(self, owner: Part) -> None:
        """An owner of a weight may have other memory."""
        with self.lock:
            for mover in self.movers:
                mover.replace(mover.weights.owners[id(owner.tensor)])

    def released(self, owner: Part) -> None:
        """An owner is no weight any more."""
        with self.lock:
            for mover in self.movers:
                mover.release(mover.weights.owners[id(owner.tensor)])

    def for_function(self, args: Args) -> List[Any]:
        """What a function of the program, with a backward pass of its own, gets for its arguments."""
        # ``requires_grad`` passes the mode of references, which marks the tensor.
        linked = [value for value in args if isinstance(value, torch.Tensor) and value.requires_grad]
        if self.results_on_host or not linked:
            return list(args)
        with torch._C.DisableTorchFunction():
            on_host = [value for value in linked if value.is_cpu]
            known = {id(value) for value in on_host if self._part(value) is not None or value in self.marks}
            if not (known or devices_of(args)):
                return list(args)
        # Through the session, so that the gradient goes back to the host.
        copies = {id(value): torch.clone(value) if id(value) in known else value.to(self.target) for value in on_host}
        return [copies.get(id(value), value) for value in args]

    def _factory(self, func: Any, args: Args, kwargs: Kwargs, belongs: bool = False) -> Any:
        """Makes a tensor; ``belongs``: on the device, unless the arguments name another one."""
        named = kwargs.get("device")
        device = self.target if named is None and belongs else self.ours(named)
        if device is None:
            return self.call(func, args, kwargs)
        if self.results_on_host:
            return self.marks.add(self.call(func, args, {**kwargs, "device": "cpu"}))
        return self.call_with_memory(func, args, {**kwargs, "device": device}, device)

    def _like(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        tensor = args[0] if args else kwargs.get("input")
        if isinstance(tensor, torch.Tensor) and tensor.is_cpu:
            return self._factory(func, args, kwargs, self.belongs(tensor))
        return self._compute(func, args, kwargs)

    def _view(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        tensor = argument(args, kwargs, 0, "input")
        if tensor is not None and tensor.is_cpu:
            # The view is one of a weight, and of the memory that this has now.
            self.refresh(tensor)
        if len(args) > 1 and tensor is not None:
            others, on_device = collect(args[1:])
            if (others or (on_device and tensor.is_cpu)) and self.functions[func].name == "__getitem__":
                return self._compute(func, args, kwargs)
            if self.division is not None and len(devices_of(args)) > 1:
                return self.run_on_devices(func, args, kwargs)
        result = self.call_with_memory(func, args, kwargs)
        if tensor is not None and is_new(result) and self.belongs(tensor) and raw_storage(tensor) != raw_storage(result):
            # Such as ``reshape`` of a transposed tensor, or an index that is a list.
            return self._compute(func, args, kwargs)
        if self.results_on_host and any([one in self.marks for one in tensors(args)]):
            self.marks.add(result)
        return result

    def _in_place(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        targets = tensors(args[0] if args else next(iter(kwargs.values()), None))
        if not targets or not all([tensor.is_cpu for tensor in targets]):
            return self._compute(func, args, kwargs)
        uses: Uses = {}
        on_device = gather([*args, *kwargs.values()], self.weights.owners, uses)
        if not on_device and not any([self.belongs(tensor) for tensor, _ in uses.values()]):
            return self.call(func, args, kwargs)
        return self._write(func, args, kwargs, targets, uses)

    def _write(self, func: Any, args: Args, kwargs: Kwargs, targets: Sequence[torch.Tensor], uses: Uses) -> Any:
        """Writes tensors of the host, on the host. Parameters that it only reads are weights from now on, as elsewhere."""
        for tensor in targets:
            uses.pop(id(tensor), None)
        self._weights_of(uses)
        result = self.run_on_host(func, args, kwargs, None)
        for tensor in targets:
            self.changed(tensor)
        return result
