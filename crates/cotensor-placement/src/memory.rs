use crate::trace::TensorIndex;
use cotensor_core::{Error, ErrorKind, Result};

/// Where the newest copy of a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Residency {
    Host,
    Arriving,
    OnDevice {
        changed: bool,
    },
    Leaving,
    /// On the host, where the running operation changes it.
    Changing,
}

/// The memory of the device: where each tensor is, and what is used.
#[derive(Debug)]
pub(crate) struct Memory {
    residencies: Vec<Residency>,
    sizes: Vec<u64>,
    budget: u64,
    tensors_bytes: u64,
    /// The part of `tensors_bytes` that is being copied to the host and then free.
    leaving_bytes: u64,
    workspace_bytes: u64,
    peak_bytes: u64,
}

impl Memory {
    pub(crate) fn new(sizes: Vec<u64>, budget: u64) -> Self {
        let residencies = vec![Residency::Host; sizes.len()];
        Self { residencies, sizes, budget, tensors_bytes: 0, leaving_bytes: 0, workspace_bytes: 0, peak_bytes: 0 }
    }

    /// Adds a tensor, which is on the host.
    pub(crate) fn add(&mut self, size_bytes: u64) {
        self.residencies.push(Residency::Host);
        self.sizes.push(size_bytes);
    }

    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }

    pub(crate) fn used(&self) -> u64 {
        self.tensors_bytes + self.workspace_bytes
    }

    pub(crate) fn leaving(&self) -> u64 {
        self.leaving_bytes
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak_bytes
    }

    pub(crate) fn is_on_device(&self, tensor: TensorIndex) -> bool {
        matches!(self.residencies[tensor], Residency::OnDevice { .. })
    }

    pub(crate) fn is_on_host(&self, tensor: TensorIndex) -> bool {
        self.residencies[tensor] == Residency::Host
    }

    /// Whether the tensor needs memory that it does not have yet.
    pub(crate) fn is_absent(&self, tensor: TensorIndex) -> bool {
        matches!(self.residencies[tensor], Residency::Host | Residency::Leaving | Residency::Changing)
    }

    pub(crate) fn is_changed(&self, tensor: TensorIndex) -> bool {
        self.residencies[tensor] == Residency::OnDevice { changed: true }
    }

    pub(crate) fn set_budget(&mut self, budget: u64) {
        self.budget = budget;
    }

    /// Takes memory for a copy to the device.
    pub(crate) fn arrive(&mut self, tensor: TensorIndex) -> Result<()> {
        self.expect(tensor, self.is_on_host(tensor), "is copied to the device, but is not on the host")?;
        self.take(self.sizes[tensor])?;
        self.residencies[tensor] = Residency::Arriving;
        self.tensors_bytes += self.sizes[tensor];
        Ok(())
    }

    /// Takes memory for a tensor that was on the device before, in spite of the budget.
    pub(crate) fn restore(&mut self, tensor: TensorIndex) {
        if self.is_on_host(tensor) {
            self.tensors_bytes += self.sizes[tensor];
            self.landed(tensor);
        }
    }

    pub(crate) fn landed(&mut self, tensor: TensorIndex) {
        self.residencies[tensor] = Residency::OnDevice { changed: false };
    }

    /// Frees the memory of a tensor. Returns true if a changed tensor must be copied to the host before.
    pub(crate) fn leave(&mut self, tensor: TensorIndex) -> Result<bool> {
        self.expect(tensor, self.is_on_device(tensor), "is evicted, but is not on the device")?;
        if self.is_changed(tensor) {
            self.residencies[tensor] = Residency::Leaving;
            self.leaving_bytes += self.sizes[tensor];
            return Ok(true);
        }
        self.residencies[tensor] = Residency::Host;
        self.tensors_bytes -= self.sizes[tensor];
        Ok(false)
    }

    /// The copy to the host has ended.
    pub(crate) fn left(&mut self, tensor: TensorIndex) {
        self.residencies[tensor] = Residency::Host;
        self.leaving_bytes -= self.sizes[tensor];
        self.tensors_bytes -= self.sizes[tensor];
    }

    pub(crate) fn changed(&mut self, tensor: TensorIndex) {
        self.residencies[tensor] = Residency::OnDevice { changed: true };
    }

    /// An operation on the host starts to change tensors that are there only, or ends.
    pub(crate) fn change_on_host(&mut self, tensors: &[TensorIndex], start: bool) {
        for &tensor in tensors {
            self.residencies[tensor] = if start { Residency::Changing } else { Residency::Host };
        }
    }

    /// Takes the workspace of an operation that starts. All its tensors must have landed.
    pub(crate) fn start(&mut self, uses: &[TensorIndex], workspace_bytes: u64) -> Result<()> {
        for &tensor in uses {
            self.expect(tensor, self.is_on_device(tensor), "is used before its copy has landed")?;
        }
        self.take(workspace_bytes)?;
        self.workspace_bytes = workspace_bytes;
        Ok(())
    }

    pub(crate) fn end(&mut self) {
        self.workspace_bytes = 0;
    }

    /// Bytes of copies under way, which cannot be freed now.
    pub(crate) fn moving(&self) -> u64 {
        let moving = |residency: &Residency| matches!(residency, Residency::Arriving | Residency::Leaving);
        self.residencies.iter().zip(&self.sizes).filter(|(residency, _)| moving(residency)).map(|(_, size)| size).sum()
    }

    fn take(&mut self, bytes: u64) -> Result<()> {
        if bytes > 0 && self.used() + bytes > self.budget {
            let text = format!("{bytes} bytes do not fit: {} of {} bytes are used", self.used(), self.budget);
            return Err(Error::new(ErrorKind::OverBudget, text));
        }
        self.peak_bytes = self.peak_bytes.max(self.used() + bytes);
        Ok(())
    }

    fn expect(&self, tensor: TensorIndex, holds: bool, otherwise: &str) -> Result<()> {
        if holds { Ok(()) } else { Err(Error::new(ErrorKind::Conflict, format!("tensor {tensor} {otherwise}"))) }
    }
}
