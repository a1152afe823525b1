//! FLAC, MP3 and Ogg Vorbis, by symphonia's decoders.

use super::audio::{AudioLength, SECONDS_MAX, corrupt, invalid};
use cotensor_core::{Error, Result};
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use symphonia::core::codecs::audio::well_known::CODEC_ID_FLAC;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder};
use symphonia::core::errors::Error as DecodingError;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatReader, TrackType};
use symphonia::core::io::MediaSourceStream;

/// The length of a sound: as the file says, else the sum of its packets, which are not decoded.
///
/// # Errors
/// As [`decode`].
pub(super) fn length(bytes: &[u8]) -> Result<AudioLength> {
    guarded(|| {
        let mut file = File::open(bytes)?;
        let frames = match file.frames {
            Some(frames) => frames,
            None => file.count_frames()?,
        };
        Ok(AudioLength { sample_rate_hz: file.sample_rate_hz, frames })
    })
}

/// The first `frames` frames, channels averaged, from -1 to 1; fewer at the end of the sound.
///
/// # Errors
/// `Corrupt` when it is no such file or ends early, `Unsupported` for another codec in one of these containers.
pub(super) fn decode(bytes: &[u8], frames: usize) -> Result<Vec<f32>> {
    guarded(|| File::open(bytes)?.decode(frames))
}

/// Whether a codec's files say how many frames they have: MP3 files may only estimate it.
fn is_exact(parameters: &AudioCodecParameters) -> bool {
    parameters.codec == CODEC_ID_FLAC
}

struct File<'a> {
    reader: Box<dyn FormatReader + 'a>,
    decoder: Box<dyn AudioDecoder>,
    track: u32,
    sample_rate_hz: u32,
    /// How many frames there are, where the file says.
    frames: Option<u64>,
    /// Whether that number is exact, so that fewer are a file that ends early.
    exact: bool,
}

impl<'a> File<'a> {
    fn open(bytes: &'a [u8]) -> Result<Self> {
        let unknown = |error: DecodingError| match error {
            DecodingError::IoError(_) => corrupt("the audio ends early"),
            error => corrupt(&format!("neither WAV, FLAC, MP3 nor Ogg Vorbis: {error}")),
        };
        let stream = MediaSourceStream::new(Box::new(Cursor::new(bytes)), Default::default());
        let reader = symphonia::default::get_probe()
            .probe(&Hint::new(), stream, Default::default(), Default::default())
            .map_err(unknown)?;
        let track = reader.default_track(TrackType::Audio).ok_or_else(|| corrupt("the file has no sound"))?;
        let parameters = track.codec_params.as_ref().and_then(|parameters| parameters.audio());
        let parameters: &AudioCodecParameters = parameters.ok_or_else(|| corrupt("the file has no sound"))?;
        let decoder = symphonia::default::get_codecs()
            .make_audio_decoder(parameters, &Default::default())
            .map_err(|error| Error::unsupported(format!("this sound cannot be decoded: {error}")).in_field("audio"))?;
        let sample_rate_hz = parameters.sample_rate.ok_or_else(|| corrupt("the file does not say its sample rate"))?;
        let (track, frames, exact) = (track.id, track.num_frames, is_exact(parameters));
        Ok(Self { reader, decoder, track, sample_rate_hz, frames, exact })
    }

    fn count_frames(&mut self) -> Result<u64> {
        let mut frames = 0u64;
        while let Some(packet) = self.reader.next_packet().map_err(broken)? {
            if packet.track_id == self.track {
                frames = frames.saturating_add(packet.dur.get());
            }
            if frames > SECONDS_MAX * u64::from(self.sample_rate_hz) {
                break;
            }
        }
        Ok(frames)
    }

    fn decode(mut self, frames: usize) -> Result<Vec<f32>> {
        let (mut mono, mut interleaved) = (Vec::new(), Vec::new());
        while mono.len() < frames {
            let Some(packet) = self.reader.next_packet().map_err(broken)? else { break };
            if packet.track_id != self.track {
                continue;
            }
            let decoded = self.decoder.decode(&packet).map_err(broken)?;
            if decoded.spec().rate() != self.sample_rate_hz {
                return Err(invalid("the sample rate changes".to_owned()));
            }
            let channels = decoded.spec().channels().count().max(1);
            interleaved.resize(decoded.samples_interleaved(), 0f32);
            decoded.copy_to_slice_interleaved(&mut interleaved);
            mono.extend(interleaved.chunks_exact(channels).map(|frame| frame.iter().sum::<f32>() / channels as f32));
        }
        if self.exact && self.frames.is_some_and(|known| (mono.len() as u64) < known.min(frames as u64)) {
            return Err(corrupt("the audio ends early"));
        }
        mono.truncate(frames);
        Ok(mono)
    }
}

fn broken(error: DecodingError) -> Error {
    match error {
        DecodingError::IoError(_) => corrupt("the audio ends early"),
        DecodingError::ResetRequired => Error::unsupported("several sounds in one file are not read").in_field("audio"),
        error => corrupt(&format!("the audio is damaged: {error}")),
    }
}

/// Turns a decoder's panic, which a hostile file may cause, into an error. Nothing of the decoder is used after it.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(corrupt("the decoder gave up on this audio")))
}
