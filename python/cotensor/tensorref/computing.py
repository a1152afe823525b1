"""Runs the functions of PyTorch on the device, while weights stay on the host."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch
from torch._C import _len_torch_function_stack
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ..errors import InvalidError
from . import transforms
from .arguments import Args, Kwargs, argument, collect, replace, replace_values, tensors, to_device, with_copies
from .autocast import as_on
from .division import Division
from .events import Hooks, Operation
from .gathering import Moved, devices_of, gathered, write_back, written
from .gradients import Substitution, ToDevice, as_linked, in_backward, transfer
from .mover import Mover
from .operations import kind_of, name_of, written_by
from .simulated.tensor import raw_storage
from .views import has_views, is_new, restored
from .weights import Weight

_Found = Dict[int, Weight]
_Copies = Dict[int, torch.Tensor]
#: Tensors of the host with their copies.
_Written = List[Tuple[torch.Tensor, torch.Tensor]]
#: The same with the version of each copy before the operation, which tensors of inference mode do not have.
_Versions = List[Tuple[torch.Tensor, torch.Tensor, Optional[int]]]
_HOST = torch.device("cpu")
_Handler = Callable[[Any, Args, Kwargs], Any]
#: The transforms of ``torch.func`` that this thread is in.
_transforms = transforms.active
#: Times of an operation that are measured with a synchronized device.
_MEASURED = 3


class Computing(TorchFunctionMode):
    """Substitutes arguments: an operation gets copies on the device, and the program keeps its tensors."""

    def __init__(self, movers: Sequence[Mover], results_on_host: bool) -> None:
        super().__init__()
        #: One for each device; all have the same weights with the same numbers.
        self.movers = list(movers)
        mover = self.movers[0]
        self.weights = mover.weights
        #: The device that weights show.
        self.target = mover.device
        self.lock = mover.lock
        self.division = Division(self.movers) if len(self.movers) > 1 else None
        self.hooks: Hooks = mover.hooks
        #: Whether results leave the device at once.
        self.results_on_host = results_on_host
        #: What each thread does.
        self.local = threading.local()
        #: Threads whose functions run as they are.
        self.paused: Set[int] = set()
        #: Errors of saved tensors: an exception of their hooks would end the process in a thread of the device.
        self.failures: List[Exception] = []
        #: Whether the thread that has the lock runs the code of several operations.
        self.runs_code = False
        #: Results on the host that belong to the device, by id.
        self._marked: Dict[int, "weakref.ref[torch.Tensor]"] = {}
        self._handlers: Dict[Any, Tuple[_Handler, str]] = {}
        self._times: Dict[Tuple[str, Tuple[str, ...]], Tuple[int, int]] = {}
        self._waits = self.target.type not in ("simulated", "cpu")

    def __torch_function__(self, func: Any, types: Any, args: Args = (), kwargs: Optional[Kwargs] = None) -> Any:
        try:
            known = self._handlers[func]
        except KeyError:
            kind = kind_of(func)
            known = self._handlers[func] = getattr(self, f"_{kind.name.lower()}"), name_of(func)
        if self.paused and threading.get_ident() in self.paused:
            return func(*args, **(kwargs or {}))
        if _transforms() is not None and known[1] not in ("backward", "grad"):
            with torch._C.DisableTorchFunction():
                return transforms.run(self, func, args, kwargs or {})
        if not _len_torch_function_stack():
            return known[0](func, args, kwargs or {})
        # The other modes of this thread see the program's function, and not what this session does for it.
        with torch._C.DisableTorchFunction():
            return known[0](func, args, kwargs or {})

    @staticmethod
    def call(func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Calls a function of the program."""
        if not _len_torch_function_stack():
            return func(*args, **kwargs)
        with torch._C._EnableTorchFunction():
            return func(*args, **kwargs)

    def _plain(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        return self.call(func, args, kwargs)

    def _compute(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        on_host: List[torch.Tensor] = []
        on_device = collect(args, on_host)
        if kwargs:
            on_device = collect(kwargs.values(), on_host) or on_device
        if not on_host:
            return self._on_devices(func, args, kwargs) if on_device else self._factory(func, args, kwargs)
        if not (on_device or self.results_on_host) and in_backward():
            # The gradient of what ran on the host.
            return self.call(func, args, kwargs)
        out = kwargs.get("out")
        if out is not None and any(tensor.is_cpu for tensor in tensors(out)):
            return self._write(func, args, kwargs, tensors(out))
        found: Dict[int, Weight] = {}
        weights: List[Weight] = []
        if len(on_host) > 1:
            on_host = list({id(tensor): tensor for tensor in on_host}.values())
        for tensor in on_host:
            if self.weights.has_moved(tensor):
                self.replaced(tensor)
            weight = self.weights.find(tensor)
            if weight is None and (type(tensor) is torch.nn.Parameter or getattr(tensor, "_is_param", False)):
                self.add("parameter", tensor)
                weight = self.weights.find(tensor)
            if weight is not None:
                found[id(tensor)] = weight
                if weight not in weights:
                    weights.append(weight)
        if not weights and not on_device and not any(self.belongs(tensor) for tensor in on_host):
            return self._factory(func, args, kwargs)
        with self.lock:
            return self._managed(func, args, kwargs, on_host, found, weights)

    def operation(self, func: Any, args: Args) -> Any:
        """Runs the code of several operations as one."""
        self._handlers[func] = self._compute, name_of(func)
        self.runs_code = True
        try:
            return self._compute(func, args, {})
        finally:
            self.runs_code = False

    def on_host(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Runs a function on the host whose operations are not intercepted."""
        self._handlers[func] = self._compute, name_of(func)
        with torch._C.DisableTorchFunction(), self.lock:
            return self._on_host(func, args, kwargs, self.movers[0])

    def fit(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether tensors of the host fit on each device together, beside activations."""
        weights, others = set(), 0
        for tensor in tensors:
            if torch.nn.parameter.is_lazy(tensor):
                return False
            weight = self.weights.find(tensor)
            if weight is None:
                others += tensor.nbytes
            else:
                weights.add(weight)
        size_bytes = others + sum([weight.size_bytes for weight in weights])
        return all([size_bytes <= mover.placement.budget for mover in self.movers])

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Manages a tensor of the host on all devices."""
        for mover in self.movers:
            mover.add(name, tensor)

    def for_function(self, value: Any) -> Any:
        """What a function of the program, with a backward pass of its own, gets for an argument."""
        is_weight = isinstance(value, torch.Tensor) and value.requires_grad and not self.results_on_host
        if not is_weight or (self.weights.find(value) is None and not (value.is_cpu and self._is_marked(value))):
            return value
        # Through the session, so that the gradient goes back to the weight.
        return torch.clone(value)

    def replaced(self, tensor: torch.Tensor) -> None:
        """An owner of a weight may have other memory."""
        with self.lock:
            for mover in self.movers:
                mover.replace(mover.weights.by_id[id(tensor)], tensor)

    def mover_of(self, device: torch.device) -> Mover:
        """The mover of one of the devices."""
        return next((mover for mover in self.movers if mover.device == device), self.movers[0])

    def _managed(
        self, func: Any, args: Args, kwargs: Kwargs, on_host: List[torch.Tensor], found: _Found, weights: List[Weight]
    ) -> Any:
        """An operation with tensors of the host."""
        name = self._handlers[func][1]
        hooks = self.hooks.all
        operation = Operation(name, tuple([weight.name for weight in weights])) if hooks else None
        redirected = None if operation is None else self.hooks.before(operation)
        on_device = redirected != "host"
        named = self._redirected(redirected) if on_device and redirected is not None else None
        mover, moved, divided = self.movers[0], [], False  # type: Mover, Moved, bool
        if self.division is not None:
            mover, divided = self._place(func, args, kwargs, name, weights, named)
            args, kwargs = self._on_device(gathered, ((args, kwargs), mover.device, moved, self.division.kept), {}, mover.device)
            if mover is not self.movers[0]:
                found = {key: mover.weights.all[weight.number] for key, weight in found.items()}
                weights = [mover.weights.all[weight.number] for weight in weights]
        if on_device and weights:
            on_device = mover.begin(name, weights)
        started = time.perf_counter_ns()
        if not on_device:
            result = self._on_host(func, args, kwargs, mover)
            for tensor in written_by(func, args, kwargs):
                self._changed(tensor, None)
        else:
            result = self._substituted(func, args, kwargs, on_host, found, mover)
        elapsed = time.perf_counter_ns() - started
        if weights and on_device:
            mover.running()
            elapsed = self._measured(name, weights, elapsed, started, mover) if self._waits else elapsed
            mover.end(elapsed)
        write_back(moved)
        if self.division is not None and divided:
            self.division.ran(name, weights, elapsed)
        if operation is not None:
            self.hooks.after(operation, "device" if on_device else "host", elapsed)
        return result

    def _substituted(
        self, func: Any, args: Args, kwargs: Kwargs, on_host: List[torch.Tensor], found: _Found, mover: Mover
    ) -> Any:
        """Runs an operation with copies on the device instead of tensors of the host."""
        statistics = written_by(func, args, kwargs)
        for attempt in range(2):
            copies: _Copies = {}
            pairs: _Versions = []
            others: _Written = []
            try:
                for tensor in on_host:
                    key = id(tensor)
                    weight = found.get(key)
                    copy = copies[key] = self._copy(tensor, weight, mover.device)
                    pairs.append((tensor, copy, None if copy.is_inference() else copy._version))
                    if weight is None:
                        others.append((tensor, copy))
                with Substitution(self.local, others) as operation:
                    result = self.call(func, replace(args, copies), replace_values(kwargs, copies) if kwargs else kwargs)
                break
            except torch.OutOfMemoryError:
                if attempt:
                    raise
                # Code of several operations may have written copies before it failed.
                for tensor, copy in self._written(pairs, statistics):
                    with torch.no_grad():
                        copy.detach().copy_(tensor.detach())
                copies.clear()
                self._free(mover)
            except BaseException:
                self._write_back(self._written(pairs, statistics), found, statistics, mover)
                raise
        changed = self._written(pairs, statistics)
        if changed:
            self._write_back(changed, found, statistics, mover)
            for tensor, copy in changed:
                operation.give(copy, tensor)
        # Some functions return an argument.
        for tensor, copy, _ in pairs:
            if copy is result:
                return tensor
        if not isinstance(result, torch.Tensor):
            result = with_copies(result, {id(copy): tensor for tensor, copy, _ in pairs})
        if has_views(result) and not self.runs_code:
            keys = [raw_storage(copy) for tensor, copy in others if self.belongs(tensor)]
            again = functools.partial(self._on_host, func, args, kwargs, mover)
            result = restored(result, lambda key: key in mover.by_copy or key in keys, again)
        return self._home(result, operation) if self.results_on_host else result

    @staticmethod
    def _written(pairs: _Versions, statistics: List[torch.Tensor]) -> _Written:
        """The tensors of the host whose copies an operation has written, or may have, and these copies."""
        return [
            (tensor, copy)
            for tensor, copy, version in pairs
            if (version is not None and copy._version != version) or (statistics and any(tensor is one for one in statistics))
        ]

    def _write_back(self, written: _Written, found: _Found, statistics: List[torch.Tensor], mover: Mover) -> None:
        """Copies to the host what an operation has written."""
        for tensor, copy in written:
            weight = found.get(id(tensor))
            if any(tensor is one for one in statistics):
                # As in PyTorch, the version of the tensor stays.
                with torch.no_grad():
                    tensor.data.copy_(copy.detach())
                self._changed(tensor, mover)
            elif weight is not None:
                weight.write_back(tensor)
            else:
                # With the gradient of what the operation did.
                tensor.copy_(copy)

    def _changed(self, tensor: torch.Tensor, by: Optional[Mover]) -> None:
        """A tensor of the host was written without a new version; the copy of ``by`` was, too."""
        for mover in self.movers:
            if mover is not by:
                for weight in mover.weights.sharing(tensor):
                    weight.edits += 1

    def _copy(self, tensor: torch.Tensor, weight: Optional[Weight], device: torch.device) -> torch.Tensor:
        """The copy of a tensor on the device, for one operation."""
        # Tensors with a tangent need no gradient.
        dual = forward_ad._current_level >= 0
        linked = dual or (tensor.requires_grad and torch.is_grad_enabled())
        if weight is None:
            copy = to_device(tensor.detach(), device)
            return ToDevice.apply(tensor, copy) if linked else as_linked(copy, tensor)
        if not linked:
            return weight.view(tensor)
        found = None if dual else weight.linked.get(id(tensor))
        if found is None:
            # Without the gradient of the view: the graph would keep the copy.
            found = ToDevice.apply(tensor, weight.view(tensor).detach())
            if not dual and id(tensor) in weight.views:
                weight.linked[id(tensor)] = found
        return found

    def _on_devices(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """An operation whose tensors are all on devices."""
        if self.division is None:
            return self._on_device(func, args, kwargs)
        moved: Moved = []
        device = self._place(func, args, kwargs, "", [])[0].device
        args, kwargs = self._on_device(gathered, ((args, kwargs), device, moved, self.division.kept), {}, device)
        result = self._on_device(func, args, kwargs, device)
        write_back(moved)
        return result

    def _redirected(self, place: str) -> Mover:
        """The device that a middleware names."""
        device = self._ours(place)
        if device is None:
            devices = [str(mover.device) for mover in self.movers]
            raise InvalidError(f'before_operation: {place!r} is neither "host" nor one of {devices}')
        return self.mover_of(device)

    def _place(
        self, func: Any, args: Args, kwargs: Kwargs, name: str, weights: List[Weight], named: Optional[Mover] = None
    ) -> Tuple[Mover, bool]:
        """Where an operation runs, of several devices, and whether it is one of the division. A middleware may name it."""
        assert self.division is not None
        targets = written(func, args, kwargs)
        for tensor in targets:
            self.division.kept.forget(tensor)
        if targets:
            return self.mover_of(targets[0].device), False
        if weights:
            return self.division.mover(name, weights, named), True
        if named is not None:
            return named, False
        current, found = self.division.current, devices_of((list(args), dict(kwargs)))
        return current if not found or current.device in found else self.mover_of(next(iter(found))), False

    def _on_device(self, func: Any, args: Args, kwargs: Kwargs, device: Optional[torch.device] = None) -> Any:
        """An operation whose tensors are all on one device."""
        try:
            return self.call(func, args, kwargs)
        except torch.OutOfMemoryError:
            with self.lock:
                for mover in self.movers:
                    if device is None or mover.device == device:
                        self._free(mover)
            return self.call(func, args, kwargs)

    def _free(self, mover: Mover) -> None:
        """The device had no memory: frees what operations do not need now."""
        if self.division is not None:
            self.division.kept.clear()
        mover.no_memory()

    def _on_host(self, func: Any, args: Args, kwargs: Kwargs, results_to: Optional[Mover]) -> Any:
        """Runs an operation on the host. Its results go to a device, if any."""
        device = self.target if results_to is None else results_to.device
        #: Tensors of devices by their ids, with their copies and the versions of these.
        moved: Dict[int, Tuple[torch.Tensor, torch.Tensor, Optional[int]]] = {}
        statistics, targets = written_by(func, args, kwargs), written(func, args, kwargs)

        def home(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.is_cpu:
                return value
            if id(value) not in moved:
                copy = as_linked(transfer(value, _HOST), value)
                moved[id(value)] = value, copy, None if copy.is_inference() else copy._version
            return moved[id(value)][1]

        given: List[torch.Tensor] = []
        collect([*args, *kwargs.values()], given)
        args, kwargs = tree_map(home, (list(args), dict(kwargs)))
        if self._ours(kwargs.get("device")) is not None:
            kwargs["device"] = "cpu"  # type: ignore[index]
        with Substitution(self.local, [(tensor, copy) for tensor, copy, _ in moved.values()]) as operation:
            result = self.call(as_on, (self.target.type, func, self._handlers[func][1], args, kwargs), {})
        # Some functions return an argument.
        originals = {id(tensor): tensor for tensor in given}
        originals.update({id(copy): tensor for tensor, copy, _ in moved.values()})
        for tensor, copy, version in moved.values():
            if any(tensor is one for one in statistics):
                tensor.data.copy_(copy.detach())
            elif (version is not None and copy._version != version) or any(tensor is one for one in targets):
                # As the operation did, with its gradient.
                if tensor.shape != copy.shape:
                    tensor.resize_(copy.shape)
                tensor.copy_(copy)
                operation.give(copy, tensor)

        def away(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or not value.is_cpu:
                return value
            original = originals.get(id(value))
            if original is not None or results_to is None:
                return value if original is None else original
            if self.results_on_host or (value._is_view() and self.weights.sharing(value)):
                return self._mark(value) if self.results_on_host else value
            result = transfer(value, device)
            operation.give(value, result)
            return result

        return self._on_device(tree_map, (away, result), {}, device)

    def _factory(self, func: Any, args: Args, kwargs: Kwargs, belongs: bool = False) -> Any:
        """Makes a tensor; ``belongs``: on the device, unless the arguments name another one."""
        named = kwargs.get("device")
        device = self.target if named is None and belongs else self._ours(named)
        if device is not None:
            if self.results_on_host:
                return self._mark(self.call(func, args, {**kwargs, "device": "cpu"}))
            return self._on_device(func, args, {**kwargs, "device": device}, device)
        return self.call(func, args, kwargs)

    def _like(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        tensor = args[0] if args else kwargs.get("input")
        if isinstance(tensor, torch.Tensor) and tensor.is_cpu:
            return self._factory(func, args, kwargs, self.belongs(tensor))
        return self._compute(func, args, kwargs)

    def _view(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        tensor = argument(args, kwargs, 0, "input")
        if len(args) > 1 and tensor is not None:
            others: List[torch.Tensor] = []
            mixed = collect(args[1:], others) and tensor.is_cpu
            if (mixed or others) and self._handlers[func][1] == "__getitem__":
                return self._compute(func, args, kwargs)
            if self.division is not None and len(devices_of(args)) > 1:
                return self._on_devices(func, args, kwargs)
        result = self.call(func, args, kwargs)
        if tensor is not None and is_new(result) and self.belongs(tensor) and raw_storage(tensor) != raw_storage(result):
            # Such as ``reshape`` of a transposed tensor, or an index that is a list.
            return self._compute(func, args, kwargs)
        if self.results_on_host and any([self._is_marked(one) for one in tensors(args)]):
            self._mark(result)
        return result

    def _in_place(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        targets = tensors(args[0] if args else next(iter(kwargs.values()), None))
        if not targets or not all(tensor.is_cpu for tensor in targets):
            return self._compute(func, args, kwargs)
        return self._write(func, args, kwargs, targets)

    def _write(self, func: Any, args: Args, kwargs: Kwargs, targets: List[torch.Tensor]) -> Any:
        """Writes tensors of the host, on the host."""
        result = self._on_host(func, args, kwargs, None)
        for tensor in targets:
            self._changed(tensor, None)
        return result

    def belongs(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of the host is shown as one of the device."""
        return self._is_marked(tensor) or self.weights.belongs(tensor)

    def _is_marked(self, tensor: torch.Tensor) -> bool:
        found = self._marked.get(id(tensor))
        return found is not None and found() is tensor

    def _mark(self, result: Any) -> Any:
        def mark(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.is_cpu:
                key, marked = id(value), self._marked
                marked[key] = weakref.ref(value, lambda dead: marked.pop(key, None) if marked.get(key) is dead else None)
            return value

        return tree_map(mark, result)

    def _home(self, result: Any, operation: Substitution) -> Any:
        """Results as tensors of the host that belong to the device."""

        def home(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            result = transfer(value, _HOST)
            operation.give(value, result)
            return result

        return self._mark(tree_map(home, result))

    def _ours(self, device: Any) -> Optional[torch.device]:
        """The device of this session that a program names, if it is one."""
        if device is None:
            return None
        named = torch.device(self.target.type, device) if isinstance(device, int) else torch.device(device)
        if named.type == self.target.type and named.index is None:
            return self.target
        return next((mover.device for mover in self.movers if mover.device == named), None)

    def _measured(self, name: str, weights: List[Weight], elapsed: int, started: int, mover: Mover) -> int:
        """The time of an operation on a device that does not wait: measured a few times."""
        key = (name, tuple([weight.name for weight in weights]))
        count, mean = self._times.get(key, (0, 0))
        if count < _MEASURED:
            mover.memory.module.synchronize(mover.device)
            elapsed = time.perf_counter_ns() - started
            mean = (mean * count + elapsed) // (count + 1)
            self._times[key] = count + 1, mean
        return mean
