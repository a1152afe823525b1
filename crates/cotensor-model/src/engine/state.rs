use crate::graph::Port;
use crate::tensor::TensorRef;
use std::any::Any;
use std::collections::BTreeMap;

/// Values that an engine keeps between runs, by the name of the graph input that reads them: the key-value cache of a
/// decoder. Each value is in the engine's own form and in its memory.
#[derive(Default)]
pub struct RunState {
    values: BTreeMap<String, Box<dyn Any + Send>>,
    copied_bytes: u64,
}

/// An output that a run keeps in a [`RunState`] for later runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep<'a> {
    /// The output of the graph that runs.
    pub output: &'a str,
    /// The input of later graphs that reads it.
    pub input: &'a str,
    /// For a value that later runs extend: its size in its second-to-last dimension after the last run. The engine may
    /// reserve memory for it. `None` for a value that does not grow.
    pub rows_max: Option<usize>,
}

impl RunState {
    /// An empty state.
    pub fn new() -> Self {
        Self::default()
    }

    /// The inputs for which the state has a value, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Whether the state has a value for an input.
    pub fn has(&self, input: &str) -> bool {
        self.values.contains_key(input)
    }

    /// The values, for an engine: with the type that the engine stored.
    pub fn values(&self) -> impl Iterator<Item = (&str, &(dyn Any + Send))> {
        self.values.iter().map(|(input, value)| (input.as_str(), &**value))
    }

    /// The values that a graph with these inputs reads, for an engine: those that `given` does not replace.
    pub fn read_by(&self, inputs: &[Port], given: &[(&str, TensorRef<'_>)]) -> Vec<String> {
        let is_read = |name: &&String| {
            inputs.iter().any(|port| port.name == **name) && given.iter().all(|(known, _)| known != name)
        };
        self.values.keys().filter(is_read).cloned().collect()
    }

    /// Removes a value, for an engine.
    pub fn take(&mut self, input: &str) -> Option<Box<dyn Any + Send>> {
        self.values.remove(input)
    }

    /// Stores a value, for an engine. Replaces the value of the same input.
    pub fn put(&mut self, input: &str, value: Box<dyn Any + Send>) {
        self.values.insert(input.to_owned(), value);
    }

    /// Counts bytes that an engine copied because a value outgrew its memory, or because the engine cannot extend a
    /// value in place.
    pub fn record_copy(&mut self, bytes: usize) {
        self.copied_bytes = self.copied_bytes.saturating_add(bytes as u64);
    }

    /// The bytes that engines copied so far.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_replaced_and_taken_by_input() {
        let mut state = RunState::new();
        state.put("past.0", Box::new(1u8));
        state.put("past.0", Box::new(2u8));
        state.put("past.1", Box::new(3u8));
        assert_eq!(state.names().collect::<Vec<_>>(), ["past.0", "past.1"]);
        assert_eq!(state.take("past.0").unwrap().downcast_ref::<u8>(), Some(&2));
        assert!(!state.has("past.0") && state.take("past.0").is_none());
        assert_eq!(state.values().filter_map(|(_, value)| value.downcast_ref::<u8>()).collect::<Vec<_>>(), [&3]);
        state.record_copy(3);
        state.record_copy(4);
        assert_eq!(state.copied_bytes(), 7);
    }
}
