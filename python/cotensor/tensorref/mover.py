"""Moves weights as a driver decides, and reports each move."""

from __future__ import annotations

import threading
from typing import Callable, Dict, Iterable, List, Optional, Tuple, Union

import torch

from .._native import Driver
from ..errors import InvalidError
from .copies import copies_of
from .events import Middlewares, Move
from .memory import DeviceMemory
from .shared_copies import SharedCopies, join
from .simulated.tensor import raw_storage
from .strategy import Strategy
from .weights import Part, View, Weight, Weights

_Moves = Optional[List[Tuple[int, bool]]]


class Mover:
    """The weights of a program on one device."""

    def __init__(
        self,
        device: torch.device,
        strategy: Union[str, Strategy],
        memory: Optional[int],
        bandwidth: int,
        middlewares: Middlewares,
    ) -> None:
        self.device = device
        self.bandwidth = bandwidth
        self.middlewares = middlewares
        self.memory = DeviceMemory(device, memory)
        self.weights = Weights()
        self.paths = copies_of(device, self.memory.module)
        #: Copies that programs share; None: each program has its own.
        self.shared: Optional[SharedCopies] = None
        #: Bytes of copies that no other program has.
        self.private_bytes = 0
        self._makes_room = False
        #: Whether the session has ended: a backward pass after it keeps no copies, and operations of its last threads make none.
        self.has_ended = False
        if not isinstance(strategy, (str, Strategy)):
            text = f"strategy: pass a name or an object of a class derived from Strategy, not {strategy!r}"
            raise InvalidError(text, field="strategy")
        if isinstance(strategy, Strategy) and strategy.sizes:
            raise InvalidError("strategy: pass an object that no other session has", field="strategy")
        self.driver = Driver(strategy, self.memory.budget(), bandwidth, 10_000)
        self.lock = threading.RLock()
        #: Called from time to time while operations run.
        self.report: Optional[Callable[[], None]] = None
        #: Weights by the memory of their copies.
        self.by_copy: Dict[int, Weight] = {}
        #: The numbers of operations, by their names and weights.
        self._operations: Dict[Tuple[object, ...], int] = {}
        #: Copies to the device with their bytes, evictions, operations on the host, failed allocations.
        self.copies = self.copied_bytes = self.evictions = self.on_host = self.out_of_memory = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Manages a tensor of the host."""
        weight = self.weights.add(name, tensor)
        if weight is not None:
            number = self.driver.add_tensor(weight.size_bytes)
            assert number == weight.number

    def begin(self, name: str, weights: List[Weight]) -> bool:
        """Copies what an operation needs. Returns false if the operation should run on the host."""
        driver = self.driver
        for weight in weights:
            if weight.copy is not None and weight.is_stale():
                self.invalidate(weight)
        number = self._operations.get((name, *weights))
        on_device, moves = driver.begin(self.operation(name, weights) if number is None else number)
        if moves:
            try:
                self.make(moves)
            except BaseException:
                driver.cancel()
                raise
        if on_device:
            for weight in weights:
                if weight.copy is None:
                    driver.cancel()
                    break
                if weight.landing is not None:
                    self.paths.use(weight.copy, weight.landing)
            else:
                return True
        self.on_host += 1
        return False

    def operation(self, name: str, weights: List[Weight]) -> int:
        """The number of an operation."""
        key = (name, *weights)
        number = self._operations.get(key)
        if number is None:
            number = self._operations[key] = self.driver.add_operation(name, [weight.number for weight in weights])
        return number

    def running(self) -> None:
        """Makes moves beside an operation that takes long."""
        moves = self.driver.running()
        if moves:
            self.make(moves)

    def end(self, elapsed_ns: int) -> None:
        """The operation has started, and takes so long: makes moves for later ones, and those after it."""
        moves = self.driver.end(elapsed_ns)
        if moves:
            self.make(moves)
        budget = self.memory.measure(self.driver)
        if budget is None:
            return
        if self.shared is not None and self.shared.refresh():
            budget = self.memory.budget()
        if budget != self.driver.budget:
            self.make(self.driver.set_budget(budget))
        report = self.report
        if report is not None:
            report()

    def limit(self, share: int) -> bool:
        """Uses no more than ``share`` bytes of the device. Returns whether the memory beyond it is free."""
        self.memory.share = share
        budget = self.memory.budget()
        if budget != self.driver.budget:
            self.make(self.driver.set_budget(budget))
        self.memory.count(self.driver)
        return self.memory.allocated() <= share and self.memory.reserved() <= share

    def no_memory(self) -> None:
        """The device had no memory: frees all that the operation does not need, and keeps more memory for activations."""
        self.out_of_memory += 1
        self.make(self.driver.out_of_memory())
        self._reserve()

    def begin_backward(self) -> None:
        """Keeps memory for gradients: PyTorch makes them in operations that are not intercepted, so that none can be repeated."""
        self._reserve()

    def _reserve(self) -> None:
        """Keeps more memory for activations than they take now."""
        budget = self.memory.measure(self.driver, failed=True)
        if budget is not None and budget < self.driver.budget:
            self.make(self.driver.set_budget(budget))

    def make(self, moves: _Moves) -> None:
        """Makes moves in their order. After an exception, the driver counts the copies that are there."""
        weights = self.weights.all
        try:
            for number, fetch in moves or ():
                self._make(weights[number], fetch)
        except BaseException:
            for number, _ in moves or ():
                if weights[number].copy is None:
                    self.driver.discard(number)
                elif not self.driver.is_on_device(number):
                    self._drop(weights[number])
            raise

    def _make(self, weight: Weight, fetch: bool) -> None:
        number = weight.number
        if fetch != self.driver.is_on_device(number) or fetch == (weight.copy is not None):
            # A copy before it found no memory. That was followed by moves of its own, which made this one or took it back.
            return
        move = Move(weight.name, weight.size_bytes, fetch, str(self.device))
        if not self.middlewares.may(move):
            if fetch:
                self.driver.discard(number)
                return
            if self.driver.keep(number):
                return
        if fetch:
            if not self._fetch(weight):
                return
        else:
            self._drop(weight)
            self.evictions += 1
        self.middlewares.moved(move)

    def _fetch(self, weight: Weight) -> bool:
        """Copies a weight to the device. Returns false without memory, and if a nested call has copied it."""
        if self.shared is not None:
            leased = self._lease_or_fit(self.shared, weight)
            if leased is not None:
                return leased
        try:
            weight.fetch(self.device, self.paths)
        except torch.OutOfMemoryError:
            self.driver.discard(weight.number)
            self.no_memory()
            if weight.copy is not None:
                # A smaller budget was followed by moves for the operation.
                return False
            # no_memory evicts; then the copy is made again, or the operation runs on the host.
            try:
                weight.fetch(self.device, self.paths)
            except torch.OutOfMemoryError:
                return False
            if not self.driver.keep(weight.number):
                weight.drop()
                return False
        self._landed(weight, weight.size_bytes)
        return True

    def _landed(self, weight: Weight, copied_bytes: int) -> None:
        """A weight has a copy, for which bytes were copied unless another program has done it."""
        assert weight.copy is not None
        if weight.is_leased:
            self.memory.shared_bytes += weight.size_bytes
        else:
            self.private_bytes += weight.size_bytes
        weight.key = raw_storage(weight.copy)
        self.by_copy[weight.key] = weight
        if copied_bytes:
            self.copies += 1
            self.copied_bytes += copied_bytes

    def _lease_or_fit(self, shared: SharedCopies, weight: Weight) -> Optional[bool]:
        """Uses the shared copy of a weight (true), or finds room for one of its own (None). False: there is room for neither, or
        a nested call has copied it."""
        if self._lease(shared, weight):
            return True
        if self._fits(weight):
            return None
        if not self._make_room(weight):
            return False
        # Copies that have left may have been shared ones.
        if self._lease(shared, weight):
            return True
        if self._fits(weight):
            return None
        self.driver.discard(weight.number)
        return False

    def _lease(self, shared: SharedCopies, weight: Weight) -> bool:
        """Uses the shared copy of a weight, if there is one."""
        copied_bytes = weight.lease(shared)
        if copied_bytes is None:
            return False
        self._landed(weight, copied_bytes)
        return True

    def _fits(self, weight: Weight) -> bool:
        """Whether the memory of this program has room for a copy of its own."""
        return self.private_bytes + weight.size_bytes <= self.memory.private_budget()

    def _make_room(self, weight: Weight) -> bool:
        """Other weights leave, because the store has less room than the driver counted on. Returns whether ``weight`` is still to
        be copied."""
        driver, memory = self.driver, self.memory
        if self._makes_room:
            driver.discard(weight.number)
            return False
        self._makes_room = True
        try:
            memory.pool_bytes = memory.shared_bytes
            while weight.copy is None and driver.is_on_device(weight.number) and not self._fits(weight):
                used_bytes = driver.used
                self.make(driver.set_budget(max(used_bytes - 1, 1)))
                if driver.used >= used_bytes:
                    break
            self.make(driver.set_budget(memory.budget()))
        finally:
            self._makes_room = False
        return weight.copy is None and driver.is_on_device(weight.number)

    def own_budget(self) -> int:
        """Bytes of copies that this program may have without sharing them."""
        return self.driver.budget if self.shared is None else min(self.driver.budget, self.memory.private_budget())

    def own(self, weights: Iterable[Weight]) -> None:
        """The next operation may write copies of weights: they are this program's from now on."""
        for weight in weights:
            weight.is_private = True
            if weight.is_leased:
                self.invalidate(weight)

    def share(self, wanted: Optional[bool]) -> None:
        """The session begins: shares copies with other programs from now on. ``wanted``: ``shared_copies`` of :func:`offload`."""
        self.has_ended = False
        sources = [weight.source for weight in self.weights.all if weight.owners and not weight.exposed]
        self.shared = join(self.device, sources, self.memory, wanted)
        if self.shared is not None:
            self.make(self.driver.set_budget(self.memory.budget()))

    def end_sharing(self) -> None:
        """The session ends: makes copies of its own again, after all copies are freed."""
        if self.shared is not None:
            self.shared = None
            self.memory.pool_bytes = 0
            self.memory.keep_for_store(0, 0)
            self.make(self.driver.set_budget(self.memory.budget()))

    def need(self, weight: Weight, view: View) -> torch.Tensor:
        """A part of a weight that the backward pass needs. Raises ``torch.OutOfMemoryError``."""
        if self.has_ended or not self.begin("saved", [weight]):
            self.invalidate(weight)
            weight.fetch(self.device, self.paths)
            assert weight.copy is not None
            self.paths.use(weight.copy, weight.landing)
            part = weight.part(view)
            weight.drop()
            return part
        part = weight.part(view)
        self.end(1)
        return part

    def invalidate(self, weight: Weight) -> None:
        """Drops a copy that differs from the host."""
        self._drop(weight)
        self.driver.discard(weight.number)

    def _drop(self, weight: Weight) -> None:
        if weight.copy is not None:
            if weight.is_leased:
                self.memory.shared_bytes -= weight.size_bytes
                if self.shared is not None:
                    self.shared.freed()
            else:
                self.private_bytes -= weight.size_bytes
        # After its copy has gone, the memory may be that of another weight.
        if self.by_copy.get(weight.key) is weight:
            del self.by_copy[weight.key]
        weight.drop()

    def replace(self, owner: Part) -> None:
        """An owner of a weight may have other memory now."""
        weight, tensor = owner.weight, owner.tensor
        if self.weights.keeps(owner):
            owner.address = tensor.data_ptr()
            weight.edits += 1
            return
        self.release(owner)
        self.add(weight.name, tensor)

    def release(self, owner: Part) -> None:
        """An owner of a weight is none any more."""
        self.weights.remove(owner)
        if not owner.weight.owners:
            self.invalidate(owner.weight)

    def refresh(self) -> None:
        """Finds owners that got other memory, while no function was intercepted."""
        for owner in list(self.weights.owners.values()):
            if not self.weights.keeps(owner):
                self.replace(owner)

    def drop_all(self) -> None:
        """Frees all copies."""
        self.paths.forget()
        for weight in self.weights.all:
            self.invalidate(weight)
        self.memory.count(self.driver)
