use super::compressed;
use super::sound::{Audio, AudioLength, SECONDS_MAX, check_samples, invalid};
use super::wav::{self, Header, Wav};
use cotensor_core::Result;

/// The most frames that are decoded: 1 GiB of samples, 90 minutes at 48 kHz.
const FRAMES_MAX: u64 = 1 << 28;
/// The beginning of a file in which the header of a WAV file is looked for.
const HEAD_BYTES: usize = 64 << 10;

/// Decodes a WAV, FLAC, MP3 or Ogg Vorbis file; channels are averaged.
///
/// # Errors
/// `Corrupt` for another format or a truncated file, `Invalid` for a sound that is empty, too long or not finite,
/// `Unsupported` for another codec.
pub fn decode_audio(bytes: &[u8]) -> Result<Audio> {
    decode_audio_start(bytes, SECONDS_MAX as f64)
}

/// As [`decode_audio`], but decodes the first `seconds` only: a model that reads half a minute does not need an hour in
/// memory. A truncated WAV file is refused in any case.
///
/// # Errors
/// As [`decode_audio`].
pub fn decode_audio_start(bytes: &[u8], seconds: f64) -> Result<Audio> {
    if bytes.is_empty() {
        return Err(invalid("the audio is empty".into()));
    }
    let (sample_rate_hz, samples) = if wav::is_wav(bytes) {
        let file = Wav::read(bytes)?;
        let length = file.length().check()?;
        (length.sample_rate_hz, file.decode(0, frames_read(length, seconds)?))
    } else {
        let length = compressed::length(bytes)?.check()?;
        (length.sample_rate_hz, compressed::decode(bytes, frames_read(length, seconds)?)?)
    };
    checked(sample_rate_hz, samples)
}

/// As [`decode_audio_start`], for a file of `len` bytes that is read in parts. `read` gets an offset and the buffer for the bytes
/// there. Of a WAV file, the header and the decoded frames are read; of other files, all bytes.
///
/// # Errors
/// As [`decode_audio`]; those of `read`.
pub fn decode_audio_start_of(len: usize, read: impl Fn(usize, &mut [u8]) -> Result<()>, seconds: f64) -> Result<Audio> {
    let Some(header) = wav_header(len, &read)? else { return decode_audio_start(&part(0, len, read)?, seconds) };
    let length = wav_length(&header, len)?.check()?;
    let bytes = frames_read(length, seconds)? * header.format.frame_bytes();
    checked(length.sample_rate_hz, header.format.decode(&part(header.start, bytes, read)?))
}

/// As [`audio_length`], for a file that is read in parts as by [`decode_audio_start_of`].
///
/// # Errors
/// As [`decode_audio_start_of`].
pub fn audio_length_of(len: usize, read: impl Fn(usize, &mut [u8]) -> Result<()>) -> Result<AudioLength> {
    match wav_header(len, &read)? {
        Some(header) => wav_length(&header, len),
        None => audio_length(&part(0, len, read)?),
    }
}

/// The header of a WAV file; `None` for another file, and for a header that is longer than the part that is read.
fn wav_header(len: usize, read: impl Fn(usize, &mut [u8]) -> Result<()>) -> Result<Option<Header>> {
    let head = part(0, len.min(HEAD_BYTES), read)?;
    if wav::is_wav(&head) { Header::read(&head) } else { Ok(None) }
}

fn wav_length(header: &Header, len: usize) -> Result<AudioLength> {
    let frames = header.samples(len)?.len() / header.format.frame_bytes();
    Ok(AudioLength { sample_rate_hz: header.format.sample_rate_hz, frames: frames as u64 })
}

fn part(at: usize, len: usize, read: impl Fn(usize, &mut [u8]) -> Result<()>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    read(at, &mut bytes)?;
    Ok(bytes)
}

/// The frames of the first `seconds`, one at least.
fn frames_read(length: AudioLength, seconds: f64) -> Result<usize> {
    let frames = length.frames.min((seconds * f64::from(length.sample_rate_hz)) as u64).max(1);
    let few = frames <= FRAMES_MAX;
    few.then_some(frames as usize).ok_or_else(|| invalid(format!("{frames} frames; at most {FRAMES_MAX} are decoded")))
}

fn checked(sample_rate_hz: u32, samples: Vec<f32>) -> Result<Audio> {
    if samples.is_empty() {
        return Err(invalid("0 frames".into()));
    }
    check_samples(&samples)?;
    Ok(Audio { sample_rate_hz, samples })
}

/// The sample rate and the length, without decoding.
///
/// # Errors
/// As [`decode_audio`].
pub fn audio_length(bytes: &[u8]) -> Result<AudioLength> {
    if wav::is_wav(bytes) { Ok(Wav::read(bytes)?.length()) } else { compressed::length(bytes) }
}

#[cfg(test)]
mod tests {
    use super::super::resample::resample;
    use super::super::sound::SAMPLE_MAX;
    use super::*;
    use hound::SampleFormat;
    use std::io::Cursor;

    fn wav(samples: &[f32]) -> Vec<u8> {
        let spec =
            hound::WavSpec { channels: 2, sample_rate: 8000, bits_per_sample: 32, sample_format: SampleFormat::Float };
        let mut bytes = Cursor::new(Vec::new());
        let mut writer = hound::WavWriter::new(&mut bytes, spec).unwrap();
        samples.iter().for_each(|&sample| writer.write_sample(sample).unwrap());
        writer.finalize().unwrap();
        bytes.into_inner()
    }

    /// Reads `bytes` in parts.
    fn reader(bytes: &[u8]) -> impl Fn(usize, &mut [u8]) -> Result<()> + '_ {
        |at, target| {
            target.copy_from_slice(&bytes[at..at + target.len()]);
            Ok(())
        }
    }

    #[test]
    fn wav_file_is_read_in_parts() {
        let file = wav(&vec![0.25; 64_000]);
        let read = std::cell::Cell::new(0);
        let counting = |at: usize, target: &mut [u8]| {
            read.set(read.get() + target.len());
            reader(&file)(at, target)
        };
        assert_eq!(decode_audio_start_of(file.len(), counting, 0.5).unwrap(), decode_audio_start(&file, 0.5).unwrap());
        assert_eq!(read.replace(0), HEAD_BYTES + 4000 * 8);
        assert_eq!(audio_length_of(file.len(), counting).unwrap(), audio_length(&file).unwrap());
        assert_eq!(read.get(), HEAD_BYTES);
        // The samples begin behind the part that is searched: the whole file is read.
        let long =
            [&file[..12], b"LIST", &(HEAD_BYTES as u32).to_le_bytes(), &vec![0; HEAD_BYTES], &file[12..]].concat();
        let decoded = decode_audio_start_of(long.len(), reader(&long), 0.5).unwrap();
        assert_eq!(decoded, decode_audio_start(&long, 0.5).unwrap());
        assert_eq!(
            audio_length_of(0, reader(&[])).unwrap_err().to_string(),
            audio_length(&[]).unwrap_err().to_string()
        );
    }

    #[test]
    fn channels_are_averaged_and_bad_files_refused() {
        assert_eq!(decode_audio(&wav(&[1.0, 0.0, 0.5, 0.5])).unwrap().samples, [0.5, 0.5]);
        assert!(decode_audio(&wav(&[0.0, f32::NAN])).unwrap_err().to_string().contains("sample 0"));
        for huge in [f32::INFINITY, f32::MAX, -4.3e9] {
            assert!(decode_audio(&wav(&[0.0, 0.0, huge, 0.0])).unwrap_err().to_string().contains("sample 1"));
            assert!(resample(&Audio { sample_rate_hz: 8000, samples: vec![huge; 5000] }, 16_000).is_err());
        }
        let loudest = Audio { sample_rate_hz: 8000, samples: vec![-SAMPLE_MAX; 5000] };
        assert!(resample(&loudest, 16_000).unwrap().samples.iter().all(|sample| sample.is_finite()));
        assert!(decode_audio(&wav(&[])).unwrap_err().to_string().contains("0 frames"));
        assert!(decode_audio(b"").is_err());
        let good = wav(&[0.25; 64]);
        for len in 0..good.len() {
            assert!(decode_audio(&good[..len]).is_err(), "{len}");
            assert!(decode_audio_start(&good[..len], 1e-3).is_err(), "{len}");
            assert!(decode_audio_start_of(len, reader(&good[..len]), 1e-3).is_err(), "{len}");
        }
        // 8 frames of the 32.
        let start = decode_audio_start(&good, 1e-3).unwrap();
        assert_eq!(start.samples, decode_audio(&good).unwrap().samples[..8]);
    }
}
