"""PyTorch's database of operators: each sample, with its first tensor as the weight of a module."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

from .case import Case, SubclassAlgorithms, Variant
from .outcomes import Outcome
from .places import HOST, Place

#: PyTorch's gradients of these have other algorithms for subclasses of tensors, which round, or check, differently.
_GRADIENTS_OF_SUBCLASSES = frozenset("prod masked_prod masked_fill cumprod masked_cumprod linalg_eig linalg_eigh".split())
#: Beside the weight, so that half of the memory has room for one of three.
_BALLAST = 2


def names() -> List[str]:
    """All operators."""
    return [op.formatted_name for op in op_db]


def cases(name: str, dtype: torch.dtype) -> Iterator[Case]:
    """The samples of an operator, and those that PyTorch refuses."""
    op = next(op for op in op_db if op.formatted_name == name)
    if dtype not in op.dtypes:
        return
    gradients = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    on_device = _samples_on_device(op, dtype)
    for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=gradients)):
        call = Call(op, sample, gradients, on_device[number] if number < len(on_device) else None)
        yield Case(f"{number}", dict(call.variants(number == 0)))
    if dtype != torch.float32 or op.error_inputs_func is None:
        return
    for number, one in enumerate(op.error_inputs("cpu")):
        yield Case(f"error {number}", {"error": Call(op, one.sample_input, False).forward})


def _samples_on_device(op: Any, dtype: torch.dtype) -> List[Any]:
    """The samples for a device, which have those tensors on the host that PyTorch needs there, if all can be made."""
    with torch.random.fork_rng(devices=[]), contextlib.suppress(Exception):
        return list(op.sample_inputs("simulated", dtype, requires_grad=False))
    return []


class Weighted(torch.nn.Module):
    """A module with a tensor as its weight."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(tensor.detach().clone(), tensor.requires_grad)
        for number in range(_BALLAST):
            self.register_buffer(f"ballast{number}", torch.zeros(max(tensor.numel(), 1), dtype=tensor.dtype))


class Call:
    """A sample of an operator as programs."""

    def __init__(self, op: Any, sample: Any, gradients: bool, on_device: Any = None) -> None:
        self.op, self.gradients = op, gradients
        self._process = sample.output_process_fn_grad
        self._leaves, self._structure = _flat(sample)
        leaves, structure = (self._leaves, None) if on_device is None else _flat(on_device)
        #: Which of the leaves are on the host in all places.
        self._stays = [structure == self._structure and isinstance(leaf, torch.Tensor) and leaf.is_cpu for leaf in leaves]
        tensors = [number for number, leaf in enumerate(self._leaves) if isinstance(leaf, torch.Tensor)]
        #: Which of the leaves is the weight.
        self._weight = tensors[0] if tensors else None
        self._first = isinstance(sample.input, torch.Tensor)
        self._broadcasts = sample.broadcasts_input

    def variants(self, first: bool) -> Iterator[Tuple[str, Variant]]:
        """The programs of the sample."""
        yield "forward", self.forward
        if self._weight is None:
            return
        if self.gradients:
            yield "backward", self.backward
            yield "write result", self.write_result
            yield "write weight", self.write_weight
        if first:
            yield "repeated", self.repeated
        if self.op.supports_out:
            yield "out", self.out
        in_place = self.op.get_inplace()
        if in_place is not None and self._first and not self._broadcasts:
            yield "in place", functools.partial(self.in_place, in_place)
            yield "in place on result", functools.partial(self.in_place_on_result, in_place)

    def _inputs(self, place: Place) -> "Tuple[Weighted, Callable[[], Tuple[Any, Any, Any]]]":
        """The module, and a function that gives the arguments inside of its block."""
        if self._weight is None:
            module = Weighted(torch.zeros(1))
        else:
            module = Weighted(self._leaves[self._weight])

        def arguments() -> Tuple[Any, Any, Any]:
            leaves = [(HOST if stays else place).move(leaf) for stays, leaf in zip(self._stays, self._leaves)]
            if self._weight is not None:
                leaves[self._weight] = module.weight
            leaves = [
                torch.device("simulated") if isinstance(leaf, torch.device) and place.shows_device else leaf for leaf in leaves
            ]
            return tree_unflatten(leaves, self._structure)  # type: ignore[return-value]

        return module, arguments

    def forward(self, place: Place, outcome: Outcome) -> None:
        """The result without gradients."""
        module, arguments = self._inputs(place)
        with place.block(module), torch.no_grad():
            input, args, kwargs = arguments()
            outcome.show("result", self.op(input, *args, **kwargs))

    def repeated(self, place: Place, outcome: Outcome) -> None:
        """Several calls, which a strategy may plan; other weights use the memory between."""
        module, arguments = self._inputs(place)
        with place.block(module):
            input, args, kwargs = arguments()
            for _ in range(5):
                result = self.op(input, *args, **kwargs)
                use_ballast(module, outcome)
                outcome.show("result", result)
                if self.gradients:
                    self._backward(result, outcome)
            show_gradients([input, args, kwargs], outcome)

    def backward(self, place: Place, outcome: Outcome) -> None:
        """The result and the gradients of all arguments."""
        module, arguments = self._inputs(place)
        with place.block(module):
            input, args, kwargs = arguments()
            result = self.op(input, *args, **kwargs)
            outcome.show("result", result)
            use_ballast(module, outcome)
            self._backward(self._process(result), outcome)
            show_gradients([input, args, kwargs], outcome)

    def write_result(self, place: Place, outcome: Outcome) -> None:
        """A write to the result before the backward pass: an error if the operator has saved it."""
        module, arguments = self._inputs(place)
        with place.block(module):
            input, args, kwargs = arguments()
            result = self.op(input, *args, **kwargs)
            for tensor in differentiable(result):
                tensor.mul_(2)
            outcome.show("written", result)
            self._backward(result, outcome)
            show_gradients([input, args, kwargs], outcome)

    def write_weight(self, place: Place, outcome: Outcome) -> None:
        """A write to the weight before the backward pass: an error if the operator has saved it."""
        module, arguments = self._inputs(place)
        with place.block(module):
            input, args, kwargs = arguments()
            result = self.op(input, *args, **kwargs)
            with torch.no_grad():
                module.weight.mul_(2)
            outcome.show("written", module.weight)
            self._backward(result, outcome)
            show_gradients([input, args, kwargs], outcome)

    def out(self, place: Place, outcome: Outcome) -> None:
        """``out=`` with tensors of the result's shape, which the program then reads."""
        module, arguments = self._inputs(place)
        with place.block(module), torch.no_grad():
            input, args, kwargs = arguments()
            result = self.op(input, *args, **kwargs)
            leaves, structure = tree_flatten(result)
            if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
                return
            out = tree_unflatten([torch.zeros_like(leaf) for leaf in leaves], structure)
            outcome.show("returned", self.op(input, *args, **kwargs, out=out))
            outcome.show("out", out)

    def in_place(self, function: Any, place: Place, outcome: Outcome) -> None:
        """The in-place variant on the weight; then the weight is read on the device."""
        module, arguments = self._inputs(place)
        with place.block(module), torch.no_grad():
            input, args, kwargs = arguments()
            before = input + 0
            outcome.show("returned", function(input, *args, **kwargs))
            outcome.show("weight", module.weight)
            outcome.show("read", [before, module.weight + 0])

    def in_place_on_result(self, function: Any, place: Place, outcome: Outcome) -> None:
        """The in-place variant on a result of the weight, and gradients through it."""
        module, arguments = self._inputs(place)
        with place.block(module):
            input, args, kwargs = arguments()
            result = input + 0
            returned = function(result, *args, **kwargs)
            outcome.show("returned", [returned, result])
            if self.gradients:
                self._backward(result, outcome)
                show_gradients([input, args, kwargs], outcome)


    def _backward(self, result: Any, outcome: Outcome) -> None:
        has_other = self.op.formatted_name in _GRADIENTS_OF_SUBCLASSES
        with SubclassAlgorithms() if has_other else contextlib.nullcontext():
            backward(result, outcome)


def _flat(sample: Any) -> Tuple[List[Any], Any]:
    """The arguments of a sample, and their structure."""
    return tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))


def use_ballast(module: Weighted, outcome: Outcome) -> None:
    """Uses the other weights, so that the first one has to leave."""
    for buffer in module.buffers():
        outcome.show("ballast", buffer + 1)


def differentiable(result: Any) -> List[torch.Tensor]:
    """The tensors of a result that have gradients."""
    return [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def backward(result: Any, outcome: Outcome) -> None:
    """The backward pass of a result, with gradients that differ by element."""
    tensors = differentiable(result)
    outcome.show("differentiable", len(tensors))
    if not tensors:
        return
    gradients = []
    for tensor in tensors:
        real = torch.linspace(0.5, 1.5, tensor.numel()).reshape(tensor.shape)
        gradients.append(real.to(tensor.dtype).to(tensor.device))
    torch.autograd.backward(tensors, gradients)


def show_gradients(arguments: Any, outcome: Outcome) -> None:
    """The gradients of all arguments, which may be on the host."""
    leaves: Dict[int, torch.Tensor] = {}
    for leaf in tree_flatten(arguments)[0]:
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_leaf:
            leaves[id(leaf)] = leaf
    for leaf in leaves.values():
        outcome.show("gradient", leaf.grad, device=False)
