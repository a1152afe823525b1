"""Speech that is transcribed while it plays, with the tiny models of fixtures/."""

from __future__ import annotations

import asyncio
import io
import wave
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from conftest import REPOSITORY  # noqa: E402

import cotensor  # noqa: E402
from cotensor.pool import ResourcePoolBridgeIntegration  # noqa: E402
from cotensor.streaming import StreamingProcessor  # noqa: E402

WHISPER = REPOSITORY / "fixtures" / "sounds" / "whisper"
BERT = REPOSITORY / "fixtures" / "tiny" / "bert"


def clip(seconds: float) -> Any:
    """int16 samples at 8 kHz."""
    with wave.open(str(REPOSITORY / "fixtures" / "media" / "speech.wav")) as file:
        file.setpos(20_000)
        return np.frombuffer(file.readframes(int(8000 * seconds)), "<i2")


def processed(processor: StreamingProcessor, samples: Any, size: int) -> list[dict[str, Any]]:
    results = [processor.process_audio_with_transcription(samples[at : at + size]) for at in range(0, len(samples), size)]
    last = processor.finish()
    assert last["summary"]["seconds"] == len(samples) / 8000
    return [segment for result in [*results, last] for segment in result["segments"]]


def test_results_do_not_depend_on_the_chunks() -> None:
    samples = clip(7)
    segments = processed(cotensor.StreamingProcessor(WHISPER, BERT), samples, len(samples))
    assert len(segments) >= 2 and all(segment["text"] and segment["answer"]["type"] == "embedding" for segment in segments)
    assert processed(StreamingProcessor(WHISPER, BERT), samples.astype("float64") / 32768, 777) == segments
    alone = StreamingProcessor(audio_model=WHISPER, text_model=None, use_shared_tensors=False)
    texts = [segment["text"] for segment in processed(alone, samples, 5000)]
    assert texts == [segment["text"] for segment in segments]


def test_models_of_a_pool_and_the_documented_calls() -> None:
    pool = ResourcePoolBridgeIntegration(models=REPOSITORY / "fixtures")
    whisper = asyncio.run(pool.get_model("audio", "sounds/whisper"))
    bert = asyncio.run(pool.get_model("text", "tiny/bert"))
    processor = StreamingProcessor(audio_model=whisper, text_model=bert, use_shared_tensors=True, window=1.0)
    shown: list[dict[str, Any]] = []

    @processor.on_audio_chunk
    def update(chunk: Any) -> None:
        shown.extend(processor.process_audio_with_transcription(chunk)["segments"])

    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(8000)
        writer.writeframes(clip(7).tobytes())
    file.seek(0)
    rest = processor.run(file)
    assert shown and rest["summary"]["segments"] == len(shown) + len(rest["segments"])
    assert "StreamingProcessor" in repr(processor)


def test_sources(tmp_path: Any) -> None:
    raw = tmp_path / "speech.raw"
    raw.write_bytes(clip(3).tobytes())
    by_path = StreamingProcessor(WHISPER).run(raw, format="s16le", rate=8000)
    assert by_path["text"] and by_path["summary"]["seconds"] == 3
    samples = clip(3)
    by_chunks = StreamingProcessor(WHISPER).run(samples[at : at + 999] for at in range(0, len(samples), 999))
    assert by_chunks["segments"] == by_path["segments"]


def test_wrong_sounds_and_arguments_are_refused(tmp_path: Any) -> None:
    processor = StreamingProcessor(WHISPER)
    for wrong in (np.zeros((2, 2), "float32"), np.zeros(3, "int64"), np.array([np.nan], "float32"), "text"):
        with pytest.raises(cotensor.InvalidError):
            processor.process_audio_with_transcription(wrong)
    with pytest.raises(cotensor.InvalidError, match="empty"):
        processor.finish()
    cut = tmp_path / "cut.wav"
    cut.write_bytes(b"RIFF\0\0\0\0WAVE")
    with pytest.raises(cotensor.CorruptError):
        StreamingProcessor(WHISPER).run(cut)
    for options in ({"format": "mp3"}, {"format": "s16le", "rate": 0}, {"format": "s16le"}):
        with pytest.raises(cotensor.InvalidError):
            StreamingProcessor(WHISPER).run(io.BytesIO(b"\0" * 64), **options)
    with pytest.raises(cotensor.InvalidError):
        StreamingProcessor(3)  # type: ignore[arg-type]
    with pytest.raises(cotensor.InvalidError):
        StreamingProcessor(BERT)
    with pytest.raises(cotensor.InvalidError):
        StreamingProcessor(WHISPER, sample_rate=0)
    with pytest.raises(cotensor.InvalidError):
        StreamingProcessor(WHISPER, window=9.0)
