"""A channel of iceoryx2 (https://pypi.org/project/iceoryx2) in one process: a peer of sizes.py, if it is installed."""

from __future__ import annotations

import ctypes
import os
from typing import Callable, Optional

import numpy as np


def iceoryx_channel() -> Optional[Callable[[np.ndarray], Callable[[], object]]]:
    """Makes, for an array, the function that loans memory, copies into it, sends and receives. None without iceoryx2."""
    try:
        import iceoryx2
    except ImportError:
        return None
    iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
    node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)

    def of(array: np.ndarray) -> Callable[[], object]:
        size = array.nbytes
        name = iceoryx2.ServiceName.new(f"cotensor bench {os.getpid()} {size}")
        service = node.service_builder(name).publish_subscribe(iceoryx2.Slice[ctypes.c_uint8])
        # Its memory is as many samples as may be in use at a time.
        service = service.subscriber_max_buffer_size(1).subscriber_max_borrowed_samples(1).history_size(0)
        service = service.open_or_create()
        publisher = service.publisher_builder().initial_max_slice_len(size).max_loaned_samples(1).create()
        subscriber = service.subscriber_builder().create()

        def run() -> object:
            loaned = publisher.loan_slice_uninit(size)
            ctypes.memmove(loaned.payload().as_ptr(), array.ctypes.data, size)
            loaned.assume_init().send()
            received = subscriber.receive()
            assert received is not None, "the sample was lost"
            return received

        return run

    return of
