//! WAV files: RIFF chunks with uncompressed samples.

use super::sound::{AudioLength, corrupt, invalid};
use cotensor_core::{Error, Result};

/// The longest data chunk, in bytes. A program that streams a file does not know the length and writes a larger number.
const LENGTH_MAX: usize = 1 << 30;
const PCM: u16 = 1;
const FLOAT: u16 = 3;
/// The first two bytes of the identifier at the end of the chunk are the format.
const EXTENSIBLE: u16 = 0xfffe;

/// The samples of a WAV file and their format.
pub(super) struct Wav<'a> {
    encoding: Encoding,
    channels: usize,
    sample_rate_hz: u32,
    /// A whole number of frames.
    data: &'a [u8],
}

/// The encoding of a sample, with its size in bytes.
#[derive(Clone, Copy)]
enum Encoding {
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

impl<'a> Wav<'a> {
    /// Finds the format and the samples. A padding byte follows a chunk of odd length. A data length of 0 or past the
    /// limit means the rest of the file.
    ///
    /// # Errors
    /// `Corrupt` for an inconsistent or truncated file, `Unsupported` for another encoding.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self> {
        let (mut format, mut rest) = (None, bytes.get(12..).unwrap_or_default());
        while let Some((header, body)) = rest.split_first_chunk::<8>() {
            let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
            if header.starts_with(b"data") {
                let (encoding, channels, sample_rate_hz) =
                    format.ok_or_else(|| corrupt("not a WAV file: it has no format chunk"))?;
                let data = samples(bytes, body, length)?;
                let frame = Encoding::bytes(encoding) * channels;
                let data = &data[..data.len() - data.len() % frame];
                return Ok(Self { encoding, channels, sample_rate_hz, data });
            }
            let chunk = body.get(..length).ok_or_else(|| corrupt("the WAV file is truncated"))?;
            if header.starts_with(b"fmt ") {
                format = Some(read_format(chunk)?);
            }
            rest = body.get(length + length % 2..).unwrap_or_default();
        }
        Err(corrupt("not a WAV file: it has no samples"))
    }

    pub(super) fn length(&self) -> AudioLength {
        let frames = self.data.len() / self.frame_bytes();
        AudioLength { sample_rate_hz: self.sample_rate_hz, frames: frames as u64 }
    }

    /// The first `frames` frames, from -1 to 1; the channels are averaged.
    pub(super) fn decode(&self, frames: usize) -> Vec<f32> {
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
        self.data.chunks_exact(self.frame_bytes()).take(frames).map(frame).collect()
    }

    fn frame_bytes(&self) -> usize {
        self.encoding.bytes() * self.channels
    }
}

/// The bytes of a data chunk whose header states `length`. `body` follows the header.
fn samples<'a>(file: &[u8], body: &'a [u8], length: usize) -> Result<&'a [u8]> {
    let said = file.get(4..8).map_or(0, |said| u32::from_le_bytes([said[0], said[1], said[2], said[3]]) as usize);
    // A file with a correct RIFF length really has no samples.
    let placeholder = length > LENGTH_MAX || length == 0 && said.saturating_add(8) != file.len();
    if placeholder {
        return Ok(body);
    }
    body.get(..length).ok_or_else(|| corrupt("the WAV file is truncated"))
}

fn read_format(chunk: &[u8]) -> Result<(Encoding, usize, u32)> {
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
    Ok((encoding, channels, rate))
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
