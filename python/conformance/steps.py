"""Steps of random programs that compute: forward and backward passes, optimizers, transforms, threads."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, Dict, List

import torch
from torch.func import functional_call

from cotensor.tensorref.simulated.memory import MEMORIES

from .layers import ROWS
from .machine import Machine, step


def _forward(machine: Machine, seed: int) -> None:
    machine.keep(machine.model(machine.inputs(seed)))


@step("forward", 8)
def forward(machine: Machine, a: int, b: int, c: int) -> None:
    """A call in training."""
    machine.model.train()
    _forward(machine, a)


@step("forward eval", 2)
def evaluated(machine: Machine, a: int, b: int, c: int) -> None:
    """A call in evaluation."""
    machine.model.eval()
    _forward(machine, a)


@step("forward no_grad", 2)
def without_gradients(machine: Machine, a: int, b: int, c: int) -> None:
    """A call without gradients."""
    machine.model.train(b % 2 == 0)
    with torch.no_grad():
        _forward(machine, a)


@step("forward inference_mode")
def inferred(machine: Machine, a: int, b: int, c: int) -> None:
    """A call in inference mode. Its result cannot be kept for gradients."""
    machine.model.eval()
    with torch.inference_mode():
        machine.show(machine.model(machine.inputs(a)))


@step("forward autocast", 0)
def casted(machine: Machine, a: int, b: int, c: int) -> None:
    """A call with the device's types."""
    machine.model.train()
    with torch.autocast(machine.device, torch.bfloat16, cache_enabled=b % 2 == 0):
        _forward(machine, a)


@step("forward repeated", 2)
def repeated(machine: Machine, a: int, b: int, c: int) -> None:
    """Calls that a strategy may plan."""
    machine.model.train(b % 2 == 0)
    for number in range(4):
        with torch.set_grad_enabled(c % 2 == 0):
            machine.show(machine.model(machine.inputs(a + number)))


@step("forward out of memory")
def out_of_memory(machine: Machine, a: int, b: int, c: int) -> None:
    """A call in which one allocation of the device fails once: a session frees memory and goes on."""
    machine.model.train(c % 2 == 0)
    x = machine.inputs(a)
    if machine.place.is_offloaded:
        MEMORIES[0].fail(1, after=b % 30)
    try:
        result = machine.model(x)
    finally:
        MEMORIES[0].fail(0)
    machine.keep(result)


@step("forward in a thread")
def in_thread(machine: Machine, a: int, b: int, c: int) -> None:
    """A call in a thread that the program starts, perhaps with its backward pass."""

    def work() -> torch.Tensor:
        result = machine.model(machine.inputs(a))
        if b % 2:
            loss_of(result).backward()
        return result

    with machine.no_gradients_of_errors():
        machine.keep(*_threads([work]))


@step("forward in threads")
def in_threads(machine: Machine, a: int, b: int, c: int) -> None:
    """Calls at the same time, which write nothing."""
    if machine.writes_weights:
        return
    machine.model.eval()
    machine.keep(*_threads([lambda: machine.model(machine.inputs(a)), lambda: machine.model(machine.inputs(a + 1))]))


@step("backward in threads")
def backward_in_threads(machine: Machine, a: int, b: int, c: int) -> None:
    """Backward passes at the same time; one may need what it has changed."""
    parameters = [one for one in machine.model.parameters() if one.requires_grad]
    if machine.writes_weights or not parameters:
        return

    def work(number: int, changes: bool) -> Any:
        result = machine.model(machine.inputs(a + number)).exp()
        if changes:
            result.mul_(2)
        try:
            return torch.autograd.grad(loss_of(result), parameters, allow_unused=True)
        except RuntimeError as error:
            return type(error).__name__

    machine.model.eval()
    machine.show(_threads([lambda: work(0, False), lambda: work(1, c % 2 == 0)]), device=False)


def _threads(functions: List[Callable[[], Any]]) -> List[Any]:
    found: Dict[int, Any] = {}

    def work(number: int, function: Callable[[], torch.Tensor]) -> None:
        try:
            found[number] = function()
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=work, args=one) for one in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(len(functions)):
        if isinstance(found[number], Exception):
            raise found[number]
    return [found[number] for number in range(len(functions))]


def loss_of(result: torch.Tensor) -> torch.Tensor:
    """A loss whose gradients differ by element."""
    weights = torch.linspace(0.5, 1.5, result.numel(), device=result.device, dtype=torch.float32)
    return (result.float() * weights.reshape(result.shape)).sin().sum()


@step("backward", 8)
def backward(machine: Machine, a: int, b: int, c: int) -> None:
    """The backward pass of a result."""
    result = machine.result(b)
    if result is not None:
        with machine.no_gradients_of_errors():
            loss_of(result).backward(retain_graph=a % 3 == 0)


@step("backward with gradients")
def backward_given(machine: Machine, a: int, b: int, c: int) -> None:
    """``torch.autograd.backward`` of a result and its sum."""
    result = machine.result(b)
    if result is not None:
        gradient = machine.place.move(torch.linspace(0.5, 1.5, result.numel()).reshape(result.shape).to(result.dtype))
        with machine.no_gradients_of_errors():
            torch.autograd.backward([result, result.sum()], [gradient, None], retain_graph=True)  # type: ignore[list-item]


@step("backward to inputs")
def backward_inputs(machine: Machine, a: int, b: int, c: int) -> None:
    """The gradient of some parameters only."""
    result, parameter = machine.result(b), machine.parameter(a)
    if result is not None and parameter is not None:
        with machine.no_gradients_of_errors():
            loss_of(result).backward(inputs=[parameter], retain_graph=True)


@step("gradients", 2)
def gradients(machine: Machine, a: int, b: int, c: int) -> None:
    """``torch.autograd.grad``."""
    result, parameters = machine.result(b), [one for one in machine.model.parameters() if one.requires_grad]
    if result is not None and parameters:
        with machine.no_gradients_of_errors():
            found = torch.autograd.grad(loss_of(result), parameters, allow_unused=True, retain_graph=a % 2 == 0)
        machine.show(found)


@step("penalty", 1)
def penalty(machine: Machine, a: int, b: int, c: int) -> None:
    """Gradients of gradients. They are sums of three terms and more, whose order PyTorch does not promise."""
    result, parameters = machine.result(b), [one for one in machine.model.parameters() if one.requires_grad]
    if result is None or not parameters:
        return
    machine.model.zero_grad()
    with machine.no_gradients_of_errors():
        found = torch.autograd.grad(loss_of(result), parameters, create_graph=True, allow_unused=True)
        squares = [one.square().sum() for one in found if one is not None and one.requires_grad and not one.is_sparse]
        if squares:
            torch.stack([one.real.float() for one in squares]).sum().backward()
    machine.show([one.grad for one in parameters], device=False, close=True)
    machine.model.zero_grad()


_OPTIMIZERS: List[Callable[[List[Any]], torch.optim.Optimizer]] = [
    lambda parameters: torch.optim.SGD(parameters, 0.1),
    lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, foreach=True),
    lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, fused=True),
    lambda parameters: torch.optim.Adam(parameters, 0.1, foreach=False),
    lambda parameters: torch.optim.Adam(parameters, 0.1, fused=True),
    lambda parameters: torch.optim.AdamW(parameters, 0.1, foreach=True, amsgrad=True),
    lambda parameters: torch.optim.AdamW(parameters, 0.1, fused=True),
    lambda parameters: torch.optim.Adagrad(parameters, 0.1),
    lambda parameters: torch.optim.RMSprop(parameters, 0.1, centered=True),
]


@step("optimizer", 3)
def optimizer(machine: Machine, a: int, b: int, c: int) -> None:
    """A new optimizer, perhaps with the state of the one before it."""
    parameters = [one for one in machine.model.parameters() if one.dtype == machine.dtype]
    before, machine.optimizer = machine.optimizer, None
    machine.optimizer = _OPTIMIZERS[a % len(_OPTIMIZERS)](parameters)
    if before is not None and type(before) is type(machine.optimizer) and b % 2:
        machine.optimizer.load_state_dict(before.state_dict())


@step("step", 5)
def step_(machine: Machine, a: int, b: int, c: int) -> None:
    """A step of the optimizer."""
    if machine.optimizer is not None:
        machine.optimizer.step()
        _forget_after(machine, machine.optimizer)


@step("step with closure", 2)
def step_closure(machine: Machine, a: int, b: int, c: int) -> None:
    """A step of the optimizer that calls the model."""
    if machine.optimizer is None:
        return
    chosen, x = machine.optimizer, machine.inputs(a)

    def closure() -> torch.Tensor:
        chosen.zero_grad()
        loss = loss_of(machine.model(x))
        loss.backward()
        return loss

    with machine.no_gradients_of_errors():
        machine.show(chosen.step(closure))
        _forget_after(machine, chosen)


def _forget_after(machine: Machine, optimizer: torch.optim.Optimizer) -> None:
    """Fused kernels write without a new version: a backward pass of earlier results has old weights or new ones."""
    if optimizer.defaults.get("fused"):
        machine.forget_results()


@step("optimizer state")
def optimizer_state(machine: Machine, a: int, b: int, c: int) -> None:
    """Shows the state of the optimizer."""
    if machine.optimizer is not None:
        machine.show(machine.optimizer.state_dict()["state"], device=False)


@step("zero_grad", 2)
def zero_grad(machine: Machine, a: int, b: int, c: int) -> None:
    """No gradients, or zeros."""
    machine.model.zero_grad(set_to_none=a % 2 == 0)


@step("clip", 1)
def clip(machine: Machine, a: int, b: int, c: int) -> None:
    """Smaller gradients."""
    parameters = [one for one in machine.model.parameters() if one.grad is None or not one.grad.is_sparse]
    if a % 2 or machine.has_device_parameters:
        # PyTorch takes the norms of each device alone, and so adds all in another order.
        torch.nn.utils.clip_grad_value_([one for one in parameters if not one.is_complex()], 0.25)
    else:
        machine.show(torch.nn.utils.clip_grad_norm_([one for one in parameters if one.dtype == machine.dtype], 0.5), device=False)


def _named(machine: Machine) -> Dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in machine.model.named_parameters()}


@step("functional_call")
def functional(machine: Machine, a: int, b: int, c: int) -> None:
    """A call with other parameters."""
    if machine.writes_weights:
        return
    given = {name: tensor * 0.5 for name, tensor in _named(machine).items()}
    machine.keep(functional_call(machine.model, given, (machine.inputs(a),)))


@step("func.grad")
def func_grad(machine: Machine, a: int, b: int, c: int) -> None:
    """Gradients of a function."""
    if machine.writes_weights:
        return
    x = machine.inputs(a).detach()
    machine.model.eval()
    machine.show(
        torch.func.grad(lambda given: loss_of(functional_call(machine.model, given, (x,))))(_named(machine)), device=False
    )


@step("func.vmap")
def func_vmap(machine: Machine, a: int, b: int, c: int) -> None:
    """A call for each of several batches."""
    if machine.writes_weights:
        return
    x = machine.values(a, 2, *machine.inputs(a).shape)
    machine.model.eval()
    with torch.no_grad() if b % 2 else contextlib.nullcontext():
        # Products of several batches round by the strides of copies.
        machine.show(torch.func.vmap(machine.model)(x), close=True)


@step("func.jvp")
def func_jvp(machine: Machine, a: int, b: int, c: int) -> None:
    """A derivative along a direction."""
    if machine.writes_weights:
        return
    machine.model.eval()
    x, tangent = machine.inputs(a).detach(), machine.values(b, ROWS, machine.inputs(a).shape[1])
    machine.show(torch.func.jvp(machine.model, (x,), (tangent,)), close=True)
