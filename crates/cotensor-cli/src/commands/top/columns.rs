//! Tables of the live view. A narrow terminal shows fewer columns, so that names keep their place.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Row, Table};

/// The least width of a column of names while others can be left out.
const NAME_WIDTH_MIN: u16 = 22;
/// The borders of a table.
const BORDERS: u16 = 2;

/// A column of a table.
#[derive(Clone, Copy)]
pub(super) struct Column {
    title: &'static str,
    /// `None` for a name, which gets the rest of the width.
    width: Option<u16>,
    is_number: bool,
    /// The rank among the columns that a narrow table lacks, from 0 on. Without it, the column is always shown.
    left_out: Option<u8>,
}

impl Column {
    pub(super) const fn number(title: &'static str, width: u16) -> Self {
        Self { title, width: Some(width), is_number: true, left_out: None }
    }

    pub(super) const fn text(title: &'static str, width: u16) -> Self {
        Self { title, width: Some(width), is_number: false, left_out: None }
    }

    pub(super) const fn name(title: &'static str) -> Self {
        Self { title, width: None, is_number: false, left_out: None }
    }

    pub(super) const fn left_out(self, rank: u8) -> Self {
        Self { left_out: Some(rank), ..self }
    }

    fn cell(&self, text: String) -> Cell<'static> {
        if self.is_number { Line::from(text).right_aligned().into() } else { text.into() }
    }
}

/// The positions of the columns that a table of `width` shows.
fn shown(columns: &[Column], width: u16) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    let needed = |shown: &[usize]| {
        let widths: u16 = shown.iter().map(|&at| columns[at].width.unwrap_or(NAME_WIDTH_MIN)).sum();
        widths + u16::try_from(shown.len().saturating_sub(1)).unwrap_or(u16::MAX) + BORDERS
    };
    while needed(&shown) > width {
        let ranked = shown.iter().enumerate().filter_map(|(place, &at)| Some((columns[at].left_out?, place)));
        let Some((_, place)) = ranked.min() else { break };
        shown.remove(place);
    }
    shown
}

/// Draws a table. Each row has a cell for each column.
pub(super) fn table(
    frame: &mut Frame<'_>,
    area: Rect,
    title: String,
    columns: &[Column],
    rows: impl Iterator<Item = (Vec<String>, Style)>,
) {
    let shown = shown(columns, area.width);
    let rows = rows.map(|(mut cells, style)| {
        let cells = shown.iter().map(|&at| columns[at].cell(cells.get_mut(at).map(std::mem::take).unwrap_or_default()));
        Row::new(cells.collect::<Vec<_>>()).style(style)
    });
    let header = Row::new(shown.iter().map(|&at| columns[at].cell(columns[at].title.to_owned()))).bold();
    let widths = shown.iter().map(|&at| columns[at].width.map_or(Constraint::Fill(1), Constraint::Length));
    let table = Table::new(rows, widths).header(header).block(Block::bordered().title(title));
    frame.render_widget(table, area);
}
