// The only file of this engine with unsafe code: it lends memory of the store to onnxruntime, which takes raw pointers.
#![allow(unsafe_code)]

use cotensor_store::Lease;
use ort::editor::Model;
use ort::environment::Environment;
use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::RunOptions;
use ort::session::builder::{AutoDevicePolicy, GraphOptimizationLevel, SessionBuilder};
use ort::sys;
use ort::value::{DynValue, Outlet, TensorElementType};
use ort::{AsPointer, Error, ortsys};
use std::ffi::{CStr, CString, c_char, c_void};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null, null_mut};

type Result<T> = ort::Result<T>;

/// A library that is loaded while the value lives. To load it again would take as long as to open a small model.
pub(super) struct Opened {
    _library: libloading::Library,
    /// The version, such as `1.32.0`; `None` when the file is another library.
    pub(super) version: Option<String>,
    /// Whether it has the functions that this program calls.
    pub(super) is_usable: bool,
}

/// Loads the library in `path`.
///
/// # Errors
/// The reason why the file cannot be loaded.
pub(super) fn open(path: &Path) -> std::result::Result<Opened, String> {
    // SAFETY: loading a library runs its constructors. The user chose this file, as a variable or as an installed
    // package.
    let library = unsafe { libloading::Library::new(path) }.map_err(|error| reason(&error))?;
    type Base = unsafe extern "C" fn() -> *const sys::OrtApiBase;
    // SAFETY: every release of onnxruntime exports this function with this type.
    let base = unsafe { library.get::<Base>(b"OrtGetApiBase\0") }.ok();
    // SAFETY: as above. The returned table and its strings are constants of the library, which is still loaded.
    let base = base.and_then(|base| unsafe { base().as_ref() });
    // SAFETY: as above.
    let version = base.map(|base| unsafe { CStr::from_ptr((base.GetVersionString)()) });
    let version = version.map(|version| version.to_string_lossy().into_owned());
    // SAFETY: as above. A release without this version of the functions returns null.
    let is_usable = base.is_some_and(|base| !unsafe { (base.GetApi)(sys::ORT_API_VERSION) }.is_null());
    Ok(Opened { _library: library, version, is_usable })
}

/// What the loader said.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Keeps the library from reporting its use to its vendor, unless the user set the variable.
pub(super) fn disable_telemetry() {
    const VARIABLE: &str = "ORT_DISABLE_TELEMETRY";
    if std::env::var_os(VARIABLE).is_none() {
        // SAFETY: Rust code reads the environment under a lock. C code of another thread could read it at this moment;
        // the variable is set once, before the library is loaded, so its own threads do not exist yet. The library
        // offers no other way to disable its reports before it sends the first.
        unsafe { std::env::set_var(VARIABLE, "1") };
    }
}

/// Registers an arena, which sessions of this environment share. By itself each session has an arena of its own.
pub(super) fn share_arena(environment: &Environment) -> Result<()> {
    let memory = MemoryInfo::new(AllocationDevice::CPU, 0, AllocatorType::Arena, MemoryType::Default)?;
    // SAFETY: the environment and the description of the memory are valid for the call, which locks the environment's list of
    // allocators. A null configuration is documented as the default one.
    ortsys![unsafe CreateAndRegisterAllocator(environment.ptr().cast_mut(), memory.ptr(), null())?];
    Ok(())
}

/// How a session is built.
#[derive(Clone, Debug, Default)]
pub(super) struct SessionOptions {
    /// Threads inside an operator; `None` lets onnxruntime choose.
    pub(super) threads: Option<usize>,
    /// Whether weights are copied into the layout of the kernels.
    pub(super) prepacks: bool,
    /// Whether the graph was optimized when it was written: a second optimization could choose other kernels.
    pub(super) is_optimized: bool,
    /// Writes the optimized graph to the first path, and its weights and their copies to a file of the second name
    /// beside it.
    pub(super) saves: Option<(PathBuf, &'static str)>,
}

impl SessionOptions {
    fn builder(&self, environment: &Environment) -> Result<SessionBuilder> {
        let mut builder = ort::session::Session::builder(environment)?
            .with_auto_device(AutoDevicePolicy::PreferCPU)?
            .with_prepacking(self.prepacks)?
            // A plan of memory is kept for each combination of input shapes, and texts have all lengths.
            .with_memory_pattern(false)?
            // The arena of the environment, so that a run of one session returns the memory of all.
            .with_env_allocators()?
            // Threads that wait for the next run leave the cores to the other sessions and processes.
            .with_config_entry("session.force_spinning_stop", "1")?
            // Without it, sums of products of uint8 and int8 saturate on x86-64 processors that lack VNNI.
            .with_config_entry("session.x64quantprecision", "1")?;
        if self.is_optimized {
            builder = builder.with_optimization_level(GraphOptimizationLevel::Disable)?;
        }
        if let Some((path, data)) = &self.saves {
            builder = builder
                .with_optimized_model_path(path)?
                .with_config_entry("session.optimized_model_external_initializers_file_name", data)?
                .with_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")?
                .with_config_entry("session.save_external_prepacked_constant_initializers", "1")?;
        }
        if let Some(threads) = self.threads.or_else(super::cores::limited_threads) {
            builder = builder.with_intra_threads(threads.max(1))?;
        }
        Ok(builder)
    }
}

/// A model whose weights are inputs of its graph.
pub(super) struct OpenModel<'a> {
    /// The graph as an ONNX file.
    pub(super) graph: Vec<u8>,
    /// The operator sets that it imports: domain and version.
    pub(super) operator_sets: Vec<(String, u32)>,
    /// The names of the true inputs.
    pub(super) inputs: Vec<&'a str>,
    /// The weights: name, element type and shape.
    pub(super) weights: Vec<(&'a str, TensorElementType, &'a [usize])>,
}

/// A session with the memory that it reads. Fields are dropped in the order of their declaration.
pub(super) struct Session {
    /// Reads the bytes of `_weights`, so it is dropped first.
    session: ort::session::Session,
    /// The options of each run.
    options: RunOptions,
    /// Holds the bytes that `session` reads. Dropped last.
    _weights: Vec<Lease>,
}

impl Session {
    /// Opens a model file with onnxruntime's own means.
    pub(super) fn of_file(environment: &Environment, options: &SessionOptions, path: &Path) -> Result<Self> {
        let session = options.builder(environment)?.commit_from_file(path)?;
        Self::with_weights(session, Vec::new())
    }

    /// Opens a graph whose weights are in files of `folder`.
    pub(super) fn of_bytes(
        environment: &Environment,
        options: &SessionOptions,
        graph: &[u8],
        folder: &Path,
    ) -> Result<Self> {
        let folder = folder.to_str().ok_or_else(|| Error::new("the path of the folder is not UTF-8"))?;
        let builder = options.builder(environment)?;
        let mut builder = builder.with_config_entry("session.model_external_initializers_file_folder_path", folder)?;
        Self::with_weights(builder.commit_from_memory(graph)?, Vec::new())
    }

    /// Opens `model` with its weights in memory of the store. `leases` has a lease for each of the weights, which the
    /// host can address.
    pub(super) fn of_memory(
        leases: Vec<Lease>,
        environment: &Environment,
        options: &SessionOptions,
        model: &OpenModel<'_>,
    ) -> Result<Self> {
        let mut builder = options.builder(environment)?;
        if leases.is_empty() {
            return Self::with_weights(builder.commit_from_memory(&model.graph)?, leases);
        }
        let mut graph = ort::editor::Graph::new()?;
        for (&(name, dtype, shape), lease) in model.weights.iter().zip(&leases) {
            let bytes = lease.bytes().ok_or_else(|| Error::new("the host cannot address a weight"))?;
            add_weight(&mut graph, name, Tensor::read(dtype, shape, bytes)?)?;
        }
        let mut session = builder.edit_from_memory(&model.graph)?;
        let inputs = session.inputs().iter().filter(|input| model.inputs.contains(&input.name()));
        graph.set_inputs(inputs.map(|input| Outlet::new(input.name(), input.dtype().clone())).collect::<Vec<_>>())?;
        let sets = model.operator_sets.iter().map(|(domain, version)| ort::editor::Opset::new(domain, *version));
        let mut addition = Model::new(sets.collect::<Result<Vec<_>>>()?)?;
        addition.set_graph(graph)?;
        session.apply_model(&addition)?;
        // The session ends before the leases do: `Self` drops it first.
        Self::with_weights(session.into_session()?, leases)
    }

    /// Opens a model without weights. Its runs return the free memory of the arena to the allocator.
    pub(super) fn shrinking(environment: &Environment, options: &SessionOptions, model: Model) -> Result<Self> {
        let mut this = Self::with_weights(model.into_session(&options.builder(environment)?)?, Vec::new())?;
        this.options.set("memory.enable_memory_arena_shrinkage", "cpu:0")?;
        Ok(this)
    }

    fn with_weights(session: ort::session::Session, weights: Vec<Lease>) -> Result<Self> {
        Ok(Self { session, options: RunOptions::new()?, _weights: weights })
    }

    /// The inputs and outputs as onnxruntime found them. A session with weights lists them as inputs, too.
    pub(super) fn outlets(&self) -> (&[Outlet], &[Outlet]) {
        (self.session.inputs(), self.session.outputs())
    }

    /// Runs the graph. Returns one tensor for each of `outputs`: the given one, filled, or a new one.
    ///
    /// onnxruntime allows concurrent runs of a session.
    pub(super) fn run<'o>(
        &self,
        inputs: &[(&CStr, &Tensor<'_>)],
        outputs: Vec<(&CStr, Option<Tensor<'o>>)>,
    ) -> Result<Vec<Tensor<'o>>> {
        let input_names: Vec<*const c_char> = inputs.iter().map(|(name, _)| name.as_ptr()).collect();
        let input_values: Vec<*const sys::OrtValue> = inputs.iter().map(|(_, tensor)| tensor.value.ptr()).collect();
        let output_names: Vec<*const c_char> = outputs.iter().map(|(name, _)| name.as_ptr()).collect();
        let given =
            |tensor: &Option<Tensor<'o>>| tensor.as_ref().map_or(null_mut(), |tensor| tensor.value.ptr().cast_mut());
        let mut values: Vec<*mut sys::OrtValue> = outputs.iter().map(|(_, tensor)| given(tensor)).collect();
        // SAFETY: every pointer is valid for the whole call: names and values are borrowed. The counts are the lengths
        // of the arrays. `options` are never changed. A given output is a tensor over memory that it borrows mutably, so nothing else reads or
        // writes it. `OrtSession` is documented to run on several threads at a time.
        ortsys![
            unsafe Run(
                self.session.ptr().cast_mut(),
                self.options.ptr(),
                input_names.as_ptr(),
                input_values.as_ptr(),
                input_values.len(),
                output_names.as_ptr(),
                output_names.len(),
                values.as_mut_ptr()
            )?
        ];
        let made = values.into_iter().zip(outputs).map(|(value, (_, given))| match given {
            Some(tensor) => Ok(tensor),
            // SAFETY: a run that succeeded made a value for every output that was null. This is its only owner.
            None => unsafe { Tensor::adopt(value) },
        });
        made.collect()
    }
}

/// Adds a weight to the graph without a copy of its bytes.
fn add_weight(graph: &mut ort::editor::Graph, name: &str, tensor: Tensor<'_>) -> Result<()> {
    let name = CString::new(name)?;
    let mut tensor = ManuallyDrop::new(tensor);
    let value = tensor.value.ptr_mut();
    let mut add = || -> Result<()> {
        // SAFETY: the value is a tensor over the bytes of a weight. onnxruntime takes the value, and reads the bytes
        // until the session ends. The bytes belong to the segment of a lease, which never moves or changes them, and
        // the session ends before the lease.
        ortsys![@editor: unsafe AddInitializerToGraph(graph.ptr_mut(), name.as_ptr(), value, true)?];
        Ok(())
    };
    let added = add();
    if added.is_err() {
        drop(ManuallyDrop::into_inner(tensor));
    }
    added
}

/// A tensor of onnxruntime: over memory that is borrowed for `'m`, or with memory of its own.
pub(super) struct Tensor<'m> {
    value: DynValue,
    _memory: PhantomData<&'m mut [u8]>,
}

impl<'m> Tensor<'m> {
    /// A tensor that onnxruntime only reads: an input or a weight.
    pub(super) fn read(dtype: TensorElementType, shape: &[usize], bytes: &'m [u8]) -> Result<Self> {
        Self::over(dtype, shape, bytes.as_ptr().cast_mut().cast(), bytes.len())
    }

    /// A tensor that onnxruntime fills: an output.
    pub(super) fn write(dtype: TensorElementType, shape: &[usize], bytes: &'m mut [u8]) -> Result<Self> {
        Self::over(dtype, shape, bytes.as_mut_ptr().cast(), bytes.len())
    }

    fn over(dtype: TensorElementType, shape: &[usize], data: *mut c_void, len: usize) -> Result<Self> {
        let shape: Vec<i64> = shape.iter().map(|&dim| dim as i64).collect();
        let mut value = null_mut();
        let memory = MemoryInfo::default();
        // SAFETY: `data` is valid for `len` bytes and for `'m`. onnxruntime checks that the shape fits the bytes.
        ortsys![
            unsafe CreateTensorWithDataAsOrtValue(
                memory.ptr(),
                data,
                len,
                shape.as_ptr(),
                shape.len(),
                dtype.into(),
                &mut value
            )?
        ];
        // SAFETY: the call above made the value, and this is its only owner.
        unsafe { Self::adopt(value) }
    }

    /// # Safety
    /// `value` is null or a value without another owner, whose memory is valid for `'m`.
    unsafe fn adopt(value: *mut sys::OrtValue) -> Result<Self> {
        let value = NonNull::new(value).ok_or_else(|| Error::new("onnxruntime made no value"))?;
        // SAFETY: the caller owns the value.
        let value = unsafe { DynValue::from_ptr(value, Some(&Allocator::default())) };
        Ok(Self { value, _memory: PhantomData })
    }

    /// Element type and dimensions; `None` for a value that is not a tensor.
    pub(super) fn description(&self) -> Option<(TensorElementType, Vec<usize>)> {
        let kind = self.value.dtype();
        let shape = kind.tensor_shape()?.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<_>>()?;
        Some((kind.tensor_type()?, shape))
    }

    /// The elements, `len` bytes.
    ///
    /// # Errors
    /// For a tensor of another size or one that the host cannot address.
    pub(super) fn bytes(&self, len: usize) -> Result<&[u8]> {
        let fits =
            self.description().is_some_and(|(dtype, shape)| dtype.byte_size(shape.iter().product()) == Some(len));
        if !fits {
            return Err(Error::new(format!("the value is not a tensor of {len} bytes")));
        }
        if len == 0 {
            return Ok(&[]);
        }
        let mut data = null_mut();
        // SAFETY: the value is a tensor. Only the CPU's execution provider is used, so the host can address it.
        ortsys![unsafe GetTensorMutableData(self.value.ptr().cast_mut(), &mut data)?];
        // SAFETY: the tensor has `len` bytes by its type and shape, and keeps them while it is borrowed.
        Ok(unsafe { std::slice::from_raw_parts(data.cast_const().cast(), len) })
    }
}
