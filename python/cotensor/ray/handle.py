"""What stands for a tensor in an object of Ray."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Optional, Tuple

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
