"""Waits that take long are logged with the awaited process."""

from __future__ import annotations

import asyncio
import logging
import queue
import re
import signal
import threading

import pytest
from functions_common import program, providing, stop_process

import cotensor
from cotensor.async_client import AsyncSharedTensorClient
from cotensor.client import SharedTensorClient
from cotensor.functions import retries

FUNCTIONS = """
@provider.share(name="waits.echo")
def echo(x):
    return x

@provider.share(name="waits.nap")
def nap():
    while not check_cancelled():
        time.sleep(0.01)
"""

CLAIMS = """
import sys, cotensor
store = cotensor.connect(sys.argv[1], client="claims")
ticket = store.claim(cotensor.content_hash("waits"))
print("claimed", flush=True)
sys.stdin.read()
import time
time.sleep(3600)
"""


@pytest.fixture
def reports():
    """The records of "cotensor.waiting", in a queue."""
    records: "queue.Queue[logging.LogRecord]" = queue.Queue()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.put(record)

    logger, handler = logging.getLogger("cotensor.waiting"), Handler()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield records
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def test_wait_for_a_stopped_provider_is_a_warning(daemon, reports):
    with providing(daemon.socket, FUNCTIONS) as provider:
        pid = provider.process.pid
        expected = rf"waiting for process {pid} \(python\S*\), the provider \S+\[{pid}\], to run waits\.echo; "
        expected += rf"process {pid} is stopped: `kill -CONT {pid}` continues it"
        with SharedTensorClient(socket=daemon.socket, timeout=60) as client:
            assert client.call_function("waits.echo", [1]) == 1
            stop_process(provider.process.pid)
            results = []
            waiting = threading.Thread(target=lambda: results.append(client.call_function("waits.echo", [2])))
            waiting.start()
            record = reports.get(timeout=60)
            provider.signal(signal.SIGCONT)
            waiting.join(60)
            assert results == [2]
        assert record.levelno == logging.WARNING and re.fullmatch(expected, record.getMessage()), record.getMessage()

        async def call():
            async with AsyncSharedTensorClient(socket=daemon.socket, timeout=60) as client:
                assert await client.call_function("waits.echo", [3]) == 3
                stop_process(provider.process.pid)
                waiting = asyncio.ensure_future(client.call_function("waits.echo", [4]))
                record = await asyncio.get_running_loop().run_in_executor(None, lambda: reports.get(timeout=60))
                provider.signal(signal.SIGCONT)
                assert await waiting == 4
                return record

        record = asyncio.run(call())
        assert record.levelno == logging.WARNING and re.fullmatch(expected, record.getMessage()), record.getMessage()


def test_wait_for_a_running_function_is_information(daemon, reports):
    with providing(daemon.socket, FUNCTIONS) as provider, SharedTensorClient(socket=daemon.socket) as client:
        pid = provider.process.pid
        with pytest.raises(cotensor.TimedOutError):
            client.call_function("waits.nap", timeout=3)
        record = reports.get(timeout=60)
        text = record.getMessage()
        assert record.levelno == logging.INFO and text.endswith(f"[{pid}], to run waits.nap"), text


def test_wait_for_the_claim_of_a_stopped_process_is_a_warning(daemon, reports):
    store = daemon.connect()
    with program(CLAIMS, str(daemon.socket)) as claims:
        assert claims.line() == "claimed"
        stop_process(claims.process.pid)
        key, found = cotensor.content_hash("waits"), []
        waiting = threading.Thread(target=lambda: found.append(store.claim(key)))
        waiting.start()
        record, pid = reports.get(timeout=60), claims.process.pid
        expected = rf"waiting for process {pid} \(python\S*\), claims\[{pid}\].*, which computes {key[:12]}; "
        expected += f"process {pid} is stopped"
        assert record.levelno == logging.WARNING and re.match(expected, record.getMessage()), record.getMessage()
    waiting.join(60)
    assert isinstance(found[0], cotensor.Ticket), "the claim passes to the waiting process"


def test_repeated_attempts_are_warnings(daemon, reports, monkeypatch):
    monkeypatch.setattr(retries, "PAUSE", 2.0)
    with SharedTensorClient(socket=daemon.socket, retry_count=1, timeout=60) as client:
        with pytest.raises(cotensor.NotFoundError):
            client.call_function("waits.nobody")
    record = reports.get(timeout=60)
    assert record.levelno == logging.WARNING and "waits.nobody" in record.getMessage(), record.getMessage()
