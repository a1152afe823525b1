"""Methods of PyTorch that compute, but that no mode sees: while a session is entered, they are replaced."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from typing import Any, Dict, List, Tuple

import torch
from torch.overrides import _pop_mode, _push_mode
from torch.utils import checkpoint

from ..errors import UnsupportedError
from . import threads, transforms
from .arguments import mapped, to_device, to_host
from .gradients import Substitution
from .options import PARALLEL
from .simulated import device as simulated
from .swaps import swap_tensors

_CHECKS = "_allowed_determinism_checks_to_fns"
_CAPTURABLE = "_get_capturable_supported_devices"
_ENGINE = "_engine_run_backward"
_PROCESS = "_process_value_according_to_param_policy"
#: Functions in C++ that give out the address of a tensor.
_CAPSULES: List[Tuple[Any, str]] = [
    (torch, "to_dlpack"),
    (torch.utils.dlpack, "to_dlpack"),
    (torch._C, "_to_dlpack"),
    (torch._C, "_to_dlpack_versioned"),
]
_lock = threading.Lock()
_sessions = 0
#: What is replaced: the owner, the name, what the owner had (None: what it inherits), and what it has now.
_replaced: List[Tuple[Any, str, Any, Any]] = []
_disabled = torch.autograd.graph.disable_saved_tensors_hooks
_optimizers = [
    module for name, module in list(sys.modules.items()) if name.startswith("torch.optim.") and _CAPTURABLE in vars(module)
]
_devices: Any = vars(sys.modules[torch.optim.Optimizer.__module__]).get(_CAPTURABLE)

simulated.computing_on.append(lambda: [session.devices.target for session in threads.entered()])


def begin() -> None:
    """Replaces the methods, until :func:`end`."""
    global _sessions
    with _lock:
        _sessions += 1
        if _sessions > 1:
            return
        # Each has what was there before, which another library may have wrapped around the one of an earlier session.
        parameter, function = torch.nn.Parameter, torch.autograd.Function
        _replace(threading.Thread, "start", functools.partialmethod(threads.start, threading.Thread.start))
        _replace(torch.autograd, _ENGINE, functools.partial(_run_engine, getattr(torch.autograd, _ENGINE)))
        _replace(parameter, "__deepcopy__", functools.partialmethod(_copy_on_host, parameter.__deepcopy__))
        _replace(parameter, "__new__", staticmethod(functools.partial(_parameter, parameter.__new__)))
        _replace(function, "apply", classmethod(functools.partial(_apply_on_device, vars(function)["apply"])))
        _replace(torch.Tensor, "set_", _set_on_host)
        _replace(torch.nn.Module, "_apply", functools.partialmethod(_apply_to_module, torch.nn.Module._apply))
        _replace(torch.utils, "swap_tensors", functools.partial(swap_tensors, torch.utils.swap_tensors))
        _replace(torch.autograd.graph, "disable_saved_tensors_hooks", functools.partial(transforms.without_hooks, _disabled))
        _replace(torch.jit.ScriptModule, "__call__", _call_on_host)
        _replace(torch.jit, "script", functools.partial(_refuse_inside, "script", torch.jit.script))
        _replace(torch.jit, "trace", functools.partial(_refuse_inside, "trace", torch.jit.trace))
        parallel: Any = torch.nn.parallel
        replicas = functools.partialmethod(_refuse_replicas, parallel.DataParallel.forward)
        _replace(parallel.DataParallel, "forward", replicas)
        _replace(parallel, "data_parallel", functools.partial(_refuse_copies, parallel.data_parallel))
        for owner, name in _CAPSULES:
            if hasattr(owner, name):
                _replace(owner, name, functools.partial(_give_out, getattr(owner, name)))
        _replace(torch.export, "export", functools.partial(_export_outside, torch.export.export))
        if _CHECKS in vars(checkpoint):
            checks = {**vars(checkpoint)[_CHECKS]}
            checks["default"] = functools.partial(_shape_and_dtype, checks["default"])
            _replace(checkpoint, _CHECKS, checks)
        if hasattr(checkpoint, "_checkpoint_hook"):
            _replace(checkpoint, "_checkpoint_hook", _recomputing(vars(checkpoint)["_checkpoint_hook"]))
        optimizer: Any = torch.optim.Optimizer
        _replace(optimizer, _PROCESS, staticmethod(functools.partial(_process_on_host, getattr(optimizer, _PROCESS))))
        _replace(optimizer, "add_param_group", functools.partialmethod(_add_group, optimizer.add_param_group))
        for module in _optimizers:
            _replace(module, _CAPTURABLE, _capturable_devices)


def end() -> None:
    """Ends :func:`begin`."""
    global _sessions
    with _lock:
        _sessions -= 1
        if _sessions:
            return
        for owner, name, before, now in _replaced:
            # Another library may have replaced them as well.
            if vars(owner).get(name) is not now:
                continue
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        _replaced.clear()


def _replace(owner: Any, name: str, now: Any) -> None:
    _replaced.append((owner, name, vars(owner).get(name), now))
    setattr(owner, name, now)


def _parameter(make: Any, kind: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
    """A parameter is where its data is for the program."""
    made = make(kind, data, *args, **kwargs)
    for session in threads.entered():
        session.tensors.show_as(made, data)
    return made


def _copy_on_host(parameter: Any, copy: Any, memo: Dict[int, Any]) -> Any:
    """The copy of a parameter is where the parameter is: it is managed when it is used."""
    if not threads.entered():
        return copy(parameter, memo)
    with torch._C.DisableTorchFunction():
        return copy(parameter, memo)


class _Applied:
    """What ``Module._apply`` does to each tensor of a module and of its children. What becomes of tensors of a model is on the
    host, also with PyTorch's flags that replace parameters."""

    def __init__(self, function: Any, is_of_model: bool) -> None:
        self.function, self.is_of_model = function, is_of_model
        #: Whether a tensor of a model came from the device.
        self.came_home = False

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.function(tensor)
        with torch._C.DisableTorchFunction():
            home: torch.Tensor = to_host(result) if self.is_of_model else result
        self.came_home = self.came_home or home is not result
        return home

    def leads(self, device: torch.device, other: torch.device) -> bool:
        """Whether it moves tensors from one device to another one, as those of ``Module.cpu``. Asks for one without elements."""
        with torch._C.DisableTorchFunction(), contextlib.suppress(Exception):
            return bool(self.function(torch.empty(0, device=device)).device.type == other.type)
        return False


def _apply_to_module(module: Any, apply: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
    """A module that ran inside of the block, such as a copy of a model, is on the device for the program: ``to`` keeps its
    buffers as it keeps parameters. A backward pass may wait for them. Parameters that a model was given are on the device when it
    moves there, and all are on the host when it moves to that."""
    sessions = threads.entered()
    if not sessions:
        return apply(module, fn, *args, **kwargs)
    with torch._C.DisableTorchFunction():
        for session in sessions:
            session.tensors.add_read(module._buffers.values())
    is_inside = isinstance(fn, _Applied)
    if is_inside and fn.is_of_model:
        return apply(module, fn, *args, **kwargs)
    # Children of a module are asked only whether they are models.
    models = [model for session in sessions for model in session.tensors.models]
    parts = models if is_inside else [part for model in models for part in model.modules()]
    applied = _Applied(fn.function if is_inside else fn, any([module is part for part in parts]))
    if not applied.is_of_model:
        return apply(module, fn if is_inside else applied, *args, **kwargs)
    device, host = sessions[0].devices.target, torch.device("cpu")
    leads_home = applied.leads(device, host)
    if applied.leads(host, device):
        with torch._C.DisableTorchFunction():
            for session in sessions:
                session.tensors.add_parameters(module)
    result = apply(module, applied, *args, **kwargs)
    with torch._C.DisableTorchFunction():
        for session in sessions:
            if leads_home:
                session.tensors.come_home(module.parameters())
            elif applied.came_home:
                session.tensors.add_models(module)
    return result


def _set_on_host(tensor: Any, *sources: Any, **named: Any) -> Any:
    """A tensor of the host gets memory of the host, also where the program sees it on the device."""
    with torch._C.DisableTorchFunction():
        if threads.entered() and tensor.is_cpu:
            sources, named = tuple(map(to_host, sources)), {name: to_host(value) for name, value in named.items()}
        result = torch._C.TensorBase.set_(tensor, *sources, **named)
        for session in threads.everywhere():
            session.tensors.rebound(tensor)
        return result


def _give_out(give: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """What gets a capsule of DLPack has the address of the tensor, and may write at any time."""
    with torch._C.DisableTorchFunction():
        for session in threads.everywhere() if isinstance(tensor, torch.Tensor) else ():
            session.tensors.exposed(tensor)
        return give(tensor, *args, **kwargs)


def _apply_on_device(apply: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """A function of the program with weights that need gradients gets copies of them, and of other tensors of the host: gradients
    of its arguments must be on one device."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or transforms.active() is not None:
        return apply.__get__(None, function)(*args, **kwargs)
    with contextlib.ExitStack() as stack:
        for session in threads.entered():
            given = tuple(session.computing.for_function(args))
            # A write to a weight that the function saves is an error in its backward pass.
            pairs = [(value, copy) for value, copy in zip(args, given) if value is not copy]
            if pairs:
                operation = Substitution()
                operation.arguments += pairs
                stack.callback(operation.end)
            args = given
        return apply.__get__(None, function)(*args, **kwargs)


def _run_engine(engine: Any, tensors: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
    """Functions of a backward pass are in the sessions that intercepted it, as those of ``checkpoint``."""
    mode = threads.take_backward()
    if mode is None:
        return engine(tensors, gradients, *args, **kwargs)
    with torch._C.DisableTorchFunction():
        # Gradients may be on either side.
        gradients = tuple([one if one is None else one.to(tensor.device) for tensor, one in zip(tensors, gradients)])
    _push_mode(mode)  # type: ignore[no-untyped-call]
    try:
        return engine(tensors, gradients, *args, **kwargs)
    finally:
        _pop_mode()  # type: ignore[no-untyped-call]


def _call_on_host(module: Any, *args: Any, **kwargs: Any) -> Any:
    """TorchScript runs in C++, where no function is intercepted: a call of a scripted module is one operation on the host."""
    entered = threads.entered()
    if not entered:
        return torch.nn.Module.__call__(module, *args, **kwargs)
    return entered[-1].computing.on_host(torch.nn.Module.__call__, (module, *args), kwargs)


def _refuse_inside(name: str, function: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """TorchScript compiles a module with its hooks, and with its weights where they are."""
    if threads.entered() and isinstance(value, torch.nn.Module):
        raise UnsupportedError(f"torch.jit.{name}: call it before the block of offload, which runs scripted modules on the host")
    return function(value, *args, **kwargs)


def _refuse_replicas(parallel: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
    """A ``DataParallel`` that was made inside of the block, or around a model of it."""
    if threads.entered() and len(parallel.device_ids) > 1:
        raise UnsupportedError(PARALLEL, field="model")
    return forward(parallel, *args, **kwargs)


def _refuse_copies(run: Any, *args: Any, **kwargs: Any) -> Any:
    if threads.entered():
        raise UnsupportedError(PARALLEL, field="model")
    return run(*args, **kwargs)


def _export_outside(export: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
    """An exported module is the one of the host: PyTorch traces it with tensors without elements, which no session knows."""
    if threads.entered():
        with torch._C.DisableTorchFunction():
            args, kwargs = mapped(to_host, args), mapped(to_host, kwargs)
    with contextlib.ExitStack() as stack:
        for session in threads.entered():
            stack.enter_context(threads.outside(session))
        return export(module, *args, **kwargs)


def _shape_and_dtype(described: Any, tensor: torch.Tensor) -> Dict[str, Any]:
    """What a checkpoint compares of a tensor that it computes again: not the device, which depends on the budget."""
    return {**described(tensor), "device": None}


def _recomputing(hooks: Any) -> Any:
    """The hooks of a checkpoint: what it computes again is needed where it was saved, and runs where its weights fit."""

    class Recomputing(hooks):  # type: ignore[misc]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            inner: Any = vars(self)
            pack, unpack = inner["pack_hook"], inner["unpack_hook"]

            def moved(saved: Any) -> Any:
                holder, device = saved
                tensor = unpack(holder)
                with torch._C.DisableTorchFunction():
                    return tensor if tensor.device == device else to_device(tensor, device)

            def packed(tensor: torch.Tensor) -> Any:
                with torch._C.DisableTorchFunction():
                    device = tensor.device
                return pack(tensor), device

            self.pack_hook, self.unpack_hook = packed, moved

    return Recomputing


def _process_on_host(process: Any, *args: Any, **kwargs: Any) -> Any:
    """The state that an optimizer loads is where its parameters are: on the host."""
    with torch._C.DisableTorchFunction():
        return process(*args, **kwargs)


def _add_group(optimizer: Any, add: Any, *args: Any, **kwargs: Any) -> Any:
    """Optimizers that are made inside of the block may make their states before a step."""
    for session in threads.entered():
        session.optimizers.made(optimizer)
    return add(optimizer, *args, **kwargs)


def _capturable_devices(*args: Any, **kwargs: Any) -> List[str]:
    """The types of devices for optimizers with ``capturable``: the steps of a session run on the host instead of the device."""
    found = list(_devices(*args, **kwargs))
    return [*found, "cpu"] if any([session.pauses.is_paused() for session in threads.entered()]) else found
