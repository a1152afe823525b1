"""Strategies that programs bring."""

from __future__ import annotations

from typing import Dict, Iterable, List, Optional, Sequence, Tuple

from ..errors import ConflictError

_Moves = Optional[List[Tuple[int, bool]]]


class Strategy:
    """Decides which weights stay on the device: derive a class, and pass an object of it to ``offload`` as ``strategy``.

    Weights are numbers from 0 on, in the order of the model. By default nothing is copied ahead, and the weight leaves that was
    used first; so override :meth:`evict`, and :meth:`ahead` if the program is known. The budget is kept in any case.
    """

    def __init__(self) -> None:
        #: Bytes of each weight.
        self.sizes: List[int] = []
        #: The weights on the device, in the order of their last use.
        self.on_device: Dict[int, None] = {}
        #: Bytes that weights may use there.
        self.budget = 0
        self._operations: List[Tuple[str, Tuple[int, ...]]] = []
        self._name = ""
        self._current: Tuple[int, ...] = ()

    # What a strategy decides.
    def evict(self, operation: str, uses: Sequence[int]) -> int:
        """The next weight that leaves, since there is no room for an operation: one of ``on_device`` that is not in ``uses``."""
        return next(weight for weight in self.on_device if weight not in uses)

    def ahead(self, operation: str, uses: Sequence[int]) -> Iterable[int]:
        """Weights to copy while an operation runs. Those that do not fit are skipped; nothing leaves for them."""
        return ()

    def after(self, operation: str, uses: Sequence[int], elapsed_ns: int) -> Iterable[int]:
        """Weights that leave after an operation."""
        return ()

    # What a session calls, as cotensor._native.Driver.
    @property
    def used(self) -> int:
        """Bytes of the weights on the device."""
        return sum([self.sizes[weight] for weight in self.on_device])

    def add_tensor(self, size: int) -> int:
        """Adds a weight."""
        self.sizes.append(size)
        return len(self.sizes) - 1

    def add_operation(self, name: str, uses: Sequence[int]) -> int:
        """Adds an operation."""
        self._operations.append((name, tuple(uses)))
        return len(self._operations) - 1

    def announce(self, operations: Sequence[Tuple[int, int]]) -> None:
        """Operations that the program announces; override it to plan."""

    def forecast(self, count: int) -> List[Tuple[str, List[int], bool, List[int], List[int]]]:
        """Nothing."""
        return []

    def begin(self, operation: int) -> Tuple[bool, _Moves]:
        """Makes room and copies."""
        name, uses = self._operations[operation]
        self._name, self._current = name, uses
        if sum([self.sizes[weight] for weight in set(uses)]) > self.budget:
            return False, None
        missing = [weight for weight in dict.fromkeys(uses) if weight not in self.on_device]
        moves = self._shrink(name, uses, sum([self.sizes[weight] for weight in missing]))
        for weight in uses:
            self.on_device.pop(weight, None)
            self.on_device[weight] = None
        return True, moves + [(weight, True) for weight in missing]

    def running(self) -> _Moves:
        """Copies ahead."""
        return self._fetch(self.ahead(self._name, self._current))

    def end(self, elapsed_ns: int) -> _Moves:
        """Frees."""
        leaving = [weight for weight in self.after(self._name, self._current, elapsed_ns) if weight in self.on_device]
        for weight in leaving:
            del self.on_device[weight]
        self._current = ()
        return [(weight, False) for weight in leaving]

    def cancel(self) -> None:
        """The operation runs elsewhere."""
        self._current = ()

    def set_budget(self, size: int) -> _Moves:
        """Changes the budget."""
        self.budget = size
        return self._shrink("", self._current, 0)

    def out_of_memory(self) -> _Moves:
        """Frees all that the operation does not need."""
        leaving = [weight for weight in self.on_device if weight not in self._current]
        for weight in leaving:
            del self.on_device[weight]
        return [(weight, False) for weight in leaving]

    def discard(self, tensor: int) -> None:
        """A copy is not valid."""
        self.on_device.pop(tensor, None)

    def keep(self, tensor: int) -> bool:
        """Takes an eviction back."""
        if self.used + self.sizes[tensor] > self.budget:
            return False
        self.on_device[tensor] = None
        return True

    def _shrink(self, name: str, uses: Sequence[int], needed: int) -> List[Tuple[int, bool]]:
        moves: List[Tuple[int, bool]] = []
        while self.used + needed > self.budget and any([weight not in uses for weight in self.on_device]):
            weight = self.evict(name, uses)
            if weight not in self.on_device or weight in uses:
                raise ConflictError(f"the strategy evicts weight {weight}, which is in use or not on the device")
            del self.on_device[weight]
            moves.append((weight, False))
        return moves

    def _fetch(self, weights: Iterable[int]) -> List[Tuple[int, bool]]:
        moves: List[Tuple[int, bool]] = []
        for weight in weights:
            if weight not in self.on_device and self.used + self.sizes[weight] <= self.budget:
                self.on_device[weight] = None
                moves.append((weight, True))
        return moves
