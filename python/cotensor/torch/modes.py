"""Whatever modes the caller is in, shared tensors are made plainly; and modules that are to be attached, without memory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Mapping, Optional, Sequence

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def plainly() -> Iterator[None]:
    """Tensors of the host, which can be trained later: not the caller's default device, not inference tensors."""
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
        yield


@contextmanager
def on_meta() -> Iterator[None]:
    """Inside, modules are made on the meta device, without memory, as by ``torch.device("meta")``, and ``torch.nn.init`` is
    skipped, which takes most of the time there::

        with cotensor.torch.on_meta():
            model = Bert(config)
        cotensor.torch.attach(model, "bert")

    Tensors that a module makes on another device are initialized. Other threads are not affected.
    """
    with torch.device("meta"), NoInitialization():
        yield


class NoInitialization(TorchFunctionMode):
    """Inside, ``torch.nn.init`` leaves tensors without memory as they are, in this thread."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            tensor = args[0] if args else kwargs.get("tensor")
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                return tensor
        return func(*args, **kwargs)
