"""Intercepts the functions of PyTorch that show, move or give out tensors, and those that run gradients."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List

import torch

from . import threads
from .arguments import Args, Kwargs, to_host
from .computing import Computing
from .execution import Function
from .simulated import memory as simulated
from .weights import tensors_of


class Interception(Computing):
    """Shows the weights as tensors of the device, where only their copies are."""

    models: List[torch.nn.Module]

    def _device(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        # ``torch.device`` has no tensor.
        tensor = args[0] if args else None
        if not (isinstance(tensor, torch.Tensor) and tensor.is_cpu and self.belongs(tensor)):
            return self.call(func, args, kwargs)
        name = self.functions[func].name
        if name == "device":
            return self.target
        if name == "get_device":
            return self.target.index
        return name == f"is_{self.target.type}" if name.startswith("is_") else self.call(func, args, kwargs)

    def _move(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        tensor, rest = args[0], list(args[1:])
        if not tensor.is_cpu:
            return self.call_with_memory(func, args, kwargs)
        options = dict(kwargs)
        name = self.functions[func].name
        if name == "to":
            named = [value for value in rest if isinstance(value, (str, torch.device)) or type(value) is int]
            other = next((value for value in [*rest, options.get("other")] if isinstance(value, torch.Tensor)), None)
            named += [options.pop("device")] if options.get("device") is not None else []
            if other is not None:
                named.append(self.target if other.is_cpu and self.belongs(other) else other.device)
                options["dtype"] = other.dtype
                options.pop("other", None)
            rest = [value for value in rest if isinstance(value, torch.dtype)]
        else:
            named, rest = [name], []
        if rest:
            options["dtype"] = rest[0]
        place = named[0] if named else None
        belongs, device = self.belongs(tensor), self.ours(place)
        ours = device is not None
        copy = bool(options.pop("copy", False))
        if not belongs and not ours:
            return self.call(func, args, kwargs)
        # The backward pass itself, with hooks of saved tensors, has its tensors on the device.
        if not belongs and (not self.results_on_host or torch._C._current_graph_task_id() != -1):
            return self.call_with_memory(torch.Tensor.to, (tensor, device), {**options, "copy": copy})
        if ours and not belongs:
            return self.marks.add(tensor.clone().to(**options))
        if not ours and place is not None:
            moved = tensor.clone().to("cpu", **options)
            return moved if torch.device(place).type == "cpu" else self.call(func, args, kwargs)
        if options.get("dtype") in (None, tensor.dtype) and not copy and options.get("memory_format") is None:
            return tensor
        options.pop("non_blocking", None)
        function = torch.Tensor.clone if options.get("dtype") in (None, tensor.dtype) else torch.Tensor.to
        if function is torch.Tensor.clone:
            options.pop("dtype", None)
        self.functions.setdefault(torch.Tensor.clone, Function(torch.Tensor.clone, self._compute))
        return self._compute(function, (tensor,), options)

    def _compatible(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        # ``Module.to`` asks it of a tensor and of what it becomes: parameters of the host get memory of the host in any case.
        before, after = args
        if type(before) is torch.nn.Parameter and before.is_cpu and self.ours(after.device) is not None:
            return True
        weights = [tensor for tensor in args if tensor.is_cpu and self.belongs(tensor)]
        return len(weights) == 1 or self.call(func, args, kwargs)

    def _escape(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if args and isinstance(args[0], torch.Tensor):
            if id(args[0]) in self.weights.owners:
                self.refresh(args[0])
            for mover in self.movers:
                for weight in mover.weights.sharing(args[0]):
                    # The program has the address, and may write at any time.
                    weight.exposed = True
        return self.call(func, args, kwargs)

    def _set_data(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        tensor, value = args
        shown = isinstance(value, torch.Tensor) and (not value.is_cpu or self.belongs(value))
        if tensor.is_cpu and (isinstance(tensor, torch.nn.Parameter) or self.belongs(tensor) or self._is_gradient(tensor)):
            value = to_host(value)
        self.call(func, (tensor, value), {})
        if self.functions[func].name == "grad":
            return None
        owner = self.weights.owners.get(id(tensor))
        if owner is not None and not shown and not any([one is tensor for one in self._tensors()]):
            # A parameter of another module is where its data is, until it is used again.
            self.released(owner)
        elif owner is not None:
            self.replaced(owner)
        elif self.results_on_host and tensor.is_cpu:
            # ``Module.to`` gives a parameter of another module new data: it is where the data is for the program.
            self.show(tensor, shown)
        elif shown and type(tensor) is torch.nn.Parameter and tensor.is_cpu:
            self.add("parameter", tensor)
        elif self.division is not None:
            self.division.kept.clear()
        return None

    def _is_gradient(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is the gradient of a weight: ``Module.to`` assigns its elements."""
        managed = [owner.tensor for owner in self.weights.owners.values()]
        return any([owner.grad is tensor for owner in [*managed, *self._tensors()] if owner.is_leaf])

    def _tensors(self) -> List[torch.Tensor]:
        return [tensor for model in self.models for _, tensor in tensors_of(model)]

    def forget_places(self, *values: torch.Tensor) -> List[bool]:
        """Shows tensors of the host where they are. Returns whether each was shown as one of the device."""
        shown = [value in self.marks for value in values]
        for value in values:
            self.marks.discard(value)
            self.read.discard(value)
            for mover in self.movers:
                owner = mover.weights.owners.get(id(value))
                if owner is not None:
                    # Its node of the graph refers to the tensor.
                    owner.linked = None
        return shown

    def show_as(self, tensor: torch.Tensor, data: Any) -> None:
        """Shows a tensor where ``data`` is shown, if both are on the host."""
        if isinstance(data, torch.Tensor) and data in self.marks:
            self.marks.add(tensor)

    def show(self, tensor: torch.Tensor, on_device: bool) -> None:
        """Shows a tensor of the host, which is no weight, as one of the device or as what it is."""
        if on_device:
            self.marks.add(tensor)
        else:
            self.marks.discard(tensor)

    def _backward(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        with self.backward_pass(), threads.backward_in(self):
            result = self.call(func, args, kwargs)
        self.show_gradients(args, kwargs, result)
        return result

    def show_gradients(self, args: Args, kwargs: Kwargs, result: Any) -> None:
        """Shows the results of ``torch.autograd.grad`` where their inputs are shown. They are on the host, as ``grad`` is."""
        inputs = args[1] if len(args) > 1 else kwargs.get("inputs")
        for tensor, gradient in zip([inputs] if isinstance(inputs, torch.Tensor) else inputs or (), result or ()):
            if isinstance(tensor, torch.Tensor) and tensor.is_cpu and self.belongs(tensor):
                self.marks.add(gradient)

    @contextlib.contextmanager
    def backward_pass(self) -> Iterator[None]:
        """A backward pass of this thread, which reads tensors that this session saved. It raises their errors at its end."""
        if torch._C._current_graph_task_id() == -1:
            # A pass inside of another one, as of a checkpoint, keeps the failures of that.
            self.failures.clear()
        with self.lock:
            for mover in self.movers:
                mover.begin_backward()
        simulates = self.target.type == "simulated"
        try:
            try:
                # Without a second thread, gradients are added in the order of the CPU.
                with torch.autograd.set_multithreading_enabled(False) if simulates else contextlib.nullcontext():
                    yield
            except RuntimeError:
                if not self.failures:
                    raise
            if self.failures:
                # The session must not keep the frames of the error, which have the graph and its weights.
                del self.failures[1:]
                raise self.failures.pop()
        except BaseException:
            simulated.forget_failures()
            raise
        if simulates:
            simulated.check()
