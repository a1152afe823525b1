use super::compressed::Packets;
use super::resample::Resampling;
use super::sound::{RATES_HZ, check_samples, invalid};
use super::wav::{self, Wav};
use cotensor_core::Result;

/// The frames of a WAV file that are decoded at a time.
const FRAMES_AT_ONCE: usize = 1 << 14;

/// Reads a WAV, FLAC, MP3 or Ogg Vorbis file from its beginning to its end at a sample rate. The memory does not depend on
/// the length of the sound.
pub struct SoundReader<'a> {
    source: Source<'a>,
    resampling: Option<Resampling>,
    ended: bool,
}

enum Source<'a> {
    Wav {
        file: Wav<'a>,
        /// The next frame.
        at: usize,
    },
    Packets(Packets<'a>),
}

impl<'a> SoundReader<'a> {
    /// # Errors
    /// As [`decode_audio`](super::decode_audio), for the header.
    pub fn open(bytes: &'a [u8], sample_rate_hz: u32) -> Result<Self> {
        let (source, from_hz) = if wav::is_wav(bytes) {
            let file = Wav::read(bytes)?;
            let from_hz = file.length().sample_rate_hz;
            (Source::Wav { file, at: 0 }, from_hz)
        } else {
            let packets = Packets::open(bytes)?;
            let from_hz = packets.sample_rate_hz();
            (Source::Packets(packets), from_hz)
        };
        if !RATES_HZ.contains(&from_hz) {
            return Err(invalid(format!("{from_hz} Hz")));
        }
        let resampling = (from_hz != sample_rate_hz).then(|| Resampling::new(from_hz, sample_rate_hz)).transpose()?;
        Ok(Self { source, resampling, ended: false })
    }

    /// The next samples, the channels averaged; `None` at the end.
    ///
    /// # Errors
    /// As [`decode_audio`](super::decode_audio).
    pub fn read(&mut self) -> Result<Option<Vec<f32>>> {
        if self.ended {
            return Ok(None);
        }
        let decoded = match &mut self.source {
            Source::Wav { file, at } => {
                let samples = file.decode(*at, FRAMES_AT_ONCE);
                *at += samples.len();
                (!samples.is_empty()).then_some(samples)
            }
            Source::Packets(packets) => packets.next()?,
        };
        match decoded {
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
