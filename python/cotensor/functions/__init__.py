"""Functions of other processes, and the context of a running call.

:class:`~cotensor.provider.SharedTensorProvider` provides functions, :class:`~cotensor.client.SharedTensorClient` calls them.
"""

from __future__ import annotations

from .._native import Call, RemoteObject, Task
from .call_context import check_cancelled, current_call
from .directory import Functions, RemoteFunction

__all__ = ["Call", "Functions", "RemoteFunction", "RemoteObject", "Task", "check_cancelled", "current_call"]
