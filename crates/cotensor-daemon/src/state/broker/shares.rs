//! How programs divide the memory of one device. No locks, clocks or messages.

use std::collections::BTreeMap;
use std::time::Duration;

/// The time after which a program without a report is idle.
pub(super) const IDLE_AFTER: Duration = Duration::from_secs(5);

/// A program that uses the device.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// Bytes with which it runs best.
    pub(super) demand: u64,
    /// Bytes that are never taken from it.
    pub(super) smallest: u64,
    /// Bytes that it may use, as it was last notified.
    pub(super) share: u64,
    /// Bytes that it may be using: more than `share` until it acknowledges a smaller share.
    pub(super) held: u64,
    /// The time of its last report.
    pub(super) reported: Duration,
    /// Bytes of the device, as it sees it.
    pub(super) capacity: u64,
}

impl Program {
    /// Whether it has reported lately.
    pub(super) fn is_busy(&self, now: Duration) -> bool {
        now.saturating_sub(self.reported) < IDLE_AFTER
    }

    /// Its share if every program could have `level` bytes.
    fn at(&self, level: u64) -> u64 {
        level.min(self.demand).max(self.smallest)
    }
}

/// The programs on a device, by their sessions.
#[derive(Debug, Default)]
pub(super) struct Shares {
    pub(super) programs: BTreeMap<u64, Program>,
}

impl Shares {
    /// Bytes of the device: the fewest that a program sees.
    pub(super) fn capacity(&self) -> u64 {
        self.programs.values().map(|program| program.capacity).min().unwrap_or(0)
    }

    /// Bytes that the smallest amounts leave of a device of which another program sees `capacity` bytes. None if they are more.
    pub(super) fn left(&self, capacity: u64) -> Option<u64> {
        let others = self.programs.values().map(|other| other.smallest).fold(0, u64::saturating_add);
        self.programs.values().map(|other| other.capacity).fold(capacity, u64::min).checked_sub(others)
    }

    /// Adds a program. Err with the bytes that are left for the smallest amount of another program, if its own does not fit.
    pub(super) fn join(&mut self, session: u64, program: Program) -> Result<(), u64> {
        let left = self.left(program.capacity);
        if left.is_none_or(|left| program.smallest > left) {
            return Err(left.unwrap_or(0));
        }
        self.programs.insert(session, Program { share: program.held, ..program });
        Ok(())
    }

    /// Updates the needs of a program. A smallest amount beyond what the others leave is reduced to that.
    pub(super) fn report(&mut self, session: u64, demand: u64, smallest: u64, now: Duration) {
        let capacity = self.capacity();
        let others = self.programs.iter().filter(|(other, _)| **other != session);
        let left = capacity.saturating_sub(others.map(|(_, other)| other.smallest).sum());
        if let Some(program) = self.programs.get_mut(&session) {
            (program.demand, program.smallest, program.reported) = (demand, smallest.min(left), now);
        }
    }

    /// A program has freed what is beyond `share`. Nothing changes if that is not its share: it was changed meanwhile.
    pub(super) fn acknowledge(&mut self, session: u64, share: u64) {
        if let Some(program) = self.programs.get_mut(&session).filter(|program| program.share == share) {
            program.held = share;
        }
    }

    /// Divides the memory. Returns the programs whose share has changed.
    ///
    /// A smaller share counts in full until its program acknowledges it; until then, the share does not change again.
    /// Others grow only into memory that no program holds, and not at all unless `may_grow`.
    pub(super) fn divide(&mut self, now: Duration, may_grow: bool) -> Vec<u64> {
        let targets = self.targets(now);
        let mut changed = Vec::new();
        for (session, target) in &targets {
            if let Some(program) = self.programs.get_mut(session)
                && program.held == program.share
                && *target < program.share
            {
                program.share = *target;
                changed.push(*session);
            }
        }
        let held = self.programs.values().map(|program| program.held).fold(0, u64::saturating_add);
        let mut free = if may_grow { self.capacity().saturating_sub(held) } else { 0 };
        // Programs with little memory first, and then those that joined first.
        let mut growing: Vec<_> =
            targets.into_iter().filter(|(session, target)| *target > self.share(*session)).collect();
        growing.sort_by_key(|(session, _)| (self.share(*session), *session));
        for (session, target) in growing {
            let Some(program) = self.programs.get_mut(&session).filter(|program| program.held == program.share) else {
                continue;
            };
            let more = (target - program.share).min(free);
            if more > 0 {
                free -= more;
                program.share += more;
                program.held = program.share;
                changed.push(session);
            }
        }
        changed
    }

    fn share(&self, session: u64) -> u64 {
        self.programs.get(&session).map_or(0, |program| program.share)
    }

    /// The share that each program should have: its smallest amount; then busy programs as much as each other, up to their
    /// demands; then idle programs likewise from the rest.
    fn targets(&self, now: Duration) -> BTreeMap<u64, u64> {
        let (busy, idle): (Vec<_>, Vec<_>) = self.programs.iter().partition(|(_, program)| program.is_busy(now));
        let kept = idle.iter().map(|(_, program)| program.smallest).sum();
        let mut targets = BTreeMap::new();
        let level = level(&busy, self.capacity().saturating_sub(kept));
        targets.extend(busy.iter().map(|(session, program)| (**session, program.at(level))));
        let level = self::level(&idle, self.capacity().saturating_sub(targets.values().sum()));
        targets.extend(idle.iter().map(|(session, program)| (**session, program.at(level))));
        targets
    }
}

/// The highest level at which programs need no more than `bytes` together.
fn level(programs: &[(&u64, &Program)], bytes: u64) -> u64 {
    let needed = |level: u64| programs.iter().map(|(_, program)| program.at(level)).fold(0, u64::saturating_add);
    let (mut fits, mut beyond) = (0, bytes);
    if needed(beyond) <= bytes {
        return beyond;
    }
    while beyond - fits > 1 {
        let middle = fits + (beyond - fits) / 2;
        if needed(middle) <= bytes { fits = middle } else { beyond = middle }
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Duration = Duration::from_secs(100);
    const LONG_AGO: Duration = Duration::from_secs(1);

    fn program(demand: u64, smallest: u64, reported: Duration) -> Program {
        Program { demand, smallest, share: 0, held: 0, reported, capacity: 100 }
    }

    fn shares(programs: &[Program]) -> Shares {
        let mut shares = Shares::default();
        for (session, program) in programs.iter().enumerate() {
            shares.join(session as u64, program.clone()).unwrap();
        }
        shares
    }

    fn held(shares: &Shares) -> Vec<(u64, u64)> {
        shares.programs.values().map(|program| (program.share, program.held)).collect()
    }

    #[test]
    fn one_program_gets_its_demand() {
        let mut shares = shares(&[program(70, 10, NOW)]);
        assert_eq!(shares.divide(NOW, true), [0]);
        assert_eq!(held(&shares), [(70, 70)]);
        assert!(shares.divide(NOW, true).is_empty());
    }

    #[test]
    fn second_program_gets_memory_when_the_first_has_freed_it() {
        let mut shares = shares(&[program(100, 10, NOW)]);
        shares.divide(NOW, true);
        shares.join(1, program(100, 10, NOW)).unwrap();
        assert_eq!(shares.divide(NOW, true), [0]);
        assert_eq!(held(&shares), [(50, 100), (0, 0)]);
        shares.acknowledge(0, 49);
        assert!(shares.divide(NOW, true).is_empty(), "an answer to another share");
        shares.acknowledge(0, 50);
        assert_eq!(shares.divide(NOW, true), [1]);
        assert_eq!(held(&shares), [(50, 50), (50, 50)]);
    }

    #[test]
    fn share_of_a_killed_program_goes_to_the_others() {
        let mut shares = shares(&[program(100, 10, NOW), program(100, 10, NOW)]);
        shares.divide(NOW, true);
        shares.programs.remove(&0);
        assert_eq!(shares.divide(NOW, true), [1]);
        assert_eq!(held(&shares), [(100, 100)]);
    }

    #[test]
    fn small_demands_leave_more_to_others() {
        let mut shares = shares(&[program(20, 5, NOW), program(200, 5, NOW), program(200, 30, NOW)]);
        shares.divide(NOW, true);
        assert_eq!(held(&shares), [(20, 20), (40, 40), (40, 40)]);
    }

    #[test]
    fn idle_program_keeps_its_smallest_amount_and_what_nobody_needs() {
        let mut shares = shares(&[program(80, 10, LONG_AGO), program(60, 10, NOW)]);
        shares.divide(NOW, true);
        assert_eq!(held(&shares), [(40, 40), (60, 60)]);
        shares.report(1, 100, 10, NOW);
        assert_eq!(shares.divide(NOW, true), [0]);
        assert_eq!(held(&shares), [(10, 40), (60, 60)]);
        shares.acknowledge(0, 10);
        shares.divide(NOW, true);
        assert_eq!(held(&shares), [(10, 10), (90, 90)]);
    }

    #[test]
    fn smallest_amounts_beyond_the_device_are_refused() {
        let mut shares = shares(&[program(100, 60, NOW)]);
        assert_eq!(shares.join(1, program(100, 41, NOW)), Err(40));
        shares.join(1, program(100, 40, NOW)).unwrap();
        shares.report(1, 100, 70, NOW);
        assert_eq!(shares.programs[&1].smallest, 40);
        shares.divide(NOW, true);
        assert_eq!(held(&shares), [(60, 60), (40, 40)]);
    }

    #[test]
    fn programs_of_a_former_daemon_keep_their_memory_until_all_are_back() {
        let returning = |held| Program { held, ..program(100, 10, NOW) };
        let mut shares = shares(&[returning(60)]);
        assert!(shares.divide(NOW, false).is_empty());
        shares.join(1, returning(40)).unwrap();
        assert_eq!(shares.divide(NOW, false), [0]);
        assert_eq!(held(&shares), [(50, 60), (40, 40)]);
        shares.acknowledge(0, 50);
        assert_eq!(shares.divide(NOW, true), [1]);
        assert_eq!(held(&shares), [(50, 50), (50, 50)]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Join { demand: u64, smallest: u64, capacity: u64 },
        Report { which: usize, demand: u64, smallest: u64 },
        Acknowledge { which: usize },
        Leave { which: usize },
        Pass { seconds: u64 },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0_u64..150, 0_u64..40, 80_u64..120).prop_map(|(demand, smallest, capacity)| Step::Join {
                demand,
                smallest,
                capacity
            }),
            (0_usize..8, 0_u64..150, 0_u64..40).prop_map(|(which, demand, smallest)| Step::Report {
                which,
                demand,
                smallest
            }),
            (0_usize..8).prop_map(|which| Step::Acknowledge { which }),
            (0_usize..8).prop_map(|which| Step::Leave { which }),
            (0_u64..8).prop_map(|seconds| Step::Pass { seconds }),
        ];
        proptest::collection::vec(step, 1..80)
    }

    fn nth(shares: &Shares, which: usize) -> Option<u64> {
        shares.programs.keys().nth(which).copied()
    }

    proptest! {
        /// With any order of events, programs never hold more than the smallest device that any of them has seen. When all
        /// have acknowledged, each has at least its smallest amount or its demand, and no memory is left that a program needs.
        #[test]
        fn memory_is_never_given_twice(steps in steps()) {
            let (mut shares, mut now) = (Shares::default(), NOW);
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Join { demand, smallest, .. } => {
                        let _ = shares.join(number as u64, Program { capacity: 100, ..program(demand, smallest, now) });
                    }
                    Step::Report { which, demand, smallest } => if let Some(session) = nth(&shares, which) {
                        shares.report(session, demand, smallest, now);
                    },
                    Step::Acknowledge { which } => if let Some(session) = nth(&shares, which) {
                        shares.acknowledge(session, shares.programs[&session].share);
                    },
                    Step::Leave { which } => if let Some(session) = nth(&shares, which) {
                        shares.programs.remove(&session);
                    },
                    Step::Pass { seconds } => now += Duration::from_secs(seconds),
                }
                let before = shares.programs.clone();
                for changed in shares.divide(now, true) {
                    prop_assert_ne!(before[&changed].share, shares.programs[&changed].share);
                    prop_assert_eq!(before[&changed].share, before[&changed].held, "changed before it was acknowledged");
                }
                prop_assert!(shares.programs.values().map(|program| program.held).sum::<u64>() <= 100);
                prop_assert!(shares.programs.values().all(|program| program.share <= program.held));
            }
            for _ in 0..3 {
                let all: Vec<_> = shares.programs.iter().map(|(session, program)| (*session, program.share)).collect();
                all.into_iter().for_each(|(session, share)| shares.acknowledge(session, share));
                shares.divide(now, true);
            }
            let total: u64 = shares.programs.values().map(|program| program.share).sum();
            for program in shares.programs.values() {
                prop_assert!(program.share >= program.smallest);
                let satisfied = program.share >= program.demand.max(program.smallest);
                // Less than one byte for each program remains, because levels are whole bytes.
                prop_assert!(satisfied || total + shares.programs.len() as u64 > 100, "{:?}", shares);
            }
            let wanting = shares.programs.values().any(|program| program.is_busy(now) && program.share < program.demand);
            for idle in shares.programs.values().filter(|program| !program.is_busy(now)) {
                prop_assert!(!wanting || idle.share <= idle.smallest + shares.programs.len() as u64);
            }
        }

        /// Devices of different sizes: programs hold at most the smallest one when all have acknowledged.
        #[test]
        fn smallest_capacity_holds(steps in steps()) {
            let mut shares = Shares::default();
            for (number, step) in steps.into_iter().enumerate() {
                if let Step::Join { demand, smallest, capacity } = step {
                    let _ = shares.join(number as u64, Program { capacity, ..program(demand, smallest, NOW) });
                }
            }
            for _ in 0..3 {
                shares.divide(NOW, true);
                let all: Vec<_> = shares.programs.iter().map(|(session, program)| (*session, program.share)).collect();
                all.into_iter().for_each(|(session, share)| shares.acknowledge(session, share));
            }
            prop_assert!(shares.programs.values().map(|program| program.held).sum::<u64>() <= shares.capacity());
        }
    }
}
