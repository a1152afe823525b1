"""What stands for a tensor in an object of Ray."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Optional, Tuple

from .._native import Store, Tensor
from ..errors import NotFoundError

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


def leased(store: Store, id_: Tuple[int, int], name: str) -> Tensor:
    """The tensor of an id, if it still is that of the name: a daemon that starts without tensors gives ids again.

    Raises :class:`NotFoundError` otherwise.
    """
    tensor = store.lease(id_)
    if tensor.name == name:
        return tensor
    tensor.release()
    raise NotFoundError(f"{name}: the daemon that had the tensor has ended", field=name)
