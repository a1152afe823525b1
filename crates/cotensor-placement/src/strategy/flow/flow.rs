use super::follow::Follower;
use super::phases::Phases;
use super::recorder::Recorder;
use crate::cache::TinyLfu;
use crate::decision::{Expected, Move, Place, Strategy, View};
use crate::device::Device;
use crate::plan::Plan;
use crate::time::Nanos;
use crate::trace::Operation;

/// Operations in a row that no phase knows, after which a new recording starts.
const FOREIGN_MAX: usize = 8;
/// Where the data chooses operations, as many times more than were seen in a row may follow: the first pass over a prompt
/// uses more experts than the passes over its tokens.
const GAP_FACTOR: usize = 8;
/// Expected operations in a row after which a resynchronised plan counts as good.
const MATCHES_MIN: usize = 4;
/// Passes after which the budget is divided again; then after twice as many.
const DIVIDE_MIN: usize = 8;

/// What a [`Flow`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowState {
    /// Nothing is known yet.
    Unknown,
    /// Operations are recorded until they repeat.
    Record,
    /// A plan is followed, or a strategy without one that takes less time.
    Planned,
    /// An operation was not the expected one.
    Resync,
}

/// Records the operations of a program until they repeat, plans, and follows the plan. A program may have several phases
/// that recur, each with a plan of its own. Genoa, LRU and the others are simulated beside a plan, and the fastest is followed.
/// Operations that no plan expects are served by a TinyLFU cache.
///
/// Where the data chooses operations, such as the experts of a mixture, the plan covers the operations that recur in every
/// pass. The tensors of the others have a share of the budget, in which a [`Blend`](crate::Blend) keeps the most valuable.
#[derive(Debug)]
pub struct Flow {
    state: FlowState,
    recorder: Recorder,
    phases: Phases,
    following: Option<Follower>,
    /// Operations that the user has announced.
    seed: Option<Vec<Operation>>,
    off_plan: TinyLfu,
    /// Whether the operation under way is the one that the plan expects.
    on_plan: bool,
    foreign: usize,
    matches: usize,
    /// Whether a tensor had to leave for the operation under way.
    was_full: bool,
    /// Phase and step of the last operation, if a phase knows it while operations are recorded.
    last_known: Option<(usize, usize)>,
}

impl Flow {
    /// The strategy for a device; its bandwidth decides the plans. The budget is read at run time.
    pub fn new(device: Device) -> Self {
        Self {
            state: FlowState::Unknown,
            recorder: Recorder::new(1),
            phases: Phases::new(device),
            following: None,
            seed: None,
            off_plan: TinyLfu::default(),
            on_plan: false,
            foreign: 0,
            matches: 0,
            was_full: false,
            last_known: None,
        }
    }

    /// Announces the period of the program, so that the first pass is planned, too.
    #[must_use]
    pub fn with_forecast(mut self, operations: Vec<Operation>) -> Self {
        self.announce(operations);
        self
    }

    /// What it does now.
    pub fn state(&self) -> FlowState {
        self.state
    }

    /// The plan that is followed; nothing while a strategy without a plan takes less time.
    pub fn plan(&self) -> Option<&Plan> {
        let follower = self.following.as_ref().filter(|follower| follower.alternative().is_none())?;
        Some(&self.phases.all[follower.phase].plan)
    }

    /// The name of the strategy without a plan that is followed, because it takes less time than the plan.
    pub fn alternative(&self) -> Option<&str> {
        Some(self.following.as_ref()?.alternative()?.name())
    }

    /// The next `count` operations with their tensors and the moves of the plan; nothing while nothing repeats.
    pub fn forecast(&self, count: usize) -> Vec<Expected> {
        let forecast = |follower: &Follower| follower.forecast(&self.phases.all[follower.phase], count);
        self.following.as_ref().map(forecast).unwrap_or_default()
    }

    fn follow(&mut self, phase: usize, step: usize, view: &View<'_>) {
        self.following = Some(self.phases.follow(phase, step, view));
    }

    /// The followed phase and the step that is expected there.
    fn position(&self) -> Option<(usize, usize)> {
        self.following.as_ref().map(|follower| (follower.phase, follower.step))
    }

    /// Makes a new plan for the followed phase, with the current budget and the measured times.
    fn replan(&mut self, view: &View<'_>) {
        let Some(Follower { phase, step, .. }) = self.following else { return };
        let known = &self.phases.all[phase];
        let (operations, gap) = (known.operations.clone(), known.gap);
        let step = step % operations.len();
        if let Some(planned) = self.phases.plan(operations, gap, view) {
            self.phases.all[phase] = planned;
            self.follow(phase, step, view);
        }
    }

    /// A period of the followed phase begins: plans again if the budget has grown, the times have changed, or other
    /// operations vary.
    fn begin_period(&mut self, view: &View<'_>) {
        let Some(Follower { phase: number, .. }) = self.following else { return };
        let phase = &self.phases.all[number];
        if let Some((operations, gap)) = phase.without_varying() {
            if let Some(planned) = self.phases.plan(operations, gap, view) {
                self.phases.all[number] = planned;
                self.follow(number, 0, view);
            }
            return;
        }
        let passes = if phase.gap > 0 { self.phases.varying.pass() } else { 0 };
        let divide_again = passes >= DIVIDE_MIN && passes.is_power_of_two();
        if phase.budget < view.budget_bytes() || phase.is_outdated() || divide_again {
            self.replan(view);
        }
    }

    /// While a plan is followed: whether `key` is what it expects; otherwise looks for it elsewhere in the phases.
    fn expect(&mut self, key: u64, operation: &Operation, view: &View<'_>) {
        let Some(follower) = &self.following else { return };
        let (number, step) = (follower.phase, follower.step % self.phases.all[follower.phase].keys.len());
        let phase = &mut self.phases.all[number];
        if phase.keys[step] == key {
            phase.passed(step, step);
            self.on_plan = true;
            self.foreign = 0;
            self.matches += 1;
            if self.matches >= MATCHES_MIN {
                self.state = FlowState::Planned;
            }
            return;
        }
        let gap = phase.gap;
        if gap > 0 && operation.uses.is_empty() {
            return;
        }
        if let Some((found, next)) = self.phases.locate(key, self.position()) {
            (self.state, self.matches, self.foreign) = (FlowState::Resync, 0, 0);
            if found == number {
                self.phases.all[number].passed(step, next);
            }
            self.follow(found, next, view);
            self.on_plan = true;
            return;
        }
        self.foreign += 1;
        if gap > 0 && self.foreign <= gap * GAP_FACTOR + FOREIGN_MAX {
            self.phases.chosen(operation, view);
            return;
        }
        (self.state, self.matches) = (FlowState::Resync, 0);
        if self.foreign == 1 || gap > 0 {
            self.recorder = Recorder::new(1);
        }
        if self.foreign > FOREIGN_MAX {
            self.following = None;
            self.state = FlowState::Record;
        }
    }

    /// While operations are recorded: two operations in a row that a phase knows end the recording, which becomes a phase
    /// if it is one.
    fn recognise(&mut self, key: u64, view: &View<'_>) {
        let known = self.phases.locate(key, self.position());
        let follows = |&(phase, step): &(usize, usize)| {
            let steps = self.phases.all[phase].keys.len();
            self.last_known.is_some_and(|(last, before)| last == phase && (before + 1) % steps == step)
        };
        let Some((phase, step)) = known.filter(follows) else {
            self.last_known = known;
            return;
        };
        self.last_known = None;
        let mut recorded = std::mem::take(&mut self.recorder).operations;
        // The last operation belongs to the phase that goes on.
        recorded.pop();
        if recorded.iter().any(|operation| !operation.uses.is_empty()) && !self.phases.is_full() {
            self.phases.add(recorded, 0, view);
        }
        self.follow(phase, step, view);
        self.on_plan = true;
        self.state = FlowState::Planned;
    }
}

impl Strategy for Flow {
    fn name(&self) -> &str {
        "flow"
    }

    fn arrive(&mut self, operation: &Operation, view: &View<'_>) -> Place {
        if let Some(seed) = self.seed.take()
            && let Some(phase) = self.phases.add(seed, 0, view)
        {
            self.follow(phase, 0, view);
        }
        let key = operation.key();
        (self.on_plan, self.was_full) = (false, false);
        if self.following.is_some() {
            self.expect(key, operation, view);
        } else if !self.phases.all.is_empty() {
            self.recognise(key, view);
        }
        operation.uses.iter().for_each(|&tensor| self.off_plan.used(tensor, view.sizes().len()));
        let is_first =
            |follower: &Follower| follower.step.is_multiple_of(self.phases.all[follower.phase].operations.len());
        if self.on_plan && self.following.as_ref().is_some_and(is_first) {
            self.begin_period(view);
        }
        let Some(follower) = &mut self.following else { return Place::Device };
        let place = follower.arrive(&self.phases.all[follower.phase], operation, self.on_plan, view);
        if operation.cpu_ns.is_some() { place } else { Place::Device }
    }

    fn next_move(&mut self, view: &View<'_>) -> Option<Move> {
        if let Some(follower) = &mut self.following {
            return follower.next_move(&self.phases.all[follower.phase], &self.phases.varying, view);
        }
        if view.short_bytes() > 0 {
            self.was_full = true;
            let may_leave = |tensor| view.is_on_device(tensor) && !view.is_needed_now(tensor);
            let victim = self.off_plan.victim(view.sizes(), may_leave);
            return victim.or_else(|| view.on_device().find(|&tensor| may_leave(tensor))).map(Move::Evict);
        }
        let missing = view.missing().filter(|&tensor| view.can_fetch(tensor))?;
        self.off_plan.came(missing, self.was_full);
        Some(Move::Fetch(missing))
    }

    fn finished(&mut self, operation: &Operation, elapsed_ns: Nanos, view: &View<'_>) {
        if let Some(follower) = &mut self.following {
            let phase = &mut self.phases.all[follower.phase];
            let step = follower.step_of_cycle(phase);
            follower.finished(phase, operation, elapsed_ns, self.on_plan, view);
            if self.on_plan {
                phase.measured(step, elapsed_ns);
                return;
            }
        }
        self.recorder.push(Operation { compute_ns: elapsed_ns, ..operation.clone() });
        if self.following.is_none() {
            self.state = FlowState::Record;
            let place = match self.recorder.period() {
                Some(period) => self.phases.add(period, 0, view).map(|phase| (phase, 0)),
                None => self
                    .recorder
                    .recurring()
                    .and_then(|recurring| self.phases.add_recurring(recurring, &self.recorder.operations, view)),
            };
            if let Some((phase, step)) = place {
                self.recorder = Recorder::new(1);
                self.follow(phase, step, view);
                self.state = FlowState::Planned;
            }
        }
    }

    fn budget_changed(&mut self, view: &View<'_>) {
        let shrunk = |follower: &Follower| view.budget_bytes() < self.phases.all[follower.phase].budget;
        if self.following.as_ref().is_some_and(shrunk) {
            self.replan(view);
        }
    }

    fn out_of_memory(&mut self, view: &View<'_>) {
        if let Some(follower) = &mut self.following {
            follower.out_of_memory(&self.phases.all[follower.phase], &self.phases.varying, view);
        }
    }

    fn forecast(&self, count: usize) -> Vec<Expected> {
        Flow::forecast(self, count)
    }

    fn announce(&mut self, operations: Vec<Operation>) {
        self.seed = Some(operations).filter(|operations| !operations.is_empty());
    }

    fn cycle_periods(&self) -> usize {
        self.plan().map_or(1, |plan| plan.periods)
    }
}
