"""What the functions of PyTorch do with devices, by their names."""

from __future__ import annotations

import enum
import functools
import inspect
from typing import Any, Dict, List, Optional, Tuple

import torch

from .arguments import Args, Kwargs, tensors


class Kind(enum.Enum):
    """How a function is intercepted."""

    #: Reads properties, or moves nothing: runs on its arguments as they are.
    PLAIN = "plain"
    #: Makes a view: runs on its arguments as they are, and the view of a weight stays one.
    VIEW = "view"
    #: Makes a tensor where its argument ``device`` says; tensors among its arguments are numbers.
    FACTORY = "factory"
    #: Runs on the device if an argument is there or belongs to the model.
    COMPUTE = "compute"
    #: Makes a tensor of the shape of another one.
    LIKE = "like"
    #: Writes its first argument.
    IN_PLACE = "in place"
    #: Names a device: ``device``, ``is_cuda``, ``get_device``.
    DEVICE = "device"
    #: Moves a tensor to a device: ``to``, ``cpu``, ``cuda``.
    MOVE = "move"
    #: Gives out the memory of a tensor: ``numpy()``, ``data_ptr()``.
    ESCAPE = "escape"
    #: Replaces a tensor's memory or its gradient: the setters of ``data`` and ``grad``.
    SET_DATA = "set data"
    #: Whether one tensor can get the memory of another one.
    COMPATIBLE = "compatible"
    #: Runs gradients: ``backward``, ``torch.autograd.grad``.
    BACKWARD = "backward"


_VIEWS = frozenset(
    "view view_as transpose t permute unsqueeze squeeze expand expand_as narrow select chunk split split_with_sizes tensor_split "
    "unbind unflatten reshape flatten swapaxes swapdims movedim moveaxis diagonal as_strided detach alias view_as_real "
    "view_as_complex broadcast_to broadcast_tensors hsplit vsplit dsplit adjoint ravel reshape_as T mT H mH real imag".split()
)
_PLAIN = frozenset(
    "size dim ndimension numel nelement stride storage_offset is_contiguous element_size is_floating_point is_complex "
    "is_signed is_tensor is_inference is_same_size __len__ __hash__ __repr__ __str__ __format__ __dir__ item tolist "
    "__bool__ __int__ __float__ __index__ __complex__ __deepcopy__ __copy__ __reduce_ex__ __reduce__ __setstate__ "
    "__iter__ requires_grad_ retain_grad register_hook register_post_accumulate_grad_hook _backward_hooks result_type "
    "can_cast promote_types is_nonzero is_conj is_neg is_pinned is_shared is_coalesced is_distributed module_load "
    "_is_view has_names align_to refine_names rename names __contains__ detach_ as_subclass _make_subclass _dimI _dimV "
    "_nnz get_default_dtype is_grad_enabled _add_batch_dim _remove_batch_dim".split()
)
_ESCAPES = frozenset(
    "numpy __array__ data_ptr untyped_storage storage _typed_storage __dlpack__ share_memory_ __array_interface__ "
    "__cuda_array_interface__".split()
)
_DEVICES = frozenset("device is_cuda is_cpu is_mps is_xpu is_meta get_device __dlpack_device__".split())
_MOVES = frozenset("to cpu cuda xpu mps simulated".split())
_FACTORIES = frozenset("linspace logspace arange range full".split())
_LIKE = frozenset("zeros_like ones_like empty_like full_like rand_like randn_like randint_like".split())

#: Where an operator takes an argument: its position, None for one that is only named, and its name.
Place = Tuple[Optional[int], str]
#: Arguments that a function writes although no schema says it, if its sixth argument (``training`` or ``use_input_stats``) is
#: true.
WRITES: Dict[Tuple[str, str], Tuple[Place, ...]] = {
    ("torch.nn.functional", "batch_norm"): ((1, "running_mean"), (2, "running_var")),
    ("torch.nn.functional", "instance_norm"): ((1, "running_mean"), (2, "running_var")),
    ("torch", "batch_norm"): ((3, "running_mean"), (4, "running_var")),
    ("torch", "instance_norm"): ((3, "running_mean"), (4, "running_var")),
    ("torch", "native_batch_norm"): ((3, "running_mean"), (4, "running_var")),
    ("torch", "cudnn_batch_norm"): ((3, "running_mean"), (4, "running_var")),
}

#: Options with which functions of ``torch.nn.functional`` write what they read: ``relu``, ``embedding``.
_IN_PLACE_OPTIONS = ("inplace", "max_norm")
#: Functions that save a tensor for the backward pass before they write it.
SAVES_EARLY = frozenset("rrelu rrelu_".split())
#: Functions with lengths of packed sequences; the second result of the first ones has them, too.
PACKING = frozenset("_pack_padded_sequence _pad_packed_sequence".split())
_RECURRENT = frozenset("lstm gru rnn_tanh rnn_relu".split())
#: Functions with lengths, or places of cuts, among their arguments (:func:`lengths_of`).
TAKE_LENGTHS = PACKING | _RECURRENT | {"tensor_split"}


def lengths_of(name: str, args: Args) -> Optional[torch.Tensor]:
    """The argument with lengths of packed sequences or places of cuts, which are on the host for every device."""
    if name in _RECURRENT and not (len(args) > 3 and isinstance(args[3], list)):
        # Not packed: the state.
        return None
    return args[1] if len(args) > 1 and isinstance(args[1], torch.Tensor) else None


def name_of(func: Any) -> str:
    """The name of a function; of a property for its getter and setter, of an operator (``add.Tensor``) without its overload."""
    name = getattr(func, "__name__", str(func))
    if name in ("__get__", "__set__", "__delete__"):
        name = getattr(func.__self__, "__name__", name)
    return str(name).partition(".")[0]


def _is_of_pytorch(func: Any) -> bool:
    """Whether a function is one of PyTorch, and no operator of another library (``torch.ops.name``)."""
    if isinstance(func, torch._ops.OpOverload):
        return str(func._schema.name).startswith("aten::")
    return not isinstance(func, torch._ops.OpOverloadPacket) or func._qualified_op_name.startswith("aten::")


def _schemas_of(func: Any) -> List[Any]:
    """The schemas of an operator, or those of PyTorch's operators with the name of a function."""
    if isinstance(func, torch._ops.OpOverload):
        return [func._schema]
    name = func._qualified_op_name if isinstance(func, torch._ops.OpOverloadPacket) else f"aten::{name_of(func)}"
    return list(torch._C._jit_get_schemas_for_operator(name))


@functools.lru_cache(maxsize=4096)
def _statistics_of(func: Any) -> Tuple[Place, ...]:
    """The arguments of a function in :data:`WRITES`."""
    module = getattr(func, "__module__", None)
    found = WRITES.get((module if module == "torch.nn.functional" else "torch", name_of(func)), ())
    return found if found and _is_of_pytorch(func) else ()


@functools.lru_cache(maxsize=4096)
def writes_of(func: Any) -> Tuple[Place, ...]:
    """The arguments that a function may write without a new version, by its schemas if it has some. ``out``, and the tensor that
    a function of PyTorch writes in place, are not among them."""
    known = _statistics_of(func)
    if known:
        return known
    in_place = name_of(func).endswith("_") and _is_of_pytorch(func)
    # Other functions take them as ``out``.
    has_names = isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))
    found: Dict[Place, None] = {}
    for schema in _schemas_of(func):
        for position, one in enumerate(schema.arguments):
            if one.alias_info is None or not one.alias_info.is_write or (in_place and position == 0):
                continue
            if not one.kwarg_only:
                found[position, one.name] = None
            elif has_names and one.name != "out":
                found[None, one.name] = None
    return tuple(found)


def may_write(func: Any) -> bool:
    """Whether calls of a function may write arguments without a new version (:func:`written_by`)."""
    return hasattr(func, "written") or bool(writes_of(func))


def written_by(func: Any, args: Args, kwargs: Kwargs) -> List[torch.Tensor]:
    """The arguments that a call writes, perhaps without a new version, such as statistics."""
    own = getattr(func, "written", None)
    if own is not None:
        return list(own(*args))
    places = writes_of(func)
    if not places:
        return []
    if _statistics_of(func):
        if not (args[5] if len(args) > 5 else kwargs.get("training", kwargs.get("use_input_stats"))):
            return []
    found: List[torch.Tensor] = []
    for position, name in places:
        found += tensors(args[position] if position is not None and position < len(args) else kwargs.get(name))
    return found


@functools.lru_cache(maxsize=4096)
def _options_of(func: Any) -> Tuple[Tuple[int, str], ...]:
    """The parameters in :data:`_IN_PLACE_OPTIONS` that a function in Python has."""
    try:
        names = list(inspect.signature(func).parameters)
    except (TypeError, ValueError):
        return ()
    return tuple((names.index(name), name) for name in _IN_PLACE_OPTIONS if name in names)


def has_in_place_option(func: Any, args: Args, kwargs: Kwargs) -> bool:
    """Whether a call has an option with which a function writes what it reads."""
    options = [args[position] if position < len(args) else kwargs.get(name) for position, name in _options_of(func)]
    return any([option is not None and option is not False for option in options])


@functools.lru_cache(maxsize=4096)
def kind_of(func: Any) -> Kind:
    """How a function of PyTorch is intercepted; functions that are not known compute."""
    if not _is_of_pytorch(func):
        # A name of PyTorch may mean something else in another library. Its schema says what it writes.
        return Kind.COMPUTE
    name = name_of(func)
    slot = getattr(func, "__name__", "")
    if slot == "__set__" and name in ("data", "grad"):
        return Kind.SET_DATA
    if name in _DEVICES:
        return Kind.DEVICE
    if name == "_has_compatible_shallow_copy_type":
        return Kind.COMPATIBLE
    if name == "backward" or name == "grad" and slot != "__get__" and slot != "__set__":
        return Kind.BACKWARD
    if slot in ("__get__", "__set__", "__delete__"):
        return Kind.VIEW if name in _VIEWS or name == "data" else Kind.PLAIN
    if name in _ESCAPES:
        return Kind.ESCAPE
    if name in _PLAIN:
        return Kind.PLAIN
    if getattr(func, "__module__", None) != "torch.nn.functional" and name in _VIEWS:
        return Kind.VIEW
    if name == "__getitem__":
        return Kind.VIEW
    if name in _MOVES:
        return Kind.MOVE
    if name in _FACTORIES:
        return Kind.FACTORY
    if name in _LIKE or name.startswith("new_"):
        return Kind.LIKE
    in_place_operator = name.startswith("__i") and name.endswith("__") and name not in ("__invert__",)
    if name == "__setitem__" or in_place_operator or (name.endswith("_") and not name.endswith("__")):
        return Kind.IN_PLACE
    return Kind.COMPUTE
