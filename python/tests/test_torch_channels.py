"""Frames of channels as tensors of torch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


def test_frames_are_tensors_of_torch(daemon: Any) -> None:
    with daemon.connect() as producer, daemon.connect() as other:
        # A dtype that numpy does not have.
        channel = producer.channel("activations", (3, 5), "bfloat16", holds=3)
        reader = other.read_channel("activations", policy="queue")
        source = torch.arange(15, dtype=torch.bfloat16).reshape(3, 5)
        channel.put(source)
        channel.put(source.t().contiguous().t())
        with channel.loan() as loan:
            loan.torch()[...] = 7
        frames = [reader.get() for _ in range(3)]
        shown = [frame.torch() for frame in frames]
        assert [one.dtype for one in shown] == [torch.bfloat16] * 3
        assert torch.equal(shown[0], source) and torch.equal(shown[1], source)
        assert torch.equal(shown[2], torch.full((3, 5), 7, dtype=torch.bfloat16))
        # The tensors hold the frames, whose memory is not used again meanwhile.
        del frames
        for number in range(40):
            channel.put(torch.full((3, 5), number, dtype=torch.bfloat16))
        assert torch.equal(shown[0], source) and torch.equal(shown[1], source)


def test_writes_to_tensors_of_frames_are_private(daemon: Any) -> None:
    with daemon.connect() as producer, daemon.connect() as one, daemon.connect() as other:
        channel = producer.channel("images", (2, 3, 32, 32), "float32")
        readers = [store.read_channel("images") for store in (one, other)]
        channel.put(torch.ones(2, 3, 32, 32))
        mine, theirs = (reader.get() for reader in readers)
        mine.torch().mul_(5)
        assert bool((mine.torch() == 5).all()) and bool((theirs.torch() == 1).all())
        with channel.loan() as loan:
            written = loan.torch()
            written.copy_(theirs.torch())
        written.fill_(9)
        assert bool((readers[1].get().torch() == 1).all()), "the published frame is not written"
