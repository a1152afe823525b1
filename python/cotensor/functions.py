"""Functions of other processes, and what a function can know of the call that it runs for.

:class:`~cotensor.provider.SharedTensorProvider` offers functions, :class:`~cotensor.client.SharedTensorClient` calls
them.
"""

from __future__ import annotations

import contextvars
from typing import Any, Callable, Dict, Optional

from ._native import Call, RemoteObject, Task
from .errors import CancelledError

#: The call that this thread (or coroutine) runs for.
_current: "contextvars.ContextVar[Optional[Call]]" = contextvars.ContextVar("cotensor_call", default=None)


def current_call() -> Optional[Call]:
    """The call that runs here: ``function``, ``client`` (who asked), and ``cancelled`` (whether nobody waits any more).

    ``None`` where no provider's function runs, such as in a direct call of the same function::

        @provider.share(execution="task")
        def train(steps):
            for step in range(steps):
                check_cancelled()
                ...
    """
    return _current.get()


def check_cancelled() -> None:
    """Raises :class:`~cotensor.errors.CancelledError` when the call that runs here is cancelled, or nobody waits for
    it."""
    call = _current.get()
    if call is not None and call.cancelled:
        raise CancelledError(f"{call.function} was cancelled")


class RemoteFunction:
    """A function of another process, by its name: called like any function.

    Names with dots are had by dots: ``client.functions.model.run(…)`` calls ``model.run``.
    """

    __slots__ = ("_call", "__name__")

    def __init__(self, call: Callable[..., Any], name: str) -> None:
        self._call = call
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self.__name__, args, kwargs)

    def __getattr__(self, name: str) -> "RemoteFunction":
        if name.startswith("_"):
            raise AttributeError(name)
        return RemoteFunction(self._call, f"{self.__name__}.{name}")

    def __repr__(self) -> str:
        return f"<RemoteFunction {self.__name__}>"


class Functions:
    """The functions of all providers as attributes: ``functions.add(1, 2)``, ``functions["model.run"](…)``."""

    __slots__ = ("_call", "_list")

    def __init__(self, call: Callable[..., Any], names: Callable[[], "list[Dict[str, Any]]"]) -> None:
        self._call = call
        self._list = names

    def __getattr__(self, name: str) -> RemoteFunction:
        if name.startswith("_"):
            raise AttributeError(name)
        return RemoteFunction(self._call, name)

    def __getitem__(self, name: str) -> RemoteFunction:
        return RemoteFunction(self._call, name)

    def __dir__(self) -> "list[str]":
        return sorted({info["name"].split(".")[0] for info in self._list()})

    def __repr__(self) -> str:
        return "<Functions of all providers>"


__all__ = ["Call", "Functions", "RemoteFunction", "RemoteObject", "Task", "check_cancelled", "current_call"]
