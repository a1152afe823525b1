"""PyTorch's database of modules: training and evaluation, saved, pickled and copied inside of the block."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_flatten, tree_map

from .case import Case, Variant
from .operators import backward, show_gradients
from .outcomes import Outcome
from .places import Place


def names() -> List[str]:
    """All modules."""
    return [info.formatted_name for info in module_db]


def cases(name: str, dtype: torch.dtype) -> Iterator[Case]:
    """The inputs of a module, in training and in evaluation."""
    info = next(info for info in module_db if info.formatted_name == name)
    if dtype not in info.dtypes and dtype != torch.bfloat16:
        return
    for training in (True, False):
        inputs = info.module_inputs_func(info, "cpu", dtype, True, training)
        for number, one in enumerate(inputs):
            for contiguous in (True, False):
                program = Program(info, one, dtype, training, contiguous)
                if contiguous or program.changes_strides:
                    label = f"{number} {'train' if training else 'eval'}{'' if contiguous else ' strided'}"
                    yield Case(label, dict(program.variants(contiguous)))


class Program:
    """A module with its inputs."""

    def __init__(self, info: Any, sample: Any, dtype: torch.dtype, training: bool, contiguous: bool) -> None:
        self._class, self._made_of = info.module_cls, sample.constructor_input
        self._dtype, self._training = dtype, training
        given = (sample.forward_input.args, sample.forward_input.kwargs) if sample.forward_input else ((), {})
        tensors = [leaf for leaf in tree_flatten(given)[0] if isinstance(leaf, torch.Tensor)]
        #: Whether other strides are possible.
        self.changes_strides = any([tensor.dim() > 1 and tensor.numel() > 1 for tensor in tensors])
        self._given = given if contiguous else tree_map(strided, given)

    def variants(self, all_: bool) -> Iterator[Tuple[str, Variant]]:
        """The programs."""
        yield "calls", self.calls
        if all_:
            yield "state", functools.partial(self.copied, saved)
            yield "pickle", functools.partial(self.copied, lambda module, _: pickle.loads(pickle.dumps(module)))
            yield "deepcopy", functools.partial(self.copied, lambda module, _: copy.deepcopy(module))

    def _module(self) -> torch.nn.Module:
        torch.manual_seed(0)
        module = self._class(*self._made_of.args, **copy.deepcopy(self._made_of.kwargs))
        return module.to(self._dtype).train(self._training)  # type: ignore[no-any-return]

    def _call(self, module: torch.nn.Module, place: Place, outcome: Outcome) -> None:
        args, kwargs = place.move(self._given)
        result = module(*args, **kwargs)
        outcome.show("result", result)
        backward(result, outcome)
        show_gradients([args, kwargs], outcome)

    def calls(self, place: Place, outcome: Outcome) -> None:
        """Several calls with gradients; then parameters, buffers and their gradients."""
        module = self._module()
        with place.block(module):
            for _ in range(3):
                self._call(module, place, outcome)
            self._state(module, outcome)

    def copied(self, function: Callable[[Any, Any], Any], place: Place, outcome: Outcome) -> None:
        """A copy that is made inside of the block after a call runs there, and it runs on the host after the block."""
        module = self._module()
        with place.block(module):
            self._call(module, place, outcome)
            other = function(module, self._module)
            if place.name == "plain":
                other = other.to("simulated")
            self._call(other, place, outcome)
            self._state(other, outcome)
        self._state(other, outcome)

    @staticmethod
    def _state(module: torch.nn.Module, outcome: Outcome) -> None:
        for name, parameter in module.named_parameters():
            if not torch.nn.parameter.is_lazy(parameter):
                outcome.show(f"parameter {name}", parameter, device=False)
                outcome.show(f"gradient of {name}", parameter.grad, device=False)
        for name, buffer in module.named_buffers():
            if not torch.nn.parameter.is_lazy(buffer):
                outcome.show(f"buffer {name}", buffer, device=False)


def saved(module: torch.nn.Module, make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """A new module with the state of another one, by way of a file."""
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    state: Dict[str, Any] = torch.load(file, map_location="cpu")
    other = make()
    other.load_state_dict(state)
    return other


def strided(value: Any) -> Any:
    """A tensor with the same elements and other strides."""
    if not isinstance(value, torch.Tensor) or value.dim() < 2 or value.numel() < 2:
        return value
    other = value.detach().transpose(0, -1).contiguous().transpose(0, -1)
    return other.requires_grad_(value.requires_grad)
