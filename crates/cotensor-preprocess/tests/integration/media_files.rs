//! Image and sound files as cameras and recorders write them.

use crate::support::{fixture, folder};
use cotensor_core::ErrorKind;
use cotensor_preprocess::{
    SoundReader, audio_length, audio_length_of, decode_audio, decode_audio_start, decode_audio_start_of, decode_image,
    image_size,
};
use safetensors::SafeTensors;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[test]
fn exif_orientation_is_applied_as_transformers_applies_it() {
    let files = folder("forms/orientation");
    let references = SafeTensors::deserialize(&files["reference.safetensors"]).unwrap();
    let mut shapes = Vec::new();
    for (name, reference) in references.iter() {
        let image = decode_image(&files[name]).unwrap();
        let expected = reference.data();
        assert_eq!([image.height() as usize, image.width() as usize, 3], *reference.shape(), "{name}");
        let difference = |(&a, &b): (&u8, &u8)| u32::from(a.abs_diff(b));
        let worst = image.as_raw().iter().zip(expected).map(difference).max().unwrap();
        // Two decoders of one JPEG differ by as much.
        let allowed = if name.ends_with("jpg") { 4 } else { 0 };
        assert!(worst <= allowed, "{name}: {worst}");
        assert_eq!(image_size(&files[name]).unwrap(), image.dimensions(), "{name}");
        shapes.push(image.dimensions());
    }
    assert_eq!(shapes.len(), 10);
    assert!(shapes.contains(&(32, 24)) && shapes.contains(&(24, 32)));
}

#[test]
fn xmp_orientation_applies_without_exif_orientation() {
    let plain = fixture("forms/orientation/1.jpg");
    // The same file with its Exif segment replaced by an XMP one.
    let at = plain.windows(4).position(|bytes| bytes == b"Exif").unwrap() - 4;
    let length = usize::from(u16::from_be_bytes([plain[at + 2], plain[at + 3]]));
    let xmp = b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta><rdf:Description tiff:Orientation=\"3\"/></x:xmpmeta>";
    let segment = [&[0xff, 0xe1][..], &(xmp.len() as u16 + 2).to_be_bytes(), xmp].concat();
    let turned = [&plain[..at], &segment, &plain[at + 2 + length..]].concat();
    let (plain, turned) = (decode_image(plain).unwrap(), decode_image(&turned).unwrap());
    assert!(plain.pixels().rev().eq(turned.pixels()), "half a turn is the pixels in reverse");
}

#[test]
fn compressed_audio_decodes_to_its_source() {
    let files = folder("tiny/audio");
    let original = decode_audio(fixture("media/speech.wav")).unwrap();
    for (name, correlation) in [("flac", 1.0), ("mp3", 0.95), ("ogg", 0.95)] {
        let bytes = &files[&format!("speech.{name}")];
        let audio = decode_audio(bytes).unwrap();
        assert_eq!((audio.sample_rate_hz, audio.samples.len()), (8000, 8000), "{name}");
        assert_eq!(audio_length(bytes).unwrap().frames, 8000, "{name}");
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        let (a, b) = (&audio.samples[..], &original.samples[..8000]);
        let found = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
        assert!(found >= correlation - 1e-9, "{name}: {found}");
        let start = decode_audio_start(bytes, 0.25).unwrap();
        assert_eq!(start.samples, audio.samples[..2000], "{name}");
        let read = |at: usize, target: &mut [u8]| {
            target.copy_from_slice(&bytes[at..at + target.len()]);
            Ok(())
        };
        assert_eq!(decode_audio_start_of(bytes.len(), read, 0.25).unwrap(), start, "{name} in parts");
        assert_eq!(audio_length_of(bytes.len(), read).unwrap(), audio_length(bytes).unwrap(), "{name} in parts");
    }
    let flac = decode_audio(&files["speech.flac"]).unwrap();
    assert_eq!(flac.samples, original.samples[..8000], "FLAC loses nothing");
    // An ID3 tag of 200,000 bytes, as one with a picture: four times seven bits of length.
    let mp3 = &files["speech.mp3"];
    let padding = 200_000usize;
    let length = [21, 14, 7, 0].map(|shift| (padding >> shift & 0x7f) as u8);
    let tagged = [&b"ID3\x04\0\0"[..], &length, &vec![0; padding], mp3].concat();
    assert_eq!(decode_audio(&tagged).unwrap(), decode_audio(mp3).unwrap());
}

#[test]
fn mp3_whose_first_frames_are_the_largest_is_read_to_its_end() {
    // Silence of MPEG 1, layer 3, 44,100 Hz, mono: frames of 320 kbit/s, then of 32 kbit/s, without a tag that states their number.
    let frame = |rate: u8, bytes: usize| [&[0xff, 0xfb, rate, 0xc0][..], &vec![0; bytes - 4]].concat();
    let (large, small) = (frame(0xe0, 1044), frame(0x10, 104));
    let file = [large.repeat(20), small.repeat(100)].concat();
    assert_eq!(audio_length(&file).unwrap().frames, 120 * 1152);
    assert_eq!(decode_audio(&file).unwrap().samples.len(), 120 * 1152);
}

#[test]
fn compressed_audio_is_read_in_small_parts() {
    let frame = [&[0xff, 0xfb, 0xe0, 0xc0][..], &[0; 1040]].concat();
    let file = frame.repeat(1000);
    let largest = AtomicUsize::new(0);
    let read = |at: usize, target: &mut [u8]| {
        largest.fetch_max(target.len(), Relaxed);
        target.copy_from_slice(&file[at..at + target.len()]);
        Ok(())
    };
    let start = decode_audio_start_of(file.len(), read, 0.5).unwrap();
    assert_eq!(start, decode_audio_start(&file, 0.5).unwrap());
    let largest = largest.load(Relaxed);
    assert!(largest <= 64 << 10 && largest < file.len() / 10, "{largest} bytes at a time");
}

#[test]
fn reader_of_parts_reads_the_samples_of_the_whole_file() {
    let mut files = folder("tiny/audio");
    files.insert("speech.wav".to_owned(), fixture("media/speech.wav").to_vec());
    assert_eq!(files.len(), 4);
    let all = |mut reader: SoundReader<'_>| {
        let mut samples = Vec::new();
        while let Some(part) = reader.read().unwrap() {
            samples.extend(part);
        }
        samples
    };
    for (name, bytes) in &files {
        let read = |at: usize, target: &mut [u8]| {
            target.copy_from_slice(&bytes[at..at + target.len()]);
            Ok(())
        };
        for rate_hz in [8000, 16_000] {
            let whole = all(SoundReader::open(bytes, rate_hz).unwrap());
            assert_eq!(all(SoundReader::open_of(bytes.len(), read, rate_hz).unwrap()), whole, "{name} at {rate_hz} Hz");
            let frames = audio_length(bytes).unwrap().frames as usize * rate_hz as usize / 8000;
            assert_eq!(whole.len(), frames, "{name} at {rate_hz} Hz");
        }
    }
}

#[test]
fn damaged_audio_is_an_error_and_never_a_panic() {
    let files = folder("tiny/audio");
    for name in ["flac", "mp3", "ogg"] {
        let bytes = &files[&format!("speech.{name}")];
        // Cut and damaged anywhere: samples that are numbers, or an error.
        for step in 0..64 {
            let at = bytes.len() * step / 64;
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            for file in [&bytes[..at], &damaged] {
                if let Ok(audio) = decode_audio(file) {
                    assert!(audio.samples.iter().all(|sample| sample.is_finite()), "{name} {at}");
                }
            }
        }
    }
    let flac = &files["speech.flac"];
    let error = decode_audio(&flac[..flac.len() / 2]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let error = decode_audio(b"no sound at all, and long enough to look at").unwrap_err().to_string();
    assert!(error.contains("neither WAV, FLAC, MP3 nor Ogg Vorbis"), "{error}");
}
