//! Channels in messages.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

message! {
    /// A channel to open. Descriptor 0 is its memory, descriptor 1 its ring, and the further ones are the pages of its readers.
    OpenChannelParams {
        /// The name, apart from those of tensors.
        name: String,
        /// The element type of each frame, such as `uint8`.
        dtype: String,
        /// The dimensions of each frame, in elements.
        shape: Vec<usize>,
        /// Frames that a reader can be behind without a loss.
        slots: u32,
        /// The most readers at a time.
        readers: u32,
        /// The most frames that one reader holds at a time.
        holds: u32,
    }

    /// A channel's name.
    ChannelNameParams {
        /// The name.
        name: String,
    }

    /// A channel.
    ChannelInfo {
        /// What its producer has opened.
        #[serde(flatten)]
        opened: OpenChannelParams,
        /// Bytes of its memory, of its ring and of the pages of its readers.
        bytes: u64,
        /// The producer's name and process, for display.
        client: String,
        /// The number of readers.
        open_readers: u32,
        /// The number of frames so far.
        frames: u64,
    }

    /// A channel to read, with the page of its reader.
    JoinedChannel {
        /// The channel.
        channel: ChannelInfo,
        /// The producer's process; none where this process does not see it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
    }

    /// All channels, in order of their names.
    ChannelList {
        /// The channels.
        channels: Vec<ChannelInfo>,
    }
}
