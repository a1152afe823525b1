"""Runs operations of a session, each on a device or on the host. An operation begins, runs and ends."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ..errors import InvalidError
from .arguments import Args, Kwargs, Uses, tensors
from .calls import Calls, Function
from .events import Middlewares, Operation
from .gathering import Moved, devices_of, gathered, write_back, written
from .gradients import Substitution
from .host_tensors import HostTensors
from .mover import Mover
from .on_device import OnDevice
from .on_host import OnHost
from .operations import has_in_place_option
from .weights import Weight

#: Times of an operation that are measured with a synchronized device.
_MEASURED = 3


class Execution:
    """Chooses the place of each operation, runs it there, and reports it to the movers, the middlewares and the division."""

    def __init__(self, tensors: HostTensors, middlewares: Middlewares, calls: Calls, host: OnHost) -> None:
        self._tensors = tensors
        self._devices = tensors.devices
        self._division = self._devices.division
        self._first = self._devices.movers[0]
        self._middlewares = middlewares
        self._calls = calls
        self._host = host
        self._device = OnDevice(tensors, host)
        self._times: Dict[Tuple[str, Tuple[str, ...]], Tuple[int, int]] = {}
        self._waits = self._devices.target.type not in ("simulated", "cpu")

    def run(self, function: Function, args: Args, kwargs: Kwargs, uses: Uses, weights: List[Weight]) -> Any:
        """Runs an operation with tensors of the host."""
        if self._middlewares.all or self._division is not None:
            return self._run_directed(function, args, kwargs, uses, weights)
        return self._run_by(self._first, function, args, kwargs, uses, weights, True)[0]

    def run_on_devices(self, function: Function, args: Args, kwargs: Kwargs) -> Any:
        """Runs an operation whose tensors are all on devices."""
        if self._division is None:
            return self._calls.run(function, args, kwargs)
        moved: Moved = []
        device = self._place(function, args, kwargs, [])[0].device
        args, kwargs = self._calls.with_memory(gathered, ((args, kwargs), device, moved, self._division.kept), {}, device)
        with _instead_of(moved):
            result = self._calls.run(function, args, kwargs, device)
        write_back(moved)
        return result

    def _run_directed(self, function: Function, args: Args, kwargs: Kwargs, uses: Uses, weights: List[Weight]) -> Any:
        """Runs an operation where the middlewares and the division say."""
        name, middlewares, division = function.name, self._middlewares, self._division
        operation = Operation(name, tuple([weight.name for weight in weights])) if middlewares.all else None
        redirected = None if operation is None else middlewares.begin(operation)
        on_device = redirected != "host"
        named = self._redirected(redirected) if on_device and redirected is not None else None
        mover, moved, divided = self._first, [], False  # type: Mover, Moved, bool
        if division is not None:
            mover, divided = self._place(function, args, kwargs, weights, named)
            given = ((args, kwargs), mover.device, moved, division.kept)
            args, kwargs = self._calls.with_memory(gathered, given, {}, mover.device)
            if mover is not self._first:
                part = mover.weights.part
                uses = {key: (tensor, one and part(tensor)) for key, (tensor, one) in uses.items()}
                weights = [mover.weights.all[weight.number] for weight in weights]
        with _instead_of(moved):
            result, on_device, elapsed = self._run_by(mover, function, args, kwargs, uses, weights, on_device)
        write_back(moved)
        if division is not None and divided:
            division.end(name, weights, elapsed)
        if operation is not None:
            middlewares.end(operation, "device" if on_device else "host", elapsed)
        return result

    def _run_by(
        self, mover: Mover, function: Function, args: Args, kwargs: Kwargs, uses: Uses, weights: List[Weight], on_device: bool
    ) -> Tuple[Any, bool, int]:
        """Runs an operation on the device of a mover if that and ``on_device`` say so, else on the host. Returns its result,
        whether it ran on the device, and its time in nanoseconds."""
        if on_device and weights:
            if mover.shared is not None:
                self._own_written(mover, function, args, kwargs, weights)
            on_device = not mover.has_ended and mover.begin(function.name, weights)
        started = time.perf_counter_ns()
        if not on_device:
            result = self._host.run(function, args, kwargs, mover)
            for tensor in function.written(args, kwargs):
                self._tensors.changed(tensor)
            return result, False, time.perf_counter_ns() - started
        try:
            result = self._device.run(function, args, kwargs, uses, mover)
        except BaseException:
            if weights:
                mover.driver.cancel()
            raise
        elapsed = time.perf_counter_ns() - started
        if weights:
            elapsed = self._measured(function.name, weights, elapsed, started, mover) if self._waits else elapsed
            mover.end(elapsed)
        return result, True, elapsed

    def _own_written(self, mover: Mover, function: Function, args: Args, kwargs: Kwargs, weights: List[Weight]) -> None:
        """An operation gets copies that no other program reads of the weights that it may write: statistics, what it writes in
        place, and all that code of several operations reads."""
        if self._devices.runs_code or has_in_place_option(function.call, args, kwargs):
            return mover.own(weights)
        targets = tensors(args[0]) if function.is_in_place and args else []
        parts = [mover.weights.part(tensor) for tensor in (*targets, *function.written(args, kwargs)) if tensor.is_cpu]
        mover.own([part.weight for part in parts if part is not None])

    def _redirected(self, place: str) -> Mover:
        """The device that a middleware names."""
        device = self._devices.named(place)
        if device is None:
            devices = [str(mover.device) for mover in self._devices.movers]
            raise InvalidError(f'before_operation: {place!r} is neither "host" nor one of {devices}')
        return self._devices.mover_of(device)

    def _place(
        self, function: Function, args: Args, kwargs: Kwargs, weights: List[Weight], named: Optional[Mover] = None
    ) -> Tuple[Mover, bool]:
        """Where an operation runs, of several devices, and whether it is one of the division. A middleware may name it."""
        assert self._division is not None
        targets = written(function.call, args, kwargs, function.written(args, kwargs))
        for tensor in targets:
            self._division.kept.forget(tensor)
        if targets:
            return self._devices.mover_of(targets[0].device), False
        if weights:
            return self._division.begin(function.name, weights, named), True
        if named is not None:
            return named, False
        current, found = self._division.current, devices_of((list(args), dict(kwargs)))
        return current if not found or current.device in found else self._devices.mover_of(next(iter(found))), False

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
