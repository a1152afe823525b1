"""Checks of captured graphs, and their hashes."""

from __future__ import annotations

import math
import operator
from typing import Any, Collection, Dict, List, Sequence, Tuple

import torch
from torch.export.graph_signature import InputKind, OutputKind

from ..._native import content_hash
from .tree import NotShared

#: Operators that return uninitialized memory.
_UNINITIALIZED = ("empty", "new_empty", "resize", "set_", "_resize")
#: Random operators with an argument that makes them deterministic: its name and that value.
_RANDOM_UNLESS: Dict[str, Tuple[str, Any]] = {
    "aten::dropout": ("train", False),
    "aten::dropout_": ("train", False),
    "aten::alpha_dropout": ("train", False),
    "aten::feature_dropout": ("train", False),
    "aten::feature_alpha_dropout": ("train", False),
    "aten::native_dropout": ("train", False),
    "aten::rrelu": ("training", False),
    "aten::scaled_dot_product_attention": ("dropout_p", 0.0),
    "aten::_scaled_dot_product_flash_attention_for_cpu": ("dropout_p", 0.0),
}
#: Operators that run a subgraph under a mode, which is one of their arguments.
_REGIONS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


def check(program: torch.export.ExportedProgram, trusted: Collection[str]) -> None:
    """Raises :class:`NotShared` with the reason for a graph with side effects, or whose result can depend on more than its inputs
    and weights. ``trusted`` are names of operators, such as ``"torchvision::nms"``."""
    signature = program.graph_signature
    for given in signature.input_specs:
        if given.kind in (InputKind.CUSTOM_OBJ, InputKind.TOKEN):
            raise NotShared("the graph has an object of a C++ class")
    for result in signature.output_specs:
        if result.kind is not OutputKind.USER_OUTPUT:
            raise NotShared("the module changes its input or itself")
    _check_nodes(program.graph_module, trusted)


def _check_nodes(module: torch.fx.GraphModule, trusted: Collection[str]) -> None:
    given = {
        node.meta["val"].untyped_storage()._cdata
        for node in module.graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor)
    }
    for node in module.graph.nodes:
        if node.op == "call_function":
            _check_operator(node, trusted, given)
            for region in _regions(node, module):
                _check_nodes(region, trusted)
        elif node.op not in ("placeholder", "get_attr", "output"):
            raise NotShared(f"the graph has a {node.op}")


def _check_operator(node: torch.fx.Node, trusted: Collection[str], given: Collection[int]) -> None:
    target: Any = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        if target._name not in _REGIONS:
            raise NotShared(f"the graph has the operator {target._name}")
        return
    if not isinstance(target, torch._ops.OpOverload):
        if not _is_on_sizes(target):
            raise NotShared(f"the graph has the function {target}")
        return
    name = target._schema.name
    if name not in trusted:
        if target.namespace not in ("aten", "prims"):
            raise NotShared(f"the graph has the operator {name}: pass operators=({name!r},) if it is deterministic")
        if torch.Tag.nondeterministic_seeded in target.tags and not _is_deterministic(node, name):
            raise NotShared(f"the graph has the random operator {name}")
        if name.partition("::")[2].startswith(_UNINITIALIZED):
            raise NotShared(f"the graph has the operator {name}, which returns uninitialized memory")
    for position, argument in enumerate(target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        for written in value if isinstance(value, (list, tuple)) else (value,):
            shown = written.meta.get("val") if isinstance(written, torch.fx.Node) else None
            if isinstance(shown, torch.Tensor) and shown.untyped_storage()._cdata in given:
                raise NotShared("the module changes its input or itself")


def _is_on_sizes(target: Any) -> bool:
    """Whether it is a function on numbers, which graphs use for sizes."""
    name = str(getattr(target, "__name__", ""))
    modules = (operator, math, torch) if name.startswith(("sym_", "_sym_")) else (operator, math)
    return any(getattr(module, name, None) is target for module in modules)


def _is_deterministic(node: torch.fx.Node, name: str) -> bool:
    argument, value = _RANDOM_UNLESS.get(name, ("", None))
    for position, declared in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if declared.name == argument:
            given = node.args[position] if position < len(node.args) else node.kwargs.get(argument, declared.default_value)
            return bool(given == value)
    return False


def _regions(node: torch.fx.Node, module: torch.fx.GraphModule) -> List[torch.fx.GraphModule]:
    found = [getattr(module, str(one.target)) for one in node.all_input_nodes if one.op == "get_attr"]
    return [one for one in found if isinstance(one, torch.fx.GraphModule)]


def graph_hash(module: torch.fx.GraphModule, kinds: Sequence[str]) -> str:
    """The hash of the operators, the arguments, and the metadata of inputs and outputs, without names of nodes and symbols.

    ``kinds`` has the kind of each input: weight, constant or input.
    """
    numbers: Dict[torch.fx.Node, int] = {}
    symbols: Dict[str, int] = {}
    lines: List[str] = []
    for node in module.graph.nodes:
        numbers[node] = len(numbers)
        if node.op == "placeholder":
            index = len(lines)
            lines.append(f"{kinds[index] if index < len(kinds) else 'input'} {_metadata(node.meta.get('val'), symbols)}")
        elif node.op == "get_attr":
            part = getattr(module, str(node.target))
            if not isinstance(part, torch.fx.GraphModule):
                raise NotShared("the graph has a constant")
            lines.append(f"part {graph_hash(part, ())}")
        elif node.op == "output":
            lines.append(f"output {_word(node.args, numbers)}")
        else:
            arguments = _word(list(node.args), numbers), _word(dict(node.kwargs), numbers)
            lines.append(f"{_target(node.target)} {arguments}")
    return content_hash(*lines)


def _target(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"


def _metadata(value: Any, symbols: Dict[str, int]) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    sizes = [_size(size, symbols) for size in (*value.shape, *value.stride())]
    return f"{value.dtype} {value.ndim} {sizes}"


def _size(size: Any, symbols: Dict[str, int]) -> str:
    if isinstance(size, int):
        return str(size)
    named = size.node.expr
    for symbol in sorted(named.free_symbols, key=lambda one: one.name):
        symbols.setdefault(symbol.name, len(symbols))
    return str(named.xreplace({one: type(one)(f"n{symbols[one.name]}") for one in named.free_symbols}))


def _word(value: Any, numbers: Dict[torch.fx.Node, int]) -> str:
    if isinstance(value, torch.fx.Node):
        return f"%{numbers[value]}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_word(item, numbers) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_word(item, numbers)}' for name, item in sorted(value.items()))}}}"
    if value is None or type(value) in (bool, int, float, complex, str):
        return repr(value)
    if isinstance(value, slice):
        return f"slice{_word((value.start, value.stop, value.step), numbers)}"
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return str(value)
    raise NotShared(f"the graph has an argument of type {type(value).__name__}")
