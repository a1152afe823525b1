"""The shapes for which a captured graph is valid."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import sympy  # type: ignore[import-untyped]
import torch

from .tree import NotShared

Shapes = Tuple[Tuple[int, ...], ...]


class Guards:
    """The assumptions of the code about input sizes during the capture.

    Each comparison of a size became a guard. Each size that was used as a number became fixed.
    """

    def __init__(self, program: torch.export.ExportedProgram, inputs: Sequence[torch.fx.Node], example: Shapes) -> None:
        #: For each input and dimension, the size as an expression.
        self._sizes: List[List[Any]] = []
        environments: Set[Any] = set()
        for node in inputs:
            value = node.meta["val"]
            self._sizes.append([_expression(size) for size in value.shape])
            environments |= {size.node.shape_env for size in value.shape if isinstance(size, torch.SymInt)}
        self._ranges = {symbol: (known.lower, known.upper) for symbol, known in program.range_constraints.items()}
        self._guards: List[Any] = []
        self._replaced: Dict[Any, Any] = {}
        for environment in environments:
            self._guards += [guard.expr for guard in environment.guards]
            self._replaced.update(environment.replacements)
        # Symbols that equal other symbols or numbers are replaced.
        self._guards = [self._resolved(guard) for guard in self._guards]
        self.symbols = sorted(
            {one for sizes in self._sizes for size in sizes for one in size.free_symbols}, key=lambda one: one.name
        )
        plain = {size for sizes in self._sizes for size in sizes if size.is_Symbol}
        if not set(self.symbols) <= plain:
            raise NotShared("a size is computed from an unknown size")
        free = {one for guard in self._guards for one in guard.free_symbols}
        if not free <= set(self.symbols):
            raise NotShared("a condition depends on more than the sizes of the inputs")
        if not self.accept(example):
            raise NotShared("the example violates the conditions of its capture")

    def _resolved(self, expression: Any) -> Any:
        for _ in range(len(self._replaced) + 1):
            new = expression.xreplace(self._replaced)
            if new == expression:
                break
            expression = new
        return expression

    def accept(self, shapes: Shapes) -> bool:
        """Whether the graph is valid for inputs of these shapes."""
        values = self.values(shapes)
        if values is None:
            return False
        for symbol, value in values.items():
            lower, upper = self._ranges.get(symbol, (2, sympy.oo))
            if not (lower <= value and value <= upper):
                return False
        if any(guard.xreplace(values) != sympy.true for guard in self._guards):
            return False
        return self.shapes(values) == shapes

    def values(self, shapes: Shapes) -> Optional[Dict[Any, Any]]:
        """The value of each symbol for these shapes; ``None`` if they do not match."""
        values: Dict[Any, Any] = {}
        for sizes, shape in zip(self._sizes, shapes):
            if len(sizes) != len(shape):
                return None
            for size, number in zip(sizes, shape):
                if size.is_Symbol and values.setdefault(size, sympy.Integer(number)) != number:
                    return None
        return values

    def shapes(self, values: Dict[Any, Any]) -> Shapes:
        """The shapes of the inputs for these values."""
        return tuple(tuple(int(size.xreplace(values)) for size in sizes) for sizes in self._sizes)

    def other(self, shapes: Shapes) -> Optional[Shapes]:
        """Valid shapes near these that differ in every dynamic size; ``None`` if there are none."""
        values = self.values(shapes)
        if values is None:
            return None
        changes: List[Callable[[int], int]] = [lambda n: n + 1, lambda n: n - 1, lambda n: n * 2, lambda n: n // 2]
        for change in changes:
            changed = {symbol: sympy.Integer(change(int(value))) for symbol, value in values.items()}
            other = self.shapes(changed)
            if all(size >= 2 for size in map(int, changed.values())) and self.accept(other):
                return other
        return None


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)
