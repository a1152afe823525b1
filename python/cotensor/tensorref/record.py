"""Records the operations of a program on its weights, as a trace for ``cotensor plan``.

``python -m cotensor.tensorref SCRIPT.py [ARGUMENT…] -o TRACE.json`` runs a script and records it.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ..errors import InvalidError
from . import stance
from .arguments import nested
from .operations import Kind, kind_of, name_of

#: Operations that are recorded; the program goes on.
_OPERATIONS_MAX = 1 << 20
#: Kinds of functions whose time counts.
_RUNNING = (Kind.COMPUTE, Kind.IN_PLACE, Kind.MOVE, Kind.LIKE)


class Recorded(NamedTuple):
    """An operation. Times include those of the operations without parameters that followed it."""

    name: str
    uses: Tuple[int, ...]
    #: Those of ``uses`` that it changed.
    writes: Tuple[int, ...]
    workspace_bytes: int
    elapsed_ns: int
    #: The time on the host, if it is known.
    host_ns: Optional[int]


class Recorder(TorchFunctionMode):
    """Inside, operations of this thread that use parameters are recorded with their times::

        with Recorder() as recorder:
            for _ in range(3):
                model(inputs)
        recorder.save("trace.json")

    The time of an operation includes that of the operations without parameters that follow it. Operations in place, also those of
    optimizers, are recorded as writes. The backward pass is not recorded.

    Times of a program on the CPU are also those on the host (``cpu_us``), and its device is ``speedup`` times as fast. With
    ``host_times``, operations on an accelerator run on the host, too, with copies of their arguments.
    """

    def __init__(self, speedup: float = 1.0, host_times: bool = False) -> None:
        super().__init__()
        if not speedup > 0:
            raise InvalidError(f"speedup: pass a number above 0, not {speedup!r}", field="speedup")
        self.speedup = speedup
        self.host_times = host_times
        self._names: Dict[int, str] = {}
        self._kept: List[torch.Tensor] = []
        self._ids: Dict[int, int] = {}
        self.tensors: List[Dict[str, Any]] = []
        self.operations: List[Recorded] = []
        self._kinds: Dict[Any, Tuple[Kind, str]] = {}
        self._handle: Any = None
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        self._waits = accelerator is not None and accelerator.type != "simulated"

    def __enter__(self) -> "Recorder":
        self._handle = register_module_forward_pre_hook(self._name)
        # The operations of compiled functions are recorded, too.
        stance.begin()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)  # type: ignore[no-untyped-call]
        stance.end()
        self._handle.remove()

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        known = self._kinds.get(func)
        if known is None:
            known = self._kinds[func] = kind_of(func), name_of(func)
        kind, name = known
        if kind not in _RUNNING or len(self.operations) >= _OPERATIONS_MAX:
            return func(*args, **(kwargs or {}))
        values = nested((args, dict(kwargs or {})))
        on_host = all([value.is_cpu for value in values])
        # Before the operation, which may write its arguments.
        host_ns = _host_ns(func, args, kwargs or {}) if self.host_times and not on_host else None
        started = time.perf_counter_ns()
        result = func(*args, **(kwargs or {}))
        if self._waits:
            torch.accelerator.synchronize()
        elapsed = time.perf_counter_ns() - started
        host_ns = elapsed if on_host else host_ns
        uses = self._indices(values)
        if uses:
            others = [value for value in values if self._index(value) is None]
            results = nested(result)
            workspace = sum([value.nbytes for value in {id(value): value for value in [*others, *results]}.values()])
            written = (kwargs or {}).get("out", args[0] if kind is Kind.IN_PLACE and args else None)
            writes = self._indices(nested(written))
            self.operations.append(Recorded(name, uses, writes, workspace, elapsed, host_ns))
        elif self.operations:
            last = self.operations[-1]
            total = None if last.host_ns is None or host_ns is None else last.host_ns + host_ns
            self.operations[-1] = last._replace(elapsed_ns=last.elapsed_ns + elapsed, host_ns=total)
        return result

    def _name(self, module: torch.nn.Module, inputs: Any) -> None:
        # The outermost module runs first and gives the names.
        for name, parameter in module.named_parameters():
            if id(parameter) not in self._names:
                self._names[id(parameter)] = name
                self._kept.append(parameter)

    def _indices(self, values: Sequence[Any]) -> Tuple[int, ...]:
        """The numbers of the parameters among some values."""
        found = {self._index(value) for value in values if isinstance(value, torch.Tensor)}
        return tuple(sorted([index for index in found if index is not None]))

    def _index(self, tensor: torch.Tensor) -> Optional[int]:
        """The number of the parameter that a tensor is, or is a view of."""
        base = tensor if isinstance(tensor, torch.nn.Parameter) else tensor._base
        if base is None or not isinstance(base, torch.nn.Parameter):
            return None
        index = self._ids.get(id(base))
        if index is None:
            index = self._ids[id(base)] = len(self.tensors)
            name = self._names.get(id(base), "parameter")
            if any([entry["id"] == name for entry in self.tensors]):
                name = f"{name}#{index}"
            self._kept.append(base)
            self.tensors.append({"id": name, "size_bytes": base.nbytes})
        return index

    def trace(self) -> Dict[str, Any]:
        """The last period that the operations repeat, with mean times; all operations if they do not repeat."""
        if not self.operations:
            raise InvalidError("the program ran no operation with parameters in this thread")
        length, periods = period([operation[:3] for operation in self.operations])
        last = self.operations[-length * periods :]
        listed: List[Dict[str, Any]] = []
        for step in range(length):
            same = last[step::length]
            micros = sum([operation.elapsed_ns for operation in same]) / periods / 1000
            entry: Dict[str, Any] = {
                "name": same[0].name,
                "uses": [self.tensors[index]["id"] for index in same[0].uses],
                "compute_us": round(micros / self.speedup, 3),
                "workspace_bytes": max([operation.workspace_bytes for operation in same]),
            }
            if same[0].writes:
                entry["writes"] = [self.tensors[index]["id"] for index in same[0].writes]
            host_ns = [operation.host_ns for operation in same if operation.host_ns is not None]
            if len(host_ns) == periods:
                entry["cpu_us"] = round(sum(host_ns) / periods / 1000, 3)
            listed.append(entry)
        used = {use for entry in listed for use in entry["uses"]}
        tensors = [tensor for tensor in self.tensors if tensor["id"] in used]
        return {"tensors": tensors, "operations": listed, "periods": periods}

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes :meth:`trace`."""
        with open(path, "w") as file:
            json.dump(self.trace(), file, indent=1)


def _host_ns(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Optional[int]:
    """The time of an operation on the host, with copies of its arguments; None if it does not run there."""

    def on_host(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            copy = value.detach()
            return copy.clone() if copy.is_cpu else copy.cpu()
        return torch.device("cpu") if isinstance(value, torch.device) else value

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            copied, named = tree_map(on_host, (list(args), dict(kwargs)))
            started = time.perf_counter_ns()
            func(*copied, **named)
        except (RuntimeError, TypeError):
            return None
        return time.perf_counter_ns() - started


def period(keys: Sequence[Any]) -> Tuple[int, int]:
    """The shortest length that the end of ``keys`` repeats, and how often; all keys once if there is none."""
    count = len(keys)
    for length in range(1, count // 2 + 1):
        # Most lengths differ in the first comparison.
        if keys[-1] == keys[-1 - length] and keys[count - length :] == keys[count - 2 * length : count - length]:
            periods = 2
            while keys[max(count - (periods + 1) * length, 0) : count - periods * length] == keys[count - length :]:
                periods += 1
            return length, periods
    return count, 1


def main(arguments: Sequence[str]) -> int:
    """Runs a script and records it. Returns the exit code."""
    import argparse

    parser = argparse.ArgumentParser(prog="cotensor trace", description=__doc__)
    parser.add_argument("-o", "--output", required=True, metavar="TRACE.json")
    parser.add_argument("--speedup", type=float, default=1.0)
    parser.add_argument("--host-times", action="store_true")
    parser.add_argument("script", metavar="SCRIPT.py")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    sys.argv = [options.script, *options.arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(options.script)))
    recorder = Recorder(options.speedup, options.host_times)
    code = 0
    try:
        with recorder:
            runpy.run_path(options.script, run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    try:
        trace = recorder.trace()
    except InvalidError as failure:
        print(f"cotensor trace: {failure}", file=sys.stderr)
        return code or 1
    recorder.save(options.output)
    total = sum([tensor["size_bytes"] for tensor in trace["tensors"]])
    print(
        f"{options.output}: {len(trace['operations'])} operations on {len(trace['tensors'])} tensors of {total} bytes, "
        f"{trace['periods']} periods",
        file=sys.stderr,
    )
    return code
