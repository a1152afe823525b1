"""Models that run on a device while their weights stay on the host."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..errors import InvalidError
from . import broker as brokers
from . import compiled, methods, stance, threads, transforms
from .arguments import mapped, to_device, to_host
from .events import Middleware, Middlewares
from .gradients import SavedTensor, SavedWeight, Substitution
from .interception import Interception
from .mover import Mover
from .options import bandwidth_of, devices_of, for_each, modules_of
from .simulated.tensor import raw_storage
from .sizes import size_bytes
from .strategy import Strategy
from .weights import Weight, tensors_of


@dataclass(frozen=True)
class Expected:
    """An operation that the plan expects."""

    name: str
    uses: Tuple[str, ...]
    #: False: it runs on the host.
    on_device: bool
    #: Weights that are copied to the device for it, and those that leave after it.
    copied: Tuple[str, ...]
    evicted: Tuple[str, ...]


def _plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Work of the session: it sees tensors where they are, and not as the program does in this session or another one."""

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*args)

    return run


class _Hook:
    """A hook of a module. Copies of the module have it, too: they run in the session while it is entered."""

    def __init__(self, session: Optional["Offload"], name: str) -> None:
        self._session = None if session is None else weakref.ref(session)
        self._name = name

    def __call__(self, *args: Any) -> None:
        if torch.compiler.is_compiling():
            # The compiled method is in the session.
            return
        session = None if self._session is None else self._session()
        if session is not None:
            getattr(session, self._name)(*args)

    def __deepcopy__(self, memo: Any) -> "_Hook":
        return self

    def __reduce__(self) -> Any:
        # In another process, there is no session.
        return _Hook, (None, self._name)


class Offload(Interception):
    """A model whose operations run on a device; made by :func:`offload` and :func:`enable`.

    A context manager, also in several threads. Threads that are started inside of the block are in it, too. In others, calls of
    the model are intercepted.
    """

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        device: Any,
        strategy: Any,
        memory: Any,
        bandwidth: Any,
        broker: Optional[bool],
    ) -> None:
        targets = devices_of(device)
        count, middlewares = len(targets), Middlewares()
        limits = [None if one in (None, "auto") else size_bytes(one, "memory") for one in for_each(memory, count, "memory")]
        strategies = for_each(strategy, count, "strategy")
        own = [id(one) for one in strategies if isinstance(one, Strategy)]
        if len(set(own)) < len(own):
            raise InvalidError("strategy: pass a list with one object for each device", field="strategy")
        results_on_host = "genoa" in strategies
        if results_on_host and strategies != ["genoa"] * count:
            text = 'strategy: pass "genoa" for all devices or for none: its results are on the host'
            raise InvalidError(text, field="strategy")
        speeds = [bandwidth_of(target, one) for target, one in zip(targets, for_each(bandwidth, count, "bandwidth"))]
        each = zip(targets, strategies, limits, speeds)
        super().__init__([Mover(*one, middlewares) for one in each], results_on_host)
        for mover in self.movers:
            mover.lock = self.lock
        self.models = list(models)
        self.strategy = strategy
        self._entered = 0
        self._entries = threading.Lock()
        self._handles: List[Any] = []
        self._compiled: List[compiled.CompiledMethod] = []
        self._broker = None in limits if broker is None else broker
        self._share_required = broker is True
        self._shares: List[brokers.Share] = []

    def __enter__(self) -> "Offload":
        with self._entries:
            self._entered += 1
            if self._entered == 1:
                try:
                    self._start()
                except BaseException:
                    self._entered = 0
                    raise
        self._push()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._pop()
        with self._entries:
            self._entered -= 1
            if self._entered == 0:
                self._stop()

    @property
    def is_entered(self) -> bool:
        """Whether a thread is in the block."""
        return self._entered > 0

    def forecast(self, count: int = 10) -> List[Expected]:
        """The next operations with weights, and their moves; empty while no plan is followed."""
        names = [weight.name for weight in self.weights.all]

        def named(numbers: Iterable[int]) -> Tuple[str, ...]:
            return tuple([names[number] for number in numbers])

        expected = self.movers[0].placement.forecast(count) if self.division is None else self.division.forecast(count)
        return [
            Expected(name, named(uses), place, named(copied), named(evicted)) for name, uses, place, copied, evicted in expected
        ]

    def announce(self, operations: Iterable[Tuple[str, Sequence[str], float]]) -> None:
        """Announces one period of the program before its first operation, so that the first pass is planned.

        ``operations`` are triples: the name of PyTorch's function, the names of its weights, and its time in microseconds.
        """
        self._add_weights()
        numbers = {weight.name: weight for weight in self.weights.all}
        announced: List[Tuple[str, List[Weight], int]] = []
        for name, uses, micros in operations:
            missing = [use for use in uses if use not in numbers]
            if missing:
                raise InvalidError(f"operations: the model has no weight {missing[0]!r}", field="operations")
            announced.append((name, [numbers[use] for use in uses], int(micros * 1000)))
        if self.division is not None:
            keys = [(name, tuple([weight.number for weight in weights])) for name, weights, _ in announced]
            self.division.divide(keys, [elapsed for _, _, elapsed in announced])
            return
        mover = self.movers[0]
        mover.placement.announce([(mover.operation(name, weights), elapsed) for name, weights, elapsed in announced])

    def use(self, middleware: Middleware) -> Callable[[], None]:
        """Adds a middleware. Returns a function that removes it."""
        return self.middlewares.add(middleware)

    def stats(self, device: Any = None) -> Dict[str, int]:
        """Counts since the start: ``copies``, ``copied_bytes``, ``evictions``, ``on_host`` (operations), ``out_of_memory``; and
        the bytes of weights on the device (``used_bytes``), their ``budget_bytes``, and the ``share_bytes`` from a daemon. On
        CUDA, ``locked_bytes`` of the store are copied from where they are, and ``staged_bytes`` were copied by way of buffers.

        They are those of one ``device``, or sums of all devices of the session."""
        movers = self.movers
        if device is not None:
            named = self.ours(device)
            if named is None:
                raise InvalidError(f"device: {device!r} is none of {[str(mover.device) for mover in movers]}", field="device")
            movers = [self.mover_of(named)]
        names = "copies copied_bytes evictions on_host out_of_memory".split()
        counts = {name: sum([getattr(mover, name) for mover in movers]) for name in names}
        counts["used_bytes"] = sum([mover.placement.used for mover in movers])
        counts["budget_bytes"] = sum([mover.placement.budget for mover in movers])
        counts["locked_bytes"] = sum([mover.paths.locked_bytes for mover in movers])
        counts["staged_bytes"] = sum([mover.paths.staged_bytes for mover in movers])
        shares = [mover.memory.share for mover in movers if mover.memory.share is not None]
        return {**counts, "share_bytes": sum(shares)} if shares else counts

    def invalidate(self) -> None:
        """Drops all copies: call it after writing weights in a way that PyTorch does not see."""
        with self.lock:
            for mover in self.movers:
                mover.drop_all()
            if self.division is not None:
                self.division.kept.clear()

    @_plainly
    def _add_weights(self) -> None:
        for model in self.models:
            for name, tensor in tensors_of(model):
                self.add(name, tensor)

    @_plainly
    def _start(self) -> None:
        for mover in self.movers:
            mover.refresh()
        self._add_weights()
        if self._broker:
            try:
                for mover in self.movers:
                    share = brokers.join(mover, self._share_required)
                    self._shares += [] if share is None else [share]
            except BaseException:
                self._leave()
                raise
        for model in self.models:
            if isinstance(model, torch.jit.ScriptModule):
                # It has no hooks; its calls in other threads are not in the session.
                continue
            self._handles.append(model.register_forward_pre_hook(_Hook(self, "_before_forward"), prepend=True))
            self._handles.append(model.register_forward_hook(_Hook(self, "_after_forward"), always_call=True))
        self._compiled = compiled.install(self, self.models)
        # The operations of other compiled functions have to be intercepted.
        stance.begin()
        methods.begin()
        # Optimizers work where the parameters and the gradients are.
        self._handles.append(register_optimizer_step_pre_hook(self._before_step))
        self._handles.append(register_optimizer_step_post_hook(self._after_step))
        threads.begin(self)

    @_plainly
    def _stop(self) -> None:
        threads.end(self)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for method in self._compiled:
            method.remove()
        self._compiled.clear()
        stance.end()
        methods.end()
        for model in self.models:
            # What the program assigned inside of the block, or PyTorch for it.
            others = [part for session in threads.everywhere() for other in session.models for part in other.modules()]
            if any([not tensor.is_cpu for _, tensor in tensors_of(model)]) and not any([part is model for part in others]):
                _bring_home(model)
        self.paused.clear()
        # Results are tensors of the host from now on.
        self.marks.clear()
        self.read.clear()
        self.invalidate()
        for mover in self.movers:
            mover.paths.close()
        self._leave()

    def _leave(self) -> None:
        """Gives the shares of the devices back."""
        for share in self._shares:
            share.close()
        self._shares.clear()

    def _push(self) -> None:
        threads.begin_saving(self)
        threads.enter(self)

    def _pop(self) -> None:
        threads.leave(self)
        threads.end_saving(self)

    @contextlib.contextmanager
    def inside(self, model: torch.nn.Module) -> Iterator[bool]:
        """A call of a module, in the session if that is entered. Yields whether it is."""
        self._before_forward(model, ())
        try:
            yield self.is_entered
        finally:
            self._after_forward(model, (), None)

    def _before_forward(self, model: torch.nn.Module, args: Any) -> None:
        # Threads of the backward pass have the modes of the thread that called it.
        entered = self.is_entered and not threads.is_in(self)
        self.local.__dict__.setdefault("forwards", []).append(entered)
        if entered:
            self._push()

    def _after_forward(self, model: torch.nn.Module, args: Any, output: Any) -> None:
        forwards = getattr(self.local, "forwards", None)
        if forwards and forwards.pop():
            self._pop()

    @_plainly
    def _before_step(self, optimizer: torch.optim.Optimizer, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        # The hook, its wrapper, and PyTorch's wrapper of the step.
        thread = threading.get_ident()
        self.paused[thread] = sys._getframe(2)
        # A step that fails midway has no end.
        self._stepped(optimizer)
        # Made inside of the block, as by Adagrad, or loaded.
        for parameter, state in optimizer.state.items():
            if isinstance(parameter, torch.Tensor) and parameter.is_cpu and self.weights.belongs(parameter):
                state.update(mapped(to_host, dict(state)))

        def resumed(closure: Any) -> Any:
            def evaluate(*given: Any, **named: Any) -> Any:
                # The frame has this function: one that has the frame would keep both, and the graph of the closure.
                step = self.paused.pop(thread, None)
                try:
                    return closure(*given, **named)
                finally:
                    if step is not None:
                        self.paused[thread] = step

            return evaluate if callable(closure) else closure

        return tuple([args[0], *map(resumed, args[1:])]), {name: resumed(value) for name, value in kwargs.items()}

    @_plainly
    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.paused.pop(threading.get_ident(), None)
        self._stepped(optimizer)

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """The parameters of an optimizer are written: fused kernels do that without a new version."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.changed(parameter)

    def _pack(self, tensor: torch.Tensor) -> Any:
        if transforms.active() is not None:
            # It may have no memory, and it is no copy of a weight that the session knows.
            return tensor
        with torch._C.DisableTorchFunction():
            if not tensor.is_cpu:
                key = raw_storage(tensor)
                # PyTorch asks the session only that was entered last.
                for mover in self.all_movers():
                    weight = mover.by_copy.get(key)
                    # Complex convolutions save the real and imaginary parts.
                    if weight is not None and tensor.dtype in (weight.dtype, weight.dtype.to_real()):
                        return SavedWeight(mover, weight, tensor)
            operation = Substitution.current()
            # A leaf may get other memory until then.
            saved = SavedTensor(tensor if tensor.is_cpu and tensor.is_leaf else tensor.detach(), tensor.device)
            if operation is not None:
                operation.save(saved, tensor)
            if self.results_on_host and not tensor.is_cpu and not saved.follows:
                if operation is None or not operation.saves_early:
                    # With the same strides: functions round differently for others.
                    saved.wait(to_device(tensor.detach(), torch.device("cpu")), tensor)
                    if operation is not None:
                        operation.leave(tensor)
            return saved

    def _unpack(self, saved: Any) -> Any:
        if isinstance(saved, torch.Tensor):
            return saved
        with torch._C.DisableTorchFunction():
            changed = saved.changed()
            if changed is not None:
                # The backward pass goes on, and the failure is raised at its end.
                self.failures.append(changed)
            if isinstance(saved, SavedTensor):
                tensor = saved.get(self._returned)
                if tensor.is_cpu and self.weights.belongs(tensor):
                    # On the device, a function saves the copy.
                    node = torch._C._current_autograd_node()
                    self.local.node_of_host = None if node is None else node._sequence_nr()
                return tensor
            weight = saved.weight
            try:
                if self.runs_code or saved.has_left:
                    # Compiled code that waits for this pass has the lock.
                    return to_device(saved.on_host(), saved.mover.device)
                with saved.mover.lock:
                    return saved.mover.need(weight, saved.view)
            except torch.OutOfMemoryError as failure:
                self.failures.append(failure)
                return saved.on_host()

    def _returned(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        for attempt in range(2):
            try:
                return to_device(tensor, device)
            except torch.OutOfMemoryError as failure:
                if not self.runs_code:
                    with self.lock:
                        self.mover_of(device).no_memory()
                if attempt:
                    self.failures.append(failure)
        return tensor


_enabled: "weakref.WeakKeyDictionary[Any, Offload]" = weakref.WeakKeyDictionary()


def offload(
    model: Any,
    device: Any = None,
    *,
    strategy: Any = "flow",
    memory: Any = "auto",
    bandwidth: Any = None,
    broker: Optional[bool] = None,
) -> Offload:
    """A context in which ``model`` runs on ``device``, while its weights stay on the host::

        with cotensor.tensorref.offload(model, "cuda", memory="4GiB"):
            model.generate(**inputs)

    ``model`` is a module, a list of modules, or a pipeline with ``components``. It is not changed: parameters keep their identity
    and their memory. ``device`` is the current accelerator by default. ``memory`` limits weights and activations on the device:
    bytes, a text such as "4GiB", or "auto": what is free. ``bandwidth`` of the link ("12GB/s") is measured by default.

    ``device`` may be a list: operations run on the first device until they repeat, and are divided among all then. ``strategy``,
    ``memory`` and ``bandwidth`` are those of each device, or lists with one value for each.

    Programs divide the memory of a device if a daemon runs: by default with ``memory="auto"``, never if ``broker`` is false, and
    always if it is true, with an error without a daemon. No daemon is started for it.

    Strategies: "flow" records the operations and plans; results stay on the device. "genoa" copies before each operation, and
    results return to the host at once. "lru" keeps what was used last. "pinned" keeps the first weights and streams the others.
    "cpu" runs all operations with weights on the host. A :class:`Strategy` is a program's own.
    """
    if device is None:
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if accelerator is None:
            text = "device: PyTorch has no accelerator; cotensor.tensorref.simulated_device simulates one"
            raise InvalidError(text, field="device")
        device = accelerator
    return Offload(modules_of(model), device, strategy, memory, bandwidth, broker)


def enable(model: Any, device: Any = None, **options: Any) -> Offload:
    """:func:`offload` without a block, until :func:`disable`: in this thread, and for calls of the model in others."""
    disable(model)
    session = offload(model, device, **options)
    session.__enter__()
    _enabled[model] = session
    return session


def disable(model: Any) -> None:
    """Ends :func:`enable` for a model, in the same thread. Nothing happens if it is not enabled."""
    session = _enabled.pop(model, None)
    if session is not None:
        session.__exit__(None, None, None)


def _bring_home(model: torch.nn.Module) -> None:
    """Moves what a model has on the device to the host. A parameter of several modules stays one."""
    parts = list(model.modules())
    before = {(part, name): parameter for part in parts for name, parameter in part._parameters.items()}
    after: Dict[int, Any] = {}
    for part in parts:
        part._apply(to_host, recurse=False)  # type: ignore[no-untyped-call]
    for (part, name), parameter in before.items():
        part._parameters[name] = after.setdefault(id(parameter), part._parameters[name])
