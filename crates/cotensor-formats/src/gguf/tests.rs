use super::*;
use cotensor_core::ErrorKind;

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn entry(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(name), &kind.to_le_bytes()[..], value].concat()
}

fn described(name: &str, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut found = [text(name), (dims.len() as u32).to_le_bytes().to_vec()].concat();
    found.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
    found.extend(kind.to_le_bytes());
    found.extend(offset.to_le_bytes());
    found
}

/// A file with these entries and tensors, and `data` bytes after the header.
fn file(entries: &[Vec<u8>], tensors: &[Vec<u8>], data: usize) -> Vec<u8> {
    let mut found = [&MAGIC[..], &3u32.to_le_bytes()].concat();
    found.extend((tensors.len() as u64).to_le_bytes());
    found.extend((entries.len() as u64).to_le_bytes());
    found.extend(entries.iter().chain(tensors).flatten());
    found.resize(found.len().next_multiple_of(32) + data, 7);
    found
}

fn read(file: &[u8]) -> Result<Gguf> {
    Gguf::read(&mut &file[..], file.len() as u64)
}

#[test]
fn headers_are_read() {
    let names = [3u64.to_le_bytes().to_vec(), text("a"), text(""), text("bcd")].concat();
    let entries = [
        entry("general.architecture", 8, &text("llama")),
        entry("llama.attention.head_count", 4, &4u32.to_le_bytes()),
        entry("tokens", 9, &[&8u32.to_le_bytes()[..], &names].concat()),
        entry("scores", 9, &[&6u32.to_le_bytes()[..], &2u64.to_le_bytes(), &[0; 8]].concat()),
        entry("long", 8, &text(&"x".repeat(5000))),
        entry("signed", 11, &(-3i64).to_le_bytes()),
        entry("half", 6, &0.5f32.to_le_bytes()),
        entry("true", 7, &[1]),
    ];
    let tensors = [described("w", &[64, 3], 8, 0), described("b", &[5], 0, 224), described("other", &[256], 13, 0)];
    let found = read(&file(&entries, &tensors, 244)).unwrap();
    assert_eq!(found.text("general.architecture").unwrap(), "llama");
    assert_eq!(found.number("llama.attention.head_count").unwrap(), Some(4));
    assert_eq!(found.number("absent").unwrap(), None);
    assert_eq!(found.number("signed").unwrap_err().field(), Some("signed"));
    assert_eq!(found.text("half").unwrap_err().field(), Some("half"));
    assert_eq!(found.text("absent").unwrap_err().field(), Some("absent"));
    assert_eq!((found.value("long"), found.value("tokens")), (Some(&GgufValue::Other), Some(&GgufValue::Other)));
    assert_eq!(found.value("true"), Some(&GgufValue::Bool(true)));
    let [w, b, other] = found.tensors() else { panic!("three tensors") };
    assert_eq!((w.shape.as_slice(), w.kind, w.size_bytes), (&[3, 64][..], BlockType::Q8_0, Some(3 * 2 * 34)));
    assert_eq!((b.shape.as_slice(), b.kind, b.size_bytes), (&[5][..], BlockType::F32, Some(20)));
    assert_eq!(b.offset - w.offset, 224);
    assert_eq!((other.kind.to_string().as_str(), other.size_bytes), ("Q5_K", None));
    assert!(b.kind.is_float() && !w.kind.is_float() && !other.kind.is_float());
}

#[test]
fn alignments_are_followed() {
    let entries = [entry(ALIGNMENT, 4, &64u32.to_le_bytes())];
    let found = read(&file(&entries, &[described("w", &[1], 0, 64)], 256)).unwrap();
    assert_eq!(found.tensors()[0].offset % 64, 0);
    for (kind, value) in [(4, &48u32.to_le_bytes()[..]), (4, &[0; 4]), (10, &(1u64 << 40).to_le_bytes()), (7, &[1])] {
        let error = read(&file(&[entry(ALIGNMENT, kind, value)], &[], 0)).unwrap_err();
        assert_eq!(error.field(), Some(ALIGNMENT));
    }
}

#[test]
fn headers_that_do_not_fit_name_the_field() {
    let huge = u64::MAX.to_le_bytes();
    let array = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    for (entries, tensors, field) in [
        (vec![entry("e", 8, &huge)], vec![], "e"),
        (vec![entry("e", 13, &[0; 8])], vec![], "e"),
        (vec![entry("e", 9, &array(8, 1 << 60))], vec![], "e"),
        (vec![entry("e", 9, &array(12, 1 << 60))], vec![], "e"),
        (vec![entry("e", 9, &array(12, 1 << 61))], vec![], "e"),
        (vec![entry("e", 9, &array(9, 1))], vec![], "e"),
        (vec![entry("e", 9, &array(77, 1))], vec![], "e"),
        (vec![entry("e", 7, &[1]), entry("e", 7, &[1])], vec![], "e"),
        (vec![huge.to_vec()], vec![], "metadata"),
        (vec![], vec![huge.to_vec()], "tensors"),
        (vec![], vec![described("w", &[], 0, 0)], "w"),
        (vec![], vec![described("w", &[1; 5], 0, 0)], "w"),
        (vec![], vec![described("w", &[0], 0, 0)], "w"),
        (vec![], vec![described("w", &[u64::MAX, 2], 0, 0)], "w"),
        (vec![], vec![described("w", &[1 << 62, 1 << 62], 0, 0)], "w"),
        (vec![], vec![described("w", &[33], 8, 0)], "w"),
        (vec![], vec![described("w", &[128], 12, 0)], "w"),
        (vec![], vec![described("w", &[1], 99, 0)], "w"),
        (vec![], vec![described("w", &[1], 0, 4)], "w"),
        (vec![], vec![described("w", &[1], 0, u64::MAX - 31)], "w"),
        (vec![], vec![described("w", &[1 << 40], 0, 0)], "w"),
        (vec![], vec![described("w", &[1], 0, 0), described("w", &[1], 0, 0)], "w"),
    ] {
        let error = read(&file(&entries, &tensors, 64)).unwrap_err();
        assert_eq!(error.field(), Some(field), "{error}");
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported), "{error}");
    }
    let with = |at: usize, bytes: &[u8]| {
        let mut found = file(&[], &[], 0);
        found[at..at + bytes.len()].copy_from_slice(bytes);
        read(&found).unwrap_err().field().map(str::to_owned)
    };
    assert_eq!(with(0, b"GGML").as_deref(), Some("magic"));
    assert_eq!(with(4, &1u32.to_le_bytes()).as_deref(), Some("version"));
    assert_eq!(with(4, &3u32.to_be_bytes()).as_deref(), Some("version"));
    assert_eq!(with(8, &huge).as_deref(), Some("tensor count"));
    assert_eq!(with(16, &huge).as_deref(), Some("metadata count"));
}

#[test]
fn every_truncation_is_an_error() {
    let entries = [
        entry("e", 8, &text("llama")),
        entry("a", 9, &[&8u32.to_le_bytes()[..], &1u64.to_le_bytes(), &text("x")].concat()),
    ];
    let whole = file(&entries, &[described("w", &[64], 8, 0)], 68);
    assert!(read(&whole).is_ok());
    for len in 0..whole.len() {
        assert!(read(&whole[..len]).is_err(), "{len} bytes");
    }
}
