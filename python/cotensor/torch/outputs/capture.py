"""A module captured by ``torch.export`` for one kind of call."""

from __future__ import annotations

import json
import logging
import os
import threading
import warnings
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Union

import torch
from torch.export import Dim
from torch.export.graph_signature import InputKind

from ..._native import content_hash
from .compare import difference
from .environment import random_numbers_restored
from .graph import check, graph_hash
from .guards import Guards, Shapes
from .inputs import check_tensor, for_graph, is_standard, resized, shapes
from .snapshot import Snapshot
from .tree import NotShared, describe, restore

_logger = logging.getLogger("cotensor.torch")
#: One capture at a time: torch.export changes state of the whole process while it runs.
_exporting = threading.RLock()


def capturing() -> Any:
    """The lock that a capture holds."""
    return _exporting


class Capture:
    """A graph, its weights, and the shapes that it is valid for."""

    def __init__(self, program: torch.export.ExportedProgram, snapshot: Snapshot, output: Any, example: Shapes) -> None:
        self._module = program.graph_module
        #: The output without its tensors, as :func:`describe` writes it.
        self.output = output
        #: Which argument the module fills and returns, by position or name.
        self.returned: Union[int, str, None] = None
        kinds: List[str] = []
        #: In the order of the graph's inputs; None for those of the call.
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
                # A global tensor, or one of a closure: later writes to it have no effect.
                value = value.detach().clone()
                identities.append(content_hash(value))
            else:
                identities.append(snapshot.identity(value))
            kinds.append("weight")
            self._given.append(value.detach())
        self._storages = {one.untyped_storage()._cdata for one in self._given if one is not None}
        self._guards = Guards(program, inputs, example)
        self._valid: Dict[Shapes, bool] = {}
        #: Modules of equal space compute the same function: 64 hexadecimal digits.
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
        """Shapes that differ in every size that the graph leaves open: the same where it leaves none, None where no other is
        valid."""
        return self._guards.other(of) if self._guards.symbols else of

    def run(self, tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """The tensors of the output. None of them shares memory with weights or inputs."""
        with torch.inference_mode(False), torch.no_grad():
            inputs = iter([for_graph(tensor) for tensor in tensors])
            given = [next(inputs) if one is None else one for one in self._given]
            versions = [tensor._version for tensor in given]
            found = list(self._module.forward(*given))
            if [tensor._version for tensor in given] != versions:
                raise NotShared("it changes its input or itself")
            kept = self._storages | {tensor.untyped_storage()._cdata for tensor in given}
            return [one.clone() if one.untyped_storage()._cdata in kept else one for one in found]


#: How many shapes a capture remembers.
_SHAPES_MAX = 4096


class _Flat(torch.nn.Module):
    """A module that takes and gives tensors alone."""

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


def capture(snapshot: Snapshot, arguments: Any, tensors: Sequence[torch.Tensor], vouched: Collection[str]) -> Capture:
    """Captures a kind of call, and compares the graph's outputs with the module's, at two shapes where sizes stay open.

    ``arguments`` describe args and kwargs, and ``tensors`` are those among them.

    Raises :class:`NotShared` with the reason, and what the module raises.
    """
    with capturing(), warnings.catch_warnings(), random_numbers_restored():
        warnings.simplefilter("ignore")
        expected = _Expected(snapshot, arguments, tensors)
        reason: Optional[NotShared] = None
        for is_open in [True, False] if any(tensor.ndim for tensor in tensors) else [False]:
            try:
                made = _exported(snapshot, arguments, tensors, vouched, is_open)
                made.returned = expected.returned
                expected.compare(made)
                if is_open:
                    _compare_elsewhere(made, snapshot, arguments, tensors)
            except NotShared as error:
                _logger.debug("%s: with %s sizes: %s", type(snapshot.module).__name__, "open" if is_open else "fixed", error)
                reason = error
                continue
            if not snapshot.is_intact():
                raise NotShared("it changes its input or itself")
            return made
        assert reason is not None
        raise reason


def _exported(
    snapshot: Snapshot, arguments: Any, tensors: Sequence[torch.Tensor], vouched: Collection[str], is_open: bool
) -> Capture:
    found: List[Any] = []
    flat = _Flat(snapshot.module, arguments, found).eval()
    try:
        # Python code that draws numbers gives others than it did for the module's own outputs.
        with torch.inference_mode(False), torch.no_grad(), random_numbers_restored(other=True):
            given = tuple(tensor.clone() for tensor in tensors)
            sizes = tuple(_dims(tensor, is_open) for tensor in given)
            program = torch.export.export(flat, given, dynamic_shapes=(sizes,), strict=False)
            check(program, vouched)
            return Capture(program, snapshot, found[0], shapes(given))
    except NotShared:
        raise
    except Exception as error:
        raise NotShared(f"torch.export cannot capture it: {_cause(error)}") from error


def _dims(tensor: torch.Tensor, is_open: bool) -> Mapping[int, Any]:
    open_dims = is_open and is_standard(tensor)
    return {dim: Dim.AUTO if open_dims and size > 1 else Dim.STATIC for dim, size in enumerate(tensor.shape)}


def _cause(error: BaseException) -> str:
    while isinstance(error.__cause__, NotShared):
        return str(error.__cause__)
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


class _Expected:
    """What the module's own code computes."""

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
                raise NotShared("an output that wants gradients")
            check_tensor(tensor, "an output")
        named = [*enumerate(args), *kwargs.items()]
        #: Which argument the module fills and returns, by position or name.
        self.returned = next((name for name, value in named if value is result and not isinstance(value, torch.Tensor)), None)
        if self.returned is None:
            after: List[torch.Tensor] = []
            if describe([args, kwargs], after) != arguments or [id(one) for one in after] != [id(one) for one in copies]:
                raise NotShared("it changes its arguments")
        if not all(_same_bits(one, other) for one, other in zip(copies, before)):
            raise NotShared("it changes its input or itself")

    def compare(self, made: Capture) -> None:
        """Raises :class:`NotShared` where a graph computes something else."""
        reason: Optional[str] = "another structure of the output"
        if made.output == self._output:
            reason = difference(made.run(self._given), self._tensors)
        if reason is not None:
            raise NotShared(f"its graph gives another result than its code ({reason}): it reads more than its arguments")


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return content_hash(one.detach()) == content_hash(other.detach())


def _compare_elsewhere(made: Capture, snapshot: Snapshot, arguments: Any, tensors: Sequence[torch.Tensor]) -> None:
    """At other sizes, which Python code may treat differently without a condition that the graph knows."""
    at = made.other_shapes(shapes(tensors))
    if at is None:
        raise NotShared("no other shape to compare at")
    if at == shapes(tensors):
        return
    try:
        elsewhere = _Expected(snapshot, arguments, [resized(tensor, shape) for tensor, shape in zip(tensors, at)])
    except NotShared:
        raise
    except Exception as error:
        raise NotShared(f"it fails at another shape: {type(error).__name__}") from error
    elsewhere.compare(made)


def _forked() -> None:
    # Another thread of the parent may have held it.
    global _exporting
    _exporting = threading.RLock()


os.register_at_fork(after_in_child=_forked)
