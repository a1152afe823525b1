"""Registers the simulated accelerator with PyTorch."""

from __future__ import annotations

import threading
from typing import Any, List, Optional, Union

import torch

from ...errors import ConflictError
from ..sizes import size_bytes
from .memory import MEMORY, SimulatedMemory
from .tensor import SimulatedTensor, dispatch

_lock = threading.Lock()
_registered = False


class SimulatedDevice:
    """The simulated accelerator of this process, as ``torch.simulated``."""

    def __init__(self) -> None:
        #: The limit and the counters.
        self.memory: SimulatedMemory = MEMORY
        #: Programs whose devices have the same name divide its memory, if a daemon runs.
        self.name: Optional[str] = None

    def __repr__(self) -> str:
        return f"<SimulatedDevice, {MEMORY.allocated_bytes} of {MEMORY.limit_bytes} bytes in use>"

    # What PyTorch asks a backend's module.
    def is_initialized(self) -> bool:
        """True."""
        return True

    def is_available(self) -> bool:
        """True."""
        return True

    def current_device(self) -> int:
        """0, the only device."""
        return 0

    def device_count(self) -> int:
        """1."""
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Nothing: the device uses the random numbers of the CPU."""

    def get_amp_supported_dtype(self) -> List[torch.dtype]:
        """The dtypes of ``torch.autocast``."""
        return [torch.bfloat16, torch.float16]

    def synchronize(self, device: Any = None) -> None:
        """Nothing: operations have ended when they return."""

    def memory_allocated(self, device: Any = None) -> int:
        """Bytes of all tensors."""
        return MEMORY.allocated_bytes

    def mem_get_info(self, device: Any = None) -> "tuple[int, int]":
        """Free and total bytes."""
        limit = MEMORY.limit_bytes
        total = 1 << 40 if limit is None else limit
        return max(total - MEMORY.allocated_bytes, 0), total


_device = SimulatedDevice()


def simulated_name() -> Optional[str]:
    """The name of the device, for the broker."""
    return _device.name


def simulated_device(memory: Optional[Union[int, str]] = None, name: Optional[str] = None) -> SimulatedDevice:
    """The simulated accelerator, ``torch.device("simulated")``, with room for ``memory``: bytes, or a text such as "64MiB".

    No ``memory``: no limit. Programs that give it the same ``name`` divide its memory as those on one GPU do. The counters
    start at zero. For ``model.to("simulated")``, call it before the first backward pass of the process: PyTorch counts devices
    then. Raises :class:`ConflictError` if another backend uses PyTorch's only place for backends of users (PrivateUse1).
    """
    limit = None if memory is None else size_bytes(memory, "memory")
    with _lock:
        _register()
    MEMORY.limit_bytes = limit
    MEMORY.forget_failure()
    MEMORY.reset()
    _device.name = name
    return _device


def _register() -> None:
    global _registered
    if _registered:
        return
    name = torch._C._get_privateuse1_backend_name()
    if name != "privateuseone":
        raise ConflictError(f"the backend {name!r} uses the place of the simulated device in this process")
    # Since PyTorch 2.10.
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as setup

    setup("simulated", _device)
    _registered = True

    @torch.library.impl("aten::empty.memory_format", "PrivateUse1")
    def empty(size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
              memory_format: Any = None) -> torch.Tensor:
        formatted = {} if memory_format is None else {"memory_format": memory_format}
        return SimulatedTensor(torch.empty(size, dtype=dtype, device="cpu", **formatted))

    @torch.library.impl("aten::empty_strided", "PrivateUse1")
    def empty_strided(size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
                      pin_memory: Any = None) -> torch.Tensor:
        return SimulatedTensor(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))

    def whole(operation: Any) -> None:
        # Without a kernel, PyTorch would compose these from others, which round differently.
        @torch.library.impl(operation.name(), "PrivateUse1")
        def run(*args: Any, **kwargs: Any) -> Any:
            return dispatch(operation, args, kwargs)

    whole(torch.ops.aten.silu_backward.default)
    whole(torch.ops.aten.mish_backward.default)

    @torch.library.impl("aten::_copy_from", "PrivateUse1")
    def copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        # torch.tensor copies past the dispatch to Python.
        return dispatch(torch.ops.aten.copy_.default, (dst, self), {})  # type: ignore[no-any-return]
