"""Captures a module by ``torch.export`` for one kind of call."""

from __future__ import annotations

import json
import logging
import sys
import threading
import warnings
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Union

import torch
from torch.export import Dim
from torch.export.graph_signature import InputKind

from ..._forks import renewed
from ..._native import content_hash
from .compare import difference
from .environment import random_numbers_restored
from .graph import check, graph_hash
from .guards import Guards, Shapes
from .inputs import check_tensor, for_graph, is_standard, resized, shapes
from .snapshot import Snapshot
from .tree import NotShared, describe, restore

_logger = logging.getLogger("cotensor.torch")
#: Serializes captures, because torch.export changes state of the process, such as the switch of mkldnn.
_exporting = renewed(sys.modules[__name__], "_exporting", threading.RLock)
#: The number of captures that were started, by all threads and by this one.
_started = 0
_own = threading.local()


def capturing() -> Any:
    """The lock of captures."""
    return _exporting


def captures_of_other_threads() -> int:
    """The number of captures that other threads started. It changes before a capture changes state of the process."""
    return _started - getattr(_own, "started", 0)


def _count_capture() -> None:
    global _started
    _started += 1
    _own.started = getattr(_own, "started", 0) + 1


class Capture:
    """A graph, its weights, and the shapes for which it is valid."""

    def __init__(self, program: torch.export.ExportedProgram, snapshot: Snapshot, output: Any, example: Shapes) -> None:
        self._module = program.graph_module
        #: The description of the output, from :func:`describe`.
        self.output = output
        #: The argument that the module fills and returns, by position or name.
        self.returned: Union[int, str, None] = None
        kinds: List[str] = []
        #: The weights in the order of the graph's inputs; ``None`` for inputs of the call.
        self._given: List[Optional[torch.Tensor]] = []
        identities: List[str] = []
        inputs = []
        placeholders = [node for node in self._module.graph.nodes if node.op == "placeholder"]
        for node, spec in zip(placeholders, program.graph_signature.input_specs):
            if spec.kind is InputKind.USER_INPUT:
                kinds.append("input")
                self._given.append(None)
                inputs.append(node)
                continue
            name = str(spec.target)
            value = program.constants[name] if name in program.constants else program.state_dict[name]
            if spec.kind is InputKind.CONSTANT_TENSOR:
                check_tensor(value.detach(), "a constant")
                # A global tensor or one of a closure. The copy ignores later writes.
                value = value.detach().clone()
                identities.append(content_hash(value))
            else:
                identities.append(snapshot.identity(value))
            kinds.append("weight")
            self._given.append(value.detach())
        self._storages = {one.untyped_storage()._cdata for one in self._given if one is not None}
        self._guards = Guards(program, inputs, example)
        self._valid: Dict[Shapes, bool] = {}
        #: The space, 64 hexadecimal digits. Modules of equal spaces compute the same function.
        self.space = content_hash(graph_hash(self._module, kinds), json.dumps(output), *identities)

    def accepts(self, of: Shapes) -> bool:
        """Whether the graph is valid for inputs of these shapes."""
        known = self._valid.get(of)
        if known is None:
            if len(self._valid) >= _SHAPES_MAX:
                self._valid.clear()
            known = self._valid[of] = self._guards.accept(of)
        return known

    def other_shapes(self, of: Shapes) -> Optional[Shapes]:
        """Other valid shapes, which differ in every dynamic size; the same without dynamic sizes, ``None`` if no other is
        valid."""
        return self._guards.other(of) if self._guards.symbols else of

    def run(self, tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """Runs the graph. The output tensors share no memory with weights or inputs."""
        with torch.inference_mode(False), torch.no_grad():
            inputs = iter([for_graph(tensor) for tensor in tensors])
            given = [next(inputs) if one is None else one for one in self._given]
            versions = [tensor._version for tensor in given]
            found = list(self._module.forward(*given))
            if [tensor._version for tensor in given] != versions:
                raise NotShared("the module changes its input or itself")
            kept = self._storages | {tensor.untyped_storage()._cdata for tensor in given}
            return [one.clone() if one.untyped_storage()._cdata in kept else one for one in found]


#: The most shapes whose validity a capture caches.
_SHAPES_MAX = 4096


class _Flat(torch.nn.Module):
    """A module whose arguments and outputs are flat lists of tensors."""

    def __init__(self, module: torch.nn.Module, arguments: Any, found: List[Any]) -> None:
        super().__init__()
        self.module = module
        self._arguments = arguments
        self._found = found

    def forward(self, *tensors: torch.Tensor) -> List[torch.Tensor]:
        args, kwargs = restore(self._arguments, tensors)
        given: List[torch.Tensor] = []
        self._found[:] = [describe(self.module(*args, **kwargs), given)]
        return given


def capture(snapshot: Snapshot, arguments: Any, tensors: Sequence[torch.Tensor], trusted: Collection[str]) -> Capture:
    """Captures a kind of call, and compares the graph's outputs with the module's; with dynamic sizes at two shapes.

    ``arguments`` is the description of args and kwargs, and ``tensors`` are their tensors.

    Raises :class:`NotShared` with the reason, and the module's exceptions.
    """
    with capturing(), warnings.catch_warnings(), random_numbers_restored():
        _count_capture()
        warnings.simplefilter("ignore")
        expected = _Expected(snapshot, arguments, tensors)
        reason: Optional[NotShared] = None
        for is_dynamic in [True, False] if any(tensor.ndim for tensor in tensors) else [False]:
            try:
                made = _exported(snapshot, arguments, tensors, trusted, is_dynamic)
                made.returned = expected.returned
                expected.compare(made)
                if is_dynamic:
                    _compare_elsewhere(made, snapshot, arguments, tensors)
            except NotShared as error:
                sizes = "dynamic" if is_dynamic else "fixed"
                _logger.debug("%s: with %s sizes: %s", type(snapshot.module).__name__, sizes, error)
                reason = error
                continue
            if not snapshot.is_intact():
                raise NotShared("the module changes its input or itself")
            return made
        assert reason is not None
        raise reason


def _exported(
    snapshot: Snapshot, arguments: Any, tensors: Sequence[torch.Tensor], trusted: Collection[str], is_dynamic: bool
) -> Capture:
    found: List[Any] = []
    flat = _Flat(snapshot.module, arguments, found).eval()
    try:
        # With other random numbers, so that random Python code gives another result than the module's own run.
        with torch.inference_mode(False), torch.no_grad(), random_numbers_restored(other=True):
            given = tuple(tensor.clone() for tensor in tensors)
            sizes = tuple(_dims(tensor, is_dynamic) for tensor in given)
            program = torch.export.export(flat, given, dynamic_shapes=(sizes,), strict=False)
            check(program, trusted)
            return Capture(program, snapshot, found[0], shapes(given))
    except NotShared:
        raise
    except Exception as error:
        raise NotShared(f"torch.export cannot capture the module: {_cause(error)}") from error


def _dims(tensor: torch.Tensor, is_dynamic: bool) -> Mapping[int, Any]:
    dynamic_dims = is_dynamic and is_standard(tensor)
    return {dim: Dim.AUTO if dynamic_dims and size > 1 else Dim.STATIC for dim, size in enumerate(tensor.shape)}


def _cause(error: BaseException) -> str:
    while isinstance(error.__cause__, NotShared):
        return str(error.__cause__)
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


class _Expected:
    """The output of the module's own code."""

    def __init__(self, snapshot: Snapshot, arguments: Any, tensors: Sequence[torch.Tensor]) -> None:
        self._given = list(tensors)
        copies = [tensor.clone() for tensor in tensors]
        before = [tensor.clone() for tensor in copies]
        args, kwargs = restore(arguments, copies)
        with random_numbers_restored():
            result = snapshot.module(*args, **kwargs)
        self._tensors: List[torch.Tensor] = []
        self._output = describe(result, self._tensors)
        for tensor in self._tensors:
            if tensor.requires_grad:
                raise NotShared("an output requires gradients")
            check_tensor(tensor, "an output")
        named = [*enumerate(args), *kwargs.items()]
        #: The argument that the module fills and returns, by position or name.
        self.returned = next((name for name, value in named if value is result and not isinstance(value, torch.Tensor)), None)
        if self.returned is None:
            after: List[torch.Tensor] = []
            if describe([args, kwargs], after) != arguments or [id(one) for one in after] != [id(one) for one in copies]:
                raise NotShared("the module changes its arguments")
        if not all(_same_bits(one, other) for one, other in zip(copies, before)):
            raise NotShared("the module changes its input or itself")

    def compare(self, made: Capture) -> None:
        """Raises :class:`NotShared` if the graph computes another result."""
        reason: Optional[str] = "another structure"
        if made.output == self._output:
            reason = difference(made.run(self._given), self._tensors)
        if reason is not None:
            raise NotShared(f"graph and module give different outputs ({reason}): the module reads more than its arguments")


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return content_hash(one.detach()) == content_hash(other.detach())


def _compare_elsewhere(made: Capture, snapshot: Snapshot, arguments: Any, tensors: Sequence[torch.Tensor]) -> None:
    """Compares at other sizes, which Python code can treat differently without a guard."""
    at = made.other_shapes(shapes(tensors))
    if at is None:
        raise NotShared("there is no other shape to compare")
    if at == shapes(tensors):
        return
    try:
        elsewhere = _Expected(snapshot, arguments, [resized(tensor, shape) for tensor, shape in zip(tensors, at)])
    except NotShared:
        raise
    except Exception as error:
        raise NotShared(f"the module fails at another shape: {type(error).__name__}") from error
    elsewhere.compare(made)
