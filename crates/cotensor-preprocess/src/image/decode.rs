//! Decodes image files.

use cotensor_core::{Error, Result};
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits, RgbImage};
use std::io::Cursor;

/// The most pixels along a side of an image that is decoded.
pub(super) const SIDE_MAX: u32 = 20_000;
/// The most bytes that decoding may allocate: 179 million pixels, the limit of Pillow.
const DECODED_BYTES_MAX: u64 = 1 << 29;

/// Decodes a PNG, JPEG, WebP or BMP file and applies its Exif orientation. Drops transparency and converts gray to RGB.
/// `load_image` in transformers does the same.
///
/// # Errors
/// `Corrupt` when the file cannot be decoded, `Invalid` for an image past the limits or without pixels.
pub fn decode_image(bytes: &[u8]) -> Result<RgbImage> {
    let (mut decoder, mut limits) = decoder(bytes)?;
    limits.reserve(decoder.total_bytes()).map_err(wrong)?;
    decoder.set_limits(limits).map_err(wrong)?;
    let orientation = orientation(&mut decoder);
    let mut image = DynamicImage::ImageRgb8(DynamicImage::from_decoder(decoder).map_err(wrong)?.into_rgb8());
    image.apply_orientation(orientation);
    let image = image.into_rgb8();
    if image.width() == 0 || image.height() == 0 {
        return Err(Error::invalid("the image has no pixels").in_field("image"));
    }
    Ok(image)
}

/// Width and height of the image that [`decode_image`] gives, in pixels. Reads the beginning of the file only.
///
/// # Errors
/// As [`decode_image`].
pub fn image_size(bytes: &[u8]) -> Result<(u32, u32)> {
    let (mut decoder, _) = decoder(bytes)?;
    let (width, height) = decoder.dimensions();
    // The orientations from 5 on exchange the sides.
    Ok(if orientation(&mut decoder).to_exif() >= 5 { (height, width) } else { (width, height) })
}

/// The image with these pixels: red, green, blue and perhaps opacity of each, row by row. Drops the opacity, as
/// [`decode_image`].
///
/// # Errors
/// `Invalid` for another number of bytes than `(width, height)` has, and for an image past the limits or without pixels.
pub fn image_of_pixels(data: &[u8], (width, height): (u32, u32)) -> Result<RgbImage> {
    let wrong = |message: String| Err(Error::invalid(message).in_field("image"));
    if !(1..=SIDE_MAX).contains(&width) || !(1..=SIDE_MAX).contains(&height) {
        return wrong(format!("{width} x {height} pixels; each side has 1 to {SIDE_MAX}"));
    }
    let (pixels, bytes) = (u64::from(width) * u64::from(height), data.len() as u64);
    if pixels * 3 > DECODED_BYTES_MAX {
        return wrong(format!("{width} x {height} pixels are more than {DECODED_BYTES_MAX} bytes"));
    }
    let rgb = if bytes == pixels * 3 {
        data.to_vec()
    } else if bytes == pixels * 4 {
        data.as_chunks::<4>().0.iter().flat_map(|&[red, green, blue, _]| [red, green, blue]).collect()
    } else {
        let (three, four) = (pixels * 3, pixels * 4);
        return wrong(format!("{bytes} bytes; {width} x {height} pixels of 3 or 4 bytes are {three} or {four}"));
    };
    RgbImage::from_raw(width, height, rgb).map_or_else(|| wrong("the pixels do not fill the image".to_owned()), Ok)
}

fn wrong(error: image::ImageError) -> Error {
    Error::corrupt(format!("not an image: {error}")).in_field("image")
}

/// A decoder that has read the header, and the limits of decoding.
fn decoder(bytes: &[u8]) -> Result<(impl ImageDecoder, Limits)> {
    if bytes.is_empty() {
        return Err(Error::invalid("the image is empty").in_field("image"));
    }
    let mut reader = ImageReader::new(Cursor::new(bytes))
        .with_guessed_format()
        .map_err(|error| Error::io("cannot read the image", &error))?;
    let mut limits = Limits::default();
    limits.max_image_width = Some(SIDE_MAX);
    limits.max_image_height = Some(SIDE_MAX);
    limits.max_alloc = Some(DECODED_BYTES_MAX);
    reader.limits(limits.clone());
    if reader.format() == Some(ImageFormat::Jpeg) && jpeg_ends_early(bytes) {
        return Err(Error::corrupt("not a whole image: the JPEG ends early").in_field("image"));
    }
    Ok((reader.into_decoder().map_err(wrong)?, limits))
}

/// The orientation from Exif, else from XMP, as Pillow reads it. Unreadable metadata is ignored.
fn orientation(decoder: &mut impl ImageDecoder) -> Orientation {
    let exif = decoder.exif_metadata().ok().flatten();
    if let Some(found) = exif.and_then(|chunk| Orientation::from_exif_chunk(&chunk)) {
        return found;
    }
    let xmp = decoder.xmp_metadata().ok().flatten().unwrap_or_default();
    let tagged = |tag: &[u8]| {
        let at = xmp.windows(tag.len()).position(|window| window == tag)? + tag.len();
        let digit = xmp.get(at).copied().filter(u8::is_ascii_digit)?;
        Orientation::from_exif(digit - b'0')
    };
    let found = tagged(b"tiff:Orientation=\"").or_else(|| tagged(b"tiff:Orientation>"));
    found.unwrap_or(Orientation::NoTransforms)
}

/// Whether a JPEG (ITU-T T.81, annex B) has no end marker. The decoder fills the missing part with gray and reports no
/// error.
fn jpeg_ends_early(bytes: &[u8]) -> bool {
    const START: u8 = 0xd8;
    const END: u8 = 0xd9;
    let mut rest = bytes;
    loop {
        // A marker is 0xff and a code. In a scan, 0xff 0 is a value and 0xd0 to 0xd7 restart the coder.
        let Some(at) = rest.windows(2).position(|pair| pair[0] == 0xff && !matches!(pair[1], 0 | 0xd0..=0xd7 | 0xff))
        else {
            return true;
        };
        let code = rest[at + 1];
        rest = &rest[at + 2..];
        match code {
            END => return false,
            START | 1 => {}
            // The length of the segment follows its marker; the length counts its own two bytes.
            _ => match rest.first_chunk().map(|&length| usize::from(u16::from_be_bytes(length))) {
                Some(length) if length <= rest.len() => rest = &rest[length..],
                _ => return true,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_jpeg_is_refused() {
        let mut whole = Cursor::new(Vec::new());
        let colourful = RgbImage::from_fn(64, 48, |x, y| image::Rgb([(x * 4) as u8, (y * 5) as u8, (x * y) as u8]));
        colourful.write_to(&mut whole, ImageFormat::Jpeg).unwrap();
        let whole = whole.into_inner();
        for len in 0..whole.len() {
            assert!(decode_image(&whole[..len]).is_err(), "{len}");
        }
        assert_eq!(decode_image(&whole).unwrap().dimensions(), (64, 48));
        assert_eq!(image_size(&whole).unwrap(), (64, 48));
        // Bytes that cameras append are ignored.
        let trailed = [&whole[..], &[0xff, 0xda, 0, 9]].concat();
        assert_eq!(decode_image(&trailed).unwrap(), decode_image(&whole).unwrap());
    }

    #[test]
    fn pixels_lose_their_opacity_and_must_fill_the_image() {
        let image = image_of_pixels(&[1, 2, 3, 0, 4, 5, 6, 255], (1, 2)).unwrap();
        assert_eq!((image.dimensions(), image.as_raw().as_slice()), ((1, 2), &[1, 2, 3, 4, 5, 6][..]));
        assert_eq!(image_of_pixels(&[1, 2, 3, 4, 5, 6], (1, 2)).unwrap(), image);
        for (bytes, size) in [(7, (1, 2)), (9, (1, 2)), (8, (0, 2)), (8, (1, SIDE_MAX + 1)), (8, (SIDE_MAX, SIDE_MAX))]
        {
            assert_eq!(image_of_pixels(&vec![0; bytes], size).unwrap_err().field(), Some("image"), "{bytes} {size:?}");
        }
    }

    #[test]
    fn image_over_the_decoding_limit_is_refused() {
        // The header states 18,000 x 18,000 pixels. The limits are checked before memory is allocated.
        let mut bitmap = [b"BM".as_slice(), &54u32.to_le_bytes(), &[0; 4], &54u32.to_le_bytes()].concat();
        bitmap.extend([40u32, 18_000, 18_000].iter().flat_map(|field| field.to_le_bytes()));
        bitmap.extend([1u16, 24].iter().flat_map(|field| field.to_le_bytes()));
        bitmap.extend([0; 24]);
        let error = decode_image(&bitmap).unwrap_err().to_string();
        assert!(error.contains("image") && error.to_lowercase().contains("limit"), "{error}");
    }
}
