//! Options of the sharing configuration.

use clap::Args;
use cotensor::{Kind, SharingConfig};

/// The sharing configuration; the options have the names of the API. Weights are always shared.
#[derive(Args)]
#[command(next_help_heading = "Sharing")]
pub(crate) struct SharingArgs {
    /// Share weights only. Every other tensor is computed privately, and counted.
    #[arg(long)]
    pub(crate) disable_shared_tensors: bool,
    /// Share only weights and tensors of these kinds: text_embedding, vision_embedding, audio_embedding,
    /// vision_text_joint, audio_text_joint, other.
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = kind)]
    pub(crate) allowed_types: Option<Vec<Kind>>,
    /// Share only weights and tensors up to this size, such as 64MiB; without a unit in MiB.
    #[arg(long, value_name = "SIZE", value_parser = super::sizes::size)]
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
