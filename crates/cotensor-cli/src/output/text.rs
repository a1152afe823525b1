//! Text without terminal control sequences.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Maximum number of characters of an error message.
const ERROR_CHARS_MAX: usize = 2000;

/// A number with its noun, whose plural has an s.
pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Escapes control characters, so that a label, a name or a line of a file cannot control the terminal. Line ends and
/// tabs stay, and so do joiners, which scripts such as Persian need.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let harmful = |c: char| c.is_control() && c != '\n' && c != '\t' || is_order(c) || is_line_end(c);
    replaced(text, harmful, |c, shown| shown.extend(c.escape_default()))
}

/// Untrusted text, such as a name, as one line. Control and invisible characters are escaped, so that different names
/// look different.
pub(crate) fn plain(text: &str) -> String {
    let harmful = |c: char| c.is_control() || is_order(c) || is_line_end(c) || is_invisible(c);
    replaced(text, harmful, |c, shown| shown.extend(c.escape_default())).into_owned()
}

/// Equivalent JSON in which all characters are escaped that could control the terminal. Outside of strings, JSON
/// contains no such characters except line ends.
pub(crate) fn printable_json(json: &str) -> Cow<'_, str> {
    let harmful = |c: char| c.is_control() && c != '\n' || is_order(c) || is_line_end(c) || is_invisible(c);
    replaced(json, harmful, |c, shown| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(shown, "\\u{unit:04x}");
        }
    })
}

fn replaced(text: &str, harmful: impl Fn(char) -> bool, escape: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if !text.contains(&harmful) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    text.chars().for_each(|c| if harmful(c) { escape(c, &mut shown) } else { shown.push(c) });
    shown.into()
}

/// Whether `c` changes the direction of the text around it.
fn is_order(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether `c` is a line or paragraph separator.
fn is_line_end(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}')
}

/// Whether `c` is invisible: soft hyphens, joiners, fillers, byte order marks, tags.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}' | '\u{3164}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Shortens a long text to its beginning and its end.
pub(crate) fn bounded(text: &str) -> Cow<'_, str> {
    let count = text.chars().count();
    if count <= ERROR_CHARS_MAX {
        return Cow::Borrowed(text);
    }
    let half = ERROR_CHARS_MAX / 2;
    let start: String = text.chars().take(half).collect();
    let end: String = text.chars().skip(count - half).collect();
    format!("{start} [{} characters left out] {end}", count - 2 * half).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_commands_the_terminal() {
        assert_eq!(printable("a\tb\n\u{e9}"), "a\tb\n\u{e9}");
        assert_eq!(printable("\x1b[2J\0\r\x7f\u{9b}\u{202e}"), r"\u{1b}[2J\u{0}\r\u{7f}\u{9b}\u{202e}");
        assert_eq!(printable("\u{646}\u{200c}\u{647}\u{2028}"), "\u{646}\u{200c}\u{647}\\u{2028}");
    }

    #[test]
    fn different_names_look_different() {
        assert_eq!(plain("a\nb\u{1b}[31m\u{202e}\u{fc} \u{1f980}"), "a\\nb\\u{1b}[31m\\u{202e}\u{fc} \u{1f980}");
        for hidden in
            ['\u{200b}', '\u{200d}', '\u{200f}', '\u{2028}', '\u{2029}', '\u{2060}', '\u{feff}', '\u{ad}', '\u{e0041}']
        {
            assert_eq!(plain(&format!("a{hidden}b")), format!("a{}b", hidden.escape_default()));
        }
    }

    #[test]
    fn printable_json_is_equivalent_and_without_control_characters() {
        let text = "\u{9b}2J\u{7f}\u{202e}\u{200b}\u{2028}\u{e0041}\u{fc}\n\"";
        let json = serde_json::to_string_pretty(&[text]).unwrap();
        let shown = printable_json(&json);
        let expected = "[\n  \"\\u009b2J\\u007f\\u202e\\u200b\\u2028\\udb40\\udc41\u{fc}\\n\\\"\"\n]";
        assert_eq!(shown, expected);
        assert_eq!(serde_json::from_str::<[String; 1]>(&shown).unwrap(), [text]);
    }

    #[test]
    fn long_errors_keep_both_ends() {
        let long = format!("a.toml: {}: at the end", "\u{e9}".repeat(100_000));
        let shown = bounded(&long);
        assert!(
            shown.starts_with("a.toml: ") && shown.ends_with(": at the end") && shown.chars().count() < 2100,
            "{shown}"
        );
        assert_eq!(bounded("short"), "short");
    }
}
