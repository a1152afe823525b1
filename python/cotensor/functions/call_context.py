"""The call that a function runs for."""

from __future__ import annotations

import contextvars
from typing import Optional

from .._native import Call
from ..errors import CancelledError

#: The call that this thread or coroutine runs for.
_current: "contextvars.ContextVar[Optional[Call]]" = contextvars.ContextVar("cotensor_call", default=None)


def current_call() -> Optional[Call]:
    """The call that the current function runs for: ``function``, ``client`` (the caller's name) and ``cancelled``.

    ``None`` outside of a provider's call, such as in a direct call of the same function::

        @provider.share(execution="task")
        def train(steps):
            for step in range(steps):
                check_cancelled()
                ...
    """
    return _current.get()


def check_cancelled() -> None:
    """Raises :class:`~cotensor.errors.CancelledError` if the current call was cancelled or its caller has disconnected."""
    call = _current.get()
    if call is not None and call.cancelled:
        raise CancelledError(f"{call.function} was cancelled")
