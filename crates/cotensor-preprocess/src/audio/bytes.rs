//! Sounds that arrive as bytes: raw samples, or a WAV file.

use super::sound::{RATES_HZ, corrupt, invalid};
use super::wav::{Encoding, Format, HEADER_BYTES_MAX, Header, is_wav, without_samples};
use cotensor_core::{Error, Result};

/// The format of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteFormat {
    /// 16-bit integers, little-endian, one channel, at this rate in Hz.
    S16le(u32),
    /// 32-bit floating-point numbers, little-endian, one channel, at this rate in Hz.
    F32le(u32),
    /// A WAV file, whose header states the rate.
    Wav,
}

impl ByteFormat {
    /// The names of the formats.
    pub const NAMES: [&'static str; 3] = ["s16le", "f32le", "wav"];

    /// The format of this name. `rate_hz` is the rate of raw samples; a WAV file has its own.
    ///
    /// # Errors
    /// `Invalid` for another name, for raw samples without a supported rate, and for a WAV file with a rate.
    pub fn parse(name: &str, rate_hz: Option<u32>) -> Result<Self> {
        let rate = || {
            let rate = rate_hz.ok_or_else(|| Error::invalid("raw samples need a rate").in_field("rate"))?;
            let message = || format!("{rate} Hz; {} to {} Hz are supported", RATES_HZ.start(), RATES_HZ.end());
            if RATES_HZ.contains(&rate) { Ok(rate) } else { Err(Error::invalid(message()).in_field("rate")) }
        };
        match name {
            "s16le" => rate().map(Self::S16le),
            "f32le" => rate().map(Self::F32le),
            "wav" if rate_hz.is_some() => Err(Error::invalid("a WAV file has its own rate").in_field("rate")),
            "wav" => Ok(Self::Wav),
            _ => {
                let message = format!("{name:?} is not known; known: {}", Self::NAMES.join(", "));
                Err(Error::invalid(message).in_field("format"))
            }
        }
    }
}

/// Turns bytes into samples as they arrive. The memory is that of a WAV header.
pub struct AudioBytes {
    /// `None` before the end of a WAV header.
    format: Option<Format>,
    /// Bytes of the header, or of an incomplete frame.
    rest: Vec<u8>,
    /// The bytes of samples that are still to come; `None` for all up to the end.
    remaining: Option<usize>,
}

impl AudioBytes {
    /// Reads bytes of this format.
    pub fn new(format: ByteFormat) -> Self {
        let raw = |encoding, sample_rate_hz| Some(Format { encoding, channels: 1, sample_rate_hz });
        let format = match format {
            ByteFormat::S16le(rate) => raw(Encoding::Int(2), rate),
            ByteFormat::F32le(rate) => raw(Encoding::Float(4), rate),
            ByteFormat::Wav => None,
        };
        Self { format, rest: Vec::new(), remaining: None }
    }

    /// Samples per second, when it is known.
    pub fn sample_rate_hz(&self) -> Option<u32> {
        self.format.map(|format| format.sample_rate_hz)
    }

    /// Adds bytes and returns their samples, from -1 to 1, the channels averaged. What follows the samples of a WAV file is
    /// left out.
    ///
    /// # Errors
    /// `Corrupt` for something else than a WAV file, `Invalid` for an unsupported rate, `Unsupported` for another encoding.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<f32>> {
        self.rest.extend_from_slice(bytes);
        let format = match self.format {
            Some(format) => format,
            None => match self.header()? {
                Some(format) => format,
                None => return Ok(Vec::new()),
            },
        };
        let known = self.rest.len().min(self.remaining.unwrap_or(usize::MAX));
        let whole = known - known % format.frame_bytes();
        let samples = format.decode(&self.rest[..whole]);
        self.rest.drain(..whole);
        if let Some(remaining) = &mut self.remaining {
            *remaining -= whole;
            if *remaining < format.frame_bytes() {
                (*remaining, self.rest) = (0, Vec::new());
            }
        }
        Ok(samples)
    }

    /// Checks that the sound is whole.
    ///
    /// # Errors
    /// `Corrupt` for an incomplete header, or for fewer samples than the header states.
    pub fn finish(self) -> Result<()> {
        match (self.format, self.remaining) {
            (None, _) => Err(without_samples()),
            (_, Some(missing)) if missing > 0 => {
                Err(corrupt(&format!("the WAV file is truncated: {missing} bytes of samples are missing")))
            }
            _ => Ok(()),
        }
    }

    fn header(&mut self) -> Result<Option<Format>> {
        if self.rest.len() >= 12 && !is_wav(&self.rest) {
            return Err(corrupt("not a WAV file"));
        }
        let Some(header) = Header::read(&self.rest)? else {
            let message = || format!("a WAV header of more than {HEADER_BYTES_MAX} bytes");
            return if self.rest.len() > HEADER_BYTES_MAX { Err(invalid(message())) } else { Ok(None) };
        };
        if !RATES_HZ.contains(&header.format.sample_rate_hz) {
            return Err(invalid(format!("{} Hz", header.format.sample_rate_hz)));
        }
        // A header that says nothing comes after it has no samples.
        self.remaining = header.bytes(header.start);
        self.rest.drain(..header.start);
        self.format = Some(header.format);
        Ok(self.format)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wav(rate: u32, data: &[i16], stated: u32) -> Vec<u8> {
        let data: Vec<u8> = data.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        let format =
            [&16u32.to_le_bytes()[..], &[1, 0, 1, 0], &rate.to_le_bytes(), &(2 * rate).to_le_bytes(), &[2, 0, 16, 0]];
        let before = [b"LIST", &5u32.to_le_bytes()[..], b"hello\0"].concat();
        let body = [b"WAVEfmt ", &format.concat()[..], &before, b"data", &stated.to_le_bytes()[..], &data].concat();
        [b"RIFF", &u32::MAX.to_le_bytes()[..], &body].concat()
    }

    fn read(format: ByteFormat, bytes: &[u8], part: usize) -> Result<Vec<f32>> {
        let mut reader = AudioBytes::new(format);
        let mut samples = Vec::new();
        for part in bytes.chunks(part) {
            samples.extend(reader.push(part)?);
        }
        reader.finish()?;
        Ok(samples)
    }

    #[test]
    fn parts_of_any_size_give_the_same_samples() {
        let file = [wav(8000, &[16384, -16384, 8192], 6), b"LIST".to_vec()].concat();
        for part in [1, 2, 3, 7, 1000] {
            assert_eq!(read(ByteFormat::Wav, &file, part).unwrap(), [0.5, -0.5, 0.25]);
            let raw = [0, 64, 0, 192, 0];
            assert_eq!(read(ByteFormat::S16le(8000), &raw, part).unwrap(), [0.5, -0.5]);
            let raw: Vec<u8> = [0.5f32, -1.5].iter().flat_map(|sample| sample.to_le_bytes()).collect();
            assert_eq!(read(ByteFormat::F32le(8000), &raw, part).unwrap(), [0.5, -1.5]);
            // A program that streams does not know the length.
            let open = wav(8000, &[16384; 5], u32::MAX);
            assert_eq!(read(ByteFormat::Wav, &open, part).unwrap(), [0.5; 5]);
        }
    }

    #[test]
    fn truncated_and_wrong_bytes_are_refused() {
        let file = wav(8000, &[16384; 4], 8);
        for len in 0..file.len() {
            let error = read(ByteFormat::Wav, &file[..len], 5).unwrap_err();
            assert_eq!((error.kind(), error.field()), (cotensor_core::ErrorKind::Corrupt, Some("audio")), "{len}");
        }
        assert!(read(ByteFormat::Wav, b"RIFX and more than twelve bytes", 4).is_err());
        assert!(read(ByteFormat::Wav, &wav(0, &[1], 2), 64).unwrap_err().to_string().contains("0 Hz"));
        let endless = [&wav(8000, &[], 0)[..12], b"LIST", &u32::MAX.to_le_bytes()[..], &vec![0; 2 << 20]].concat();
        assert!(read(ByteFormat::Wav, &endless, 4096).unwrap_err().to_string().contains("header"));
        for (name, rate) in
            [("s16le", None), ("s16le", Some(0)), ("f32le", Some(900)), ("wav", Some(8000)), ("mp3", None)]
        {
            assert!(ByteFormat::parse(name, rate).is_err(), "{name} {rate:?}");
        }
    }
}
