use crate::time::Nanos;
use cotensor_core::{Error, Result};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Limits of a trace. A trace is read from a file, so everything in it is bounded.
pub(super) const TENSORS_MAX: usize = 1 << 20;
pub(super) const OPERATIONS_MAX: usize = 1 << 20;
pub(super) const USES_MAX: usize = 1 << 22;
pub(super) const PERIODS_MAX: u32 = 1_000_000;
const ID_BYTES_MAX: usize = 4096;
/// The sum of the sizes of all tensors fits into 64 bits.
const SIZE_BYTES_MAX: u64 = 1 << 42;
/// About a quarter of an hour; the sum over all operations fits into 64 bits.
const TIME_NS_MAX: Nanos = 1_000_000_000_000;

/// The position of a tensor in its trace.
pub type TensorIndex = usize;

/// A tensor whose host copy always exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Name, unique within a trace.
    pub id: String,
    /// Size of a copy on the device, in bytes.
    pub size_bytes: u64,
}

/// One operation of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Name, for people; several operations may have one name.
    pub name: String,
    /// The tensors that must be on the device while the operation runs there. A trace sorts them and removes duplicates.
    pub uses: Vec<TensorIndex>,
    /// Those of `uses` that the operation changes, so that the host copy becomes stale.
    pub writes: Vec<TensorIndex>,
    /// Measured time on the device.
    pub compute_ns: Nanos,
    /// Measured time on the host, if the operation may run there.
    pub cpu_ns: Option<Nanos>,
    /// Peak memory on the device beside the tensors, while the operation runs, in bytes.
    pub workspace_bytes: u64,
}

impl Operation {
    /// Equal for the same operation in every period: name, tensors, workspace, and whether it may run on the host. Times
    /// do not count.
    pub fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.name, &self.uses, self.workspace_bytes, self.cpu_ns.is_some()).hash(&mut hasher);
        hasher.finish()
    }
}

/// One period of a program, which the program repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    tensors: Vec<Tensor>,
    operations: Vec<Operation>,
    periods: u32,
}

impl Trace {
    /// A trace of `operations`, which were recorded `periods` times.
    ///
    /// # Errors
    /// `Invalid` names the field with the first value out of its limits, the tensor that has no unique id, or the
    /// unknown tensor.
    pub fn new(tensors: Vec<Tensor>, mut operations: Vec<Operation>, periods: u32) -> Result<Self> {
        at_most("tensors", tensors.len(), TENSORS_MAX)?;
        at_most("operations", operations.len(), OPERATIONS_MAX)?;
        at_most("operations[].uses", operations.iter().map(|operation| operation.uses.len()).sum(), USES_MAX)?;
        if operations.is_empty() {
            return Err(Error::invalid("a trace needs at least one operation").in_field("operations"));
        }
        if !(1..=PERIODS_MAX).contains(&periods) {
            return Err(Error::invalid(format!("{periods} is out of 1 to {PERIODS_MAX}")).in_field("periods"));
        }
        let mut ids = HashMap::new();
        for (index, tensor) in tensors.iter().enumerate() {
            let field = |name: &str| format!("tensors[{index}].{name}");
            at_most(&field("id"), tensor.id.len(), ID_BYTES_MAX)?;
            at_most(&field("size_bytes"), tensor.size_bytes, SIZE_BYTES_MAX)?;
            if let Some(first) = ids.insert(tensor.id.as_str(), index) {
                return Err(
                    Error::invalid(format!("{:?} is the id of tensors[{first}], too", tensor.id)).in_field(field("id"))
                );
            }
        }
        for (index, operation) in operations.iter_mut().enumerate() {
            let field = |name: &str| format!("operations[{index}].{name}");
            at_most(&field("name"), operation.name.len(), ID_BYTES_MAX)?;
            at_most(&field("workspace_bytes"), operation.workspace_bytes, SIZE_BYTES_MAX)?;
            at_most(&field("compute_us"), operation.compute_ns, TIME_NS_MAX)?;
            at_most(&field("cpu_us"), operation.cpu_ns.unwrap_or(0), TIME_NS_MAX)?;
            for list in [&mut operation.uses, &mut operation.writes] {
                list.sort_unstable();
                list.dedup();
            }
            if operation.uses.last().is_some_and(|&last| last >= tensors.len()) {
                return Err(Error::invalid("a tensor does not exist").in_field(field("uses")));
            }
            if operation.writes.iter().any(|tensor| operation.uses.binary_search(tensor).is_err()) {
                return Err(Error::invalid("a tensor is not among those of \"uses\"").in_field(field("writes")));
            }
        }
        Ok(Self { tensors, operations, periods })
    }

    /// One period of operations that were checked before, on tensors of `sizes` bytes without ids.
    pub(crate) fn of_period(sizes: &[u64], operations: Vec<Operation>) -> Self {
        let tensor = |&size_bytes: &u64| Tensor { id: String::new(), size_bytes };
        Self { tensors: sizes.iter().map(tensor).collect(), operations, periods: 1 }
    }

    /// The tensors, used or not.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The operations of one period, in order.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// How many periods were recorded.
    pub fn periods(&self) -> u32 {
        self.periods
    }

    /// The sizes of all tensors, in bytes.
    pub fn sizes(&self) -> Vec<u64> {
        self.tensors.iter().map(|tensor| tensor.size_bytes).collect()
    }

    /// Time of one period if everything is on the device.
    pub fn compute_ns(&self) -> Nanos {
        self.operations.iter().map(|operation| operation.compute_ns).sum()
    }

    /// The tensors that some operation uses.
    pub fn used(&self) -> Vec<TensorIndex> {
        let mut used: Vec<_> = self.operations.iter().flat_map(|operation| operation.uses.iter().copied()).collect();
        used.sort_unstable();
        used.dedup();
        used
    }

    /// Memory that `operation` needs on the device, in bytes.
    pub fn needed_bytes(&self, operation: &Operation) -> u64 {
        operation.workspace_bytes + operation.uses.iter().map(|&tensor| self.tensors[tensor].size_bytes).sum::<u64>()
    }

    /// Whether every operation may run on the host.
    pub fn runs_on_cpu(&self) -> bool {
        self.operations.iter().all(|operation| operation.cpu_ns.is_some())
    }
}

fn at_most<T: PartialOrd + std::fmt::Display>(field: &str, value: T, max: T) -> Result<()> {
    if value > max {
        return Err(Error::invalid(format!("{value} is more than {max}")).in_field(field));
    }
    Ok(())
}
