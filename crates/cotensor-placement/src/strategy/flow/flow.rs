use super::follow::{Expected, Follower};
use super::phase::Phase;
use super::recorder::Recorder;
use crate::cache::TinyLfu;
use crate::device::Device;
use crate::plan::{Plan, Planner};
use crate::strategy::{Move, Place, Strategy, View};
use crate::time::Nanos;
use crate::trace::Operation;

/// Operations in a row that no phase knows, after which a new recording starts.
const FOREIGN_MAX: usize = 8;
/// Expected operations in a row after which a resynchronised plan counts as good.
const MATCHES_MIN: usize = 4;
const PHASES_MAX: usize = 16;

/// What a [`Flow`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowState {
    /// Nothing is known yet.
    Unknown,
    /// Operations are recorded until they repeat.
    Record,
    /// A plan is followed.
    Planned,
    /// An operation was not the expected one.
    Resync,
}

/// Records the operations of a program until they repeat, plans, and follows the plan. A program may have several phases
/// that recur, each with a plan of its own. Operations that no plan expects are served by a TinyLFU cache.
#[derive(Debug)]
pub struct Flow {
    device: Device,
    state: FlowState,
    recorder: Recorder,
    phases: Vec<Phase>,
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
            device,
            state: FlowState::Unknown,
            recorder: Recorder::new(1),
            phases: Vec::new(),
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
        self.seed = Some(operations).filter(|operations| !operations.is_empty());
        self
    }

    /// What it does now.
    pub fn state(&self) -> FlowState {
        self.state
    }

    /// The plan that is followed.
    pub fn plan(&self) -> Option<&Plan> {
        self.following.as_ref().map(|follower| &self.phases[follower.phase].plan)
    }

    /// The next `count` operations with their tensors and moves; nothing while no plan is followed.
    pub fn forecast(&self, count: usize) -> Vec<Expected> {
        let forecast = |follower: &Follower| follower.forecast(&self.phases[follower.phase], count);
        self.following.as_ref().map(forecast).unwrap_or_default()
    }

    /// Plans `operations` as a new phase, and returns its number. Nothing if they do not fit on the device.
    fn add_phase(&mut self, operations: Vec<Operation>, view: &View<'_>) -> Option<usize> {
        let plan = self.plan_of(&operations, view)?;
        if self.phases.len() >= PHASES_MAX {
            self.phases.clear();
        }
        self.phases.push(Phase::new(operations, plan, view.budget_bytes()));
        Some(self.phases.len() - 1)
    }

    fn plan_of(&self, operations: &[Operation], view: &View<'_>) -> Option<Plan> {
        let device = self.device.with_budget(view.budget_bytes());
        Planner::new(device).plan(view.sizes(), operations).ok()
    }

    fn follow(&mut self, phase: usize, step: usize, view: &View<'_>) {
        self.following = Some(Follower::new(phase, &self.phases[phase], step, view));
    }

    /// Makes a new plan for the followed phase, with the current budget and the measured times.
    fn replan(&mut self, view: &View<'_>) {
        let Some(Follower { phase, step, .. }) = self.following else { return };
        let operations = self.phases[phase].operations.clone();
        if let Some(plan) = self.plan_of(&operations, view) {
            let step = step % operations.len();
            self.phases[phase] = Phase::new(operations, plan, view.budget_bytes());
            self.follow(phase, step, view);
        }
    }

    /// A phase and its step with this operation: the followed phase from its current step on, else another.
    fn locate(&self, key: u64) -> Option<(usize, usize)> {
        let current = self.following.as_ref().map(|follower| (follower.phase, follower.step));
        let (first, from) = current.unwrap_or((0, 0));
        (0..self.phases.len()).map(|offset| (first + offset) % self.phases.len()).find_map(|number| {
            let keys = &self.phases[number].keys;
            let from = if number == first { from % keys.len() } else { 0 };
            let step = (0..keys.len()).map(|offset| (from + offset) % keys.len()).find(|&step| keys[step] == key)?;
            Some((number, step))
        })
    }

    /// While a plan is followed: whether `key` is what it expects; otherwise looks for it elsewhere in the phases.
    fn expect(&mut self, key: u64, view: &View<'_>) {
        let Some(follower) = &self.following else { return };
        let phase = &self.phases[follower.phase];
        if phase.keys[follower.step % phase.keys.len()] == key {
            self.on_plan = true;
            self.foreign = 0;
            self.matches += 1;
            if self.matches >= MATCHES_MIN {
                self.state = FlowState::Planned;
            }
            return;
        }
        self.state = FlowState::Resync;
        self.matches = 0;
        if let Some((phase, step)) = self.locate(key) {
            self.follow(phase, step, view);
            self.on_plan = true;
            return;
        }
        self.foreign += 1;
        if self.foreign == 1 {
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
        let known = self.locate(key);
        let follows = |&(phase, step): &(usize, usize)| {
            let steps = self.phases[phase].keys.len();
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
        if recorded.iter().any(|operation| !operation.uses.is_empty()) && self.phases.len() < PHASES_MAX {
            self.add_phase(recorded, view);
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
            && let Some(phase) = self.add_phase(seed, view)
        {
            self.follow(phase, 0, view);
        }
        let key = operation.key();
        (self.on_plan, self.was_full) = (false, false);
        if self.following.is_some() {
            self.expect(key, view);
        } else if !self.phases.is_empty() {
            self.recognise(key, view);
        }
        operation.uses.iter().for_each(|&tensor| self.off_plan.used(tensor, view.sizes().len()));
        let Some(follower) = self.following.as_ref().filter(|_| self.on_plan) else {
            return Place::Device;
        };
        let phase = &self.phases[follower.phase];
        let boundary = follower.step % phase.operations.len() == 0;
        if boundary && (phase.budget < view.budget_bytes() || phase.is_outdated()) {
            self.replan(view);
        }
        let place = |follower: &Follower| follower.place(&self.phases[follower.phase]);
        let place = self.following.as_ref().map_or(Place::Device, place);
        if operation.cpu_ns.is_some() { place } else { Place::Device }
    }

    fn next_move(&mut self, view: &View<'_>) -> Option<Move> {
        if let Some(follower) = &mut self.following {
            return follower.next_move(&self.phases[follower.phase], view);
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
        if self.on_plan {
            if let Some(follower) = &mut self.following {
                let phase = &mut self.phases[follower.phase];
                let step = follower.step_of_cycle(phase);
                follower.finished(phase);
                phase.measured(step, elapsed_ns);
            }
            return;
        }
        self.recorder.push(Operation { compute_ns: elapsed_ns, ..operation.clone() });
        if self.following.is_none() {
            self.state = FlowState::Record;
            if let Some(period) = self.recorder.period()
                && let Some(phase) = self.add_phase(period, view)
            {
                self.recorder = Recorder::new(1);
                self.follow(phase, 0, view);
                self.state = FlowState::Planned;
            }
        }
    }

    fn budget_changed(&mut self, view: &View<'_>) {
        let shrunk = |follower: &Follower| view.budget_bytes() < self.phases[follower.phase].budget;
        if self.following.as_ref().is_some_and(shrunk) {
            self.replan(view);
        }
    }

    fn out_of_memory(&mut self, view: &View<'_>) {
        if let Some(follower) = &mut self.following {
            follower.out_of_memory(&self.phases[follower.phase], view);
        }
    }

    fn cycle_periods(&self) -> usize {
        self.plan().map_or(1, |plan| plan.periods)
    }
}
