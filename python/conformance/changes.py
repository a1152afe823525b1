"""Steps of random programs that change things: weights, results, states, hooks, layers, sessions."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from typing import Any, Callable, Dict, List, Optional

import torch

from .layers import LAYERS, ROWS, WIDTH, make, tied
from .machine import Machine, step
from .places import Place
from .steps import loss_of

Write = Callable[[torch.nn.Parameter, torch.Tensor], Any]


def _set_grad(parameter: torch.nn.Parameter, values: torch.Tensor) -> None:
    parameter.grad = values


def _set_data(parameter: torch.nn.Parameter, values: torch.Tensor) -> None:
    parameter.data = values


def _set_item(parameter: torch.nn.Parameter, values: torch.Tensor) -> None:
    if parameter.dim():
        parameter[:1] = values[:1]
        parameter[-1:].mul_(2)


def _mul_grad(parameter: torch.nn.Parameter, values: torch.Tensor) -> None:
    if parameter.grad is not None:
        parameter.grad.mul_(0.5)


#: Writes to a parameter, with values of its shape where inputs are.
_WRITES: Dict[str, Write] = {
    "mul_": lambda parameter, values: parameter.mul_(0.5),
    "add_ of values": lambda parameter, values: parameter.add_(values, alpha=0.1),
    "copy_": lambda parameter, values: parameter.copy_(values),
    "item": _set_item,
    "out": lambda parameter, values: torch.sub(parameter, 0.25, out=parameter),
    "out of values": lambda parameter, values: torch.mul(values, 0.5, out=parameter),
    "set_": lambda parameter, values: parameter.set_(values),
    "data =": _set_data,
    "data.mul_": lambda parameter, values: parameter.data.mul_(0.75),
    "data.copy_": lambda parameter, values: parameter.data.copy_(values),
    "data item": lambda parameter, values: parameter.data.view(-1)[:2].fill_(0.125),
    "detach": lambda parameter, values: parameter.detach().sub_(0.125),
    "flat": lambda parameter, values: parameter.view(-1)[1:].neg_() if parameter.is_contiguous() else None,
    "foreach": lambda parameter, values: torch._foreach_mul_([parameter], 0.5),
    "lerp_": lambda parameter, values: parameter.lerp_(values, 0.25),
    "init": lambda parameter, values: torch.nn.init.constant_(parameter, 0.25),
    "where": lambda parameter, values: parameter.copy_(torch.where(parameter > 0, parameter, values)),
    "grad =": _set_grad,
    "grad.mul_": _mul_grad,
    "zero": lambda parameter, values: parameter.zero_(),
    "swap": lambda parameter, values: torch.utils.swap_tensors(parameter, torch.nn.Parameter(parameter.detach() * 0.5)),
}


def _write(name: str, machine: Machine, a: int, b: int, c: int) -> None:
    parameter = machine.parameter(a)
    if parameter is None or parameter.is_complex():
        return
    if name == "swap" and not parameter.requires_grad:
        # PyTorch takes a tensor with two uses as a part of a graph, and how many one has depends on its device.
        return
    generator = torch.Generator().manual_seed(b)
    values = machine.place.move(torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
    if name in ("data =", "set_") and c % 2:
        values = values * 0.5
    if name in ("data =", "swap") or (name.startswith("data") and machine.has("function")):
        # PyTorch does not count writes to ``data``. Functions with a backward pass of their own have copies of what they saved.
        machine.forget_results()
    with torch.no_grad():
        _WRITES[name](parameter, values)
    machine.show(parameter, device=False)


for _name in _WRITES:
    step(f"write {_name}", 0.35)(functools.partial(_write, _name))


@step("write with gradients", 0.5)
def write_error(machine: Machine, a: int, b: int, c: int) -> None:
    """A write to a parameter that needs a gradient: PyTorch's error."""
    parameter = machine.parameter(a)
    if parameter is not None:
        parameter.mul_(0.5)


@step("vector", 0.5)
def vector(machine: Machine, a: int, b: int, c: int) -> None:
    """All parameters as one vector, and back. Each begins in it where kernels of the host do not round differently."""
    machine.forget_results()
    parameters = [one for one in machine.model.parameters() if one.dtype == machine.dtype and one.numel() % WIDTH == 0]
    if parameters:
        flat = torch.nn.utils.parameters_to_vector(parameters)
        machine.show(flat)
        torch.nn.utils.vector_to_parameters(flat.detach() * 0.5, parameters)


#: Uses of a result with a parameter's first value.
_RESULTS: List[Callable[[Machine, torch.Tensor, torch.Tensor], Optional[torch.Tensor]]] = [
    lambda machine, y, p: y.mul_(2),
    lambda machine, y, p: y.__setitem__(0, 0.5),
    lambda machine, y, p: y[:, :2].add_(1),
    lambda machine, y, p: y.add_(p),
    lambda machine, y, p: y.copy_(machine.values(7, ROWS, WIDTH)),
    lambda machine, y, p: y.detach().fill_(0.25),
    lambda machine, y, p: y * p + 1,
    lambda machine, y, p: y.detach().clone().requires_grad_(),
    lambda machine, y, p: y.double().to(y.dtype),
    lambda machine, y, p: y.to(machine.device).view(-1, WIDTH),
    lambda machine, y, p: torch.cat([y.detach()[:1], y[1:]]),
    lambda machine, y, p: machine.model(y.detach()),
    lambda machine, y, p: torch.stack(y.unbind(0)).relu_(),
    lambda machine, y, p: y.sort(dim=1).values + y.max(dim=1, keepdim=True)[0],
    lambda machine, y, p: torch.zeros_like(y).index_add_(0, torch.tensor([0, 2, 0], device=y.device), y),
]


@step("use result", 4)
def use_result(machine: Machine, a: int, b: int, c: int) -> None:
    """Writes a result, or computes with it and a parameter."""
    result, parameter = machine.result(b), machine.parameter(c)
    if result is None or parameter is None or parameter.numel() == 0:
        return
    found = _RESULTS[a % len(_RESULTS)](machine, result, parameter.detach().reshape(-1)[0].to(result.dtype))
    machine.show(result)
    if found is not None and found is not result:
        machine.keep(found)


def _through_file(value: Any, location: Optional[str] = None) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False, map_location=location)


@step("save", 2)
def save(machine: Machine, a: int, b: int, c: int) -> None:
    """A state: the tensors of the model, copies of them, or from a file."""
    state = machine.model.state_dict()
    # PyTorch has no storages on a backend in Python, so ``map_location`` cannot name it.
    location = None if b % 2 or machine.place.name == "plain" else "cpu"
    kinds: List[Callable[[], Any]] = [
        lambda: state,
        lambda: {name: tensor.clone() for name, tensor in state.items()},
        lambda: copy.deepcopy(state),
        lambda: _through_file(state, location),
    ]
    machine.states.append(dict(kinds[a % len(kinds)]()))
    del machine.states[:-3]


@step("load", 2)
def load(machine: Machine, a: int, b: int, c: int) -> None:
    """Loads a state that was saved."""
    if machine.states:
        state = machine.states[a % len(machine.states)]
        machine.show(str(machine.model.load_state_dict(state, strict=b % 3 > 0, assign=c % 3 == 0)))


_COPIES: List[Callable[[Any], Any]] = [
    copy.deepcopy,
    lambda model: pickle.loads(pickle.dumps(model)),
    _through_file,
    lambda model: torch.optim.swa_utils.AveragedModel(model).module,
]


@step("copy", 2)
def copied(machine: Machine, a: int, b: int, c: int) -> None:
    """A copy of the model, which runs; the program may go on with it."""
    machine.other = _COPIES[a % len(_COPIES)](machine.model)
    machine.show(machine.other(machine.inputs(b)))  # type: ignore[misc]
    if c % 3 == 0:
        machine.model, machine.other, machine.optimizer = machine.other, machine.model, None  # type: ignore[assignment]


def _scaled(module: Any, args: Any, result: Any) -> Any:
    return result * 0.5


def _scaled_inputs(module: Any, args: Any) -> Any:
    return (args[0] * 2,)


def _raising(module: Any, *args: Any) -> Any:
    raise ValueError("a hook of a module")


def _half(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * 0.5


def _raising_gradient(gradient: torch.Tensor) -> torch.Tensor:
    raise ValueError("a hook of a gradient")


def _scaled_gradients(module: Any, inputs: Any, outputs: Any) -> Any:
    return tuple([one if one is None else one * 0.5 for one in inputs])


def _scaled_arrived(parameter: torch.Tensor) -> None:
    if parameter.grad is not None:
        parameter.grad = parameter.grad * 0.5


@step("hook", 3)
def hook(machine: Machine, a: int, b: int, c: int) -> None:
    """A hook of a layer, a parameter or a result."""
    layer, parameter, result = machine.layer(b), machine.parameter(b), machine.result(b)
    kinds: List[Callable[[Any, Any, Any], Any]] = [
        lambda layer, parameter, result: layer.register_forward_hook(_scaled),
        lambda layer, parameter, result: layer.register_forward_pre_hook(_scaled_inputs),
        lambda layer, parameter, result: layer.register_forward_pre_hook(_raising),
        lambda layer, parameter, result: layer.register_forward_hook(_raising),
        lambda layer, parameter, result: layer.register_full_backward_hook(_scaled_gradients),
        lambda layer, parameter, result: layer.register_full_backward_hook(_raising),
        lambda layer, parameter, result: parameter.register_hook(_half),
        lambda layer, parameter, result: parameter.register_hook(_raising_gradient),
        lambda layer, parameter, result: parameter.register_post_accumulate_grad_hook(_scaled_arrived),
        lambda layer, parameter, result: result.register_hook(_half),
        lambda layer, parameter, result: result.register_hook(_raising_gradient),
    ]
    if layer is not None and parameter is not None and result is not None:
        machine.handles.append(kinds[a % len(kinds)](layer, parameter, result))


@step("remove hooks", 2)
def remove_hooks(machine: Machine, a: int, b: int, c: int) -> None:
    """Removes the hooks."""
    while machine.handles:
        machine.handles.pop().remove()


@step("requires_grad_", 1)
def requires_grad(machine: Machine, a: int, b: int, c: int) -> None:
    """A parameter with a gradient, or without."""
    parameter = machine.parameter(a)
    if parameter is not None:
        parameter.requires_grad_(b % 2 == 0)


@step("convert", 1.5)
def convert(machine: Machine, a: int, b: int, c: int) -> None:
    """Another type of all weights, without the optimizer of the one before."""
    machine.dtype = (torch.float32, torch.float64, torch.bfloat16, torch.float16)[a % 4]
    machine.optimizer = None
    machine.forget_results()
    method = {torch.float32: "float", torch.float64: "double", torch.bfloat16: "bfloat16", torch.float16: "half"}[machine.dtype]
    with tied(machine.model):
        machine.model = getattr(machine.model, method)() if b % 2 else machine.model.to(machine.device, machine.dtype)


@step("move", 0.5)
def move(machine: Machine, a: int, b: int, c: int) -> None:
    """Moves the model where it is."""
    machine.model.to(machine.device)


@step("move home", 0.5)
def move_home(machine: Machine, a: int, b: int, c: int) -> None:
    """Moves the model to the host, shows it there, and moves it back."""
    machine.optimizer = None
    machine.forget_results()
    with tied(machine.model):
        machine.model = machine.model.cpu() if a % 2 else machine.model.to("cpu")
    machine.show([*machine.model.parameters(), *machine.model.buffers()])
    with tied(machine.model):
        machine.model.to(machine.device)


@step("edit layers", 2)
def edit(machine: Machine, a: int, b: int, c: int) -> None:
    """Adds, removes or exchanges a layer."""
    layers: Any = machine.model.layers
    machine.optimizer = None
    new = make(LAYERS[c % len(LAYERS)], c).to(machine.dtype)
    if machine.place.name == "plain" or a % 2:
        with tied(new):
            new.to(machine.device)
    place = b % max(len(layers), 1)
    if a % 5 == 0 and len(layers) > 1:
        del layers[place]
    elif a % 5 == 1 and len(layers):
        layers[place] = new
    elif len(layers) < 6:
        layers.insert(place, new)


@step("replace parameter")
def replace_parameter(machine: Machine, a: int, b: int, c: int) -> None:
    """Assigns a new parameter to a layer."""
    owners = [(part, name) for part in machine.model.modules() for name in part._parameters]
    if not owners:
        return
    part, name = owners[a % len(owners)]
    before = part._parameters[name]
    if before is not None and not before.is_complex():
        values = machine.place.move(torch.randn(before.shape, generator=torch.Generator().manual_seed(b)).to(before.dtype))
        machine.has_device_parameters = True
        setattr(part, name, torch.nn.Parameter(values if c % 2 else before.detach() * 0.5))


@step("second session", 0.7)
def second_session(machine: Machine, a: int, b: int, c: int) -> None:
    """A block inside of the block, of the model or one of its layers."""
    # Functions with a backward pass of their own need results on one side.
    strategies = ("genoa",) if machine.entered.name == "genoa" else ("flow", "lru", "pinned", "cpu")
    strategy, memory = strategies[a % len(strategies)], ("least", "half", "ample")[c % 3]
    place = Place(strategy, memory) if machine.place.is_offloaded else machine.place
    part = machine.layer(b) if b % 2 else machine.model
    with place.block(machine.model if part is None else part):
        result = machine.model(machine.inputs(a))
        if b % 3 == 0:
            with machine.no_gradients_of_errors():
                loss_of(result).backward()
        machine.show(result)


@step("leave and enter", 1.5)
def leave_and_enter(machine: Machine, a: int, b: int, c: int) -> None:
    """Calls of the model after the block, and another block. A backend in Python makes new parameters at its end."""
    machine.forget_results()
    machine.optimizer = None
    if machine.place.is_offloaded:
        machine.leave()
    try:
        x = machine.inputs(a)
        x = x.detach().to("cpu") if machine.place.is_offloaded else x.detach()
        machine.show(machine.model(x), device=False)
    finally:
        if machine.place.is_offloaded:
            machine.enter(Place(("genoa", "flow", "lru", "pinned", "cpu")[b % 5], ("least", "half", "ample")[c % 3]))


@step("state")
def state(machine: Machine, a: int, b: int, c: int) -> None:
    """Shows the model."""
    machine.show_state(machine.label)
