"""Writes arrays in place for test_torch_array_inplace.py. Forks a child for each input line "HOW SIZE", which waits for "end"."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import warnings
from typing import Any, Callable

import numpy as np
import torch

import cotensor

# torch accepts read-only arrays with a warning.
warnings.simplefilter("ignore")


def write(made: Any, array: Any) -> None:
    torch.from_numpy(made).add_(41)
    assert (made == array + 41).all(), "the writer reads its own writes"


def forked(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as failure:
            os.write(2, f"{type(failure).__name__}: {failure}\n".encode())
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def write_in_child(how: str, size: int) -> None:
    store = cotensor.connect(sys.argv[1]) if sys.argv[1] else cotensor.Store()
    array = np.arange(size // 8)
    put = store.get("x") if how == "of-another" else store.put("x", array)
    if how == "put":
        write(put.numpy(), array)
        assert put.private_bytes > 0
    elif how == "get":
        write(store.get("x").numpy(), array)
    elif how == "asarray":
        write(np.asarray(put), array)
    elif how == "window":
        part = put[1:].numpy()
        torch.from_numpy(part).zero_()
        assert not part.any()
    elif how == "address":
        made = store.get("x").numpy()
        ctypes.memset(put.data_ptr, 255, size)
        ctypes.memset(made.ctypes.data, 255, size)
        assert put.numpy().tobytes() == made.tobytes() == b"\xff" * size
    elif how == "dlpack":
        torch.from_dlpack(put).add_(41)
    elif how == "inherited":
        made = put.numpy()
        assert forked(lambda: write(made, array)) == 0
        assert (made == array).all(), "writes of a child are private to it"
    elif how == "in-a-child":
        assert forked(lambda: write(put.numpy(), array)) == 0
        assert forked(lambda: write(put.torch().numpy(), array)) == 0
        assert (put.numpy() == array).all(), "writes of a child are private to it"
    elif how == "of-another":
        write(put.numpy(), array)
        write(store.get("x").torch().numpy(), array)
    else:
        raise SystemExit(how)
    assert (store.get("x").numpy() == array).all(), "writes are private to one tensor object"
    assert put.tobytes() == array.tobytes(), "the published bytes are unchanged"
    print("unharmed", flush=True)
    assert sys.stdin.readline() == "end\n"


if __name__ == "__main__":
    while line := sys.stdin.readline():
        how, size = line.split()
        print("ended", forked(functools.partial(write_in_child, how, int(size))), flush=True)
