//! What a machine is: one `name value` a line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Allocations are multiples of this many bytes.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// The settings of a machine, which tests change while programs run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) devices: u32,
    /// Memory of each device.
    pub(crate) memory_bytes: u64,
    /// Of the driver: 1000 * major + 10 * minor.
    pub(crate) version: u32,
    /// Whether a device can access the memory of another one.
    pub(crate) peer_access: bool,
    /// Whether memory is free only when a second allocation is tried after its end.
    pub(crate) frees_late: bool,
    /// What `cuMemGetAllocationGranularity` tells.
    pub(crate) granularity_bytes: u64,
    /// Functions that do not return while they are here.
    pub(crate) blocked: BTreeSet<String>,
    /// Functions at whose n-th call a process is killed.
    pub(crate) deadly: BTreeMap<String, u32>,
    /// Functions that fail, with their results.
    pub(crate) failures: BTreeMap<String, u32>,
    /// Processes whose contexts are lost, with the results of all their calls.
    pub(crate) lost: BTreeMap<u32, u32>,
    /// Bytes that the management library attributes to processes, by device and process.
    pub(crate) attributed: BTreeMap<(u32, u32), u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            devices: 1,
            memory_bytes: 1 << 30,
            version: 13_000,
            peer_access: false,
            frees_late: false,
            granularity_bytes: GRANULARITY,
            blocked: BTreeSet::new(),
            deadly: BTreeMap::new(),
            failures: BTreeMap::new(),
            lost: BTreeMap::new(),
            attributed: BTreeMap::new(),
        }
    }
}

impl Settings {
    /// Lines that are not understood have no effect.
    pub(super) fn parse(text: &str) -> Self {
        let mut settings = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |index: usize| words.get(index).and_then(|word| word.parse::<u64>().ok());
            let name = || words.get(1).map(|name| (*name).to_owned());
            let small = |index| number(index).and_then(|value| u32::try_from(value).ok());
            match words.first().copied() {
                Some("devices") => settings.devices = small(1).unwrap_or(settings.devices),
                Some("memory") => settings.memory_bytes = number(1).unwrap_or(settings.memory_bytes),
                Some("version") => settings.version = small(1).unwrap_or(settings.version),
                Some("peer_access") => settings.peer_access = true,
                Some("frees_late") => settings.frees_late = true,
                Some("granularity") => settings.granularity_bytes = number(1).unwrap_or(GRANULARITY),
                Some("block") => settings.blocked.extend(name()),
                Some("dies") => settings.deadly.extend(name().zip(small(2))),
                Some("fail") => settings.failures.extend(name().zip(small(2))),
                Some("lost") => settings.lost.extend(small(1).zip(small(2))),
                Some("attributed") => settings.attributed.extend(small(1).zip(small(2)).zip(number(3))),
                _ => {}
            }
        }
        settings
    }

    pub(super) fn to_text(&self) -> String {
        let Self { devices, memory_bytes, version, peer_access, frees_late, granularity_bytes, .. } = self;
        let mut text = format!("devices {devices}\nmemory {memory_bytes}\nversion {version}\n");
        let _ = writeln!(text, "granularity {granularity_bytes}");
        if *peer_access {
            text.push_str("peer_access\n");
        }
        if *frees_late {
            text.push_str("frees_late\n");
        }
        for name in &self.blocked {
            let _ = writeln!(text, "block {name}");
        }
        for (name, call) in &self.deadly {
            let _ = writeln!(text, "dies {name} {call}");
        }
        for (name, code) in &self.failures {
            let _ = writeln!(text, "fail {name} {code}");
        }
        for (process, code) in &self.lost {
            let _ = writeln!(text, "lost {process} {code}");
        }
        for ((device, process), bytes) in &self.attributed {
            let _ = writeln!(text, "attributed {device} {process} {bytes}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_parse_back() {
        let settings = Settings {
            devices: 3,
            memory_bytes: 7 << 21,
            version: 11_040,
            peer_access: true,
            frees_late: true,
            granularity_bytes: 4096,
            blocked: ["cuCtxSynchronize".to_owned()].into(),
            deadly: [("cuMemCreate".to_owned(), 3)].into(),
            failures: [("cuMemMap".to_owned(), 2)].into(),
            lost: [(17, 700)].into(),
            attributed: [((1, 17), 4 << 20)].into(),
        };
        assert_eq!(Settings::parse(&settings.to_text()), settings);
        assert_eq!(Settings::parse("devices x\nfail\nnonsense 1"), Settings::default());
    }
}
