//! Copying a journal to another process: as events, or with entries and claims in packed blocks.

use super::block::{Block, Item, Items};
use super::event::Event;
use super::packed::PackedEntry;
use super::table::{Journal, Segment, at, id_of, shared};
use cotensor_core::{ContentHash, Error, Result};
use std::collections::HashSet;
use std::os::fd::{BorrowedFd, OwnedFd};

/// A block of a handover is sent when it has this many bytes.
pub(super) const BLOCK_BYTES: usize = 256 << 10;
/// The most descriptors of segments in one message of a handover. Linux counts those that are not received yet against the
/// limit of open descriptors.
pub(super) const HANDOVER_FDS: usize = 8;

impl Journal {
    /// Calls `send_event` with events and descriptors that make an empty journal equal to this one.
    ///
    /// # Errors
    /// Those of `send_event`.
    pub fn replay(&self, mut send_event: impl FnMut(Event, Option<BorrowedFd<'_>>) -> Result<()>) -> Result<()> {
        let mut sent = HashSet::new();
        for (&at, packed) in &self.entries {
            let entry = Box::new(packed.unpack(id_of(at))?);
            let first = packed.segment().filter(|number| sent.insert(*number));
            let first = first.and_then(|number| self.segments.get(&number));
            let event = Event::Published { entry, segment: first.map(|segment| segment.info) };
            send_event(event, first.map(Segment::descriptor))?;
        }
        for (key, results) in &self.claims {
            send_event(Event::Finished { key: key.to_string(), results: results.to_vec() }, None)?;
        }
        self.replay_rest(|event| send_event(event, None))
    }

    /// As [`replay`](Self::replay), with entries and claims in blocks for [`apply_block`](Self::apply_block): thousands
    /// in one message, without JSON.
    ///
    /// # Errors
    /// Those of `block` and `send_event`.
    pub fn hand_over<'a>(
        &'a self,
        mut block: impl FnMut(Vec<u8>, Vec<BorrowedFd<'a>>) -> Result<()>,
        send_event: impl FnMut(Event) -> Result<()>,
    ) -> Result<()> {
        let (mut filling, mut fds, mut sent) = (Block::new(), Vec::new(), HashSet::new());
        let is_full =
            |filling: &Block, fds: &[BorrowedFd<'_>]| filling.len() >= BLOCK_BYTES || fds.len() == HANDOVER_FDS;
        let mut send = |filling: &mut Block, fds: &mut Vec<BorrowedFd<'a>>| {
            block(std::mem::replace(filling, Block::new()).into_bytes(), std::mem::take(fds))
        };
        for (&at, packed) in &self.entries {
            let first = packed.segment().filter(|number| sent.insert(*number));
            if let Some(segment) = first.and_then(|number| self.segments.get(&number)) {
                fds.push(segment.descriptor());
                filling.add(&Item::Segment(segment.info))?;
            }
            filling.add(&Item::entry(id_of(at), packed))?;
            if is_full(&filling, &fds) {
                send(&mut filling, &mut fds)?;
            }
        }
        for (key, results) in &self.claims {
            filling.add(&Item::claim(key, results))?;
            if is_full(&filling, &fds) {
                send(&mut filling, &mut fds)?;
            }
        }
        send(&mut filling, &mut fds)?;
        self.replay_rest(send_event)
    }

    fn replay_rest(&self, mut send_event: impl FnMut(Event) -> Result<()>) -> Result<()> {
        send_event(Event::NameIds(self.name_ids))?;
        for key in &self.claimed {
            send_event(Event::Claimed(key.clone()))?;
        }
        for (&session, &client) in &self.sessions {
            send_event(Event::SessionStarted { session, client })?;
        }
        for (&session, leases) in &self.left {
            send_event(Event::SessionLeft { session, leases: leases.clone() })?;
        }
        for (key, note) in &self.notes {
            send_event(Event::NotePut { key: key.clone(), note: note.clone() })?;
        }
        Ok(())
    }

    /// Adds a block from [`hand_over`](Self::hand_over).
    ///
    /// # Errors
    /// `Corrupt` for bytes that are not a block; as [`apply`](Self::apply).
    pub fn apply_block(&mut self, block: &[u8], fds: Vec<OwnedFd>) -> Result<()> {
        let mut fds = fds.into_iter();
        for item in Items::of(block)? {
            match item? {
                Item::Segment(info) => self.add_segment(info, fds.next().map(shared))?,
                Item::Entry(id, bytes) => {
                    let packed = PackedEntry::from_bytes(bytes);
                    packed.unpack(id)?;
                    self.use_segment(&packed)?;
                    self.name_ids = self.name_ids.max(id.name_id);
                    if self.entries.insert(at(id), packed).is_some() {
                        return Err(Error::corrupt(format!("version {} of {} was sent twice", id.version, id.name_id)));
                    }
                }
                Item::Claim(key, results) => {
                    self.claims.insert(ContentHash::from_bytes(key), results.into_owned().into());
                }
            }
        }
        Ok(())
    }
}
