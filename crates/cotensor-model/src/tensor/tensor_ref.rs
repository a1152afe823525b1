use super::convert::to_f32;
use bytemuck::{AnyBitPattern, NoUninit};
use cotensor_core::{DType, Device, Error, Layout, Result, Segment};
use cotensor_preprocess::Array;
use cotensor_store::Lease;
use std::borrow::Cow;

/// A borrowed row-major tensor, in host memory or on a device.
#[derive(Clone, Copy)]
pub struct TensorRef<'a> {
    dtype: DType,
    shape: &'a [usize],
    elements: Elements<'a>,
}

#[derive(Clone, Copy)]
enum Elements<'a> {
    Host(&'a [u8]),
    Device(DeviceMemory<'a>),
}

/// Memory that the host cannot address.
#[derive(Clone, Copy)]
pub struct DeviceMemory<'a> {
    /// The segment with the elements.
    pub segment: &'a dyn Segment,
    /// The offset of the first element, in bytes.
    pub offset_bytes: usize,
}

impl<'a> TensorRef<'a> {
    /// A tensor in host memory. `T` has the size of `dtype`, as in [`Array::new`].
    ///
    /// # Errors
    /// `Invalid` when `T` has another size than `dtype`, or when `shape` has another number of elements.
    pub fn new<T: NoUninit>(dtype: DType, shape: &'a [usize], elements: &'a [T]) -> Result<Self> {
        let bytes: &[u8] = bytemuck::cast_slice(elements);
        if size_of::<T>() != dtype.size_bytes() || Layout::contiguous(dtype, shape)?.size_bytes() != bytes.len() {
            let message =
                format!("{} elements of {} bytes do not fill {dtype} {shape:?}", elements.len(), size_of::<T>());
            return Err(Error::invalid(message));
        }
        Ok(Self { dtype, shape, elements: Elements::Host(bytes) })
    }

    /// A tensor in host memory, as bytes in the order of the machine.
    ///
    /// # Errors
    /// `Invalid` in the field `shape` for one that no tensor has, and in the field `bytes` for another number of them.
    pub fn of_bytes(dtype: DType, shape: &'a [usize], bytes: &'a [u8]) -> Result<Self> {
        let wanted = Layout::contiguous(dtype, shape).map_err(|error| error.in_field("shape"))?.size_bytes();
        if wanted != bytes.len() {
            return Err(Error::invalid(format!("{} bytes for {dtype} {shape:?}, which has {wanted}", bytes.len()))
                .in_field("bytes"));
        }
        Ok(Self { dtype, shape, elements: Elements::Host(bytes) })
    }

    /// A `float32` tensor in host memory.
    ///
    /// # Errors
    /// As [`TensorRef::new`].
    pub fn f32(shape: &'a [usize], elements: &'a [f32]) -> Result<Self> {
        Self::new(DType::F32, shape, elements)
    }

    /// An `int64` tensor in host memory.
    ///
    /// # Errors
    /// As [`TensorRef::new`].
    pub fn i64(shape: &'a [usize], elements: &'a [i64]) -> Result<Self> {
        Self::new(DType::I64, shape, elements)
    }

    /// The tensor of a lease.
    ///
    /// # Errors
    /// `Unsupported` when the tensor is not row-major.
    pub fn of_lease(lease: &'a Lease) -> Result<Self> {
        let layout = lease.layout();
        if !layout.is_contiguous() {
            return Err(Error::unsupported(format!("{} is strided; an engine reads row-major tensors", lease.name())));
        }
        let elements = match lease.bytes() {
            Some(bytes) => Elements::Host(bytes),
            None => Elements::Device(DeviceMemory { segment: lease.segment(), offset_bytes: layout.offset_bytes() }),
        };
        Ok(Self { dtype: lease.dtype(), shape: lease.shape(), elements })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dimensions, in elements.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// The device whose memory holds the elements.
    pub fn device(&self) -> Device {
        match self.elements {
            Elements::Host(_) => Device::Cpu,
            Elements::Device(memory) => memory.segment.device(),
        }
    }

    /// The elements as bytes, if the host can address them.
    pub fn bytes(&self) -> Option<&'a [u8]> {
        match self.elements {
            Elements::Host(bytes) => Some(bytes),
            Elements::Device(_) => None,
        }
    }

    /// The memory of a tensor that the host cannot address.
    pub fn device_memory(&self) -> Option<DeviceMemory<'a>> {
        match self.elements {
            Elements::Host(_) => None,
            Elements::Device(memory) => Some(memory),
        }
    }

    /// The elements as `float32`. Converts a copy of elements of another floating-point type.
    ///
    /// # Errors
    /// `Invalid` for integers, `Unsupported` on a device.
    pub fn to_f32(&self) -> Result<Cow<'a, [f32]>> {
        match self.dtype {
            DType::F32 => self.typed().map(Cow::Borrowed),
            DType::F16 | DType::BF16 | DType::F64 => Ok(Cow::Owned(to_f32(self.dtype, self.host_bytes()?))),
            other => Err(Error::invalid(format!("floating-point numbers expected, the value has {other}"))),
        }
    }

    /// The elements as bytes.
    ///
    /// # Errors
    /// `Unsupported` on a device.
    pub fn host_bytes(&self) -> Result<&'a [u8]> {
        self.bytes().ok_or_else(|| {
            Error::unsupported(format!("the tensor is on {}, where the host cannot read it", self.device()))
        })
    }

    /// The elements as numbers of the size of the element type.
    ///
    /// # Errors
    /// `Unsupported` on a device, `Invalid` when `T` has another size.
    pub fn typed<T: AnyBitPattern>(&self) -> Result<&'a [T]> {
        let bytes = self.host_bytes()?;
        if size_of::<T>() != self.dtype.size_bytes() {
            return Err(Error::invalid(format!("{} has no elements of {} bytes", self.dtype, size_of::<T>())));
        }
        bytemuck::try_cast_slice(bytes).map_err(|error| Error::invalid(error.to_string()))
    }
}

impl<'a> From<&'a Array> for TensorRef<'a> {
    fn from(array: &'a Array) -> Self {
        Self { dtype: array.dtype(), shape: array.shape(), elements: Elements::Host(array.bytes()) }
    }
}
