//! Draws the live view.

use super::columns::{Column, table};
use super::snapshot::{Order, SHARE_COLUMNS, Snapshot, leases, share_rows};
use crate::commands::tensors::{budget, device_memory};
use crate::output::count;
use crate::table::{duration, elements, plain};
use cotensor::core::size;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph};

const TENSORS: [Column; 8] = [
    Column::number("bytes", 8),
    Column::number("hits", 8).left_out(2),
    Column::number("leases", 6),
    Column::number("age", 7).left_out(3),
    Column::text("state", 10).left_out(4),
    Column::text("dtype", 8).left_out(1),
    Column::text("shape", 20).left_out(0),
    Column::name("name"),
];
const HOLDERS: [Column; 4] =
    [Column::number("tensors", 8), Column::number("leases", 8), Column::number("bytes", 10), Column::name("holder")];
/// As [`share_rows`] gives them.
const SHARES: [Column; 6] = [
    Column::number(SHARE_COLUMNS[0], 10),
    Column::number(SHARE_COLUMNS[1], 10).left_out(1),
    Column::number(SHARE_COLUMNS[2], 10).left_out(0),
    Column::text(SHARE_COLUMNS[3], 14),
    Column::name(SHARE_COLUMNS[4]),
    Column::name(SHARE_COLUMNS[5]),
];

/// The state of the live view.
pub(super) struct View {
    pub(super) socket: String,
    pub(super) snapshot: Snapshot,
    pub(super) order: Order,
    /// Index of the first visible tensor.
    pub(super) top: usize,
    pub(super) paused: bool,
    /// Lookups per second.
    pub(super) rate: f64,
    /// Error of the last refresh.
    pub(super) error: Option<String>,
}

impl View {
    /// Scrolls the tensors by `by` rows.
    pub(super) fn scroll(&mut self, by: isize) {
        let last = self.snapshot.tensors.len().saturating_sub(1);
        self.top = self.top.saturating_add_signed(by).min(last);
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let holders = self.snapshot.holders();
        let shares = share_rows(&self.snapshot.devices);
        let head = self.head(frame.area().width);
        let head_height = u16::try_from(head.len()).unwrap_or(u16::MAX).saturating_add(2);
        let [head_area, tensors, share_area, holder_area, keys] = Layout::vertical([
            Constraint::Length(head_height),
            Constraint::Min(4),
            Constraint::Length(if shares.is_empty() { 0 } else { height(shares.len()) }),
            Constraint::Length(height(holders.len())),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let title = format!(" cotensor {} ", plain(&self.socket));
        frame.render_widget(Paragraph::new(head).block(Block::bordered().title(title)), head_area);
        self.tensors(frame, tensors);
        let rows = holders.iter().map(|row| {
            let cells = [row.tensors.to_string(), row.leases.to_string(), size(row.bytes), plain(&row.name)];
            (cells.to_vec(), Style::new())
        });
        table(frame, holder_area, " holders ".to_owned(), &HOLDERS, rows);
        if !shares.is_empty() {
            let rows = shares.into_iter().map(|row| (row.to_vec(), Style::new()));
            table(frame, share_area, " devices ".to_owned(), &SHARES, rows);
        }
        let pause = if self.paused { "p resume" } else { "p pause" };
        let help = format!(" q quit   ↑ ↓ PgUp PgDn move   s order: {}   {pause}", self.order.name());
        frame.render_widget(Line::from(help).dim(), keys);
    }

    /// The counters, or the error of the last refresh, in lines that fit into `width` with a border.
    fn head(&self, width: u16) -> Vec<Line<'_>> {
        let stats = &self.snapshot.stats;
        if let Some(error) = &self.error {
            return vec![Line::from(plain(error)).red()];
        }
        let parts = [
            format!("{} saved of {} without sharing", size(stats.saved_bytes), size(stats.unshared_bytes)),
            count(stats.total_tensors, "tensor"),
            format!(
                "{} (peak {}, budget {})",
                size(stats.memory_usage_bytes),
                size(stats.peak_memory_bytes),
                budget(stats)
            ),
            count(stats.total_models, "holder"),
            format!("{:.0} lookups/s, hit rate {:.1} %", self.rate, 100.0 * stats.hit_rate),
            format!("{} evicted", stats.evictions),
        ];
        let devices = device_memory(stats).map(|(device, used)| format!("{device}: {used}"));
        let mut lines: Vec<String> = Vec::new();
        for part in parts.into_iter().chain(devices) {
            match lines.last_mut() {
                Some(line) if line.chars().count() + part.chars().count() + 5 <= usize::from(width) => {
                    line.push_str("   ");
                    line.push_str(&part);
                }
                _ => lines.push(part),
            }
        }
        lines.into_iter().map(Line::from).collect()
    }

    fn tensors(&self, frame: &mut Frame<'_>, area: Rect) {
        let height = usize::from(area.height);
        let rows = self.snapshot.tensors.iter().skip(self.top).take(height).map(|tensor| {
            let [dtype, shape] = elements(&tensor.spec.dtype, &tensor.spec.shape, tensor.member_count);
            let style = if tensor.holders.is_empty() { Style::new().dim() } else { Style::new() };
            let cells = [
                size(tensor.bytes),
                tensor.hits.to_string(),
                leases(tensor).to_string(),
                duration(tensor.age_s),
                tensor.state.name().to_owned(),
                dtype,
                shape,
                plain(&tensor.spec.name),
            ];
            (cells.to_vec(), style)
        });
        let more = match self.snapshot.left_off {
            0 => String::new(),
            count => format!(" and {count} more "),
        };
        let title = format!(" tensors {} of {}{more} ", self.top + 1, self.snapshot.tensors.len());
        let title = if self.snapshot.tensors.is_empty() { " no tensors ".to_owned() } else { title };
        table(frame, area, title, &TENSORS, rows);
    }
}

/// Lines of a table of `rows`, with its header and borders; of eight rows at most.
fn height(rows: usize) -> u16 {
    u16::try_from(rows).unwrap_or(u16::MAX).clamp(1, 8) + 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor::store::DeviceStats;
    use cotensor_client::protocol::{DeviceShares, Id, Keep, ProgramShare, Spec, TensorInfo, TensorState};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::collections::BTreeMap;

    fn tensor(name: &str, bytes: u64, hits: u64, holders: &[(&str, u32)]) -> TensorInfo {
        TensorInfo {
            id: Id { name_id: 1, version: 1 },
            spec: Spec {
                name: name.to_owned(),
                dtype: "float32".to_owned(),
                shape: vec![2, 3],
                device: Default::default(),
                kind: "other".to_owned(),
                space: None,
                producer: String::new(),
                keep: Keep::Cached,
                keep_ms: None,
                provenance: None,
                metadata: None,
                members: Vec::new(),
            },
            bytes,
            device: "cpu".to_owned(),
            age_s: 3.0,
            hits,
            holders: holders.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect::<BTreeMap<_, _>>(),
            state: TensorState::Published,
            lost: None,
            member_count: 0,
            charged_to: None,
            freed_in_s: None,
        }
    }

    fn view(order: Order) -> View {
        let tensors = vec![
            tensor("small/often", 24, 900, &[("a[1]", 2)]),
            tensor("large\u{1b}[31m", 5 << 20, 1, &[("a[1]", 1), ("b[2]", 1)]),
        ];
        let mut snapshot = Snapshot { tensors, ..Snapshot::default() };
        snapshot.sort(order);
        let socket = "/run/cotensor.sock".to_owned();
        View { socket, snapshot, order, top: 0, paused: false, rate: 12.0, error: None }
    }

    fn lines(view: &View) -> Vec<String> {
        lines_of(view, 110)
    }

    /// The lines on a terminal with `width` columns.
    fn lines_of(view: &View, width: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, 24)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let cell = |x, y| buffer.cell((x, y)).map_or(" ", |cell| cell.symbol()).to_owned();
        (0..24).map(|y| (0..width).map(|x| cell(x, y)).collect()).collect()
    }

    fn line_with(lines: &[String], word: &str) -> usize {
        lines.iter().position(|line| line.contains(word)).unwrap_or_else(|| panic!("{word} in {lines:#?}"))
    }

    #[test]
    fn tensors_and_holders_are_shown_in_order() {
        let shown = lines(&view(Order::Bytes));
        assert!(line_with(&shown, "large\\u{1b}[31m") < line_with(&shown, "small/often"));
        assert!(shown[line_with(&shown, "5.00 MiB")].contains("float32"));
        let (a, b) = (line_with(&shown, "a[1]"), line_with(&shown, "b[2]"));
        assert!(a < b && shown[a].contains('3'), "{shown:#?}");
        let shown = lines(&view(Order::Hits));
        assert!(line_with(&shown, "small/often") < line_with(&shown, "large"));
    }

    #[test]
    fn narrow_terminals_show_names_and_whole_numbers() {
        let mut view = view(Order::Bytes);
        view.snapshot.tensors.push(tensor("layers.0.attention.q", 1023 << 10, 1_000_000, &[("c[3]", 1)]));
        view.snapshot.tensors[0].state = TensorState::Superseded;
        for width in [80, 60, 40] {
            let shown = lines_of(&view, width);
            let line = &shown[line_with(&shown, "layers.0.attention.q")];
            assert!(line.contains(" 1023 KiB ") || line.contains("│1023 KiB "), "{width}: {line}");
            assert!(width < 80 || (line.contains("1000000") && line.contains("published")), "{width}: {line}");
            assert!(width < 80 || shown[line_with(&shown, "5.00 MiB")].contains("superseded"), "{width}");
            line_with(&shown, "saved of");
            line_with(&shown, " evicted");
        }
        assert!(lines_of(&view, 110)[5].contains("shape"), "{:#?}", lines_of(&view, 110));
    }

    #[test]
    fn memory_of_devices_is_shown() {
        let mut view = view(Order::Bytes);
        let of = |device: &str, tensors| DeviceStats {
            device: device.to_owned(),
            tensors,
            memory_usage_bytes: 6 << 20,
            max_memory_bytes: Some(40 << 30),
            peak_memory_bytes: 6 << 20,
        };
        view.snapshot.stats.devices = vec![of("cpu", 2), of("cuda:1", 1)];
        let shown = lines(&view);
        assert!(shown[line_with(&shown, "cuda:1: 6.00 MiB of 40.0 GiB (1 tensor)")].contains('│'), "{shown:#?}");
        assert!(!shown.iter().any(|line| line.contains("cpu:")), "{shown:#?}");
    }

    #[test]
    fn programs_on_devices_are_shown() {
        let mut view = view(Order::Bytes);
        assert!(!lines(&view).iter().any(|line| line.contains(" devices ")));
        let program = |client: &str, held_bytes, busy| ProgramShare {
            session: 1,
            client: client.to_owned(),
            share_bytes: 1 << 20,
            held_bytes,
            demand_bytes: 7 << 20,
            smallest_bytes: 0,
            quiet_s: 0.0,
            busy,
        };
        let programs =
            vec![program("a[1]", 1 << 20, true), program("b[2]", 4 << 20, true), program("c[3]", 1 << 20, false)];
        view.snapshot.devices =
            vec![DeviceShares { device: "cuda:GPU-5c".to_owned(), capacity_bytes: 9 << 20, programs }];
        let shown = lines(&view);
        let top = line_with(&shown, " devices ");
        for (line, words) in [(2, ["busy", "a[1]"]), (3, ["frees 3.00 MiB", "b[2]"]), (4, ["idle", "c[3]"])] {
            let line = &shown[top + line];
            assert!(
                ["1.00 MiB", "7.00 MiB", "9.00 MiB", "cuda:GPU-5c"].iter().all(|word| line.contains(word)),
                "{line}"
            );
            assert!(words.iter().all(|word| line.contains(word)), "{line}");
        }
    }

    #[test]
    fn view_scrolls_within_its_tensors_and_shows_errors() {
        let mut view = view(Order::Bytes);
        view.scroll(1);
        assert!(!lines(&view).iter().any(|line| line.contains("large")));
        view.scroll(100);
        assert_eq!(view.top, 1);
        view.scroll(-100);
        assert_eq!(view.top, 0);
        view.error = Some("the daemon ended".to_owned());
        line_with(&lines(&view), "the daemon ended");
        view.snapshot = Snapshot::default();
        line_with(&lines(&view), "no tensors");
        let mut orders = vec![Order::Bytes];
        while orders.len() < 6 {
            orders.push(orders[orders.len() - 1].next());
        }
        assert_eq!(orders[5], Order::Bytes);
    }
}
