//! The daemon's counters in the [text format](https://prometheus.io/docs/instrumenting/exposition_formats/) that
//! Prometheus reads. Values are read at the time of the request.

use super::context::Http;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use cotensor_client::protocol::Transport;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::Arc;

/// All counters.
pub(super) async fn get(State(http): State<Arc<Http>>) -> Response {
    // Reading the statistics of many tensors takes long.
    let text = tokio::task::spawn_blocking(move || render(&http)).await.unwrap_or_default();
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

fn render(http: &Http) -> String {
    let (daemon, stats) = (&http.daemon, http.daemon.stats());
    let records = daemon.store.records("");
    let (mut tensors, mut leases) = (BTreeMap::<_, (u64, u64)>::new(), 0);
    for record in &records {
        let series = (record.segment().device().to_string(), record.kind().name());
        let (count, bytes) = tensors.entry(series).or_default();
        *count += 1;
        *bytes += record.layout().size_bytes() as u64;
        leases += record.holders().into_iter().map(|(_, count)| u64::from(count)).sum::<u64>();
    }
    let sessions = daemon.session_infos();
    let connected = |transport| sessions.iter().filter(|session| session.transport == transport).count();
    let calls: BTreeMap<_, _> = daemon.counts.calls().collect();

    let mut page = Page::default();
    page.gauge("info", "The daemon's version.").labelled(&[("version", &env!("CARGO_PKG_VERSION"))], 1);
    page.gauge("sessions", "Open sessions.")
        .labelled(&[("transport", &"unix")], connected(Transport::Unix))
        .labelled(&[("transport", &"http")], connected(Transport::Http));
    page.gauge("functions", "Registered functions.").value(daemon.functions.count());
    page.gauge("leases", "Leases.").value(leases);
    page.gauge("tensors", "Published tensors in memory.");
    for ((device, kind), (count, _)) in &tensors {
        page.labelled(&[("device", device), ("kind", kind)], count);
    }
    page.gauge("tensor_bytes", "Bytes of their elements.");
    for ((device, kind), (_, bytes)) in &tensors {
        page.labelled(&[("device", device), ("kind", kind)], bytes);
    }
    page.gauge("spilled_tensors", "Tensors on disk.").value(stats.spilled_now);
    page.gauge("spilled_tensor_bytes", "Bytes of their segments.").value(stats.spilled_now_bytes);
    page.gauge("counted_seconds", "Seconds since this server began to count; all counters start there.")
        .value(stats.counted_seconds);
    page.gauge("memory_bytes", "Bytes of tensor memory charged to the budget.").value(stats.memory_usage_bytes);
    page.gauge("unshared_bytes", "Bytes of the tensors in memory if each holder had a copy.")
        .value(stats.unshared_bytes);
    page.gauge("saved_bytes", "Bytes of the copies that sharing avoids now.").value(stats.saved_bytes);
    page.gauge("kept_tensors", "Tensors without a lease.").value(stats.kept_tensors);
    page.gauge("kept_bytes", "Bytes of the tensors without a lease.").value(stats.kept_bytes);
    page.gauge("metadata_bytes", "Bytes of metadata charged to the budget.").value(stats.metadata_bytes);
    page.gauge("ready_bytes", "Bytes that producers keep for their next tensors, beyond the budget.")
        .value(stats.ready_bytes);
    page.gauge("memory_peak_bytes", "Peak of memory_bytes.").value(stats.peak_memory_bytes);
    page.gauge("device_memory_bytes", "Bytes of tensor memory charged to the budget of each device.");
    for device in &stats.devices {
        page.labelled(&[("device", &device.device)], device.memory_usage_bytes);
    }
    if daemon.config.max_memory_bytes != u64::MAX {
        page.gauge("memory_budget_bytes", "The budget in bytes.").value(daemon.config.max_memory_bytes);
    }
    page.counter("hits_total", "Lookups and claims that found a tensor.").value(stats.cache_hits);
    page.counter("misses_total", "Lookups and claims that found no tensor.").value(stats.cache_misses);
    page.counter("evictions_total", "Tensors evicted for lack of memory.").value(stats.evictions);
    page.counter("evicted_bytes_total", "Bytes of them.").value(stats.evicted_bytes);
    page.counter("spills_total", "Tensors spilled for lack of memory.").value(stats.spills);
    page.counter("spilled_bytes_total", "Bytes of their segments.").value(stats.spilled_bytes);
    page.counter("spill_restores_total", "Spilled tensors that were read back.").value(stats.restores);
    page.counter("copies_total", "Copies, by reason.");
    for copies in &stats.copies {
        page.labelled(&[("reason", &copies.reason)], copies.count);
    }
    page.counter("copied_bytes_total", "Bytes of them.");
    for copies in &stats.copies {
        page.labelled(&[("reason", &copies.reason)], copies.bytes);
    }
    page.counter("requests_total", "Calls, by method.");
    for (method, count) in &calls {
        page.labelled(&[("method", method)], count);
    }
    page.counter("errors_total", "Failed calls, by JSON-RPC code; 0 for other codes.");
    for (code, count) in &daemon.counts.errors() {
        page.labelled(&[("code", code)], count);
    }
    page.text
}

/// The answer in text format.
#[derive(Default)]
struct Page {
    text: String,
    name: &'static str,
}

impl Page {
    fn gauge(&mut self, name: &'static str, help: &str) -> &mut Self {
        self.begin(name, help, "gauge")
    }

    fn counter(&mut self, name: &'static str, help: &str) -> &mut Self {
        self.begin(name, help, "counter")
    }

    fn begin(&mut self, name: &'static str, help: &str, kind: &str) -> &mut Self {
        self.name = name;
        self.line(format_args!("# HELP cotensor_{name} {help}\n# TYPE cotensor_{name} {kind}"))
    }

    fn value(&mut self, value: impl Display) -> &mut Self {
        let name = self.name;
        self.line(format_args!("cotensor_{name} {value}"))
    }

    fn labelled(&mut self, labels: &[(&str, &dyn Display)], value: impl Display) -> &mut Self {
        let escape = |text: String| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels: Vec<_> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape(value.to_string()))).collect();
        let name = self.name;
        self.line(format_args!("cotensor_{name}{{{}}} {value}", labels.join(",")))
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) -> &mut Self {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{line}");
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut page = Page::default();
        page.gauge("x", "Help.").labelled(&[("a", &"1\"2\\3\n4"), ("b", &5)], 6).value(7);
        assert_eq!(
            page.text,
            "# HELP cotensor_x Help.\n# TYPE cotensor_x gauge\ncotensor_x{a=\"1\\\"2\\\\3\\n4\",b=\"5\"} 6\ncotensor_x 7\n"
        );
    }
}
