//! FLAC, MP3 and Ogg Vorbis files, decoded by symphonia.

use super::sound::{AudioLength, SECONDS_MAX, corrupt, invalid};
use cotensor_core::{Error, Result};
use symphonia::core::codecs::audio::well_known::{CODEC_ID_FLAC, CODEC_ID_MP3};
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error as DecodingError;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatReader, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream};

/// The length of a sound: as the file states, else the sum of its packets. Nothing is decoded.
///
/// # Errors
/// As [`decode`].
pub(super) fn length(source: impl MediaSource) -> Result<AudioLength> {
    guarded(|| {
        let mut file = File::open(source)?;
        let frames = match file.frames {
            Some(frames) => frames,
            None => file.count_frames()?,
        };
        Ok(AudioLength { sample_rate_hz: file.sample_rate_hz, frames })
    })
}

/// The first `frames` frames, from -1 to 1; fewer if the sound is shorter. The channels are averaged.
///
/// # Errors
/// `Corrupt` for another format or a truncated file, `Unsupported` for another codec in one of these containers.
pub(super) fn decode(source: impl MediaSource, frames: usize) -> Result<Vec<f32>> {
    let mut packets = Packets::open(source)?;
    let mut mono = Vec::new();
    while mono.len() < frames {
        let Some(samples) = packets.next()? else { break };
        mono.extend(samples);
    }
    mono.truncate(frames);
    Ok(mono)
}

/// A sound that is decoded packet by packet.
pub(super) struct Packets<'a>(Option<File<'a>>);

impl<'a> Packets<'a> {
    /// # Errors
    /// As [`decode`].
    pub(super) fn open(source: impl MediaSource + 'a) -> Result<Self> {
        guarded(|| File::open(source)).map(|file| Self(Some(file)))
    }

    pub(super) fn sample_rate_hz(&self) -> u32 {
        self.0.as_ref().map_or(0, |file| file.sample_rate_hz)
    }

    /// The samples of the next packet, from -1 to 1, the channels averaged; `None` at the end. Nothing follows an error.
    ///
    /// # Errors
    /// As [`decode`].
    pub(super) fn next(&mut self) -> Result<Option<Vec<f32>>> {
        let Some(mut file) = self.0.take() else { return Ok(None) };
        let (samples, file) = guarded(|| Ok((file.next_packet()?, file)))?;
        self.0 = samples.is_some().then_some(file);
        Ok(samples)
    }
}

/// Whether the files of a codec state the exact number of frames. MP3 files may estimate it.
fn is_exact(parameters: &AudioCodecParameters) -> bool {
    parameters.codec == CODEC_ID_FLAC
}

struct File<'a> {
    reader: Box<dyn FormatReader + 'a>,
    decoder: Box<dyn AudioDecoder>,
    track: u32,
    sample_rate_hz: u32,
    is_mp3: bool,
    /// The number of frames, if the file states it.
    frames: Option<u64>,
    /// Whether that number is exact: then a file with fewer frames is truncated.
    exact: bool,
    /// The number of frames that were decoded.
    decoded: u64,
}

impl<'a> File<'a> {
    fn open(source: impl MediaSource + 'a) -> Result<Self> {
        let unknown = |error: DecodingError| match error {
            DecodingError::IoError(_) => corrupt("the audio is truncated"),
            error => corrupt(&format!("neither WAV, FLAC, MP3 nor Ogg Vorbis: {error}")),
        };
        let stream = MediaSourceStream::new(Box::new(source), Default::default());
        let reader = symphonia::default::get_probe()
            .probe(&Hint::new(), stream, Default::default(), Default::default())
            .map_err(unknown)?;
        let track = reader.default_track(TrackType::Audio).ok_or_else(|| corrupt("the file has no audio track"))?;
        let parameters = track.codec_params.as_ref().and_then(|parameters| parameters.audio());
        let parameters: &AudioCodecParameters = parameters.ok_or_else(|| corrupt("the file has no audio track"))?;
        // Without a tag of the encoder, the number of frames of an MP3 file is the reader's estimate, which may be too small: the decoder would drop the rest.
        let is_mp3 = parameters.codec == CODEC_ID_MP3;
        let states_frames = !is_mp3 || track.delay.is_some();
        let options = AudioDecoderOptions::default().gapless(states_frames);
        let decoder = symphonia::default::get_codecs()
            .make_audio_decoder(parameters, &options)
            .map_err(|error| Error::unsupported(format!("this sound cannot be decoded: {error}")).in_field("audio"))?;
        let sample_rate_hz = parameters.sample_rate.ok_or_else(|| corrupt("the file states no sample rate"))?;
        let (track, frames, exact) = (track.id, track.num_frames.filter(|_| states_frames), is_exact(parameters));
        Ok(Self { reader, decoder, track, sample_rate_hz, is_mp3, frames, exact, decoded: 0 })
    }

    fn count_frames(&mut self) -> Result<u64> {
        let (mut frames, mut first) = (0u64, None);
        while let Some(packet) = self.reader.next_packet().map_err(broken)? {
            if packet.track_id == self.track {
                // Packets of MP3 have one length. The reader shortens those beyond the end that it estimates.
                let length = if self.is_mp3 { *first.get_or_insert(packet.dur) } else { packet.dur };
                frames = frames.saturating_add(length.get());
            }
            if frames > SECONDS_MAX * u64::from(self.sample_rate_hz) {
                break;
            }
        }
        Ok(frames)
    }

    fn next_packet(&mut self) -> Result<Option<Vec<f32>>> {
        while let Some(packet) = self.reader.next_packet().map_err(broken)? {
            if packet.track_id != self.track {
                continue;
            }
            let decoded = self.decoder.decode(&packet).map_err(broken)?;
            if decoded.spec().rate() != self.sample_rate_hz {
                return Err(invalid("the sample rate changes".to_owned()));
            }
            let channels = decoded.spec().channels().count().max(1);
            let mut interleaved = vec![0f32; decoded.samples_interleaved()];
            decoded.copy_to_slice_interleaved(&mut interleaved);
            let mono = interleaved.chunks_exact(channels).map(|frame| frame.iter().sum::<f32>() / channels as f32);
            let mono: Vec<f32> = mono.collect();
            self.decoded = self.decoded.saturating_add(mono.len() as u64);
            return Ok(Some(mono));
        }
        if self.exact && self.frames.is_some_and(|known| self.decoded < known) {
            return Err(corrupt("the audio is truncated"));
        }
        Ok(None)
    }
}

fn broken(error: DecodingError) -> Error {
    match error {
        DecodingError::IoError(_) => corrupt("the audio is truncated"),
        DecodingError::ResetRequired => {
            Error::unsupported("several sounds in one file are not supported").in_field("audio")
        }
        error => corrupt(&format!("the audio is damaged: {error}")),
    }
}

/// The decoder is dropped after a panic, so its state does not matter.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    crate::guard::guarded(work, || corrupt("the decoder failed on this audio"))
}
