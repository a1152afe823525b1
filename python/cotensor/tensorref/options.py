"""What programs pass to :func:`~cotensor.tensorref.offload`."""

from __future__ import annotations

import time
from typing import Any, Iterable, List, Union

import torch

from ..errors import InvalidError, UnsupportedError
from .simulated import SimulatedDevice
from .sizes import rate_bytes

#: Bytes of the copy that measures the link.
_PROBE_BYTES = 16 << 20
_SIMULATED_BANDWIDTH = 12_000_000_000
#: The error of modules that PyTorch copies to several devices.
PARALLEL = "model: DataParallel copies weights to devices itself; offload its module to a list of devices instead"


def modules_of(model: Any) -> List[torch.nn.Module]:
    """The modules of a module, a list of them, or a pipeline."""
    if isinstance(model, torch.nn.Module):
        if any([isinstance(part, torch.nn.DataParallel) for part in model.modules()]):
            raise UnsupportedError(PARALLEL, field="model")
        return [model]
    components = getattr(model, "components", model)
    values = components.values() if isinstance(components, dict) else components
    found = [value for value in values if isinstance(value, torch.nn.Module)] if isinstance(values, Iterable) else []
    if not found:
        raise InvalidError(f"model: pass a module, modules or a pipeline, not {type(model).__name__}", field="model")
    return found


def devices_of(device: Any) -> List[torch.device]:
    """The devices of a session with their numbers."""
    named = device if isinstance(device, (list, tuple)) else [device]
    targets = [torch.device("simulated" if isinstance(one, SimulatedDevice) else one) for one in named]
    if any([target.type == "cpu" for target in targets]):
        raise InvalidError("device: pass the device of an accelerator, not the CPU", field="device")
    targets = [torch.device(target.type, _number_of(target)) for target in targets]
    if not targets or len({target.type for target in targets}) > 1 or len(set(targets)) < len(targets):
        raise InvalidError(f"device: pass different devices of one kind, not {device!r}", field="device")
    return targets


def _number_of(device: torch.device) -> int:
    """The number of a device; of one without a number, as PyTorch takes it, that of the current device."""
    if device.index is not None:
        return device.index
    module: Any = torch.get_device_module(device)
    return int(module.current_device()) if module.is_available() else 0


def for_each(value: Any, count: int, field: str) -> List[Any]:
    """The value of each device."""
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise InvalidError(f"{field}: pass one value, or one for each of {count} devices, not {len(value)}", field=field)
    return list(value)


def bandwidth_of(device: torch.device, bandwidth: Union[int, str, None]) -> int:
    """Bytes per second of a device's link, measured if none are given."""
    if bandwidth is not None:
        return rate_bytes(bandwidth, "bandwidth")
    if device.type == "simulated":
        return _SIMULATED_BANDWIDTH
    module = torch.get_device_module(device)
    size = min(_PROBE_BYTES, max(module.mem_get_info(device)[0] // 8, 1))
    source, target = torch.empty(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8, device=device)
    times = []
    for _ in range(3):
        module.synchronize(device)
        started = time.perf_counter()
        target.copy_(source)
        module.synchronize(device)
        times.append(time.perf_counter() - started)
    return max(int(size / max(min(times), 1e-9)), 1)
