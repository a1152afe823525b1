//! Tables and values as plain text.

pub(crate) use crate::output::plain;

use std::fmt::Write;

/// A table with columns as wide as their widest cell.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: &'static [bool],
}

impl Table {
    /// A table with a header; `right` lists which columns are aligned to the right.
    pub(crate) fn new(right: &'static [bool], header: &[&str]) -> Self {
        Self { rows: vec![header.iter().map(|&cell| cell.to_owned()).collect()], right }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub(crate) fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &Vec<String>, column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
        let widths: Vec<usize> =
            (0..columns).map(|column| self.rows.iter().map(|row| cell(row, column)).max().unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                // Writing to a string cannot fail.
                let _ = match self.right.get(column) {
                    Some(true) => write!(line, "{cell:>width$}  "),
                    _ => write!(line, "{cell:width$}  "),
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Formats a duration with one unit.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.0} ms", 1000.0 * s),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} days", s / 86_400.0),
    }
}

/// Formats nanoseconds.
pub(crate) fn milliseconds(nanos: f64) -> String {
    format!("{:.3} ms", nanos / 1e6)
}

/// A value in relation to another one, such as 1.05.
pub(crate) fn ratio(value: f64, of: f64) -> String {
    if of > 0.0 { format!("{:.3}", value / of) } else { "-".to_owned() }
}

/// Formats dimensions as `[2, 768]`.
pub(crate) fn shape(dims: &[usize]) -> String {
    format!("{dims:?}")
}

/// The dtype and the dimensions of a tensor; of a group, that word and the number of its members.
pub(crate) fn elements(dtype: &str, dims: &[usize], member_count: usize) -> [String; 2] {
    match member_count {
        0 => [plain(dtype), shape(dims)],
        1 => ["group".to_owned(), "1 member".to_owned()],
        count => ["group".to_owned(), format!("{count} members")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&[false, true], &["name", "bytes"]);
        table.row(["größer".to_owned(), "7".to_owned()]);
        table.row(["x".to_owned(), "1234567".to_owned()]);
        assert_eq!(table.text(), "name      bytes\ngrößer        7\nx       1234567\n");
    }

    #[test]
    fn durations_have_one_unit() {
        assert_eq!([duration(0.25), duration(60.0), duration(600.0)], ["250 ms", "60 s", "10 min"]);
    }
}
