"""What stands for a tensor in an object of Ray."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Optional, Tuple

from .._native import Tensor

#: As what a handle is opened.
Form = Literal["tensor", "numpy", "torch"]


class Handle(NamedTuple):
    """A tensor in an object of Ray. As long as Ray counts a reference to ``token``, the agent of ``node`` keeps the tensor."""

    node: str
    name: str
    id: Tuple[int, int]
    shape: Tuple[int, ...]
    dtype: str
    #: Offset, dtype, shape and strides of a view.
    view: Optional[Tuple[int, str, Tuple[int, ...], Tuple[int, ...]]]
    form: Form
    token: Any


def reduced(tensor: Tensor) -> Tuple[Any, Any, str, Tuple[int, int], Any]:
    """The socket and the epoch of a tensor's daemon, its name and id, and the view.

    Raises :class:`UnsupportedError` for a tensor that no daemon has.
    """
    found: Tuple[Any, ...] = tensor.__reduce__()  # type: ignore[assignment]
    return found[1]  # type: ignore[no-any-return]
