use super::compressed::Packets;
use super::decode::{part, wav_header};
use super::parts::{Parts, ReadPart};
use super::resample::Resampling;
use super::sound::{RATES_HZ, check_samples, invalid};
use super::wav::{self, Wav};
use cotensor_core::Result;
use std::io::Cursor;

/// The frames of a WAV file that are decoded at a time.
const FRAMES_AT_ONCE: usize = 1 << 14;

/// Reads a sound from its beginning to its end at a sample rate. The memory does not depend on the length of the sound.
pub struct SoundReader<'a> {
    next: Box<dyn FnMut() -> Result<Option<Vec<f32>>> + 'a>,
    resampling: Option<Resampling>,
    ended: bool,
}

impl<'a> SoundReader<'a> {
    /// Reads a WAV, FLAC, MP3 or Ogg Vorbis file.
    ///
    /// # Errors
    /// As [`decode_audio`](super::decode_audio), for the header.
    pub fn open(bytes: &'a [u8], sample_rate_hz: u32) -> Result<Self> {
        if !wav::is_wav(bytes) {
            return Self::of_packets(Packets::open(Cursor::new(bytes))?, sample_rate_hz);
        }
        let (file, mut at) = (Wav::read(bytes)?, 0);
        let from_hz = file.length().sample_rate_hz;
        let next = move || {
            let samples = file.decode(at, FRAMES_AT_ONCE);
            at += samples.len();
            Ok((!samples.is_empty()).then_some(samples))
        };
        Self::of(from_hz, sample_rate_hz, next)
    }

    /// As [`open`](Self::open), for a file of `len` bytes that is read in parts. `read` gets an offset and the buffer for the bytes
    /// there.
    ///
    /// # Errors
    /// As [`decode_audio_start_of`](super::decode_audio_start_of), for the header.
    pub fn open_of(len: usize, read: impl ReadPart + 'a, sample_rate_hz: u32) -> Result<Self> {
        let Some(header) = wav_header(len, &read)? else {
            return Self::of_packets(Packets::open(Parts::new(len, read))?, sample_rate_hz);
        };
        let (format, mut rest) = (header.format, header.samples(len)?);
        let next = move || {
            let bytes = part(rest.start, rest.len().min(FRAMES_AT_ONCE * format.frame_bytes()), &read)?;
            rest.start += bytes.len();
            Ok((!bytes.is_empty()).then(|| format.decode(&bytes)))
        };
        Self::of(format.sample_rate_hz, sample_rate_hz, next)
    }

    /// Reads the samples that `next` gives: of one channel, from -1 to 1, `from_hz` in each second.
    ///
    /// # Errors
    /// `Invalid` for an unsupported rate.
    pub fn of(from_hz: u32, sample_rate_hz: u32, next: impl FnMut() -> Result<Option<Vec<f32>>> + 'a) -> Result<Self> {
        if !RATES_HZ.contains(&from_hz) {
            return Err(invalid(format!("{from_hz} Hz")));
        }
        let resampling = (from_hz != sample_rate_hz).then(|| Resampling::new(from_hz, sample_rate_hz)).transpose()?;
        Ok(Self { next: Box::new(next), resampling, ended: false })
    }

    fn of_packets(mut packets: Packets<'a>, sample_rate_hz: u32) -> Result<Self> {
        Self::of(packets.sample_rate_hz(), sample_rate_hz, move || packets.next())
    }

    /// The next samples, the channels averaged; `None` at the end.
    ///
    /// # Errors
    /// As [`decode_audio`](super::decode_audio).
    pub fn read(&mut self) -> Result<Option<Vec<f32>>> {
        if self.ended {
            return Ok(None);
        }
        match (self.next)()? {
            Some(samples) => {
                check_samples(&samples)?;
                match &mut self.resampling {
                    Some(resampling) => resampling.push(&samples).map(Some),
                    None => Ok(Some(samples)),
                }
            }
            None => {
                self.ended = true;
                self.resampling.take().map(Resampling::finish).transpose()
            }
        }
    }
}
