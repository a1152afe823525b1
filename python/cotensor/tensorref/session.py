"""Models that run on a device while their weights stay on the host."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import torch
from torch.overrides import TorchFunctionMode

from ..errors import InvalidError
from . import broker as brokers
from . import methods, stance, threads
from .arguments import Args, Kwargs, to_host
from .backward import Backward
from .calls import Calls, plainly
from .compiled import CompiledMethods
from .computing import Computing
from .devices import Devices
from .dispatcher import Dispatcher
from .events import Middleware, Middlewares
from .execution import Execution
from .hooks.modules import Hook as _Hook  # noqa: F401 -- modules that an earlier version has pickled name it
from .hooks.modules import ModuleHooks
from .hooks.optimizers import OptimizerHooks
from .hooks.saved import SavedTensors
from .host_tensors import HostTensors
from .mover import Mover
from .on_host import OnHost
from .options import bandwidth_of, devices_of, for_each, modules_of
from .pauses import Pauses
from .showing import Showing
from .sizes import size_bytes
from .strategy import Strategy
from .weights import Weight


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


class Offload(TorchFunctionMode):
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
        shared_copies: Optional[bool],
    ) -> None:
        super().__init__()
        targets = devices_of(device)
        count = len(targets)
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
        self.models = list(models)
        self.strategy = strategy
        self._middlewares = Middlewares()
        self.movers = [Mover(*one, self._middlewares) for one in zip(targets, strategies, limits, speeds)]
        # The parts, each with those that it knows.
        self.devices = Devices(self.movers)
        #: The device that weights show.
        self.target = self.devices.target
        self.tensors = HostTensors(self.devices, self.models, results_on_host)
        self.pauses = Pauses()
        self.saved = SavedTensors(self.tensors)
        calls = Calls(self.devices)
        host = OnHost(self.tensors, calls)
        self.computing = Computing(self.tensors, calls, Execution(self.tensors, self._middlewares, calls, host), host)
        self.backward = Backward(self, self.tensors)
        showing = Showing(self.tensors, calls, self.computing)
        handlers = {**self.computing.handlers(), **showing.handlers(), **self.backward.handlers()}
        #: Handles a function that the program calls.
        self.dispatch = Dispatcher(handlers, self.tensors, self.pauses).dispatch
        self._modules = ModuleHooks(self)
        self.optimizers = OptimizerHooks(self.tensors, self.pauses)
        self._compiled = CompiledMethods(self, self.tensors, self._modules, self.computing)
        self._entered = 0
        self._entries = threading.Lock()
        self._broker = None in limits if broker is None else broker
        self._share_required = broker is True
        self._shared_copies = shared_copies
        self._shares: List[brokers.Share] = []

    def __torch_function__(self, func: Any, types: Any, args: Args = (), kwargs: Optional[Kwargs] = None) -> Any:
        return self.dispatch(func, args, kwargs)

    def __enter__(self) -> "Offload":
        with self._entries:
            self._entered += 1
            if self._entered == 1:
                try:
                    self._start()
                except BaseException:
                    self._entered = 0
                    raise
        threads.enter(self)
        return self

    def __exit__(self, *failure: Any) -> None:
        threads.leave(self)
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
        names = [weight.name for weight in self.movers[0].weights.all]

        def named(numbers: Iterable[int]) -> Tuple[str, ...]:
            return tuple([names[number] for number in numbers])

        expected = (self.devices.division or self.movers[0].driver).forecast(count)
        return [
            Expected(name, named(uses), place, named(copied), named(evicted)) for name, uses, place, copied, evicted in expected
        ]

    def announce(self, operations: Iterable[Tuple[str, Sequence[str], float]]) -> None:
        """Announces one period of the program before its first operation, so that the first pass is planned.

        ``operations`` are triples: the name of PyTorch's function, the names of its weights, and its time in microseconds.
        """
        self._add_models()
        numbers = {weight.name: weight for weight in self.movers[0].weights.all if weight.owners}
        announced: List[Tuple[str, List[Weight], int]] = []
        for name, uses, micros in operations:
            missing = [use for use in uses if use not in numbers]
            if missing:
                raise InvalidError(f"operations: the model has no weight {missing[0]!r}", field="operations")
            announced.append((name, [numbers[use] for use in uses], int(micros * 1000)))
        if self.devices.division is not None:
            keys = [(name, tuple([weight.number for weight in weights])) for name, weights, _ in announced]
            self.devices.division.divide(keys, [elapsed for _, _, elapsed in announced])
            return
        mover = self.movers[0]
        mover.driver.announce([(mover.operation(name, weights), elapsed) for name, weights, elapsed in announced])

    def use(self, middleware: Middleware) -> Callable[[], None]:
        """Adds a middleware. Returns a function that removes it."""
        return self._middlewares.add(middleware)

    def stats(self, device: Any = None) -> Dict[str, int]:
        """Counts since the start: ``copies``, ``copied_bytes``, ``evictions``, ``on_host`` (operations), ``out_of_memory``; and
        the bytes of weights on the device (``used_bytes``), their ``budget_bytes``, those of copies that programs share
        (``shared_bytes``), and the ``share_bytes`` from a daemon. On CUDA, ``locked_bytes`` of the store are copied from where
        they are, and ``staged_bytes`` were copied by way of buffers.

        They are those of one ``device``, or sums of all devices of the session."""
        movers = self.movers
        if device is not None:
            named = self.devices.named(device)
            if named is None:
                raise InvalidError(f"device: {device!r} is none of {[str(mover.device) for mover in movers]}", field="device")
            movers = [self.devices.mover_of(named)]
        names = "copies copied_bytes evictions on_host out_of_memory".split()
        counts = {name: sum([getattr(mover, name) for mover in movers]) for name in names}
        counts["used_bytes"] = sum([mover.driver.used for mover in movers])
        counts["shared_bytes"] = sum([mover.memory.shared_bytes for mover in movers])
        counts["budget_bytes"] = sum([mover.driver.budget for mover in movers])
        counts["locked_bytes"] = sum([mover.paths.locked_bytes for mover in movers])
        counts["staged_bytes"] = sum([mover.paths.staged_bytes for mover in movers])
        shares = [mover.memory.share for mover in movers if mover.memory.share is not None]
        return {**counts, "share_bytes": sum(shares)} if shares else counts

    def invalidate(self, *, written_by_address: bool = True) -> None:
        """Drops all copies: call it after writing weights in a way that PyTorch does not see.

        A weight whose address was given out (``numpy()``, ``data_ptr()``, a saved checkpoint) is copied for each use.
        ``written_by_address=False`` says that the program writes none by these addresses any more: then copies are kept again,
        until the next address is given out.
        """
        self.devices.drop_all()
        if not written_by_address:
            self.tensors.conceal()

    @plainly
    def _add_models(self) -> None:
        self.tensors.add_models()

    @plainly
    def _start(self) -> None:
        for mover in self.movers:
            mover.refresh()
        self.tensors.add_models()
        try:
            for mover in self.movers:
                mover.share(self._shared_copies)
                share = brokers.join(mover, self._share_required) if self._broker else None
                self._shares += [] if share is None else [share]
        except BaseException:
            self.devices.end()
            self._leave()
            raise
        self._modules.begin(self.models)
        self._compiled.begin(self.models)
        # The operations of other compiled functions have to be intercepted.
        stance.begin()
        methods.begin()
        self.optimizers.begin()
        threads.begin(self)

    @plainly
    def _stop(self) -> None:
        threads.end(self)
        self.optimizers.end()
        self._modules.end()
        self._compiled.end()
        stance.end()
        methods.end()
        try:
            others = [part for session in threads.everywhere() for other in session.tensors.models for part in other.modules()]
            for model in self.models:
                # What the program assigned inside of the block, or PyTorch for it.
                if not any([part is model for part in others]):
                    _bring_home(model)
        finally:
            self.tensors.forget_all()
            self.devices.end()
            for mover in self.movers:
                mover.paths.close()
            self._leave()

    def _leave(self) -> None:
        """Gives the shares of the devices back."""
        for share in self._shares:
            share.close()
        self._shares.clear()
        for mover in self.movers:
            mover.end_sharing()


#: What :func:`enable` got, which may have no hash, with its session.
_enabled: List[Tuple[Any, Offload]] = []
_enabling = threading.Lock()


def offload(
    model: Any,
    device: Any = None,
    *,
    strategy: Any = "flow",
    memory: Any = "auto",
    bandwidth: Any = None,
    broker: Optional[bool] = None,
    shared_copies: Optional[bool] = None,
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

    Programs share copies of published weights (:func:`cotensor.torch.attach`) on a device of which the daemon has memory
    (``cotensor serve --max-device-memory``): by default on simulated devices with a name, never if ``shared_copies`` is false,
    and on CUDA devices if it is true, with an error without such memory.

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
    return Offload(modules_of(model), device, strategy, memory, bandwidth, broker, shared_copies)


def enable(model: Any, device: Any = None, **options: Any) -> Offload:
    """:func:`offload` without a block, until :func:`disable`: in this thread, and for calls of the model in others."""
    disable(model)
    session = offload(model, device, **options)
    session.__enter__()
    with _enabling:
        _enabled.append((model, session))
    return session


def disable(model: Any) -> None:
    """Ends :func:`enable` for a model, in the same thread. Nothing happens if it is not enabled. Of several modules, ``model`` is
    the same object: list, dictionary or pipeline."""
    with _enabling:
        session = next((session for enabled, session in _enabled if enabled is model), None)
    if session is not None:
        if not threads.is_in(session):
            raise InvalidError("model: call disable in the thread that has called enable", field="model")
        with _enabling:
            _enabled[:] = [entry for entry in _enabled if entry[1] is not session]
        session.__exit__(None, None, None)


def _bring_home(model: torch.nn.Module) -> None:
    """Moves what a model has on the device to the host. A tensor of several modules stays one.

    PyTorch's ``Module.to`` would replace all parameters with some of its flags, or exchange them."""
    moved: Dict[int, Any] = {}
    for part in model.modules():
        for tensors, home in ((part._parameters, _parameter_on_host), (part._buffers, to_host)):
            for name, tensor in tensors.items():
                if tensor is not None and not tensor.is_cpu:
                    if id(tensor) not in moved:
                        moved[id(tensor)] = home(tensor)
                    tensors[name] = moved[id(tensor)]


def _parameter_on_host(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter of the device on the host: the same one, if its device lets it."""
    if parameter.is_meta:
        return parameter
    elements, gradient = to_host(parameter.detach()), to_host(parameter.grad) if parameter.is_leaf else None
    if parameter.is_leaf and torch._has_compatible_shallow_copy_type(parameter, elements):
        parameter.grad = None
        parameter.data = elements
    else:
        parameter = torch.nn.Parameter(elements, parameter.requires_grad)
    parameter.grad = gradient
    return parameter
