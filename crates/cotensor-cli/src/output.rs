//! What people see: text that cannot command their terminal, and progress on standard error, a bar on a terminal, plain
//! lines elsewhere.

use crate::terminal::takes_escapes;
use cotensor_demo::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The most characters of an error that are shown.
const ERROR_CHARS_MAX: usize = 2000;
/// Files of fewer bytes are there before anybody wonders.
const BYTES_SHOWN_MIN: u64 = 64 << 20;
/// Read or written before it is told.
const BYTES_AT_ONCE: usize = 4 << 20;

/// `text` with control characters spelt out, so that a label, a name or a line of a file cannot command the terminal.
/// Ends of lines and tabs stay, and so do joiners, which scripts such as Persian need.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let harmful = |c: char| c.is_control() && c != '\n' && c != '\t' || is_order(c) || is_line_end(c);
    replaced(text, harmful, |c, shown| shown.extend(c.escape_default()))
}

/// A name or other text of others as one line, in which every character that has no shape of its own is spelt out: names that
/// differ look different.
pub(crate) fn plain(text: &str) -> String {
    let harmful = |c: char| c.is_control() || is_order(c) || is_line_end(c) || is_invisible(c);
    replaced(text, harmful, |c, shown| shown.extend(c.escape_default())).into_owned()
}

/// JSON that means the same, with all characters escaped that could command a terminal. Outside strings it has none but ends of
/// lines.
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

/// Whether `c` changes the order in which the text around it is read.
fn is_order(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether `c` ends a line or a paragraph, besides control characters.
fn is_line_end(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}')
}

/// Whether `c` takes no room: soft hyphens, joiners, fillers, byte order marks, tags.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}' | '\u{3164}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Beginning and end of a text that is too long to read.
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

/// Writes a line to standard error. Where nobody can read it, the exit code has to do.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// How far files of many bytes are, to a person at a terminal; for those of few, and elsewhere, nothing is said.
pub(crate) struct Bytes {
    steps: Option<Steps>,
    what: String,
    total: u64,
    done: u64,
}

impl Bytes {
    /// Of `total` bytes, which go from or into `what`.
    pub(crate) fn new(total: u64, what: String) -> Self {
        let steps = (total >= BYTES_SHOWN_MIN && takes_escapes(&std::io::stderr())).then(Steps::new);
        Self { steps, what, total, done: 0 }
    }

    fn more(&mut self, bytes: usize) {
        self.done += bytes as u64;
        if let Some(steps) = &self.steps {
            steps.step(self.done, self.total, &self.what);
        }
    }
}

/// A file that tells how much of it was read or written.
pub(crate) struct Told<F> {
    pub(crate) file: F,
    pub(crate) bytes: Bytes,
}

impl<R: Read> Read for Told<R> {
    fn read(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        let len = target.len().min(BYTES_AT_ONCE);
        let read = self.file.read(&mut target[..len])?;
        self.bytes.more(read);
        Ok(read)
    }
}

impl<W: Write> Write for Told<W> {
    fn write(&mut self, source: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(&source[..source.len().min(BYTES_AT_ONCE)])?;
        self.bytes.more(written);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// Shows steps to a person.
pub(crate) struct Steps {
    bar: Option<ProgressBar>,
    lines: Mutex<Lines>,
    /// For work that is counted here: steps begun, and how many there will be.
    begun: AtomicU64,
    expected: u64,
}

impl Steps {
    /// For work that tells itself how far it is.
    pub(crate) fn new() -> Self {
        Self::expecting(0)
    }

    /// For about `expected` calls of [`Steps::next`].
    pub(crate) fn expecting(expected: u64) -> Self {
        let bar = takes_escapes(&std::io::stderr()).then(|| {
            let style = ProgressStyle::with_template("{bar:30} {percent:>3} % {msg} ({elapsed})");
            ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { bar, lines: Mutex::default(), begun: AtomicU64::new(0), expected }
    }

    /// The next step begins.
    pub(crate) fn next(&self, what: &str) {
        let before = self.begun.fetch_add(1, Ordering::Relaxed);
        self.step(before, self.expected.max(before + 1), what);
    }

    /// Takes the bar away, so that the answer can be printed.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Steps {
    fn step(&self, done: u64, total: u64, what: &str) {
        let what = &*printable(what);
        match &self.bar {
            Some(bar) => {
                bar.set_length(total);
                bar.set_position(done);
                bar.set_message(what.to_owned());
            }
            None => {
                let line = self.lines.lock().unwrap_or_else(PoisonError::into_inner).line(done, total, what);
                if let Some(line) = line {
                    tell(&line);
                }
            }
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.finish();
    }
}

/// What was printed last: a line for every new step, and for one that goes on a line every tenth of the way.
#[derive(Default)]
struct Lines {
    what: String,
    tenths: u64,
}

impl Lines {
    fn line(&mut self, done: u64, total: u64, what: &str) -> Option<String> {
        let tenths = 10 * done / total.max(1);
        if self.what != what {
            what.clone_into(&mut self.what);
            self.tenths = tenths;
            return Some(what.to_owned());
        }
        // Threads may tell of their parts out of order.
        if tenths <= self.tenths {
            return None;
        }
        self.tenths = tenths;
        Some(format!("{what}: {} %", 10 * tenths))
    }
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
    fn names_that_differ_look_different() {
        assert_eq!(plain("a\nb\u{1b}[31m\u{202e}\u{fc} \u{1f980}"), "a\\nb\\u{1b}[31m\\u{202e}\u{fc} \u{1f980}");
        for hidden in
            ['\u{200b}', '\u{200d}', '\u{200f}', '\u{2028}', '\u{2029}', '\u{2060}', '\u{feff}', '\u{ad}', '\u{e0041}']
        {
            assert_eq!(plain(&format!("a{hidden}b")), format!("a{}b", hidden.escape_default()));
        }
    }

    #[test]
    fn json_commands_no_terminal_and_means_the_same() {
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

    #[test]
    fn a_line_for_each_step_and_each_tenth() {
        let mut lines = Lines::default();
        let mut line = |done, what: &str| lines.line(done, 200, what);
        assert_eq!(line(0, "making").as_deref(), Some("making"));
        assert_eq!(line(19, "making"), None);
        assert_eq!(line(45, "making").as_deref(), Some("making: 20 %"));
        assert_eq!(line(40, "making"), None);
        assert_eq!(line(200, "making").as_deref(), Some("making: 100 %"));
        assert_eq!(line(1, "running").as_deref(), Some("running"));
        assert_eq!(lines.line(1, 0, "empty").as_deref(), Some("empty"));
    }
}
