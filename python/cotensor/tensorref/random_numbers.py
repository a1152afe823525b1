"""Random numbers of functions that are called again: the second call draws those of the first one."""

from __future__ import annotations

import types
from typing import Any, Callable, List, Sequence, Tuple

import torch

from .arguments import Kwargs
from .operations import name_of

#: Functions of PyTorch in C++; another one without a schema may call any other.
_OF_CPP = (types.BuiltinFunctionType, types.MethodDescriptorType, types.MethodWrapperType, types.WrapperDescriptorType)


def draws(func: Any) -> bool:
    """Whether a function may draw random numbers: by the tags of the operators with its name, if there are some."""
    if isinstance(func, torch._ops.OpOverload):
        return torch.Tag.nondeterministic_seeded in func.tags
    name = name_of(func)
    packet = func if isinstance(func, torch._ops.OpOverloadPacket) else getattr(torch.ops.aten, name, None)
    if isinstance(packet, torch._ops.OpOverloadPacket):
        return any([draws(getattr(packet, overload)) for overload in packet.overloads()])  # type: ignore[no-untyped-call]
    return not (isinstance(func, _OF_CPP) or name.startswith("__"))


def kept(devices: Sequence[torch.device], kwargs: Kwargs) -> Callable[[], None]:
    """Keeps the states of the generators that a call on devices may use. Returns a function that sets them again."""
    states: List[Tuple[Callable[..., Any], Tuple[Any, ...]]] = [(torch.set_rng_state, (torch.get_rng_state(),))]
    own = kwargs.get("generator")
    if isinstance(own, torch.Generator):
        states.append((own.set_state, (own.get_state(),)))
    for device in devices:
        module: Any = torch.get_device_module(device)
        # The simulated device has the generator of the host.
        if device.type != "simulated" and hasattr(module, "get_rng_state"):
            states.append((module.set_rng_state, (module.get_rng_state(device), device)))

    def restore() -> None:
        for put, state in states:
            put(*state)

    return restore
