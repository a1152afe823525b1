"""Modes of torch: defaults for shared tensors, and the construction of modules without memory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Mapping, Optional, Sequence

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def default_modes() -> Iterator[None]:
    """Inside, tensors are made on the host and can be trained: without inference mode and the caller's default device."""
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
        yield


@contextmanager
def on_meta() -> Iterator[None]:
    """Inside, modules are made on the meta device, without memory, as with ``torch.device("meta")``. ``torch.nn.init``, which
    takes most of the time there, is skipped::

        with cotensor.torch.on_meta():
            model = Bert(config)
        cotensor.torch.attach(model, "bert")

    Tensors that a module makes on another device are initialized. Other threads are not affected.
    """
    with torch.device("meta"), NoInitialization():
        yield


class NoInitialization(TorchFunctionMode):
    """Inside, ``torch.nn.init`` skips tensors on the meta device, in this thread."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            tensor = args[0] if args else kwargs.get("tensor")
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                return tensor
        return func(*args, **kwargs)
