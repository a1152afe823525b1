"""Strategies that programs bring."""

from __future__ import annotations

from typing import Dict, Iterable, List, Sequence, Tuple


class Strategy:
    """Decides which weights stay on the device: derive a class, and pass an object of it to ``offload`` as ``strategy``.

    Weights are numbers from 0 on, in the order of the model. By default nothing is copied ahead, and the weight leaves that was
    used first; so override :meth:`evict`, and :meth:`ahead` if the program is known. ``cotensor._native.Driver`` calls the object
    and keeps the budget in any case. It passes the weights of an operation in their order, each once. An exception ends the
    operation, and no weight moves for it. A method that uses its own session raises :class:`ConflictError`.
    """

    def __init__(self) -> None:
        #: Bytes of each weight.
        self.sizes: List[int] = []
        #: The weights on the device, in the order of their last use. A new dict after each step of an operation.
        self.on_device: Dict[int, None] = {}
        #: Bytes that weights may use there.
        self.budget = 0

    @property
    def used(self) -> int:
        """Bytes of the weights on the device."""
        return sum([self.sizes[weight] for weight in self.on_device])

    def evict(self, operation: str, uses: Sequence[int]) -> int:
        """The next weight that leaves, since there is no room for an operation: one of ``on_device`` that is not in ``uses``."""
        return next(weight for weight in self.on_device if weight not in uses)

    def ahead(self, operation: str, uses: Sequence[int]) -> Iterable[int]:
        """Weights to copy while an operation runs. Those that do not fit are skipped; nothing leaves for them."""
        return ()

    def after(self, operation: str, uses: Sequence[int], elapsed_ns: int) -> Iterable[int]:
        """Weights that leave after an operation."""
        return ()

    def announce(self, operations: Sequence[Tuple[str, Sequence[int], int]]) -> None:
        """Operations that the program announces, each with its weights and nanoseconds; override it to plan."""
