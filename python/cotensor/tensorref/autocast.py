"""The dtypes of ``torch.autocast`` on accelerators: for the simulated device, and for operations that run on the host instead of
a device. PyTorch chooses them for each ATen operation, also inside of functions that consist of several."""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

#: Whether a tensor is on the device of the rules, or stands for one that is.
IsHere = Callable[[torch.Tensor], bool]
#: The arguments of an operation as its rule changes them; the dtype is that of the context.
_Rule = Callable[[Any, Any, Any, torch.dtype, IsHere], Tuple[Any, Any]]

#: PyTorch's rules for CUDA: operations in the dtype of the context, those in float32, and those whose results are in float32.
_LOWER = (
    "_convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input "
    "conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm "
    "chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell "
    "rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention"
)
_FLOAT32 = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor "
    "pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm norm.Scalar norm.ScalarOpt_dim frobenius_norm.dim "
    "nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d "
    "hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss "
    "soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm "
    "logsumexp linalg_matrix_sqrth upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d "
    "_upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
    "_upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa"
)
_FLOAT32_RESULT = (
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm "
    "linalg_matrix_norm.str_ord sum sum.dim_IntList"
)
#: Operations in the widest dtype of their arguments.
_WIDEST = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
_REFUSED = "binary_cross_entropy"
#: On devices, these consist of operations in the dtype of the context, or are one that PyTorch casts by another name.
_RECURRENT = "lstm.input lstm.data gru.input gru.data rnn_tanh.input rnn_tanh.data rnn_relu.input rnn_relu.data"

#: The dispatch key of the rules on the host: of the keys for autocast, the one that neither PyTorch nor a tensor of the host has.
_HOST = "AutocastIPU"
_keys: Any = torch._C.DispatchKeySet
_is_excluded, _AUTOGRAD = torch._C._dispatch_tls_is_dispatch_key_excluded, torch._C.DispatchKey.AutogradFunctionality
_lock = threading.Lock()
_local = threading.local()
_libraries: List[Any] = []


def register(keep: List[Any], key: str, device_type: Callable[[], str], is_here: IsHere) -> None:
    """Registers the rules for a dispatch key; they last as long as what is added to ``keep``."""
    library: Any = torch.library.Library
    parsed = _parsed(key)
    if not torch._C._dispatch_has_backend_fallback(parsed):
        others = library("_", "IMPL", key)
        others.fallback(torch.library.fallthrough_kernel)
        keep.append(others)
    casting = library("aten", "IMPL", key)
    keep.append(casting)
    for operation, rule in _rules(with_recurrent=key == _HOST):
        casting.impl(operation, _kernel(operation, rule, parsed, device_type, is_here), with_keyset=True)


def as_on(device_type: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """``func`` on tensors of the host, with the dtypes that it has on a device of this type."""
    has_rules = torch.is_autocast_enabled(device_type)
    if not has_rules and not torch.is_autocast_enabled("cpu"):
        return func(*args, **kwargs)
    # The rules of the CPU are others, and concern no tensor of a device.
    included = torch._C._dispatch_tls_local_include_set()
    excluded = torch._C._dispatch_tls_local_exclude_set() | _key_set("AutocastCPU")
    if has_rules:
        _register_on_host()
        included, excluded = included | _key_set(_HOST), excluded - _key_set(_HOST)
        if torch.is_inference_mode_enabled():
            # It leaves autograd out, as kernels do. With autograd, which records nothing in this mode, kernels can be told apart.
            included, excluded = included | _key_set("AutogradCPU"), excluded - _key_set("AutogradCPU")
    before, _local.device_type = getattr(_local, "device_type", ""), device_type
    try:
        with torch._C._ForceDispatchKeyGuard(included, excluded):
            return func(*args, **kwargs)
    finally:
        _local.device_type = before


def _register_on_host() -> None:
    if not _libraries:
        with _lock:
            if not _libraries:
                libraries: List[Any] = []
                register(libraries, _HOST, lambda: str(_local.device_type), lambda tensor: tensor.is_cpu)
                _libraries.extend(libraries)


@functools.cache
def _parsed(key: str) -> Any:
    return torch._C._dispatch_key_parse(key)


@functools.cache
def _key_set(key: str) -> Any:
    return _keys(_parsed(key))


def _rules(with_recurrent: bool) -> Iterator[Tuple[Any, _Rule]]:
    """The operations that this version of PyTorch has, with their rules."""
    rules: Dict[_Rule, str] = {
        _lower: f"{_LOWER} {_RECURRENT}" if with_recurrent else _LOWER,
        _in_float32: _FLOAT32,
        _to_float32: _FLOAT32_RESULT,
        _widest: _WIDEST,
        _refused: _REFUSED,
    }
    for rule, names in rules.items():
        for name in names.split():
            packet, _, overload = name.partition(".")
            operation = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if operation is not None:
                yield operation, rule


def _kernel(operation: Any, rule: _Rule, key: Any, device_type: Callable[[], str], is_here: IsHere) -> Callable[..., Any]:
    own, below, is_on_host = _keys(key), torch._C._dispatch_keyset_full_after(key), key == _parsed(_HOST)

    def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
        # No mode of the program sees the casts.
        with torch._C.DisableTorchFunction():
            on = device_type()
            # On the simulated device, a kernel runs as a whole; those of others may call operations with rules.
            in_kernel = is_on_host and on == "simulated" and _is_excluded(_AUTOGRAD)
            if in_kernel or not (torch.is_autocast_enabled(on) and _has_rule(operation, on)):
                # Without the rule; those of the operations that it consists of remain.
                return operation.redispatch(keys & below, *args, **kwargs)
            args, kwargs = rule(operation, args, kwargs, torch.get_autocast_dtype(on), is_here)
            with torch._C._ExcludeDispatchKeyGuard(own):
                return operation(*args, **kwargs)

    return run


@functools.cache
def _has_rule(operation: Any, device_type: str) -> bool:
    """Whether PyTorch has a rule for an operation on a type of device. All have that of CUDA, if any."""
    name = operation.name()
    if name.partition("::")[2] in _RECURRENT.split():
        name = "aten::linear"
    own = device_type == torch._C._get_privateuse1_backend_name()
    key = "AutocastPrivateUse1" if own else f"Autocast{device_type.upper()}"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def _is_eligible(value: Any, is_here: IsHere) -> bool:
    is_narrow = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64
    return is_narrow and is_here(value)


def _cast(args: Any, kwargs: Any, dtype: torch.dtype, is_here: IsHere) -> Tuple[Any, Any]:
    def cast(value: Any) -> Any:
        return value.to(dtype) if _is_eligible(value, is_here) else value

    return tree_map(cast, args), tree_map(cast, kwargs)


def _lower(operation: Any, args: Any, kwargs: Any, dtype: torch.dtype, is_here: IsHere) -> Tuple[Any, Any]:
    return _cast(args, kwargs, dtype, is_here)


def _in_float32(operation: Any, args: Any, kwargs: Any, dtype: torch.dtype, is_here: IsHere) -> Tuple[Any, Any]:
    return _cast(args, kwargs, torch.float32, is_here)


def _to_float32(operation: Any, args: Any, kwargs: Any, dtype: torch.dtype, is_here: IsHere) -> Tuple[Any, Any]:
    """The argument ``dtype`` is float32, unless the program has named one."""
    place = _place_of_dtype(operation)
    named = args[place] if place < len(args) else kwargs.get("dtype")
    if named is not None or not _is_eligible(args[0], is_here):
        return args, kwargs
    return args[:place], {**kwargs, "dtype": torch.float32}


@functools.cache
def _place_of_dtype(operation: Any) -> int:
    return [argument.name for argument in operation._schema.arguments].index("dtype")


def _widest(operation: Any, args: Any, kwargs: Any, dtype: torch.dtype, is_here: IsHere) -> Tuple[Any, Any]:
    widest = dtype
    for value in tree_leaves((args, kwargs)):
        if _is_eligible(value, is_here):
            if torch.float32 in (widest, value.dtype):
                widest = torch.float32
            elif value.dtype != widest:
                # PyTorch's error.
                raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
    return _cast(args, kwargs, widest, is_here)


def _refused(operation: Any, args: Any, kwargs: Any, dtype: torch.dtype, is_here: IsHere) -> Tuple[Any, Any]:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. "
        "Use torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, without a sigmoid before."
    )
