"""Names of devices that are equal in all programs."""

from __future__ import annotations

from typing import Any, Optional

import torch

from .simulated.device import simulated_name


def identity(device: torch.device) -> Optional[str]:
    """The name of a device; None if it has none."""
    if device.type == "simulated":
        name = simulated_name(device)
        return None if name is None else f"simulated:{name}"
    module: Any = torch.get_device_module(device)
    properties = module.get_device_properties(device) if hasattr(module, "get_device_properties") else None
    uuid = getattr(properties, "uuid", None)
    return None if uuid is None else f"{device.type}:{uuid}"
