"""The device, the strategy and the references of a program."""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Mapping, Optional, Sequence

import torch

from ..session import Offload, offload


class TensorsManager:
    """Configures :class:`TensorRef`: operations on references run on ``device`` by ``strategy``."""

    def __init__(self) -> None:
        self._device: Optional[torch.device] = None
        self._strategy = "genoa"
        self._session: Optional[Offload] = None
        self._refs: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()

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
        return list(self._refs.values())

    def devices(self) -> Dict[str, int]:
        """Bytes of the references' tensors on each device; a tensor with several references counts for each."""
        found: Dict[str, int] = {}
        for ref in self.tensors():
            device = ref.proxyInfo.device
            found[device] = found.get(device, 0) + ref.target.nbytes
        return found

    def run(self, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs a function on the tensors of references."""
        if self._session is None:
            return func(*args, **kwargs)
        return self._session.__torch_function__(func, types, args, kwargs)

    def belongs(self, target: torch.Tensor, is_parameter: bool) -> None:
        """``target`` may be moved for operations."""
        if self._session is not None and target.is_cpu:
            if is_parameter and not self._session.results_on_host:
                self._session.add("parameter", target)
            self._session._mark(target)

    def track(self, ref: Any) -> None:
        """Notes a reference."""
        self._refs[id(ref)] = ref

    def _configure(self, device: Any, strategy: str) -> None:
        target = None if device is None else torch.device(device)
        session = None
        if target is not None and target.type != "cpu":
            session = offload([torch.nn.Module()], target, strategy=strategy)
        self._device, self._strategy, self._session = target, strategy, session


tensorsManager = TensorsManager()
