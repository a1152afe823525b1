"""Runs one operation: on a device with copies of the host's tensors, or on the host."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import types
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch._C import _len_torch_function_stack
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from ..errors import InvalidError
from . import threads
from .arguments import Args, Kwargs, Uses, collect, mapped, nested, replace, replace_values, to_device, with_copies
from .autocast import as_on
from .division import Division
from .events import Middlewares, Operation
from .gathering import Moved, devices_of, gathered, write_back, written
from .gradients import Substitution, ToDevice, as_linked, transfer, without_inference
from .marks import Marks
from .mover import Mover
from .operations import PACKING, SAVES_EARLY, TAKE_LENGTHS, may_write, name_of, written_by
from .simulated.tensor import raw_storage
from .views import has_views, restored
from .weights import Part, Weight

_HOST = torch.device("cpu")
#: What an operation gets: a tensor of the host, its part of a weight, its copy, and the version of that before the operation.
_Given = List[Tuple[torch.Tensor, Optional[Part], torch.Tensor, int]]
_Written = List[Tuple[torch.Tensor, Optional[Part], torch.Tensor]]
#: Times of an operation that are measured with a synchronized device.
_MEASURED = 3


class Function:
    """A function of PyTorch or of the program: the method that handles its calls, and what is known of these."""

    __slots__ = ("handle", "is_operator", "may_write", "name", "saves_early", "takes_lengths")

    def __init__(self, func: Any, handle: Callable[[Any, Args, Kwargs], Any]) -> None:
        self.handle, self.name, self.may_write = handle, name_of(func), may_write(func)
        self.takes_lengths = self.name in TAKE_LENGTHS
        self.saves_early = self.name in SAVES_EARLY
        self.is_operator = isinstance(func, torch._ops.OpOverload)


class Execution(TorchFunctionMode):
    """Runs operations on the devices of a session."""

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
        self.middlewares: Middlewares = mover.middlewares
        #: Whether results leave the device at once.
        self.results_on_host = results_on_host
        #: Results on the host that belong to the device.
        self.marks = Marks()
        #: Tensors of the host that are no weights, and that operations on the device have read: the program has them there.
        self.read = Marks()
        #: What each thread does.
        self.local = threading.local()
        #: Threads whose functions run as they are, while a frame is among their callers; None: for good.
        self.paused: Dict[int, Optional[types.FrameType]] = {}
        #: Errors of saved tensors: an exception of their hooks would end the process in a thread of the device.
        self.failures: List[Exception] = []
        #: Whether the thread that has the lock runs the code of several operations.
        self.runs_code = False
        #: What is known of each function.
        self.functions: Dict[Any, Function] = {}
        self._times: Dict[Tuple[str, Tuple[str, ...]], Tuple[int, int]] = {}
        self._waits = self.target.type not in ("simulated", "cpu")

    @staticmethod
    def call(func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Calls a function of the program."""
        if not _len_torch_function_stack():
            return func(*args, **kwargs)
        with torch._C._EnableTorchFunction():
            return func(*args, **kwargs)

    def is_paused(self) -> bool:
        """Whether functions of this thread run as they are. PyTorch does not report the end of a step that fails."""
        thread = threading.get_ident()
        frame = self.paused.get(thread)
        if frame is None:
            return thread in self.paused
        caller: Optional[types.FrameType] = sys._getframe()
        while caller is not None and caller is not frame:
            caller = caller.f_back
        if caller is None:
            del self.paused[thread]
        return caller is not None

    def mover_of(self, device: torch.device) -> Mover:
        """The mover of one of the devices."""
        return next((mover for mover in self.movers if mover.device == device), self.movers[0])

    def ours(self, device: Any) -> Optional[torch.device]:
        """The device of this session that a program names, if it is one."""
        if device is None:
            return None
        named = torch.device(self.target.type, device) if isinstance(device, int) else torch.device(device)
        if named.type == self.target.type and named.index is None:
            return self.target
        return next((mover.device for mover in self.movers if mover.device == named), None)

    def belongs(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of the host is shown as one of the device."""
        return (tensor in self.marks or self.weights.belongs(tensor)) and not self._in_node_of_host()

    def holders(self) -> Tuple[object, object]:
        """Know the tensors of the host that are shown as ones of the device."""
        return self.weights.key, self.marks.key

    def _in_node_of_host(self) -> bool:
        """Whether a node of the backward pass runs whose function ran on the host: its tensors are shown where they are."""
        node = torch._C._current_autograd_node() if torch._C._current_graph_task_id() != -1 else None
        return node is not None and node._sequence_nr() == getattr(self.local, "node_of_host", None)

    def changed(self, tensor: torch.Tensor, by: Optional[Mover] = None) -> None:
        """A tensor of the host was written without a new version; the copy of ``by`` was, too. All sessions have to know."""
        for mover in self.all_movers():
            for weight in mover.weights.sharing(tensor) if mover is not by else ():
                weight.edits += 1

    def all_movers(self) -> List[Mover]:
        """The movers of this session, and of all others that some thread is in."""
        others = [session.movers for session in threads.everywhere() if session.movers is not self.movers]
        return [*self.movers, *[mover for movers in others for mover in movers]]

    def run(self, func: Any, args: Args, kwargs: Kwargs, uses: Uses, weights: List[Weight]) -> Any:
        """Runs an operation with tensors of the host."""
        name = self.functions[func].name
        if self.middlewares.all or self.division is not None:
            return self._run_directed(name, func, args, kwargs, uses, weights)
        return self._run_by(self.movers[0], name, func, args, kwargs, uses, weights, True)[0]

    def _run_directed(self, name: str, func: Any, args: Args, kwargs: Kwargs, uses: Uses, weights: List[Weight]) -> Any:
        """Runs an operation where the middlewares and the division say."""
        operation = Operation(name, tuple([weight.name for weight in weights])) if self.middlewares.all else None
        redirected = None if operation is None else self.middlewares.begin(operation)
        on_device = redirected != "host"
        named = self._redirected(redirected) if on_device and redirected is not None else None
        mover, moved, divided = self.movers[0], [], False  # type: Mover, Moved, bool
        if self.division is not None:
            mover, divided = self._place(func, args, kwargs, name, weights, named)
            given = ((args, kwargs), mover.device, moved, self.division.kept)
            args, kwargs = self.call_with_memory(gathered, given, {}, mover.device)
            if mover is not self.movers[0]:
                part = mover.weights.part
                uses = {key: (tensor, one and part(tensor)) for key, (tensor, one) in uses.items()}
                weights = [mover.weights.all[weight.number] for weight in weights]
        with _instead_of(moved):
            result, on_device, elapsed = self._run_by(mover, name, func, args, kwargs, uses, weights, on_device)
        write_back(moved)
        if self.division is not None and divided:
            self.division.end(name, weights, elapsed)
        if operation is not None:
            self.middlewares.end(operation, "device" if on_device else "host", elapsed)
        return result

    def _run_by(
        self, mover: Mover, name: str, func: Any, args: Args, kwargs: Kwargs, uses: Uses, weights: List[Weight], on_device: bool
    ) -> Tuple[Any, bool, int]:
        """Runs an operation on the device of a mover if that and ``on_device`` say so, else on the host. Returns its result,
        whether it ran on the device, and its time in nanoseconds."""
        if on_device and weights:
            on_device = mover.begin(name, weights)
        started = time.perf_counter_ns()
        if not on_device:
            result = self.run_on_host(func, args, kwargs, mover)
            for tensor in written_by(func, args, kwargs):
                self.changed(tensor)
            return result, False, time.perf_counter_ns() - started
        result = self._substituted(func, args, kwargs, uses, mover)
        elapsed = time.perf_counter_ns() - started
        if weights:
            mover.running()
            elapsed = self._measured(name, weights, elapsed, started, mover) if self._waits else elapsed
            mover.end(elapsed)
        return result, True, elapsed

    def _substituted(self, func: Any, args: Args, kwargs: Kwargs, uses: Uses, mover: Mover) -> Any:
        """Runs an operation with copies on the device instead of tensors of the host; once more if it finds no memory."""
        try:
            return self._with_copies(func, args, kwargs, uses, mover)
        except torch.OutOfMemoryError:
            # The error keeps the copies until here.
            pass
        self._free(mover)
        return self._with_copies(func, args, kwargs, uses, mover)

    def _with_copies(self, func: Any, args: Args, kwargs: Kwargs, uses: Uses, mover: Mover) -> Any:
        function = self.functions[func]
        statistics = written_by(func, args, kwargs) if function.may_write else []
        # Tensors with a tangent need no gradient.
        dual, with_gradients = forward_ad._current_level >= 0, torch.is_grad_enabled()
        operation = Substitution(function.saves_early) if with_gradients or self.runs_code else None
        copies: Dict[int, torch.Tensor] = {}
        given: _Given = []
        try:
            for key, (tensor, part) in uses.items():
                linked = dual or (with_gradients and tensor.requires_grad)
                if part is None:
                    copy = _copied(tensor, mover.device, linked)
                    if operation is not None:
                        operation.arguments.append((tensor, copy))
                else:
                    copy = _linked(part, dual) if linked else part.copy()
                copies[key] = copy
                given.append((tensor, part, copy, copy._version))
            given_args, given_kwargs = replace(args, copies), replace_values(kwargs, copies) if kwargs else kwargs
            if statistics:
                of_device = [one for one in statistics if not one.is_cpu]
                result = self._call_once(func, given_args, given_kwargs, of_device)
            else:
                result = self.call(func, given_args, given_kwargs)
        except torch.OutOfMemoryError:
            # Code of several operations may have written copies before it failed.
            for tensor, _, copy in _written(given, statistics):
                with torch.no_grad():
                    copy.detach().copy_(tensor.detach())
            raise
        except BaseException:
            self._write_back(_written(given, statistics), statistics, mover)
            raise
        finally:
            if operation is not None:
                operation.end()
        is_written, returned = bool(statistics), None
        for tensor, _, copy, version in given:
            if copy is result:
                # Some functions return an argument.
                returned = tensor
            if copy._version != version:
                is_written = True
        if is_written:
            changed = _written(given, statistics)
            self._write_back(changed, statistics, mover)
            if operation is not None:
                for tensor, _, copy in changed:
                    operation.give(copy, tensor, True)
        if returned is not None:
            return returned
        if isinstance(result, torch.Tensor):
            shows = result._is_view() or result.is_inference()
        else:
            result = with_copies(result, {id(copy): tensor for tensor, _, copy, _ in given})
            shows = has_views(result)
        if shows and not self.runs_code:
            keys = [raw_storage(copy) for tensor, part, copy, _ in given if part is None and self.belongs(tensor)]
            again = functools.partial(self.run_on_host, func, args, kwargs, mover)
            result = restored(result, lambda key: key in mover.by_copy or key in keys, again)
        return self._home(result, args, kwargs, operation) if self.results_on_host else result

    def _write_back(self, written: _Written, statistics: List[torch.Tensor], mover: Mover) -> None:
        """Copies to the host what an operation has written."""
        for tensor, part, copy in written:
            if any([tensor is one for one in statistics]):
                # As in PyTorch, the version of the tensor stays.
                with torch.no_grad():
                    tensor.data.copy_(copy.detach())
                self.changed(tensor, mover)
            elif part is not None:
                part.write_back()
            else:
                # With the gradient of what the operation did.
                tensor.copy_(copy)

    def run_on_devices(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Runs an operation whose tensors are all on devices."""
        if self.division is None:
            return self.call_with_memory(func, args, kwargs)
        moved: Moved = []
        device = self._place(func, args, kwargs, "", [])[0].device
        args, kwargs = self.call_with_memory(gathered, ((args, kwargs), device, moved, self.division.kept), {}, device)
        with _instead_of(moved):
            result = self.call_with_memory(func, args, kwargs, device)
        write_back(moved)
        return result

    def _redirected(self, place: str) -> Mover:
        """The device that a middleware names."""
        device = self.ours(place)
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
            return self.division.begin(name, weights, named), True
        if named is not None:
            return named, False
        current, found = self.division.current, devices_of((list(args), dict(kwargs)))
        return current if not found or current.device in found else self.mover_of(next(iter(found))), False

    def call_with_memory(self, func: Any, args: Args, kwargs: Kwargs, device: Optional[torch.device] = None) -> Any:
        """Calls a function whose tensors are all on one device; once more with freed memory if it finds none."""
        function = self.functions.get(func)
        statistics = written_by(func, args, kwargs) if function is not None and function.may_write else []
        try:
            return self._call_once(func, args, kwargs, statistics)
        except torch.OutOfMemoryError:
            with self.lock:
                for mover in self.movers:
                    if device is None or mover.device == device:
                        self._free(mover)
            return self.call(func, args, kwargs)

    def _call_once(self, func: Any, args: Args, kwargs: Kwargs, statistics: List[torch.Tensor]) -> Any:
        """Calls a function that is called again if it finds no memory: statistics of the device are then as before."""
        if not statistics:
            return self.call(func, args, kwargs)
        kept = [(tensor, tensor.detach().clone()) for tensor in statistics]
        try:
            return self.call(func, args, kwargs)
        except torch.OutOfMemoryError:
            for tensor, before in kept:
                with torch.no_grad():
                    tensor.detach().copy_(before)
            raise

    def _free(self, mover: Mover) -> None:
        """The device had no memory: frees what operations do not need now, also of other sessions that do nothing."""
        if self.division is not None:
            self.division.kept.clear()
        mover.no_memory()
        for session in threads.everywhere():
            if session.movers is not self.movers and session.lock.acquire(blocking=False):
                try:
                    for other in session.movers:
                        if other.device == mover.device:
                            other.no_memory()
                finally:
                    session.lock.release()

    def run_on_host(self, func: Any, args: Args, kwargs: Kwargs, results_to: Optional[Mover]) -> Any:
        """Runs an operation on the host. Its results go to a device, if any."""
        device = self.target if results_to is None else results_to.device
        #: Tensors of devices by their ids, with their copies and the versions of these.
        moved: Dict[int, Tuple[torch.Tensor, torch.Tensor, int]] = {}
        statistics, targets = written_by(func, args, kwargs), written(func, args, kwargs)

        def home(value: torch.Tensor) -> torch.Tensor:
            if value.is_cpu:
                return value
            if id(value) not in moved:
                copy = as_linked(without_inference(transfer, value, _HOST), value)
                moved[id(value)] = value, copy, copy._version
            return moved[id(value)][1]

        given, _ = collect([*args, *kwargs.values()])
        args, kwargs = mapped(home, (list(args), dict(kwargs)))
        if self.ours(kwargs.get("device")) is not None:
            kwargs["device"] = "cpu"  # type: ignore[index]
        elif kwargs.get("device") is not None:
            # The program names another one.
            results_to = None
        operation = Substitution()
        operation.arguments += [(tensor, copy) for tensor, copy, _ in moved.values()]
        try:
            result = self.call(as_on, (self.target.type, func, self.functions[func].name, args, kwargs), {})
        finally:
            operation.end()
        # Some functions return an argument.
        originals = {id(tensor): tensor for tensor in given}
        originals.update({id(copy): tensor for tensor, copy, _ in moved.values()})
        for tensor, copy, version in moved.values():
            if any(tensor is one for one in statistics):
                tensor.data.copy_(copy.detach())
            elif copy._version != version or any(tensor is one for one in targets):
                # As the operation did, with its gradient.
                if tensor.shape != copy.shape:
                    tensor.resize_(copy.shape)
                tensor.copy_(copy)
                operation.give(copy, tensor, True)

        def away(value: torch.Tensor) -> Any:
            if not value.is_cpu:
                return value
            original = originals.get(id(value))
            if original is not None or results_to is None:
                return value if original is None else original
            if self.results_on_host or (value._is_view() and self.weights.belongs(value)):
                return self.marks.add(value) if self.results_on_host else value
            result = transfer(value, device)
            operation.give(value, result)
            return result

        if self.functions[func].name in PACKING:
            # The lengths stay.
            return self.call_with_memory(away, result[:1], {}, device), result[1]
        return self.call_with_memory(mapped, (away, result), {}, device)

    def _home(self, result: Any, args: Args, kwargs: Kwargs, operation: Optional[Substitution]) -> Any:
        """Results as tensors of the host that belong to the device. Arguments stay where they are."""
        given = {id(tensor) for tensor in nested((args, kwargs))}

        def home(value: torch.Tensor) -> Any:
            if value.is_cpu or id(value) in given:
                return value
            result = transfer(value, _HOST)
            if operation is not None:
                operation.give(value, result)
            return self.marks.add(result)

        return mapped(home, result)

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


@contextlib.contextmanager
def _instead_of(moved: Moved) -> Iterator[None]:
    """An operation gets copies of tensors of other devices."""
    if not moved:
        yield
        return
    operation = Substitution()
    operation.arguments += [(tensor, copy) for tensor, copy, _ in moved]
    try:
        yield
    finally:
        operation.end()


def _copied(tensor: torch.Tensor, device: torch.device, linked: bool) -> torch.Tensor:
    """A copy of a tensor that is no part of a weight, for one operation; ``linked``: with a gradient to it."""
    copy = without_inference(to_device, tensor.detach(), device)
    return ToDevice.apply(tensor, copy) if linked else as_linked(copy, tensor)


def _linked(part: Part, dual: bool) -> torch.Tensor:
    """The copy of a part of a weight with a gradient to it, or with a tangent (``dual``)."""
    # Without the gradient of the view: the graph would keep the copy.
    if dual:
        return ToDevice.apply(part.tensor, part.copy().detach())  # type: ignore[no-any-return]
    if part.linked is None:
        part.linked = ToDevice.apply(part.tensor, part.copy().detach())
    return part.linked


def _written(given: _Given, statistics: List[torch.Tensor]) -> _Written:
    """The tensors of the host whose copies an operation has written, or may have, and these copies."""
    return [
        (tensor, part, copy)
        for tensor, part, copy, version in given
        if copy._version != version or (statistics and any([tensor is one for one in statistics]))
    ]
