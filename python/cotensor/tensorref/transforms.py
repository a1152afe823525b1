"""Functions inside of the transforms of ``torch.func``: their tensors have no memory, so weights are copied for each use."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, Tuple

import torch

from . import threads
from .arguments import Args, Kwargs, collect, mapped, tensors, unwrapped
from .autocast import as_on
from .calls import call
from .gradients import version_of
from .host_tensors import HostTensors
from .operations import Kind, kind_of, name_of, written_by

_hooks: Any = torch._C._autograd
#: Kinds that run where their tensors are.
_IN_PLACE_OF_THEIR_TENSORS = (Kind.PLAIN, Kind.ESCAPE, Kind.SET_DATA)
active = threads.transforms


def run(known: HostTensors, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """A function of the program inside of transforms. It runs on the device with copies of weights that the transforms see."""
    kind = kind_of(func)
    if kind in _IN_PLACE_OF_THEIR_TENSORS:
        return call(func, args, kwargs)
    given, on_device = collect([*args, *kwargs.values()])
    of_model = any([known.belongs(unwrapped(tensor)) for tensor in given])
    if kind is Kind.DEVICE:
        if not of_model or name_of(func) not in ("device", "is_cpu", f"is_{known.devices.target.type}"):
            return call(func, args, kwargs)
        return known.devices.target if name_of(func) == "device" else name_of(func) != "is_cpu"
    if kind is Kind.LIKE:
        of_first = known.belongs(unwrapped(given[0])) if given else False
        result = call(func, args, kwargs)
        return result.to(known.devices.target) if of_first and kwargs.get("device") is None and result.is_cpu else result
    if not given or kind is Kind.MOVE or not (on_device or (of_model and kind is not Kind.VIEW)):
        result = call(func, args, kwargs)
        if kind is Kind.VIEW and any([unwrapped(tensor) in known.marks for tensor in given]):
            # A result of ``genoa``: the view is on the device for the program, too.
            for tensor in tensors(result):
                known.marks.add(unwrapped(tensor))
        return result
    targets = tensors(args[0]) if kind is Kind.IN_PLACE and args else tensors(kwargs.get("out"))
    copied = sum([unwrapped(tensor).nbytes for tensor in given])
    on_host = any([tensor.is_cpu for tensor in targets]) or copied > known.devices.movers[0].own_budget()
    #: By the ids of tensors: these, their copies, and the versions of the copies.
    copies: Dict[int, Tuple[torch.Tensor, torch.Tensor, int]] = {}

    def move(value: torch.Tensor, place: Any) -> torch.Tensor:
        if value.device == place:
            return value
        if id(value) not in copies:
            copy = value.to(place)
            copies[id(value)] = value, copy, version_of(copy)
        return copies[id(value)][1]

    host = torch.device("cpu")
    place = host if on_host else next(iter([value.device for value in targets]), known.devices.target)
    moved_args, moved_kwargs = mapped(lambda value: move(value, place), (tuple(args), dict(kwargs)))
    if place == host:
        result = call(as_on, (known.devices.target.type, func, moved_args, moved_kwargs), {})
    else:
        result = call(func, moved_args, moved_kwargs)
    written = [id(tensor) for tensor in [*written_by(func, args, kwargs), *targets]]
    for key, (tensor, copy, version) in copies.items():
        if key in written:
            tensor.copy_(copy)
        elif version_of(copy) != version:
            # Without a gradient, such as ``max_norm`` of an embedding; PyTorch refuses it for some transforms.
            tensor.detach().copy_(copy.detach())
    copies.clear()
    return result if targets else mapped(lambda value: move(value, known.devices.target), result)


@contextlib.contextmanager
def without_hooks(disabled: Callable[[str], Any], message: str) -> Iterator[None]:
    """``disabled(message)``, which refuses hooks of saved tensors: those of sessions are taken off for its time."""
    taken = []
    while (top := _hooks._top_saved_tensors_default_hooks(True)) is not None:
        if not isinstance(getattr(top[0], "__self__", None), threads.Saving):
            break
        taken.append(top)
        _hooks._pop_saved_tensors_default_hooks()
    try:
        with disabled(message):
            yield
    finally:
        for pack, unpack in reversed(taken):
            _hooks._push_saved_tensors_default_hooks(pack, unpack)
