"""Intercepts the functions of PyTorch that show, move or give out tensors, and those that run gradients."""

from __future__ import annotations

from typing import Any, List, Optional

import torch
from torch.overrides import _pop_mode, _push_mode

from .arguments import Args, Kwargs, to_host
from .computing import Computing
from .simulated import memory as simulated


class Interception(Computing):
    """Shows the weights as tensors of the device, where only their copies are."""

    def _device(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        # ``torch.device`` has no tensor.
        tensor = args[0] if args else None
        if not (isinstance(tensor, torch.Tensor) and tensor.is_cpu and self.belongs(tensor)):
            return self.call(func, args, kwargs)
        name = self._handlers[func][1]
        if name == "device":
            return self.target
        if name == "get_device":
            return self.target.index
        return name == f"is_{self.target.type}" if name.startswith("is_") else self.call(func, args, kwargs)

    def _move(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        tensor, rest = args[0], list(args[1:])
        if not tensor.is_cpu:
            return self._on_device(func, args, kwargs)
        options = dict(kwargs)
        name = self._handlers[func][1]
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
        belongs, device = self.belongs(tensor), self._ours(place)
        ours = device is not None
        copy = bool(options.pop("copy", False))
        if not belongs and not ours:
            return self.call(func, args, kwargs)
        # The backward pass itself, with hooks of saved tensors, has its tensors on the device.
        if not belongs and (not self.results_on_host or torch._C._current_graph_task_id() != -1):
            return self._on_device(torch.Tensor.to, (tensor, device), {**options, "copy": copy})
        if ours and not belongs:
            return self._mark(tensor.clone().to(**options))
        if not ours and place is not None:
            moved = tensor.clone().to("cpu", **options)
            return moved if torch.device(place).type == "cpu" else self.call(func, args, kwargs)
        if options.get("dtype") in (None, tensor.dtype) and not copy and options.get("memory_format") is None:
            return tensor
        options.pop("non_blocking", None)
        function = torch.Tensor.clone if options.get("dtype") in (None, tensor.dtype) else torch.Tensor.to
        if function is torch.Tensor.clone:
            options.pop("dtype", None)
        self._handlers.setdefault(torch.Tensor.clone, (self._compute, "clone"))
        return self._compute(function, (tensor,), options)

    def _escape(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if args and isinstance(args[0], torch.Tensor):
            for mover in self.movers:
                for weight in mover.weights.sharing(args[0]):
                    # The program has the address, and may write at any time.
                    weight.exposed = True
        return self.call(func, args, kwargs)

    def _set_data(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        tensor, value = args
        shown = isinstance(value, torch.Tensor) and (not value.is_cpu or self.belongs(value))
        if tensor.is_cpu and (isinstance(tensor, torch.nn.Parameter) or self.belongs(tensor)):
            value = to_host(value)
        self.call(func, (tensor, value), {})
        if self._handlers[func][1] == "grad":
            return None
        if id(tensor) in self.weights.by_id:
            self.replaced(tensor)
        elif self.results_on_host and tensor.is_cpu:
            # ``Module.to`` gives a parameter of another module new data: it is where the data is for the program.
            self.show(tensor, shown)
        elif self.division is not None:
            self.division.kept.clear()
        return None

    def forget_places(self, *values: torch.Tensor) -> List[bool]:
        """Shows tensors of the host where they are. Returns whether each was shown as one of the device."""
        shown = [self._is_marked(value) for value in values]
        for value in values:
            self.show(value, False)
        return shown

    def show_as(self, tensor: torch.Tensor, data: Any) -> None:
        """Shows a tensor where ``data`` is shown, if both are on the host."""
        if isinstance(data, torch.Tensor) and self._is_marked(data):
            self._mark(tensor)

    def show(self, tensor: torch.Tensor, on_device: bool) -> None:
        """Shows a tensor of the host, which is no weight, as one of the device or as what it is."""
        if on_device:
            self._mark(tensor)
        else:
            self._marked.pop(id(tensor), None)

    def _backward(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if self.target.type != "simulated":
            return self._backward_here(func, args, kwargs)
        # Without a second thread, gradients are added in the order of the CPU.
        with torch.autograd.set_multithreading_enabled(False):
            try:
                result = self._backward_here(func, args, kwargs)
            except BaseException:
                simulated.forget_failures()
                raise
        simulated.check()
        return result

    def _backward_here(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        self.failures.clear()
        with self.lock:
            for mover in self.movers:
                mover.begin_backward()
        try:
            if func is torch.Tensor.backward or func is torch.autograd.backward:
                result = None
                self._run_backward(*args, **kwargs)
            else:
                result = self.call(func, args, kwargs)
        except RuntimeError:
            if not self.failures:
                raise
        if self.failures:
            raise self.failures[0]
        return result

    def _run_backward(
        self,
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: Optional[bool] = None,
        create_graph: bool = False,
        inputs: Any = None,
        **gradient: Any,
    ) -> None:
        """As ``torch.autograd.backward``, which must not be intercepted again, while functions of the backward pass must be."""
        grad_tensors = gradient.get("gradient", grad_tensors)
        tensors = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
        targets = () if inputs is None else (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
        if inputs is not None and not targets:
            raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
        given = torch.autograd._tensor_or_tensors_to_tuple(grad_tensors, len(tensors))
        given = tuple([one if one is None else one.to(to.device) for one, to in zip(given, tensors)])
        gradients = torch.autograd._make_grads(tensors, given, is_grads_batched=False)
        retain = create_graph if retain_graph is None else retain_graph
        _push_mode(self)  # type: ignore[no-untyped-call]
        try:
            torch.autograd.graph._engine_run_backward(
                tensors, gradients, retain, create_graph, targets, allow_unreachable=True, accumulate_grad=True
            )
        finally:
            _pop_mode()  # type: ignore[no-untyped-call]
