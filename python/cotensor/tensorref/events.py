"""What programs see of operations and moves, and may change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, List, Optional


@dataclass(frozen=True)
class Operation:
    """An operation that uses weights of the model."""

    #: The name of PyTorch's function.
    name: str
    #: Names of the weights.
    uses: "tuple[str, ...]"


@dataclass(frozen=True)
class Move:
    """A copy of a weight to the device, or its end."""

    #: Name of the weight.
    tensor: str
    size_bytes: int
    #: True: a copy to the device; false: the copy there is freed.
    to_device: bool
    #: The device, such as "cuda:0".
    device: str


class Middleware:
    """Sees operations and moves, and may change them. Override what you need.

    Methods run inside of the operation: PyTorch's functions are not intercepted there.
    """

    def before_operation(self, operation: Operation) -> Optional[str]:
        """Returns "host" to run it there, or a device of the session, such as "cuda:1". An exception stops the program."""
        return None

    def after_operation(self, operation: Operation, place: str, elapsed_ns: int) -> None:
        """The operation ran on the "device" or on the "host"."""

    def before_move(self, move: Move) -> bool:
        """Returns false to refuse a move. An operation whose tensor may not be copied runs on the host. A weight leaves in
        spite of a refusal if its memory is needed."""
        return True

    def after_move(self, move: Move) -> None:
        """The move was made."""


class Middlewares:
    """The middlewares of a session, in the order of their addition."""

    def __init__(self) -> None:
        self.all: List[Middleware] = []

    def add(self, middleware: Middleware) -> Callable[[], None]:
        """Adds a middleware. Returns a function that removes it."""
        self.all.append(middleware)

        def remove() -> None:
            if middleware in self.all:
                self.all.remove(middleware)

        return remove

    def begin(self, operation: Operation) -> Optional[str]:
        """An operation begins. Returns where it must run: "host", else the first named device; None if no middleware decides."""
        places = [middleware.before_operation(operation) for middleware in self.all]
        return "host" if "host" in places else next((place for place in places if place is not None), None)

    def end(self, operation: Operation, place: str, elapsed_ns: int) -> None:
        """An operation has ended."""
        for middleware in self.all:
            middleware.after_operation(operation, place, elapsed_ns)

    def may(self, move: Move) -> bool:
        """Whether all middlewares accept a move."""
        return all([middleware.before_move(move) is not False for middleware in self.all])

    def moved(self, move: Move) -> None:
        """A move was made."""
        for middleware in self.all:
            middleware.after_move(move)
