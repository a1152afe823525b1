"""The device, the strategy and the references of a program."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from ...errors import ConflictError
from .. import threads
from ..arguments import nested
from ..operations import Kind, kind_of
from ..session import Offload, offload
from ..simulated.device import register


class TensorsManager:
    """Configures :class:`TensorRef`: operations on references run on ``device`` by ``strategy``."""

    def __init__(self) -> None:
        self._device: Optional[torch.device] = None
        self._strategy = "genoa"
        self._session: Optional[Offload] = None
        #: The classes of references, which their file adds.
        self.reference_classes: Tuple[type, ...] = ()
        #: The mode of the thread whose functions return references.
        self.mode: Optional[TorchFunctionMode] = None

    @property
    def device(self) -> Optional[torch.device]:
        """The device of operations; None: the one of their tensors. Can be set, for example to "cuda"."""
        return self._device

    @device.setter
    def device(self, device: Any) -> None:
        self._configure(device, self._strategy)

    @property
    def strategy(self) -> str:
        """"genoa" (results return to the CPU at once), or another strategy of ``offload``. Can be set."""
        return self._strategy

    @strategy.setter
    def strategy(self, strategy: str) -> None:
        self._configure(self._device, strategy)

    @property
    def session(self) -> Optional[Offload]:
        """The session that runs operations, for its forecast, its counts and middlewares."""
        return self._session

    def tensors(self) -> List[Any]:
        """The references that are alive."""
        return [one for one in gc.get_objects() if isinstance(one, self.reference_classes)]

    def devices(self) -> Dict[str, int]:
        """Bytes of the references' tensors on each device; a tensor with several references counts for each."""
        found: Dict[str, int] = {}
        for ref in self.tensors():
            device = ref.proxyInfo.device
            found[device] = found.get(device, 0) + ref.nbytes
        return found

    def begin(self, mode: TorchFunctionMode) -> None:
        """Lets this thread be in a mode, which calls :meth:`run`, and in the session."""
        self.mode = mode
        self._enter()

    def end(self) -> None:
        """Ends :meth:`begin`, in the same thread."""
        self._leave()
        self.mode = None

    def run_without_device(self) -> None:
        """Ends the use of the device in this thread. The mode of the thread stays."""
        if self._session is not None:
            self._session.pauses.begin(threading.get_ident(), None)
            self._session = None

    def run(self, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs a function in the session."""
        session = self._session
        if session is None:
            return func(*args, **kwargs)
        if kind_of(func) in (Kind.DEVICE, Kind.MOVE):
            # A reference is where its elements are, and moves where the program says.
            with torch._C.DisableTorchFunction():
                return func(*args, **kwargs)
        for value in nested((args, kwargs)):
            if value.is_cpu:
                if not session.tensors.results_on_host and getattr(value, "_is_param", False):
                    session.tensors.add("parameter", value)
                session.tensors.marks.add(value)
        if kind_of(func) is Kind.FACTORY and kwargs.get("device") is not None and isinstance(kwargs.get("out"), torch.Tensor):
            if not kwargs["out"].is_cpu:
                # A program for the CPU names the place of ``out``, which is a result of the device.
                kwargs = {**kwargs, "device": None}
        # A program for the CPU selects the dtypes of the CPU.
        autocast = torch.is_autocast_enabled("cpu")
        with torch.autocast(session.devices.target.type, torch.get_autocast_dtype("cpu")) if autocast else _NOTHING:
            if any([session is one for one in threads.entered()]):
                return func(*args, **kwargs)
            # In a thread that existed before.
            return session.__torch_function__(func, types, args, kwargs)

    def _configure(self, device: Any, strategy: str) -> None:
        if str(device).startswith("simulated"):
            register()
        with torch._C.DisableTorchFunction():
            target = None if device is None else torch.device(device)
        session = None
        if target is not None and target.type != "cpu":
            session = offload([torch.nn.Module()], target, strategy=strategy)
        self._leave()
        self._device, self._strategy, self._session = target, strategy, session
        self._enter()

    def _enter(self) -> None:
        if self.mode is None:
            return
        if self._session is not None:
            self._session.__enter__()
        # Above the session, which sees the tensors of references.
        self.mode.__enter__()  # type: ignore[no-untyped-call]

    def _leave(self) -> None:
        if self.mode is None:
            return
        modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        if not modes or modes[-1] is not self.mode:
            raise ConflictError("this thread is in another mode of torch, or in another session: end that first", field="device")
        self.mode.__exit__(None, None, None)
        if self._session is not None:
            self._session.__exit__(None, None, None)


#: Where no autocast is enabled.
_NOTHING: Any = contextlib.nullcontext()

tensorsManager = TensorsManager()
# As CUDA, devices are not usable in a forked process: operations run where the elements are.
os.register_at_fork(after_in_child=tensorsManager.run_without_device)
