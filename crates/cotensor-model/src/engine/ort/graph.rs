use super::convert::{array, converted, dtype, element_type, error};
use super::native::{Session, Tensor};
use super::shapes::Shapes;
use crate::engine::api::LoadedGraph;
use crate::engine::checks::{check_shape, input_positions, output_positions};
use crate::engine::guard::guarded;
use crate::engine::output::{Output, OutputAllocator, OutputSpec};
use crate::engine::state::{Keep, RunState};
use crate::graph::{Graph, Port};
use crate::tensor::{Array, TensorRef};
use cotensor_core::{DType, Device, Error, ErrorKind, Result};
use cotensor_store::CopyReason;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A loaded graph.
pub(super) struct OrtGraph {
    session: Session,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    /// The names of `inputs` and of `outputs` for onnxruntime.
    input_names: Vec<CString>,
    output_names: Vec<CString>,
    shapes: Shapes,
    /// Whether the shapes that the graph declares for its outputs were right so far.
    predicts: AtomicBool,
    precision: DType,
    variant: &'static str,
}

impl OrtGraph {
    pub(super) fn of_graph(session: Session, graph: &Graph, variant: &'static str) -> Result<Arc<dyn LoadedGraph>> {
        Self::open(session, graph.inputs().to_vec(), graph.outputs().to_vec(), graph.precision(), variant)
    }

    pub(super) fn open(
        session: Session,
        inputs: Vec<Port>,
        outputs: Vec<Port>,
        precision: DType,
        variant: &'static str,
    ) -> Result<Arc<dyn LoadedGraph>> {
        let names = |ports: &[Port]| {
            let name = |port: &Port| CString::new(port.name.as_str());
            ports.iter().map(name).collect::<std::result::Result<Vec<_>, _>>()
        };
        let names = (names(&inputs), names(&outputs));
        let (Ok(input_names), Ok(output_names)) = names else {
            return Err(Error::corrupt("the name of an input or output contains a zero byte"));
        };
        let shapes = Shapes::of(session.outlets());
        let predicts = AtomicBool::new(true);
        Ok(Arc::new(Self { session, inputs, outputs, input_names, output_names, shapes, predicts, precision, variant }))
    }

    /// An input with the element type that the graph takes, in place if it has that type already.
    fn input<'a>(&self, position: usize, tensor: &TensorRef<'a>, allocator: &dyn OutputAllocator) -> Result<Input<'a>> {
        let port = &self.inputs[position];
        check_shape(port, tensor.shape())?;
        let bytes = tensor.bytes().ok_or_else(|| {
            Error::unsupported(format!("onnxruntime runs on the cpu, this tensor is on {}", tensor.device()))
        })?;
        match port.dtype {
            Some(wanted) if wanted != tensor.dtype() => {
                let array = converted(tensor, bytes, wanted)?;
                allocator.record_conversion(&port.name, array.bytes().len());
                Ok(Input::Converted(array))
            }
            _ => Ok(Input::Lent(*tensor)),
        }
    }

    /// Memory for the outputs at `wanted` whose shapes follow from the inputs: of the store, or an array. An output in the
    /// arena of the session would keep its part of the arena until the next run.
    fn reserve(
        &self,
        inputs: &[(usize, Input<'_>)],
        wanted: &[usize],
        allocator: &dyn OutputAllocator,
    ) -> Result<Vec<Option<Target>>> {
        let known = inputs.iter().map(|(position, input)| (self.inputs[*position].name.as_str(), input.view().shape()));
        let sizes = self.shapes.bind(known);
        let reserve = |(index, &position): (usize, &usize)| {
            let port = &self.outputs[position];
            let (Some(dtype), Some(shape)) = (port.dtype, sizes.output(&port.name)) else { return Ok(None) };
            if shape.contains(&0) {
                return Ok(None);
            }
            let spec = OutputSpec { index, dtype, shape: &shape, device: Device::Cpu };
            let memory = match allocator.allocate(&spec)? {
                Some(reservation) => Output::Reserved(reservation),
                None => Output::Array(Array::zeros(dtype, &*shape)?),
            };
            Ok(Some(Target { memory, dtype, shape }))
        };
        wanted.iter().enumerate().map(reserve).collect()
    }

    /// Runs the graph. An output without reserved memory is copied once, into memory of `allocator` if it has any.
    fn execute(
        &self,
        inputs: &[(usize, Input<'_>)],
        wanted: &[usize],
        mut reserved: Vec<Option<Target>>,
        allocator: &dyn OutputAllocator,
    ) -> Result<Vec<Output>> {
        let tensors = inputs.iter().map(|(_, input)| input.tensor()).collect::<Result<Vec<_>>>()?;
        let names = inputs.iter().map(|(position, _)| self.input_names[*position].as_c_str());
        let lent: Vec<_> = names.zip(&tensors).collect();
        let in_place: Vec<bool> = reserved.iter().map(Option::is_some).collect();
        let mut targets = Vec::with_capacity(wanted.len());
        for (target, &position) in reserved.iter_mut().zip(wanted) {
            let tensor = target.as_mut().map(Target::tensor).transpose()?;
            targets.push((self.output_names[position].as_c_str(), tensor));
        }
        let made = self.session.run(&lent, targets).map_err(|failure| error(&failure))?;
        let copy = |(index, tensor): (usize, Tensor<'_>)| {
            if in_place[index] { Ok(None) } else { self.copy_out(index, wanted[index], &tensor, allocator).map(Some) }
        };
        let copied = made.into_iter().enumerate().map(copy).collect::<Result<Vec<_>>>()?;
        let placed = reserved.into_iter().map(|target| target.map(|target| target.memory));
        let outputs: Option<Vec<_>> =
            copied.into_iter().zip(placed).map(|(copied, placed)| copied.or(placed)).collect();
        outputs.ok_or_else(|| Error::new(ErrorKind::Engine, "an output is missing"))
    }

    /// Copies an output out of onnxruntime's memory.
    fn copy_out(
        &self,
        index: usize,
        position: usize,
        tensor: &Tensor<'_>,
        allocator: &dyn OutputAllocator,
    ) -> Result<Output> {
        let copy = || {
            let described = tensor.description().and_then(|(kind, shape)| Some((dtype(kind)?, shape)));
            let (dtype, shape) =
                described.ok_or_else(|| Error::unsupported("this output is not a tensor of numbers"))?;
            let len = shape.iter().product::<usize>() * dtype.size_bytes();
            let bytes = tensor.bytes(len).map_err(|failure| error(&failure))?;
            let spec = OutputSpec { index, dtype, shape: &shape, device: Device::Cpu };
            match allocator.allocate(&spec)? {
                Some(mut reservation) => {
                    reservation.write(bytes, CopyReason::EngineOutput)?;
                    Ok(Output::Reserved(reservation))
                }
                None => array(dtype, shape, bytes).map(Output::Array),
            }
        };
        copy().map_err(|error: Error| error.in_field(&self.outputs[position].name))
    }
}

impl LoadedGraph for OrtGraph {
    fn run(
        &self,
        inputs: &[(&str, TensorRef<'_>)],
        outputs: &[&str],
        allocator: &dyn OutputAllocator,
    ) -> Result<Vec<Output>> {
        let positions = input_positions(&self.inputs, inputs.iter().map(|(name, _)| *name))?;
        let wanted = output_positions(&self.outputs, outputs)?;
        let mut prepared = Vec::with_capacity(inputs.len());
        for (position, (name, tensor)) in positions.into_iter().zip(inputs) {
            let input = self.input(position, tensor, allocator).map_err(|error| error.in_field(*name))?;
            prepared.push((position, input));
        }
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let nothing = || wanted.iter().map(|_| None).collect::<Vec<_>>();
        let reserved = if self.predicts.load(Ordering::Relaxed) {
            self.reserve(&prepared, &wanted, allocator)?
        } else {
            nothing()
        };
        let run = |reserved| guarded("running", || self.execute(&prepared, &wanted, reserved, allocator));
        if reserved.iter().all(Option::is_none) {
            return run(reserved);
        }
        // onnxruntime refuses memory of another size than an output needs. The graph then declares wrong names for
        // dimensions, and the memory is not reserved in advance any more.
        run(reserved).or_else(|_| {
            let outputs = run(nothing())?;
            self.predicts.store(false, Ordering::Relaxed);
            Ok(outputs)
        })
    }

    /// onnxruntime's Concat makes a new value: a value that grows is copied at each run.
    fn run_keeping(
        &self,
        inputs: &[(&str, TensorRef<'_>)],
        outputs: &[&str],
        state: &mut RunState,
        keep: &[Keep<'_>],
        allocator: &dyn OutputAllocator,
    ) -> Result<Vec<Output>> {
        let kept = state.read_by(&self.inputs, inputs);
        let names: Vec<&str> = inputs.iter().map(|(name, _)| *name).chain(kept.iter().map(String::as_str)).collect();
        let positions = input_positions(&self.inputs, names.iter().copied())?;
        let requested: Vec<&str> = outputs.iter().copied().chain(keep.iter().map(|keep| keep.output)).collect();
        let wanted = output_positions(&self.outputs, &requested)?;
        let prepared = positions.iter().zip(inputs).map(|(&position, (name, tensor))| {
            self.input(position, tensor, allocator).map_err(|error| error.in_field(*name))
        });
        let prepared = prepared.collect::<Result<Vec<_>>>()?;
        let lent = prepared.iter().map(Input::tensor).collect::<Result<Vec<_>>>()?;
        let mut values: Vec<&Tensor<'_>> = lent.iter().collect();
        for (name, value) in state.values().filter(|(name, _)| kept.iter().any(|known| known == name)) {
            let value = value.downcast_ref::<Tensor<'static>>();
            values.push(value.ok_or_else(|| Error::invalid("the state is of another engine").in_field(name))?);
        }
        let named = positions.iter().map(|&position| self.input_names[position].as_c_str()).zip(values);
        let named: Vec<_> = named.collect();
        let targets = wanted.iter().map(|&position| (self.output_names[position].as_c_str(), None)).collect();
        let mut made = guarded("running", || self.session.run(&named, targets).map_err(|failure| error(&failure)))?;
        let copied = keep.iter().filter(|keep| keep.rows_max.is_some()).filter_map(|keep| {
            let (_, value) = named.iter().zip(&names).find(|(_, name)| **name == keep.input)?.0;
            let (kind, shape) = value.description()?;
            kind.byte_size(shape.iter().product())
        });
        let copied: usize = copied.sum();
        for (keep, value) in keep.iter().zip(made.split_off(outputs.len())) {
            state.put(keep.input, Box::new(value));
        }
        state.record_copy(copied);
        let copy = |(index, tensor): (usize, Tensor<'_>)| self.copy_out(index, wanted[index], &tensor, allocator);
        made.into_iter().enumerate().map(copy).collect()
    }

    fn precision(&self) -> DType {
        self.precision
    }

    fn variant(&self) -> &'static str {
        self.variant
    }

    fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    fn outputs(&self) -> &[Port] {
        &self.outputs
    }
}

/// An input of a run.
enum Input<'a> {
    /// Read in place.
    Lent(TensorRef<'a>),
    /// A copy with the element type of the graph.
    Converted(Array),
}

impl Input<'_> {
    fn view(&self) -> TensorRef<'_> {
        match self {
            Input::Lent(tensor) => *tensor,
            Input::Converted(array) => array.into(),
        }
    }

    fn tensor(&self) -> Result<Tensor<'_>> {
        let (dtype, shape, bytes) = match self {
            Input::Lent(tensor) => (tensor.dtype(), tensor.shape(), tensor.bytes().unwrap_or_default()),
            Input::Converted(array) => (array.dtype(), array.shape(), array.bytes()),
        };
        if !(bytes.as_ptr() as usize).is_multiple_of(dtype.size_bytes()) {
            return Err(Error::invalid(format!("a tensor of {dtype} at an unaligned address")));
        }
        Tensor::read(element_type(dtype)?, shape, bytes).map_err(|failure| error(&failure))
    }
}

/// Memory that a run fills with an output.
struct Target {
    memory: Output,
    dtype: DType,
    shape: Vec<usize>,
}

impl Target {
    fn tensor(&mut self) -> Result<Tensor<'_>> {
        let bytes = match &mut self.memory {
            Output::Array(array) => array.bytes_mut(),
            Output::Reserved(reservation) => {
                let range = reservation.layout().byte_range();
                reservation.bytes_mut().and_then(|bytes| bytes.get_mut(range))
            }
        };
        let bytes = bytes.ok_or_else(|| Error::unsupported("the host cannot write this output"))?;
        Tensor::write(element_type(self.dtype)?, &self.shape, bytes).map_err(|failure| error(&failure))
    }
}
