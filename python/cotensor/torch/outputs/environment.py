"""Process and thread state that determines the bits of a result, and state that a key cannot describe."""

from __future__ import annotations

import os
import random
import sys
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Iterator, List, Optional, Set, Tuple

import numpy
import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from .tree import NotShared

#: Variables that select kernels of torch's libraries. The libraries read them once.
_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "KMP_DETERMINISTIC_REDUCTION",
    "MKL_CBWR",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_DYNAMIC",
    "MKL_ENABLE_INSTRUCTIONS",
    "OMP_DYNAMIC",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
)
_AT_START = [f"{name}={os.environ.get(name)}" for name in _VARIABLES]
#: Functions of torch that read a switch. Some torch versions lack some.
_SWITCHES = (
    "_get_cpu_allow_fp16_reduced_precision_reduction",
    "_get_cpu_capability",
    "_get_deterministic_algorithms",
    "_get_deterministic_algorithms_warn_only",
    "_get_deterministic_fill_uninitialized_memory",
    "_get_flash_sdp_enabled",
    "_get_float32_matmul_precision",
    "_get_linalg_preferred_backend",
    "_get_math_sdp_allow_fp16_bf16_reduction",
    "_get_math_sdp_enabled",
    "_get_mem_efficient_sdp_enabled",
    "_get_mkldnn_deterministic",
    "_get_mkldnn_enabled",
    "_get_nnpack_enabled",
    "_get_onednn_allow_tf32",
    "_get_overrideable_sdp_enabled",
    "_get_qengine",
    "_get_sdp_priority_order",
)
_READERS = [getattr(torch._C, name) for name in _SWITCHES if hasattr(torch._C, name)]
#: The precision of float32 by library and operator.
_PRECISIONS = [("generic", "all"), *(("mkldnn", operator) for operator in ("all", "conv", "rnn", "matmul"))]
#: The dispatch keys that a host call without gradients can reach.
_KEYS = (
    "/ADInplaceOrView",
    "/Autocast",
    "/AutocastCPU",
    "/Autograd",
    "/AutogradCPU",
    "/BackendSelect",
    "/CPU",
    "/CompositeExplicitAutograd",
    "/CompositeExplicitAutogradNonFunctional",
    "/CompositeImplicitAutograd",
)
#: A subnormal float64, and the length of a float32 tensor per thread that makes torch use all threads.
_SUBNORMAL = 5e-324
_ELEMENTS_PER_THREAD = 1 << 15


def environment_key() -> List[str]:
    """The state that is part of a result's key. A capture is valid for one such state, because Python code can read it."""
    return [
        torch.__version__,
        *_AT_START,
        str([read() for read in _READERS]),
        str(_precisions()),
        str((torch.get_default_dtype(), torch.get_num_threads())),
        str((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))),
        str((torch.is_grad_enabled(), torch.is_inference_mode_enabled())),
        str((torch.backends.mha.get_fastpath_enabled(), torch.backends.opt_einsum.enabled)),
        # Dispatch keys, which context managers of torch's internals change.
        str((torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set())),
    ]


def _precisions() -> List[str]:
    read = getattr(torch._C, "_get_fp32_precision_getter", None)
    return [] if read is None else [read(library, operator) for library, operator in _PRECISIONS]


def check_modes() -> None:
    """Raises :class:`NotShared` inside a mode or transform that can change the meaning of operators."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise NotShared("inside a functorch transform")
    if forward_ad._current_level >= 0:
        raise NotShared("inside forward-mode differentiation")
    if torch._C._len_torch_dispatch_stack() and _get_current_dispatch_mode_stack():
        raise NotShared("inside a TorchDispatchMode")
    if not all(map(_is_host, map(torch._C._get_function_stack_at, range(torch._C._len_torch_function_stack())))):
        raise NotShared("inside a TorchFunctionMode")
    changed = _changed_operators()
    if changed:
        raise NotShared(f"the process registered its own kernel for {changed}")


def _is_host(mode: Any) -> bool:
    """Whether the mode only sets the host as the default device."""
    return type(mode) is DeviceContext and torch.device(mode.device).type == "cpu"


_known_kernels: Tuple[int, Optional[str]] = (-1, None)


def _changed_operators() -> Optional[str]:
    """An ATen operator for which this process registered its own kernel."""
    global _known_kernels
    registered: Set[str] = getattr(torch.library, "_impls", set())
    if _known_kernels[0] != len(registered):
        changed = (name for name in registered if name.startswith("aten/") and name.endswith(_KEYS))
        _known_kernels = (len(registered), next(changed, None))
    return _known_kernels[1]


def check_denormals() -> None:
    """Raises :class:`NotShared` if this thread flushes denormal numbers to zero. torch cannot report it."""
    if _SUBNORMAL * 1.0 == 0.0 or sys.float_info.min * 0.5 == 0.0:
        raise NotShared("denormal numbers are flushed to zero")


def check_denormals_of_all_threads() -> None:
    """As :func:`check_denormals`, for the threads that run torch's operators."""
    check_denormals()
    tiny = _tiny(torch.get_num_threads() * _ELEMENTS_PER_THREAD)
    if not bool((tiny * 0.5).ne(0).all()):
        raise NotShared("denormal numbers are flushed to zero")


@lru_cache(maxsize=1)
def _tiny(count: int) -> torch.Tensor:
    with torch.inference_mode(False), torch.device("cpu"):
        return torch.full((count,), 1e-38, dtype=torch.float32)


def random_state() -> Tuple[Any, ...]:
    """The state of the default random generators."""
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), str(numpy.random.get_state(legacy=False))


@contextmanager
def random_numbers_restored(other: bool = False) -> Iterator[None]:
    """Restores the default random generators after the block. With ``other``, the block sees other numbers and another seed than
    its caller."""
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state(legacy=False)
    try:
        if other:
            torch.default_generator.manual_seed(torch.initial_seed() ^ 1), random.random(), numpy.random.random()
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        numpy.random.set_state(states[2])
