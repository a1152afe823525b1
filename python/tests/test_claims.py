"""Claims of computations: how long they wait, and for what."""

from __future__ import annotations

import threading

import pytest

import cotensor


def test_claim_waits_until_its_timeout():
    store = cotensor.Store()
    key = cotensor.content_hash("slow")
    computing = store.claim(key, "encoder")
    for timeout in (0, 0.05):
        with pytest.raises(cotensor.TimedOutError, match="encoder"):
            store.claim(key, timeout=timeout)
    with pytest.raises(cotensor.InvalidError, match="timeout"):
        store.claim(key, timeout=-1)
    computing.abandon()
    assert isinstance(store.claim(key, timeout=0), cotensor.Ticket)


def test_claim_without_timeout_waits_for_the_result():
    store = cotensor.Store()
    key = cotensor.content_hash("waits")
    computing = store.claim(key)
    found = []
    waits = threading.Thread(target=lambda: found.extend(store.claim(key)))
    waits.start()
    builder = store.empty("result", (2,), "float32")
    builder.numpy()[:] = 7
    computing.publish([builder])
    waits.join(60)
    assert found[0].numpy().tolist() == [7, 7]
