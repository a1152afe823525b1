use super::faults::Faults;
use super::outcome::Outcome;
use super::simulator::Simulator;
use crate::decision::Strategy;
use crate::device::Device;
use crate::divide::elsewhere;
use crate::trace::Trace;
use cotensor_core::{Error, Result};

/// Several devices that run one program, each some of its operations. While one computes, the others copy ahead.
#[derive(Debug)]
pub struct Machine<'a> {
    trace: &'a Trace,
    simulators: Vec<Simulator<'a>>,
    /// The device of each operation.
    places: Vec<usize>,
}

impl<'a> Machine<'a> {
    /// Devices without tensors. Operation i of `trace` runs on device `places[i]`; see [`divide`](crate::divide).
    ///
    /// # Errors
    /// `Invalid` if not every operation has a device.
    pub fn new(trace: &'a Trace, devices: &[Device], places: &[usize]) -> Result<Self> {
        let count = trace.operations().len();
        if places.len() != count || places.iter().any(|&place| place >= devices.len()) {
            let text = format!("{} places on {} devices for {count} operations", places.len(), devices.len());
            return Err(Error::invalid(text).in_field("places"));
        }
        let simulators = devices.iter().map(|device| Simulator::new(trace, device, Faults::default())).collect();
        Ok(Self { trace, simulators, places: places.to_vec() })
    }

    /// Runs whole periods, each device under its strategy.
    ///
    /// # Errors
    /// Those of [`Simulator::run`].
    ///
    /// # Panics
    /// If there are fewer strategies than devices.
    pub fn run_periods(&mut self, periods: usize, strategies: &mut [&mut dyn Strategy]) -> Result<()> {
        for _ in 0..periods {
            for (operation, &place) in self.trace.operations().iter().zip(&self.places) {
                let elapsed = self.simulators[place].run_one(operation, strategies[place])?;
                for (device, simulator) in self.simulators.iter_mut().enumerate().filter(|(device, _)| *device != place)
                {
                    simulator.run_one(&elsewhere(operation, elapsed), strategies[device])?;
                }
            }
        }
        Ok(())
    }

    /// What happened on each device since the last call, or since the start.
    pub fn take_outcomes(&mut self) -> Vec<Outcome> {
        self.simulators.iter_mut().map(Simulator::take_outcome).collect()
    }
}
