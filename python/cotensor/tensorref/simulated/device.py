"""Registers the simulated accelerator with PyTorch."""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable, Iterable, List, Optional, Union

import torch
from torch.autograd import forward_ad
from torch.nn.modules import module
from torch.utils._pytree import tree_leaves

from ... import _checks
from ...errors import ConflictError, UnsupportedError
from .. import autocast
from ..sizes import size_bytes
from .memory import MEMORIES, SimulatedMemory
from .tensor import SimulatedTensor, dispatch

_DEVICES_MAX = 64
_lock = threading.Lock()
_registered = False
_libraries: List[Any] = []
#: Functions that name the devices on which this thread computes with tensors of the host.
computing_on: List[Callable[[], Iterable[torch.device]]] = []


class SimulatedDevice:
    """The simulated accelerator of this process, as ``torch.simulated``."""

    def __init__(self) -> None:
        #: The limit and the counters of each device, and of the first one.
        self.memories: List[SimulatedMemory] = MEMORIES
        self.memory: SimulatedMemory = MEMORIES[0]
        #: Programs whose devices have the same name divide its memory, if a daemon runs.
        self.name: Optional[str] = None

    def __repr__(self) -> str:
        used = ", ".join([f"{memory.allocated_bytes} of {memory.limit_bytes} bytes in use" for memory in MEMORIES])
        return f"<SimulatedDevice, {used}>"

    # What PyTorch asks a backend's module.
    def is_initialized(self) -> bool:
        """True."""
        return True

    def is_available(self) -> bool:
        """True."""
        return True

    def current_device(self) -> int:
        """0."""
        return 0

    def device_count(self) -> int:
        """How many devices are simulated."""
        return len(MEMORIES)

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Nothing: the device uses the random numbers of the CPU."""

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """The state of the random numbers: that of the CPU."""
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        """Sets the state of the random numbers."""
        torch.set_rng_state(state.cpu())

    def get_amp_supported_dtype(self) -> List[torch.dtype]:
        """The dtypes of ``torch.autocast``."""
        return [torch.bfloat16, torch.float16]

    def synchronize(self, device: Any = None) -> None:
        """Nothing: operations have ended when they return."""

    def memory_allocated(self, device: Any = None) -> int:
        """Bytes of all tensors."""
        return memory_of(device).allocated_bytes

    def mem_get_info(self, device: Any = None) -> "tuple[int, int]":
        """Free and total bytes."""
        memory = memory_of(device)
        total = 1 << 40 if memory.limit_bytes is None else memory.limit_bytes
        return max(total - memory.allocated_bytes, 0), total


_device = SimulatedDevice()


def memory_of(device: Any) -> SimulatedMemory:
    """The memory of a device; None: the first one."""
    index = device if isinstance(device, int) else 0 if device is None else torch.device(device).index or 0
    return MEMORIES[index]


def simulated_name(device: torch.device) -> Optional[str]:
    """The name of a device that other programs see: for the broker, and for copies that programs share."""
    return _device.name if _device.name is None or not device.index else f"{_device.name}:{device.index}"


def simulated_device(memory: Optional[Union[int, str]] = None, name: Optional[str] = None, *, count: int = 1) -> SimulatedDevice:
    """The simulated accelerator, ``torch.device("simulated")``, with room for ``memory``: bytes, or a text such as "64MiB".

    No ``memory``: no limit. A ``count`` above 1 simulates several devices, each with that room: "simulated:0", "simulated:1", ….
    Programs that give it the same ``name`` divide its memory as those on one GPU do. The counters start at zero. For
    ``model.to("simulated")``, call it before the first backward pass of the process: PyTorch counts devices then. Raises
    :class:`ConflictError` if another backend uses PyTorch's only place for backends of users (PrivateUse1).
    """
    limit = None if memory is None else size_bytes(memory, "memory")
    with _lock:
        register()
        # Tensors of earlier devices stay usable.
        MEMORIES.extend([SimulatedMemory() for _ in range(_checks.count(count, "count", 1, _DEVICES_MAX) - len(MEMORIES))])
    for simulated in MEMORIES:
        simulated.limit_bytes = limit
        simulated.forget_failure()
        simulated.reset()
    _device.name = name
    return _device


def register() -> None:
    """Gives the simulated device its name in PyTorch, and its functions. Raises as :func:`simulated_device` does."""
    global _registered
    if _registered:
        return
    backend = torch._C._get_privateuse1_backend_name()
    if backend != "privateuseone":
        raise ConflictError(f"the backend {backend!r} uses the place of the simulated device in this process")
    # Since PyTorch 2.10.
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as setup

    from . import failures

    setup("simulated", _device, device_guard=failures.Guard())
    failures.install()
    _registered = True

    def index_of(device: Any) -> int:
        return 0 if device is None else torch.device(device).index or 0

    @torch.library.impl("aten::empty.memory_format", "PrivateUse1")
    def empty(size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
              memory_format: Any = None) -> torch.Tensor:
        formatted = {} if memory_format is None else {"memory_format": memory_format}
        return SimulatedTensor(torch.empty(size, dtype=dtype, device="cpu", **formatted), index_of(device))

    @torch.library.impl("aten::empty_strided", "PrivateUse1")
    def empty_strided(size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
                      pin_memory: Any = None) -> torch.Tensor:
        return SimulatedTensor(torch.empty_strided(size, stride, dtype=dtype, device="cpu"), index_of(device))

    @torch.library.impl("aten::_efficientzerotensor", "PrivateUse1")
    def zeros(size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> torch.Tensor:
        # A tangent that PyTorch knows to be zero.
        return SimulatedTensor(torch.zeros(size, dtype=dtype, device="cpu"), index_of(device))

    # ``Module.to`` gives a parameter new data, as for GPUs. It would replace parameters that torch.compile can take apart.
    name = "is_traceable_wrapper_subclass"
    traceable = getattr(module, name)
    setattr(module, name, lambda value: not isinstance(value, SimulatedTensor) and traceable(value))

    autocast.register(_libraries, "AutocastPrivateUse1", lambda: "simulated", lambda tensor: tensor.device.type == "simulated")

    linearize = torch.func.linearize

    @functools.wraps(linearize)
    def traced(function: Any, *primals: Any) -> Any:
        # PyTorch traces the tangents without the elements of these tensors, and gives others.
        places = [value.device for value in tree_leaves(primals) if isinstance(value, torch.Tensor)]
        places += [device for devices in computing_on for device in devices()]
        if any([place.type == "simulated" for place in places]):
            raise UnsupportedError("torch.func.linearize does not work on the simulated device: use torch.func.jvp")
        return linearize(function, *primals)

    torch.func.linearize = traced  # type: ignore[assignment]

    def whole(operation: Any) -> None:
        # Without a kernel, PyTorch would compose these from others, which round differently.
        @torch.library.impl(operation.name(), "PrivateUse1")
        def run(*args: Any, **kwargs: Any) -> Any:
            return dispatch(operation, args, kwargs)

    def values(operation: Any, has_gradient: bool = True) -> None:
        # Without gradients, these make no vectors. PyTorch makes them for subclasses of tensors anyway, and rounds differently.
        # It does not write ``out`` of ``matrix_rank``.
        @torch.library.impl(operation.name(), "AutogradPrivateUse1")
        def run(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if has_gradient and ((tensor.requires_grad and torch.is_grad_enabled()) or forward_ad._current_level >= 0):
                return operation.decompose(tensor, *args, **kwargs)
            return dispatch(operation, (tensor, *args), kwargs)

    values(torch.ops.aten.linalg_svdvals.default)
    values(torch.ops.aten.linalg_eigvalsh.default)
    values(torch.ops.aten.linalg_eigvals.default)
    rank = torch.ops.aten.linalg_matrix_rank
    for overload in rank.overloads():  # type: ignore[no-untyped-call]
        values(getattr(rank, overload), has_gradient=False)

    whole(torch.ops.aten.silu_backward.default)
    whole(torch.ops.aten.mish_backward.default)

    @torch.library.impl("aten::_copy_from", "PrivateUse1")
    def copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        # torch.tensor copies past the dispatch to Python.
        return dispatch(torch.ops.aten.copy_.default, (dst, self), {})  # type: ignore[no-any-return]
