"""A reference to a tensor, which is a tensor itself."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence

import torch
from torch.overrides import get_default_nowrap_functions

from ...errors import ConflictError
from ..arguments import mapped
from ..simulated.tensor import SimulatedTensor
from .manager import tensorsManager


class ProxyInfo:
    """What a reference knows of its tensor."""

    __slots__ = ("_ref",)

    def __init__(self, ref: "TensorRef") -> None:
        self._ref = ref

    @property
    def device(self) -> str:
        """The device of the elements now, such as "cpu" or "cuda:0"."""
        with torch._C.DisableTorchFunction():
            return str(self._ref.device)

    def __repr__(self) -> str:
        return f"<ProxyInfo, device {self.device}>"


class TensorRef(torch.Tensor):
    """A tensor whose elements may move between devices, and whose operations run by the manager's strategy.

    It has its own elements, as every tensor, and only its class is another one: code in C++, pickles, views and gradients see the
    tensor that they expect.
    """

    #: For :func:`cotensor.torch.publish`: there is no more state than that of a tensor.
    _is_plain_tensor = True

    @staticmethod
    def __new__(cls, target: torch.Tensor) -> Any:
        with torch._C.DisableTorchFunction():
            own = target.detach().requires_grad_(target.requires_grad) if target.is_leaf else target.view_as(target)
        return as_ref(own)

    def __init__(self, target: torch.Tensor) -> None:
        pass

    @property
    def target(self) -> Any:
        """The tensor as PyTorch makes it, with the same elements and gradients. Its operations run where the elements are."""
        with torch._C.DisableTorchFunction():
            if self.is_leaf:
                shown = self.detach().requires_grad_(self.requires_grad)
                shown.grad = self.grad
                return as_plain(shown)
            return as_plain(self.view_as(self))

    @property
    def proxyInfo(self) -> ProxyInfo:
        """Information on the elements."""
        return ProxyInfo(self)

    def toGPU(self) -> "TensorRef":
        """Moves the elements to the manager's device. Returns this reference.

        Raises :class:`ConflictError` if a view or a backward pass needs them where they are."""
        device = tensorsManager.device
        if device is None:
            raise RuntimeError('set tensorsManager.device, for example to "cuda"')
        return self._to(device)

    def toCPU(self) -> "TensorRef":
        """Moves the elements to the CPU. Returns this reference. Raises as :meth:`toGPU` does."""
        return self._to(torch.device("cpu"))

    def _to(self, device: torch.device) -> "TensorRef":
        with torch._C.DisableTorchFunction():
            if self.device == device or (device.index is None and self.device.type == device.type):
                return self
            self._check_movable()
            moved = self.to(device)
            if self.is_leaf:
                moved = moved.detach().requires_grad_(self.requires_grad)
                if self.grad is not None:
                    moved.grad = self.grad.to(device)
            kept: Dict[str, Any] = {name: value for name, value in vars(self).items() if name not in vars(moved)}
            as_ref(moved)
            # As torch.utils.swap_tensors, which refuses tensors with weak references, such as those of the session.
            self.__class__, moved.__class__ = moved.__class__, self.__class__  # type: ignore[assignment]
            self.__dict__, moved.__dict__ = {**kept, **vars(moved)}, vars(self)
            torch._C._swap_tensor_impl(self, moved)
        return self

    def _check_movable(self) -> None:
        # A leaf that was used in a forward pass belongs to the node that adds to its gradient.
        in_a_pass = self.is_leaf and self.requires_grad and self._use_count() == 2
        node = torch.autograd.graph.get_gradient_edge(self).node if in_a_pass else None
        # The storage of one tensor, and the object that is made here for it.
        is_shared = torch._C._storage_Use_Count(self.untyped_storage()._cdata) > 2
        if self._is_view() or is_shared or self._use_count() > 1 + in_a_pass:
            text = "another tensor or array, or a backward pass, has these elements: move the tensor before, or a clone of it"
            raise ConflictError(text, field="device")
        if self._backward_hooks or self._post_accumulate_grad_hooks:
            raise ConflictError("the tensor has hooks, which stay with its elements: add them after the move", field="device")
        if node is not None:
            node.register_prehook(_refuse)

    def tolist(self) -> Any:
        """The elements, wherever they are."""
        with torch._C.DisableTorchFunction():
            return self.detach().cpu().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.target)

    def __format__(self, spec: str) -> str:
        return format(self.target, spec)

    def __reduce_ex__(self, protocol: Any) -> Any:
        with _as_plain(self):
            return type(self).__reduce_ex__(self, protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        with _as_plain(self):
            copied = type(self).__deepcopy__(self, memo)
        return as_ref(copied)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        return run(func, types, args, kwargs or {})


tensorsManager.reference_classes = (TensorRef,)


def run(func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Runs a function of torch where the manager says, and returns references."""
    with torch._C.DisableTorchFunctionSubclass():
        if torch.compiler.is_compiling():
            # ``torch.compile`` and ``torch.export`` trace tensors without elements, whose class they do not let change.
            return func(*args, **kwargs)
        result = tensorsManager.run(func, types, args, kwargs)
        if isinstance(result, torch.Tensor):
            return result if func in get_default_nowrap_functions() else as_ref(result)
        if isinstance(result, (tuple, list, dict)) and not isinstance(result, torch.Size):
            return mapped(as_ref, result)
        return result


def _refuse(_: Any) -> None:
    raise ConflictError("a tensor of this backward pass was moved after the forward pass", field="device")


class SimulatedRef(TensorRef, SimulatedTensor):  # type: ignore[misc]
    """A reference whose elements are on the simulated device."""

    __torch_function__ = TensorRef.__torch_function__  # type: ignore[assignment]
    __torch_dispatch__ = SimulatedTensor.__torch_dispatch__


#: The classes of tensors, and of references to them.
_REFS: Dict[Any, Any] = {torch.Tensor: TensorRef, torch.nn.Parameter: TensorRef, SimulatedTensor: SimulatedRef}
_PLAIN: Dict[Any, Any] = {TensorRef: torch.Tensor, SimulatedRef: SimulatedTensor}


def as_ref(value: Any) -> Any:
    """The same object as a reference, if it is a tensor of PyTorch's own class."""
    ref = _REFS.get(type(value))
    if ref is not None:
        if type(value) is torch.nn.Parameter:
            value._is_param = True
        value.__class__ = ref
    return value


def as_plain(value: Any) -> Any:
    """The same object without the class of references."""
    plain = _PLAIN.get(type(value))
    if plain is not None:
        value.__class__ = plain
    return value


@contextmanager
def _as_plain(ref: Any) -> Iterator[None]:
    """In the block, the object has the class that PyTorch gave it, and no mode sees what the block does."""
    own = type(ref)
    is_parameter = own is TensorRef and getattr(ref, "_is_param", False)
    with torch._C.DisableTorchFunction():
        ref.__class__ = torch.nn.Parameter if is_parameter else _PLAIN[own]
        if is_parameter:
            del ref._is_param
        try:
            yield
        finally:
            if is_parameter:
                ref._is_param = True
            ref.__class__ = own
