use super::compressed;
use super::parts::{Parts, ReadPart};
use super::sound::{Audio, AudioLength, SECONDS_MAX, check_samples, invalid};
use super::wav::{self, HEADER_BYTES_MAX, Header, Wav};
use cotensor_core::Result;
use std::io::Cursor;
use symphonia::core::io::MediaSource;

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
        decode_compressed(|| Cursor::new(bytes), seconds)?
    };
    checked(sample_rate_hz, samples)
}

/// As [`decode_audio_start`], for a file of `len` bytes that is read in parts. `read` gets an offset and the buffer for the bytes
/// there. Of a WAV file, the header and the decoded frames are read.
///
/// # Errors
/// As [`decode_audio`]; those of `read`; `Invalid` for a WAV file with a header of more than 1 MiB.
pub fn decode_audio_start_of(len: usize, read: impl ReadPart, seconds: f64) -> Result<Audio> {
    if len == 0 {
        return Err(invalid("the audio is empty".into()));
    }
    let (sample_rate_hz, samples) = match wav_header(len, &read)? {
        Some(header) => {
            let length = wav_length(&header, len)?.check()?;
            let bytes = frames_read(length, seconds)? * header.format.frame_bytes();
            (length.sample_rate_hz, header.format.decode(&part(header.start, bytes, &read)?))
        }
        None => decode_compressed(|| Parts::new(len, &read), seconds)?,
    };
    checked(sample_rate_hz, samples)
}

/// As [`audio_length`], for a file that is read in parts as by [`decode_audio_start_of`].
///
/// # Errors
/// As [`decode_audio_start_of`].
pub fn audio_length_of(len: usize, read: impl ReadPart) -> Result<AudioLength> {
    match wav_header(len, &read)? {
        Some(header) => wav_length(&header, len),
        None => compressed::length(Parts::new(len, &read)),
    }
}

/// The sample rate and the first `seconds` of a file that `open` opens from its beginning.
fn decode_compressed<S: MediaSource>(open: impl Fn() -> S, seconds: f64) -> Result<(u32, Vec<f32>)> {
    let length = compressed::length(open())?.check()?;
    Ok((length.sample_rate_hz, compressed::decode(open(), frames_read(length, seconds)?)?))
}

/// The header of a WAV file; `None` for another file.
pub(super) fn wav_header(len: usize, read: &impl ReadPart) -> Result<Option<Header>> {
    for most in [HEAD_BYTES, HEADER_BYTES_MAX] {
        let head = part(0, len.min(most), read)?;
        if !wav::is_wav(&head) {
            return Ok(None);
        }
        if let Some(header) = Header::read(&head)? {
            return Ok(Some(header));
        }
    }
    Err(if len > HEADER_BYTES_MAX {
        invalid(format!("a WAV header of more than {HEADER_BYTES_MAX} bytes"))
    } else {
        wav::without_samples()
    })
}

fn wav_length(header: &Header, len: usize) -> Result<AudioLength> {
    let frames = header.samples(len)?.len() / header.format.frame_bytes();
    Ok(AudioLength { sample_rate_hz: header.format.sample_rate_hz, frames: frames as u64 })
}

pub(super) fn part(at: usize, len: usize, read: &impl ReadPart) -> Result<Vec<u8>> {
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
    if wav::is_wav(bytes) { Ok(Wav::read(bytes)?.length()) } else { compressed::length(Cursor::new(bytes)) }
}

#[cfg(test)]
mod tests {
    use super::super::resample::resample;
    use super::super::sound::SAMPLE_MAX;
    use super::*;
    use hound::SampleFormat;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

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
        let read = AtomicUsize::new(0);
        let counting = |at: usize, target: &mut [u8]| {
            read.fetch_add(target.len(), Relaxed);
            reader(&file)(at, target)
        };
        assert_eq!(decode_audio_start_of(file.len(), counting, 0.5).unwrap(), decode_audio_start(&file, 0.5).unwrap());
        assert_eq!(read.swap(0, Relaxed), HEAD_BYTES + 4000 * 8);
        assert_eq!(audio_length_of(file.len(), counting).unwrap(), audio_length(&file).unwrap());
        assert_eq!(read.load(Relaxed), HEAD_BYTES);
        // The samples begin behind the part that is searched first.
        let listed =
            |bytes: usize| [&file[..12], b"LIST", &(bytes as u32).to_le_bytes(), &vec![0; bytes], &file[12..]].concat();
        let long = listed(HEAD_BYTES);
        let decoded = decode_audio_start_of(long.len(), reader(&long), 0.5).unwrap();
        assert_eq!(decoded, decode_audio_start(&long, 0.5).unwrap());
        let endless = listed(HEADER_BYTES_MAX);
        let error = decode_audio_start_of(endless.len(), reader(&endless), 0.5).unwrap_err();
        assert!(error.to_string().contains("header"), "{error}");
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
