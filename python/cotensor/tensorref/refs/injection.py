"""Makes the functions of torch return references."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import torch
from torch.overrides import TorchFunctionMode

from .manager import tensorsManager
from .tensor_ref import TensorRef, run


class Injection(TorchFunctionMode):
    """Inside, functions return references, and run in the manager's session."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        return run(func, types, args, kwargs or {})


def inject() -> None:
    """Puts ``TensorRef`` into ``torch``, and lets functions of this thread, and of threads that it starts, return references."""
    torch.TensorRef = TensorRef  # type: ignore[attr-defined]
    if tensorsManager.mode is None:
        tensorsManager.begin(Injection())


def eject() -> None:
    """Ends :func:`inject`, in the same thread. References stay usable."""
    if tensorsManager.mode is not None:
        tensorsManager.end()
        del torch.TensorRef  # type: ignore[attr-defined]
