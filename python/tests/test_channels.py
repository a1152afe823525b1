"""Channels: frames of one producer for readers of other processes."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Iterator

import numpy as np
import pytest
from conftest import Daemon

import cotensor

SHAPE = (64, 80, 3)


@pytest.fixture
def stores(daemon: Daemon) -> Iterator[tuple[cotensor.Store, cotensor.Store]]:
    """A store of the producer and one of the reader."""
    with daemon.connect() as producer, daemon.connect() as reader:
        yield producer, reader


def frame(value: int) -> Any:
    return np.full(SHAPE, value, np.uint8)


def value(taken: cotensor.Frame) -> int:
    (found,) = np.unique(taken.numpy())
    return int(found)


def test_frames_reach_other_processes_without_a_copy(stores: Any) -> None:
    producer, other = stores
    with producer.channel("camera", SHAPE, np.uint8) as channel:
        reader = other.read_channel("camera", policy="queue")
        assert (channel.name, channel.shape, channel.dtype, channel.nbytes) == ("camera", SHAPE, "uint8", 64 * 80 * 3)
        assert (reader.name, reader.shape, reader.dtype) == ("camera", SHAPE, "uint8")
        assert reader.try_get() is None
        assert [channel.put(frame(number)) for number in (1, 2)] == [1, 2]
        first, second = reader.get(), reader.get()
        assert [(value(one), one.number, one.lost) for one in (first, second)] == [(1, 1, 0), (2, 2, 0)]
        assert not first.numpy().flags.writeable
        assert first.age < 60
        with pytest.raises(cotensor.TimedOutError, match="camera"):
            reader.get(timeout=0.01)
        (listed,) = other.channels()
        assert (listed["name"], listed["frames"], listed["open_readers"]) == ("camera", 2, 1)
    with pytest.raises(cotensor.ConflictError, match="closed"):
        reader.get()
    with pytest.raises(cotensor.ConflictError, match="closed"):
        channel.put(frame(3))
    assert value(second) == 2


def test_newest_frame_is_taken_and_the_others_are_counted(stores: Any) -> None:
    producer, other = stores
    channel = producer.channel("camera", SHAPE, "uint8", slots=3)
    channel.put(frame(1))
    newest, queue = other.read_channel("camera"), other.read_channel("camera", policy="queue")
    assert value(newest.get()) == 1
    for number in range(2, 8):
        channel.put(frame(number))
    taken = newest.get()
    assert (value(taken), taken.lost, newest.lost) == (7, 5, 5)
    assert [value(queue.get()) for _ in range(3)] == [5, 6, 7]
    assert queue.lost == 4


def test_arrays_that_are_held_keep_their_bytes(stores: Any) -> None:
    producer, other = stores
    channel = producer.channel("camera", SHAPE, "uint8", holds=3)
    reader = other.read_channel("camera", policy="queue")
    held = []
    for number in range(3):
        channel.put(frame(number))
        held.append(reader.get().numpy())
    for number in range(3, 60):
        channel.put(frame(number))
    assert [np.unique(array).tolist() for array in held] == [[0], [1], [2]]
    with pytest.raises(cotensor.OverBudgetError, match="holds 3 frames"):
        reader.get()
    del held[0]
    assert value(reader.get()) == 56
    # Closing the reader keeps what it took.
    reader.close()
    for number in range(60, 90):
        channel.put(frame(number))
    assert [np.unique(array).tolist() for array in held] == [[1], [2]]
    with pytest.raises(cotensor.ConflictError, match="closed"):
        reader.get()


@pytest.mark.parametrize("as_array", [np.asarray, lambda loan: loan.numpy(), lambda loan: np.from_dlpack(loan)])
def test_array_of_a_loan_does_not_write_the_published_frame(stores: Any, as_array: Any) -> None:
    producer, other = stores
    channel, reader = producer.channel("camera", SHAPE, "uint8"), None
    reader = other.read_channel("camera", policy="queue")
    for number in range(20):
        with channel.loan() as loan:
            array = as_array(loan)
            array[...] = number
        taken = reader.get()
        array[...] = 255
        assert value(taken) == number, "the array that is left shows memory of its own"
    with channel.loan() as loan:
        loan.numpy()[...] = 42
    assert value(reader.get()) == 42
    with pytest.raises(RuntimeError, match="stop"):
        with channel.loan():
            raise RuntimeError("stop")
    assert channel.newest == 21, "a loan of a block with an exception is discarded"
    loan = channel.loan()
    loan.discard()
    with pytest.raises(cotensor.ConflictError, match="discarded"):
        loan.publish()
    loans = [channel.loan() for _ in range(2)]
    del array
    loans.append(channel.loan())
    with pytest.raises(cotensor.ConflictError, match="3 frames are loaned"):
        channel.loan()


def test_loan_that_could_not_be_copied_can_be_published_later(stores: Any) -> None:
    producer, other = stores
    channel = producer.channel("camera", SHAPE, "uint8")
    arrays = []
    for number in range(3):
        loan = channel.loan()
        arrays.append(loan.numpy())
        arrays[-1][...] = number
        if number < 2:
            assert loan.publish() == number + 1
    with pytest.raises(cotensor.ConflictError, match="3 frames are loaned"):
        loan.publish()
    assert channel.newest == 2
    del arrays[-1]
    assert loan.publish() == 3
    assert value(other.read_channel("camera").get()) == 2


def test_wrong_arguments_name_their_field(stores: Any, daemon: Daemon) -> None:
    producer, other = stores
    channel = producer.channel("camera", (2, 3))
    assert channel.dtype == "float32"
    for array in (np.zeros(3), np.zeros((2, 3)), np.zeros((3, 2), np.float32)):
        with pytest.raises(cotensor.InvalidError, match="camera"):
            channel.put(array)
    # Rows that are not adjacent.
    channel.put(np.ones((3, 2), np.float32).T)
    assert other.read_channel("camera").get().numpy().tolist() == [[1, 1, 1], [1, 1, 1]]
    with pytest.raises(cotensor.ConflictError, match="belongs to"):
        other.channel("camera", (2, 3))
    with pytest.raises(cotensor.InvalidError, match="shape"):
        other.channel("empty", (0, 3))
    with pytest.raises(cotensor.InvalidError, match="slots"):
        other.channel("none", 3, slots=0)
    with pytest.raises(cotensor.InvalidError, match="policy"):
        other.read_channel("camera", policy="oldest")  # type: ignore[arg-type]
    with pytest.raises(cotensor.NotFoundError, match="missing"):
        other.read_channel("missing", timeout=0.05)
    with pytest.raises(cotensor.UnsupportedError, match="connect"):
        cotensor.Store().channel("camera", 3)
    with pytest.raises(cotensor.UnsupportedError, match="read_channel"):
        pickle.dumps(channel)


def test_reader_waits_for_the_producer_to_open(stores: Any) -> None:
    producer, other = stores
    channel: list[Any] = []
    late = threading.Timer(0.2, lambda: channel.append(producer.channel("late", 3)))
    late.start()
    reader = other.read_channel("late", timeout=30)
    late.join()
    channel[0].put(np.ones(3, np.float32))
    assert reader.get(timeout=30).numpy().tolist() == [1, 1, 1]


def test_iteration_ends_with_the_channel(stores: Any) -> None:
    producer, other = stores
    channel, reader = producer.channel("camera", 1, "int64"), other.read_channel("camera", policy="queue")

    def produce() -> None:
        for number in range(100):
            channel.put(np.array([number]))
            while other.channels()[0]["frames"] - taken[-1] > 2:
                time.sleep(0.001)
        channel.close()

    taken = [0]
    thread = threading.Thread(target=produce)
    thread.start()
    for one in reader:
        assert one.numpy()[0] == one.number - 1
        taken.append(one.number)
    thread.join()
    assert taken == list(range(101)) and reader.lost == 0 and not reader.is_open()


def test_asyncio_waits_for_frames(stores: Any) -> None:
    producer, other = stores
    channel, reader = producer.channel("camera", 1, "int64", slots=64), other.read_channel("camera", policy="queue")

    async def read() -> list[int]:
        numbers = []
        async for one in reader:
            numbers.append(one.number)
            del one
            if len(numbers) == 50:
                channel.close()
        return numbers

    async def program() -> list[int]:
        reading = asyncio.ensure_future(read())
        for number in range(50):
            await asyncio.sleep(0.001 if number % 7 else 0.02)
            channel.put(np.array([number]))
        return await asyncio.wait_for(reading, 60)

    assert asyncio.run(program()) == list(range(1, 51))


def test_tasks_share_a_reader_and_leave_other_tasks_their_turn(stores: Any) -> None:
    producer, other = stores
    channel, reader = producer.channel("camera", 1, "int64", slots=64), other.read_channel("camera", policy="queue")
    taken: list[int] = []

    async def read() -> None:
        async for one in reader:
            taken.append(one.number)
            del one

    async def turns() -> int:
        count = 0
        while len(taken) < 50:
            count += 1
            await asyncio.sleep(0)
        return count

    async def program() -> None:
        # All frames are there.
        for number in range(50):
            channel.put(np.array([number]))
        reading = asyncio.ensure_future(read())
        assert await turns() > 20
        # Two tasks wait.
        both = [reading, asyncio.ensure_future(read())]
        for number in range(50):
            await asyncio.sleep(0.002)
            channel.put(np.array([number]))
        channel.close()
        await asyncio.wait_for(asyncio.gather(*both), 60)

    asyncio.run(program())
    assert sorted(taken) == list(range(1, 101))


def test_closing_a_reader_ends_its_waits(stores: Any) -> None:
    producer, other = stores
    channel, reader = producer.channel("camera", 1, readers=1), other.read_channel("camera")

    async def read() -> None:
        async for one in reader:
            del one

    async def program() -> None:
        tasks = [asyncio.ensure_future(read()) for _ in range(2)]
        await asyncio.sleep(0.05)
        reader.close()
        for ended in await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60):
            assert isinstance(ended, cotensor.ConflictError) and "closed" in str(ended)

    asyncio.run(program())
    # Its page is free at once.
    reader = other.read_channel("camera")
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            reader.get(timeout=60)
        except cotensor.ConflictError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    reader.close()
    waiting.join()
    assert "closed" in str(errors[0])
    channel.put(np.ones(1, np.float32))
    assert other.read_channel("camera").get().number == 1


def test_channel_object_that_is_replaced_leaves_its_name_alone(stores: Any) -> None:
    producer, other = stores
    for _ in range(3):
        # The former object is dropped after the new one was made.
        channel = producer.channel("camera", 3)
        reader = other.read_channel("camera")
        with channel.loan() as loan:
            array = loan.numpy()
        assert reader.get().number == 1
        channel.close()
    loan = producer.channel("second", 3).loan()
    array = loan.numpy()
    reader = other.read_channel("second")
    assert loan.publish() == 1
    del loan
    assert array.size == 3 and reader.get().number == 1
    with pytest.raises(cotensor.ConflictError, match="closed"):
        reader.get(timeout=60)


FORKED_PRODUCER = """
import os, sys, time
import cotensor
store = cotensor.connect(sys.argv[1], autostart=False)
channel = store.channel("camera", 3)
if os.fork() == 0:
    time.sleep(1000)
print(os.getpid(), flush=True)
time.sleep(1000)
"""


def test_forked_child_of_a_dead_producer_does_not_keep_its_name(daemon: Daemon) -> None:
    with daemon.connect() as store:
        command = [sys.executable, "-c", FORKED_PRODUCER, str(daemon.socket)]
        producer = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        try:
            assert producer.stdout is not None and int(producer.stdout.readline()) == producer.pid
            reader = store.read_channel("camera")
            producer.kill()
            producer.wait()
            with pytest.raises(cotensor.IoError, match="has ended without closing it"):
                reader.get(timeout=60)
            channel = store.channel("camera", 3)
            channel.put(np.ones(3, np.float32))
            assert store.read_channel("camera").get().number == 1
        finally:
            os.killpg(producer.pid, signal.SIGKILL)
            producer.stdout.close()


PRODUCER = """
import itertools, sys
import numpy as np
import cotensor
store = cotensor.connect(sys.argv[1], autostart=False)
channel = store.channel("camera", (64, 80, 3), "uint8")
print("ready", flush=True)
for number in itertools.count():
    channel.put(np.full((64, 80, 3), number % 256, np.uint8))
"""


def test_death_of_the_producer_is_an_error(daemon: Daemon) -> None:
    with daemon.connect() as store:
        producer = subprocess.Popen([sys.executable, "-c", PRODUCER, str(daemon.socket)], stdout=subprocess.PIPE, text=True)
        assert producer.stdout is not None and producer.stdout.readline() == "ready\n"
        reader = store.read_channel("camera")
        for _ in range(20):
            assert reader.get(timeout=60).numpy().shape == SHAPE
        producer.kill()
        producer.wait()
        with pytest.raises(cotensor.IoError, match="has ended without closing it"):
            for _ in range(1000):
                reader.get(timeout=60)

        async def read() -> None:
            async for one in reader:
                del one

        with pytest.raises(cotensor.IoError, match="has ended without closing it"):
            asyncio.run(read())
        producer.stdout.close()


def test_wait_for_a_frame_is_interrupted(stores: Any) -> None:
    producer, other = stores
    producer_channel, reader = producer.channel("camera", 1), other.read_channel("camera")
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        reader.get(timeout=60)
    timer.join()
    producer_channel.put(np.ones(1, np.float32))
    assert reader.get(timeout=60).numpy()[0] == 1


def test_forked_child_leaves_the_channel_alone(stores: Any) -> None:
    producer, other = stores
    channel, reader = producer.channel("camera", SHAPE, "uint8"), other.read_channel("camera", policy="queue")
    channel.put(frame(7))
    held = reader.get()
    child = os.fork()
    if child == 0:
        refused = 0
        for attempt in (lambda: channel.put(frame(1)), reader.try_get, channel.loan, channel.close):
            try:
                attempt()
            except cotensor.ConflictError:
                refused += 1
        # Objects of the parent are dropped here.
        del held, channel, reader
        os._exit(0 if refused == 4 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for number in range(8, 40):
        channel.put(frame(number))
    assert value(held) == 7
    assert value(reader.get()) == 36


def test_forked_child_does_not_keep_the_page_of_a_closed_reader(stores: Any) -> None:
    producer, other = stores
    channel = producer.channel("camera", SHAPE, "uint8", readers=1)
    reader = other.read_channel("camera")
    end, other_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(other_end)
        os.read(end, 1)
        os._exit(0)
    reader.close()
    try:
        other.read_channel("camera").close()
        channel.put(frame(1))
    finally:
        os.close(other_end)
        os.close(end)
        os.waitpid(child, 0)
