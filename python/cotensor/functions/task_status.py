"""The status of tasks."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from ..errors import InvalidError

#: The states in which a task has ended.
ENDED = ("completed", "failed", "cancelled")
STATES = ("pending", "running", *ENDED)


class TaskStatus(str):
    """The state of a task (``pending``, ``running``, ``completed``, ``failed`` or ``cancelled``) as a string, with details as
    attributes."""

    #: The id, by which any client finds the task.
    task_id: str
    #: The function's name.
    function: str
    #: The name of the client that submitted it.
    client: str
    #: Seconds since its submission.
    age_seconds: float
    #: The error of a failed task; a long error is truncated.
    error: Optional[str]

    @classmethod
    def of(cls, epoch: int, info: Dict[str, Any]) -> "TaskStatus":
        status = cls(info["state"])
        status.task_id = task_id(epoch, info["task"])
        status.function, status.client = info["function"], info["client"]
        status.age_seconds, status.error = info["age_ms"] / 1000, info.get("error")
        return status

    @property
    def state(self) -> str:
        """The state as a plain string."""
        return str(self)

    @property
    def ended(self) -> bool:
        """Whether it is ``completed``, ``failed`` or ``cancelled``."""
        return self in ENDED

    def __repr__(self) -> str:
        return f"<TaskStatus {self!s} of {self.function}, task {self.task_id}>"


def task_id(epoch: int, number: int) -> str:
    """The id of a task: the epoch of its provider, and its number there."""
    return f"{epoch:x}-{number}"


def parts(task: str) -> Tuple[int, int]:
    """The epoch and the number in an id."""
    try:
        epoch, number = task.split("-")
        return int(epoch, 16), int(number)
    except (ValueError, AttributeError):
        raise InvalidError(f"task_id: {task!r} is not the id of a task", field="task_id") from None
