"""The call that a function runs for."""

from __future__ import annotations

import contextvars
from typing import Optional

from .._native import Call
from ..errors import CancelledError

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
