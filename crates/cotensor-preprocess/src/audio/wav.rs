//! WAV files: RIFF chunks with uncompressed samples.

use super::sound::{AudioLength, corrupt, invalid};
use cotensor_core::{Error, Result};
use std::ops::Range;

/// The longest data chunk, in bytes. A program that streams a file does not know the length and writes a larger number.
const LENGTH_MAX: usize = 1 << 30;
const PCM: u16 = 1;
const FLOAT: u16 = 3;
/// The first two bytes of the identifier at the end of the chunk are the format.
const EXTENSIBLE: u16 = 0xfffe;

/// The longest header, in bytes, of a file that arrives in parts.
pub(super) const HEADER_BYTES_MAX: usize = 1 << 20;

/// The samples of a WAV file and their format.
pub(super) struct Wav<'a> {
    format: Format,
    /// A whole number of frames.
    data: &'a [u8],
}

/// The format of samples.
#[derive(Clone, Copy)]
pub(super) struct Format {
    pub(super) encoding: Encoding,
    pub(super) channels: usize,
    pub(super) sample_rate_hz: u32,
}

/// What comes before the samples of a WAV file.
pub(super) struct Header {
    pub(super) format: Format,
    /// The offset of the samples, in bytes.
    pub(super) start: usize,
    /// The stated length of the samples, in bytes.
    length: usize,
    /// The stated length of the file without its first 8 bytes.
    file: usize,
}

/// The encoding of a sample, with its size in bytes.
#[derive(Clone, Copy)]
pub(super) enum Encoding {
    /// An integer; unsigned if it has one byte.
    Int(usize),
    Float(usize),
}

impl Encoding {
    fn bytes(self) -> usize {
        match self {
            Encoding::Int(bytes) | Encoding::Float(bytes) => bytes,
        }
    }
}

/// Whether the header is that of a WAV file.
pub(super) fn is_wav(bytes: &[u8]) -> bool {
    bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WAVE")
}

/// The error of a file that ends before its samples.
pub(super) fn without_samples() -> Error {
    corrupt("the WAV file is truncated: it has no samples")
}

impl<'a> Wav<'a> {
    /// Finds the format and the samples. A data length of 0 or past the limit means the rest of the file.
    ///
    /// # Errors
    /// `Corrupt` for an inconsistent or truncated file, `Unsupported` for another encoding.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self> {
        let header = Header::read(bytes)?.ok_or_else(without_samples)?;
        Ok(Self { format: header.format, data: &bytes[header.samples(bytes.len())?] })
    }

    pub(super) fn length(&self) -> AudioLength {
        let frames = self.data.len() / self.format.frame_bytes();
        AudioLength { sample_rate_hz: self.format.sample_rate_hz, frames: frames as u64 }
    }

    /// The `frames` frames from frame `first` on, or fewer at the end, from -1 to 1; the channels are averaged.
    pub(super) fn decode(&self, first: usize, frames: usize) -> Vec<f32> {
        let frame = self.format.frame_bytes();
        let (start, count) = (first.saturating_mul(frame).min(self.data.len()), frames.saturating_mul(frame));
        let data = &self.data[start..];
        self.format.decode(&data[..count.min(data.len())])
    }
}

impl Header {
    /// Finds the format and the samples; `None` when they are behind the end of `bytes`. A padding byte follows a chunk of
    /// odd length.
    ///
    /// # Errors
    /// As [`Wav::read`].
    pub(super) fn read(bytes: &[u8]) -> Result<Option<Self>> {
        let number = |at: usize| {
            let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk::<4>());
            bytes.map(|&bytes| u32::from_le_bytes(bytes) as usize)
        };
        let (mut format, mut at) = (None, 12);
        while let (Some(length), Some(name)) = (number(at + 4), bytes.get(at..at + 4)) {
            let start = at + 8;
            if name == b"data" {
                let format = format.ok_or_else(|| corrupt("not a WAV file: it has no format chunk"))?;
                return Ok(Some(Self { format, start, length, file: number(4).unwrap_or(0) }));
            }
            let Some(end) = start.checked_add(length).filter(|&end| end <= bytes.len()) else { return Ok(None) };
            if name == b"fmt " {
                format = Some(read_format(&bytes[start..end])?);
            }
            at = end + length % 2;
        }
        Ok(None)
    }

    /// Where the samples of a file of `file` bytes are: a whole number of frames.
    ///
    /// # Errors
    /// `Corrupt` for a truncated file.
    pub(super) fn samples(&self, file: usize) -> Result<Range<usize>> {
        let rest = file.saturating_sub(self.start);
        let length = self.bytes(file).unwrap_or(rest);
        if length > rest {
            return Err(corrupt("the WAV file is truncated"));
        }
        Ok(self.start..self.start + length - length % self.format.frame_bytes())
    }

    /// The length of the samples in a file of `file` bytes; `None` for all bytes up to the end of the file, because the
    /// program that wrote the header did not know the length.
    pub(super) fn bytes(&self, file: usize) -> Option<usize> {
        // A file with a correct RIFF length really has no samples.
        let placeholder = self.length > LENGTH_MAX || self.length == 0 && self.file.saturating_add(8) != file;
        (!placeholder).then_some(self.length)
    }
}

impl Format {
    /// The frames in `bytes`, from -1 to 1; the channels are averaged. An incomplete frame at the end is left out.
    pub(super) fn decode(&self, bytes: &[u8]) -> Vec<f32> {
        let sample = |bytes: &[u8]| match (self.encoding, bytes) {
            (Encoding::Int(1), &[byte]) => (f32::from(byte) - 128.0) / 128.0,
            (Encoding::Int(_), bytes) => {
                // The sample is in the high bytes of 32 bits.
                let mut wide = [0; 4];
                wide[4 - bytes.len()..].copy_from_slice(bytes);
                let unit = (1u64 << (8 * bytes.len() - 1)) as f32;
                (i32::from_le_bytes(wide) >> (32 - 8 * bytes.len())) as f32 / unit
            }
            (Encoding::Float(_), &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (Encoding::Float(_), bytes) => bytes.first_chunk().map_or(0.0, |&bytes| f64::from_le_bytes(bytes) as f32),
        };
        let frame =
            |frame: &[u8]| frame.chunks_exact(self.encoding.bytes()).map(sample).sum::<f32>() / self.channels as f32;
        bytes.chunks_exact(self.frame_bytes()).map(frame).collect()
    }

    /// Bytes of a sample of every channel.
    pub(super) fn frame_bytes(&self) -> usize {
        self.encoding.bytes() * self.channels
    }
}

fn read_format(chunk: &[u8]) -> Result<Format> {
    let wrong = || corrupt("not a WAV file: the format chunk is too short");
    let half =
        |at: usize| chunk.get(at..at + 2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]])).ok_or_else(wrong);
    let rate = u32::from(half(4)?) | u32::from(half(6)?) << 16;
    let (channels, block) = (usize::from(half(2)?), usize::from(half(12)?));
    let tag = match half(0)? {
        EXTENSIBLE => half(24)?,
        tag => tag,
    };
    if channels == 0 || block == 0 || !block.is_multiple_of(channels) {
        return Err(invalid(format!("{channels} channels in {block} bytes")));
    }
    let encoding = match (tag, block / channels) {
        (PCM, bytes @ 1..=4) => Encoding::Int(bytes),
        (FLOAT, bytes @ (4 | 8)) => Encoding::Float(bytes),
        (PCM | FLOAT, bytes) => return Err(invalid(format!("samples of {bytes} bytes"))),
        _ => {
            return Err(Error::unsupported(format!("WAV format {tag:#06x}: only PCM and float are supported"))
                .in_field("audio"));
        }
    };
    Ok(Format { encoding, channels, sample_rate_hz: rate })
}

#[cfg(test)]
mod tests {
    use super::super::{audio_length, decode_audio};

    /// A file of 16-bit samples with one channel at 8 kHz; `before` are chunks before the data.
    fn wav(before: &[u8], data: &[i16], riff_length: Option<u32>, data_length: Option<u32>) -> Vec<u8> {
        let data: Vec<u8> = data.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        let format =
            [&16u32.to_le_bytes()[..], &[1, 0, 1, 0], &8000u32.to_le_bytes(), &16000u32.to_le_bytes(), &[2, 0, 16, 0]];
        let mut body = [b"WAVEfmt ", &format.concat()[..], before, b"data"].concat();
        body.extend(data_length.unwrap_or(data.len() as u32).to_le_bytes());
        body.extend(data);
        let length = riff_length.unwrap_or(body.len() as u32).to_le_bytes();
        [b"RIFF", &length[..], &body].concat()
    }

    #[test]
    fn wav_chunk_of_odd_length_is_skipped_with_its_padding() {
        let odd = [b"LIST", &5u32.to_le_bytes()[..], b"hello\0"].concat();
        let audio = decode_audio(&wav(&odd, &[16384, -16384], None, None)).unwrap();
        assert_eq!((audio.sample_rate_hz, audio.samples), (8000, vec![0.5, -0.5]));
    }

    #[test]
    fn wav_with_streaming_header_is_read_to_the_end_of_the_file() {
        for (riff, data) in [(u32::MAX, u32::MAX), (0, 0), (0x7fff_f024, 0x7fff_f000)] {
            let file = wav(&[], &[16384; 5], Some(riff), Some(data));
            assert_eq!(decode_audio(&file).unwrap().samples, [0.5; 5], "{riff:#x} {data:#x}");
            // The last frame is incomplete.
            assert_eq!(decode_audio(&file[..file.len() - 1]).unwrap().samples, [0.5; 4]);
            assert_eq!(audio_length(&file).unwrap().frames, 5);
        }
        let empty = wav(&[], &[], None, None);
        assert!(decode_audio(&empty).unwrap_err().to_string().contains("0 frames"));
    }
}
