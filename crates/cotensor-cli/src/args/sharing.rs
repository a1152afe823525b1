//! Options of the sharing configuration.

use super::units::{SIZE, size};
use clap::Args;
use cotensor::{Kind, SharingConfig};

/// The heading of these options. `next_help_heading` would be the heading of all arguments after them, too.
const HEADING: &str = "Sharing";

/// The sharing configuration; the options have the names of the API. Weights are always shared.
#[derive(Args)]
pub(crate) struct SharingArgs {
    /// Share weights only. Every other tensor is computed privately, and counted.
    #[arg(long, help_heading = HEADING)]
    pub(crate) disable_shared_tensors: bool,
    /// Share only weights and tensors of these kinds: text_embedding, vision_embedding, audio_embedding,
    /// vision_text_joint, audio_text_joint, other.
    #[arg(long, help_heading = HEADING, value_name = "KIND", value_delimiter = ',', value_parser = kind)]
    pub(crate) allowed_types: Option<Vec<Kind>>,
    /// Share only weights and tensors up to this size, such as 64MiB.
    #[arg(long, help_heading = HEADING, value_name = SIZE, value_parser = size)]
    pub(crate) max_shared_tensor_size: Option<u64>,
}

fn kind(name: &str) -> Result<Kind, String> {
    name.parse().map_err(|_| {
        let known: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        format!("the kinds are {}", known.join(", "))
    })
}

impl SharingArgs {
    pub(crate) fn config(&self) -> SharingConfig {
        SharingConfig {
            enable_shared_tensors: !self.disable_shared_tensors,
            allowed_types: self.allowed_types.clone(),
            max_shared_tensor_size_bytes: self.max_shared_tensor_size,
        }
    }

    /// Whether any of the options is set.
    pub(crate) fn is_given(&self) -> bool {
        self.config() != SharingConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use crate::args::Cli;
    use clap::{Command, CommandFactory};

    #[test]
    fn heading_has_the_sharing_options_only() {
        fn check(command: &Command, found: &mut usize) {
            let headed = command.get_arguments().filter(|arg| arg.get_help_heading().is_some());
            let headed: Vec<_> = headed.map(|arg| arg.get_id().as_str()).collect();
            if !headed.is_empty() {
                let expected = ["disable_shared_tensors", "allowed_types", "max_shared_tensor_size"];
                assert_eq!(headed, expected, "{}", command.get_name());
                *found += 1;
            }
            command.get_subcommands().for_each(|command| check(command, found));
        }
        let mut found = 0;
        check(&Cli::command(), &mut found);
        assert_eq!(found, 4, "run, stream, fit-adapter and serve");
    }
}
