"""Makes the functions of torch return references."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from .tensor_ref import TensorRef


class Injection(TorchFunctionMode):
    """Inside, tensors that functions make are references."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if any([isinstance(value, torch.Tensor) for value in tree_leaves((args, dict(kwargs or {})))]):
            return result
        return tree_map(_ref_of, result)


def _ref_of(value: Any) -> Any:
    return TensorRef(value) if isinstance(value, torch.Tensor) and not isinstance(value, TensorRef) else value


_injection: Optional[Injection] = None


def inject() -> None:
    """Puts ``TensorRef`` into ``torch``, and lets functions of this thread that make tensors return references."""
    global _injection
    torch.TensorRef = TensorRef  # type: ignore[attr-defined]
    if _injection is None:
        _injection = Injection()
        _injection.__enter__()  # type: ignore[no-untyped-call]


def eject() -> None:
    """Ends :func:`inject`, in the same thread. References stay usable."""
    global _injection
    if _injection is not None:
        _injection.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        _injection = None
        del torch.TensorRef  # type: ignore[attr-defined]
