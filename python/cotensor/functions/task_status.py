"""Tasks as their clients see them."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from ..errors import InvalidError

#: The states in which a task has ended.
ENDED = ("completed", "failed", "cancelled")
STATES = ("pending", "running", *ENDED)


class TaskStatus(str):
    """How far a task is: its state (``pending``, ``running``, ``completed``, ``failed`` or ``cancelled``), as a text,
    with what else is known as attributes."""

    #: By which any client finds the task.
    task_id: str
    #: The function.
    function: str
    #: Who submitted it.
    client: str
    #: Since it was submitted, in seconds.
    age_seconds: float
    #: What went wrong, for one that failed; a long error is cut.
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
        """The state alone."""
        return str(self)

    @property
    def ended(self) -> bool:
        """Whether it is ``completed``, ``failed`` or ``cancelled``."""
        return self in ENDED

    def __repr__(self) -> str:
        return f"<TaskStatus {self!s} of {self.function}, task {self.task_id}>"


def task_id(epoch: int, number: int) -> str:
    """The text by which any client finds a task: which life of its provider, and its number there."""
    return f"{epoch:x}-{number}"


def parts(task: str) -> Tuple[int, int]:
    """Epoch and number."""
    try:
        epoch, number = task.split("-")
        return int(epoch, 16), int(number)
    except (ValueError, AttributeError):
        raise InvalidError(f"task_id: {task!r} is no task's", field="task_id") from None
