//! Copies of published tensors in the memory of a device: one for all programs.

use cotensor_core::{DType, Device, Error, ErrorKind, Hasher, Kind, Result, copy_by_host};
use cotensor_store::{Claim, CopyReason, Holder, Key, Lease, NAME_BYTES_MAX, Reservation, Store, TensorId, TensorSpec};
use std::ops::Range;
use std::time::Duration;

/// A copy of bytes of a published tensor in the memory of a device, which all programs of a store share.
///
/// It is a tensor of the store, and the result of a computation whose key names the published version, its bytes and the device. The
/// first program that leases it copies the bytes. It is freed with its last lease.
pub struct ResidentCopy<'a> {
    /// The published tensor, in host memory or in that of another device.
    pub source: &'a Lease,
    /// Bytes of the tensor, from its first one on.
    pub bytes: Range<usize>,
    /// The device, as the store names it.
    pub device: Device,
    /// A name of the device that is equal in all programs, such as its UUID.
    pub identity: &'a str,
}

/// A leased [`ResidentCopy`].
pub struct Resident {
    /// The copy: a tensor of bytes.
    pub lease: Lease,
    /// Bytes that the call has copied: none when another program has.
    pub copied_bytes: usize,
}

impl ResidentCopy<'_> {
    /// The computation of which the copy is the result.
    pub fn key(&self) -> Key {
        let TensorId { name_id, version } = self.source.id();
        let mut hasher = Hasher::new("cotensor resident copy v1");
        hasher.number(name_id).number(version);
        hasher.number(self.bytes.start as u64).number(self.bytes.end as u64);
        hasher.field(self.device.to_string().as_bytes()).field(self.identity.as_bytes());
        Key(hasher.finish())
    }

    /// The key, by which other programs find the copy.
    ///
    /// # Errors
    /// `Unsupported` for a private tensor: other programs use its id for tensors of their own.
    fn shared_key(&self) -> Result<Key> {
        if self.source.is_private() {
            let message = format!("{} is private to this process: publish it to share copies", self.source.name());
            return Err(Error::unsupported(message));
        }
        Ok(self.key())
    }

    /// The copy as a tensor of `holder`. The key identifies it: a name that is too long is cut.
    pub fn spec(&self, holder: &Holder) -> TensorSpec {
        let (source, Range { start, end }, identity) = (self.source.name(), &self.bytes, self.identity);
        let part = format!("[{start}..{end}] on {identity}");
        let mut name = source[..source.floor_char_boundary(NAME_BYTES_MAX.saturating_sub(part.len()))].to_owned();
        name.push_str(&part);
        name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
        let spec = TensorSpec::new(name, DType::U8, &[self.bytes.len()]).on(self.device);
        TensorSpec { kind: Kind::Weight, producer: holder.name().to_owned(), ..spec }
    }

    /// Leases the copy, and makes it if no program has. While another program copies, this call waits at most `wait`.
    ///
    /// # Errors
    /// `Invalid` for bytes that the tensor does not have; `Unsupported` for a private tensor, and for a device that the store does not have;
    /// `TimedOut` while another program copies; else as [`reserve`](cotensor_store::TensorStore::reserve). After an error, another program may
    /// make the copy.
    pub fn lease(&self, store: &dyn Store, holder: &Holder, wait: Duration) -> Result<Resident> {
        let key = self.shared_key()?;
        let own = self.source.layout().byte_range();
        if self.bytes.start > self.bytes.end || self.bytes.end > own.len() {
            return Err(Error::invalid(format!("{} has no bytes {:?}", self.source.name(), self.bytes)));
        }
        match store.claim_within(&key, holder, wait)? {
            Claim::Ready(leases) => Ok(Resident { lease: self.checked(leases)?, copied_bytes: 0 }),
            Claim::Compute(ticket) => {
                // An error drops the ticket, which ends the claim.
                let mut reservation = store.reserve(self.spec(holder), holder)?;
                self.copy_to(&mut reservation)?;
                let leases = ticket.publish(vec![reservation])?;
                Ok(Resident { lease: self.checked(leases)?, copied_bytes: self.bytes.len() })
            }
        }
    }

    /// Copies the bytes, which the tensor has. Those of another device pass through the host.
    fn copy_to(&self, reservation: &mut Reservation) -> Result<()> {
        if let Some(bytes) = self.source.bytes() {
            return reservation.write(&bytes[self.bytes.clone()], CopyReason::DeviceTransfer);
        }
        let (segment, len) = (self.source.segment(), self.bytes.len());
        let first = self.source.layout().byte_range().start + self.bytes.start;
        reservation.write_by(len, CopyReason::DeviceTransfer, |target, start| {
            let read = |offset, part: &mut [u8]| segment.read_at(first + offset, part);
            copy_by_host(len, read, |offset, part| target.write_at(start + offset, part))
        })
    }

    /// Leases the copy if a program has made it.
    ///
    /// # Errors
    /// `Unsupported` for a private tensor; those of a store that cannot be reached.
    pub fn find(&self, store: &dyn Store, holder: &Holder) -> Result<Option<Lease>> {
        let key = self.shared_key()?;
        if !store.is_computed(&key) {
            return Ok(None);
        }
        match store.claim_within(&key, holder, Duration::ZERO) {
            Ok(Claim::Ready(leases)) => self.checked(leases).map(Some),
            // It was freed meanwhile. The drop of the ticket ends the claim.
            Ok(Claim::Compute(_)) => Ok(None),
            Err(error) if error.kind() == ErrorKind::TimedOut => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The one result of the computation.
    ///
    /// # Errors
    /// `Corrupt` for results of a program that uses the key for something else.
    fn checked(&self, leases: Vec<Lease>) -> Result<Lease> {
        let is_copy = |lease: &Lease| {
            let (layout, len) = (lease.layout(), self.bytes.len());
            lease.device() == self.device
                && layout.dtype() == DType::U8
                && layout.shape() == [len]
                && layout.is_contiguous()
        };
        let found = leases.into_iter().next().filter(is_copy);
        found.ok_or_else(|| Error::corrupt(format!("the copy of {} is another tensor", self.source.name())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::HeapMemory;
    use cotensor_core::testing::FakeDevice;
    use cotensor_store::{ComputationStore, LocalStore, StoreReports, TensorStore};
    use std::sync::{Arc, Barrier};

    const DEVICE: Device = Device::Fake(0);
    const WAIT: Duration = Duration::from_secs(60);

    fn store(max_bytes: u64) -> (Arc<LocalStore>, FakeDevice) {
        let device = FakeDevice::default();
        let builder = LocalStore::builder().memory(Arc::new(HeapMemory)).memory(Arc::new(device.clone()));
        (builder.max_device_bytes(DEVICE, max_bytes).build(), device)
    }

    fn publish(store: &LocalStore, content: &[u8]) -> Lease {
        publish_as(store, "model", content)
    }

    fn publish_as(store: &LocalStore, name: &str, content: &[u8]) -> Lease {
        let holder = store.holder("producer");
        let mut reservation = store.reserve(TensorSpec::new(name, DType::U8, &[content.len()]), &holder).unwrap();
        reservation.write(content, CopyReason::Put).unwrap();
        reservation.publish().unwrap()
    }

    fn copy(source: &Lease, bytes: Range<usize>) -> ResidentCopy<'_> {
        ResidentCopy { source, bytes, device: DEVICE, identity: "simulated:test" }
    }

    #[test]
    fn programs_that_start_together_hold_one_copy() {
        let (store, device) = store(1000);
        let source = publish(&store, &[7; 100]);
        let (copy, start) = (copy(&source, 10..60), Barrier::new(4));
        let found: Vec<Resident> = std::thread::scope(|scope| {
            let lease = |number| {
                let (holder, copy, start, store) = (store.holder(&format!("{number}")), &copy, &start, &store);
                scope.spawn(move || {
                    start.wait();
                    copy.lease(&**store, &holder, WAIT).unwrap()
                })
            };
            let threads: Vec<_> = (0..4).map(lease).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(found.iter().map(|found| found.copied_bytes).sum::<usize>(), 50);
        assert!(found.iter().all(|one| one.lease.id() == found[0].lease.id()));
        assert_eq!((found[0].lease.copy_to_host().unwrap(), found[0].lease.kind()), (vec![7; 50], Kind::Weight));
        assert_eq!((device.live_bytes(), found[0].lease.holders().len()), (50, 4));
        drop(found);
        assert_eq!(device.live_bytes(), 0, "the last lease has ended");
        assert!(copy.find(&*store, &store.holder("late")).unwrap().is_none());
        assert_eq!(copy.lease(&*store, &store.holder("late"), WAIT).unwrap().copied_bytes, 50);
    }

    #[test]
    fn copies_of_other_bytes_versions_and_devices_differ() {
        let (store, device) = store(1000);
        let (first, holder) = (publish(&store, &[1; 100]), store.holder("user"));
        let second = publish(&store, &[2; 100]);
        let keys = [
            copy(&first, 0..50).key(),
            copy(&first, 50..100).key(),
            copy(&second, 0..50).key(),
            ResidentCopy { device: Device::Fake(1), ..copy(&first, 0..50) }.key(),
            ResidentCopy { identity: "simulated:other", ..copy(&first, 0..50) }.key(),
        ];
        assert!((0..keys.len()).all(|one| !keys[..one].contains(&keys[one])));
        let old = copy(&first, 0..50).lease(&*store, &holder, WAIT).unwrap();
        let new = copy(&second, 0..50).lease(&*store, &holder, WAIT).unwrap();
        let found = [&old, &new].map(|resident| resident.lease.copy_to_host().unwrap());
        assert_eq!((found, device.live_bytes()), ([vec![1; 50], vec![2; 50]], 100));
    }

    #[test]
    fn copies_of_tensors_with_long_names_are_shared() {
        let (store, _) = store(1000);
        let sources = [1, 2].map(|value| publish_as(&store, &format!("{}{value}", "ü".repeat(511)), &[value; 100]));
        for identity in ["simulated:test", "identity ".repeat(200).as_str()] {
            let copies = sources.each_ref().map(|source| ResidentCopy { identity, ..copy(source, 0..100) });
            let lease = |copy: &ResidentCopy<'_>| copy.lease(&*store, &store.holder("user"), WAIT).unwrap();
            let [first, second] = copies.each_ref().map(lease);
            let found = [&first, &second, &lease(&copies[0])].map(|one| one.lease.copy_to_host().unwrap()[0]);
            assert_eq!(found, [1, 2, 1], "{}", first.lease.name());
            assert_eq!(lease(&copies[0]).copied_bytes, 0);
        }
    }

    #[test]
    fn private_tensors_have_no_shared_copies() {
        let (store, device) = store(1000);
        let holder = store.holder("user");
        let mut reservation = store.reserve_private(TensorSpec::new("result", DType::U8, &[100]), &holder).unwrap();
        reservation.write(&[1; 100], CopyReason::Put).unwrap();
        let source = reservation.publish().unwrap();
        let copy = copy(&source, 0..100);
        let refused = [copy.lease(&*store, &holder, WAIT).err().unwrap(), copy.find(&*store, &holder).err().unwrap()];
        assert!(refused.iter().all(|error| error.kind() == ErrorKind::Unsupported), "{refused:?}");
        assert!(!store.is_computed(&copy.key()) && device.live_bytes() == 0);
    }

    #[test]
    fn copy_without_room_ends_its_claim() {
        let (store, device) = store(99);
        let (source, holder) = (publish(&store, &[1; 100]), store.holder("user"));
        let large = copy(&source, 0..100);
        for _ in 0..2 {
            assert_eq!(large.lease(&*store, &holder, Duration::ZERO).err().unwrap().kind(), ErrorKind::OverBudget);
        }
        assert!(matches!(store.claim_within(&large.key(), &holder, Duration::ZERO).unwrap(), Claim::Compute(_)));
        let missing = copy(&source, 90..101).lease(&*store, &holder, WAIT).err().unwrap();
        assert_eq!(missing.kind(), ErrorKind::Invalid, "{missing}");
        assert_eq!((device.live_bytes(), store.stats().total_tensors), (0, 1));
    }

    #[test]
    fn tensor_of_a_device_is_copied_to_another_one() {
        let (store, device) = store(1000);
        let (source, holder) = (publish(&store, &(0..100).collect::<Vec<u8>>()), store.holder("user"));
        let first = copy(&source, 0..50).lease(&*store, &holder, WAIT).unwrap();
        let second = copy(&first.lease, 10..20).lease(&*store, &holder, WAIT).unwrap();
        assert_eq!(second.lease.copy_to_host().unwrap(), (10..20).collect::<Vec<u8>>());
        assert_eq!((device.live_bytes(), second.copied_bytes), (60, 10));
    }

    #[test]
    fn copy_is_found_only_once_it_is_complete() {
        let (store, _) = store(1000);
        let (source, holder) = (publish(&store, &[1; 100]), store.holder("user"));
        let copy = copy(&source, 0..100);
        let Claim::Compute(ticket) = store.claim(&copy.key(), &holder).unwrap() else {
            panic!("the store has no copy yet")
        };
        assert!(copy.find(&*store, &holder).unwrap().is_none());
        assert_eq!(copy.lease(&*store, &holder, Duration::ZERO).err().unwrap().kind(), ErrorKind::TimedOut);
        ticket.abandon();
        let made = copy.lease(&*store, &holder, Duration::ZERO).unwrap();
        assert_eq!(copy.find(&*store, &holder).unwrap().unwrap().id(), made.lease.id());
    }

    #[test]
    fn other_results_of_the_key_are_refused() {
        let (store, _) = store(1000);
        let (source, holder) = (publish(&store, &[1; 100]), store.holder("user"));
        let copy = copy(&source, 0..100);
        let Claim::Compute(ticket) = store.claim(&copy.key(), &holder).unwrap() else {
            panic!("the store has no copy yet")
        };
        let other = store.reserve(TensorSpec::new("other", DType::U8, &[99]).on(DEVICE), &holder).unwrap();
        let _other = ticket.publish(vec![other]).unwrap();
        assert_eq!(copy.lease(&*store, &holder, WAIT).err().unwrap().kind(), ErrorKind::Corrupt);
        assert_eq!(copy.find(&*store, &holder).err().unwrap().kind(), ErrorKind::Corrupt);
    }
}
