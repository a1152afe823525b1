"""A reference to a tensor, which is a tensor itself."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Sequence

import torch
from torch.utils._pytree import tree_map

from .manager import tensorsManager


class ProxyInfo:
    """What a reference knows of its tensor."""

    __slots__ = ("_ref",)

    def __init__(self, ref: "TensorRef") -> None:
        self._ref = ref

    @property
    def device(self) -> str:
        """The device of the tensor now, such as "cpu" or "cuda:0"."""
        return str(self._ref.target.device)

    def __repr__(self) -> str:
        return f"<ProxyInfo, device {self.device}>"


class TensorRef(torch.Tensor):
    """A tensor whose elements may move between devices: ``target`` is the tensor that has them now."""

    target: torch.Tensor

    @staticmethod
    def __new__(cls, target: torch.Tensor) -> "TensorRef":
        if isinstance(target, TensorRef):
            target = target.target
        ref = torch.Tensor._make_wrapper_subclass(cls, target.size(), dtype=target.dtype, device=torch.device("cpu"))
        ref.target = target
        tensorsManager.track(ref)
        return ref

    def __init__(self, target: torch.Tensor) -> None:
        pass

    @property
    def proxyInfo(self) -> ProxyInfo:
        """Information on the target."""
        return ProxyInfo(self)

    def toGPU(self) -> "TensorRef":
        """Moves the target to the manager's device. Returns this reference."""
        device = tensorsManager.device
        if device is None:
            raise RuntimeError('set tensorsManager.device, for example to "cuda"')
        return self._to(device)

    def toCPU(self) -> "TensorRef":
        """Moves the target to the CPU. Returns this reference."""
        return self._to(torch.device("cpu"))

    def tolist(self) -> Any:
        """The elements, wherever they are."""
        return self.target.detach().cpu().tolist()

    def _to(self, device: torch.device) -> "TensorRef":
        target = self.target
        if not target.is_leaf:
            self.target = target.to(device)
            return self
        with torch.no_grad():
            moved = target.detach().to(device).requires_grad_(target.requires_grad)
            if target.grad is not None:
                moved.grad = target.grad.to(device)
        self.target = moved
        return self

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        refs: Dict[int, TensorRef] = {}

        def target_of(value: Any) -> Any:
            if not isinstance(value, TensorRef):
                return value
            refs[id(value.target)] = value
            tensorsManager.belongs(value.target, getattr(value, "_is_param", False))
            return value.target

        def ref_of(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or isinstance(value, TensorRef):
                return value
            return refs[id(value)] if id(value) in refs else TensorRef(value)

        with torch._C.DisableTorchFunctionSubclass():
            targets, named = tree_map(target_of, (list(args), dict(kwargs or {})))
            return tree_map(ref_of, tensorsManager.run(func, types, targets, named))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        # Functions that PyTorch calls past __torch_function__.
        return cls.__torch_function__(func, types, args, kwargs)
