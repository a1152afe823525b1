//! Draws the live view.

use super::snapshot::{Order, SHARE_COLUMNS, Snapshot, leases, share_rows};
use crate::output::count;
use crate::table::{duration, elements, plain};
use cotensor::core::size;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table};

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
        let [head, tensors, share_area, holder_area, keys] = Layout::vertical([
            Constraint::Length(3),
            Constraint::Min(4),
            Constraint::Length(if shares.is_empty() { 0 } else { height(shares.len()) }),
            Constraint::Length(height(holders.len())),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.head(), head);
        self.tensors(frame, tensors);
        let rows = holders.iter().map(|row| {
            Row::new([
                right(row.tensors.to_string()),
                right(row.leases.to_string()),
                right(size(row.bytes)),
                plain(&row.name).into(),
            ])
        });
        let widths = [Constraint::Length(8), Constraint::Length(8), Constraint::Length(10), Constraint::Fill(1)];
        let header = Row::new([right("tensors"), right("leases"), right("bytes"), "holder".into()]).bold();
        frame.render_widget(
            Table::new(rows, widths).header(header).block(Block::bordered().title(" holders ")),
            holder_area,
        );
        if !shares.is_empty() {
            let rows = shares.into_iter().map(|[share, demand, capacity, state, device, program]| {
                Row::new([right(share), right(demand), right(capacity), state.into(), device.into(), program.into()])
            });
            let [share, demand, capacity, state, device, program] = SHARE_COLUMNS;
            let header =
                Row::new([right(share), right(demand), right(capacity), state.into(), device.into(), program.into()]);
            let widths = [
                Constraint::Length(10),
                Constraint::Length(10),
                Constraint::Length(10),
                Constraint::Length(16),
                Constraint::Fill(1),
                Constraint::Fill(1),
            ];
            let table = Table::new(rows, widths).header(header.bold());
            frame.render_widget(table.block(Block::bordered().title(" devices ")), share_area);
        }
        let pause = if self.paused { "p resume" } else { "p pause" };
        let help = format!(" q quit   ↑ ↓ PgUp PgDn move   s order: {}   {pause}", self.order.name());
        frame.render_widget(Line::from(help).dim(), keys);
    }

    fn head(&self) -> Paragraph<'_> {
        let stats = &self.snapshot.stats;
        let title = format!(" cotensor {} ", plain(&self.socket));
        let line = match &self.error {
            Some(error) => Line::from(plain(error)).red(),
            None => Line::from(format!(
                "{} saved of {} without sharing   {}   {} (peak {}, budget {})   {} holders   {:.0} lookups/s, hit rate {:.1} %   {} evicted",
                size(stats.saved_bytes),
                size(stats.unshared_bytes),
                count(stats.total_tensors, "tensor"),
                size(stats.memory_usage_bytes),
                size(stats.peak_memory_bytes),
                crate::commands::tensors::budget(stats),
                stats.total_models,
                self.rate,
                100.0 * stats.hit_rate,
                stats.evictions
            )),
        };
        Paragraph::new(line).block(Block::bordered().title(title))
    }

    fn tensors(&self, frame: &mut Frame<'_>, area: Rect) {
        let height = usize::from(area.height);
        let rows = self.snapshot.tensors.iter().skip(self.top).take(height).map(|tensor| {
            let [dtype, shape] = elements(&tensor.spec.dtype, &tensor.spec.shape, tensor.member_count);
            let style = if tensor.holders.is_empty() { Style::new().dim() } else { Style::new() };
            Row::new([
                right(size(tensor.bytes)),
                right(tensor.hits.to_string()),
                right(leases(tensor).to_string()),
                right(duration(tensor.age_s)),
                tensor.state.name().into(),
                dtype.into(),
                shape.into(),
                plain(&tensor.spec.name).into(),
            ])
            .style(style)
        });
        let header = Row::new([
            right("bytes"),
            right("hits"),
            right("leases"),
            right("age"),
            "state".into(),
            "dtype".into(),
            "shape".into(),
            "name".into(),
        ]);
        let widths = [
            Constraint::Length(10),
            Constraint::Length(8),
            Constraint::Length(7),
            Constraint::Length(8),
            Constraint::Length(10),
            Constraint::Length(9),
            Constraint::Length(20),
            Constraint::Fill(1),
        ];
        let more = match self.snapshot.left_off {
            0 => String::new(),
            count => format!(" and {count} more "),
        };
        let title = format!(" tensors {} of {}{more} ", self.top + 1, self.snapshot.tensors.len());
        let title = if self.snapshot.tensors.is_empty() { " no tensors ".to_owned() } else { title };
        frame.render_widget(Table::new(rows, widths).header(header.bold()).block(Block::bordered().title(title)), area);
    }
}

/// Lines of a table of `rows`, with its header and borders; of eight rows at most.
fn height(rows: usize) -> u16 {
    u16::try_from(rows).unwrap_or(u16::MAX).clamp(1, 8) + 3
}

fn right(text: impl Into<String>) -> Cell<'static> {
    Line::from(text.into()).right_aligned().into()
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let mut terminal = Terminal::new(TestBackend::new(110, 24)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let cell = |x, y| buffer.cell((x, y)).map_or(" ", |cell| cell.symbol()).to_owned();
        (0..24).map(|y| (0..110).map(|x| cell(x, y)).collect()).collect()
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
