"""Calls that run without a waiting client."""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Optional, Sequence

from .. import _checks, _native
from ..errors import TimedOutError
from .task_status import ENDED, STATES, TaskStatus, parts, task_id


class Tasks:
    """The methods of clients for tasks. :meth:`submit_task` returns the id of a task, by which any client finds it."""

    _functions: Callable[[], _native.Functions]
    _retrying: Callable[..., Any]

    def submit_task(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Optional[Mapping[str, Any]] = None,
        *,
        timeout: Optional[float] = None,
    ) -> str:
        """Submits a call as a task, and returns the task's id, by which any client finds it.

        The task fails after ``timeout`` seconds; without ``timeout`` there is no limit. The provider keeps the result for its
        ``task_ttl``.
        """
        args, named = _checks.arguments(name, args, kwargs)
        submitted = self._retrying(lambda _: self._functions().submit(name, args, named, timeout=timeout), name)
        return task_id(submitted.epoch, submitted.number)

    def _task(self, task: str) -> _native.Task:
        return self._functions().task(*parts(task))

    def get_task_status(self, task_id: str) -> TaskStatus:
        """The state of a task: ``pending``, ``running``, ``completed``, ``failed`` or ``cancelled``, with ``error`` and more as
        attributes.

        Raises :class:`NotFoundError` for an unknown or expired task, or if its provider ended.
        """
        found = self._task(task_id)
        return TaskStatus.of(found.epoch, found.status())

    def wait_for_task(self, task_id: str, timeout: Optional[float] = None) -> TaskStatus:
        """Waits until a task ends, for at most ``timeout`` seconds, and returns its state. ``None`` means no limit, 0 no wait."""
        found = self._task(task_id)
        return TaskStatus.of(found.epoch, found.wait(timeout))

    def get_task_result(self, task_id: str, timeout: Optional[float] = None) -> Any:
        """Waits for a task's result, or raises its function's exception.

        Raises :class:`TimedOutError` after ``timeout`` seconds, while the task continues, and :class:`CancelledError` for a
        cancelled task.
        """
        found = self._task(task_id)
        info = found.wait(timeout)
        if info["state"] not in ENDED:
            raise TimedOutError(f"task {task_id} is {info['state']} after {timeout} s", field="timeout")
        return found.result()

    def cancel_task(self, task_id: str) -> TaskStatus:
        """Cancels a task unless it has ended, and returns its state. A running function gets a request to stop
        (:func:`~cotensor.functions.check_cancelled`); an ``async def`` is cancelled."""
        found = self._task(task_id)
        return TaskStatus.of(found.epoch, found.cancel())

    def list_tasks(self, state: Optional[str] = None) -> List[TaskStatus]:
        """The tasks of every provider, at most 1000 of each, the newest first; with ``state``, those in that state."""
        if state is not None:
            _checks.one_of(state, "state", STATES)
        return [TaskStatus.of(provider["epoch"], info) for provider, info in self._functions().tasks(state)]
