use cotensor_core::{Error, ErrorKind, Result};

/// Random bytes of the system, for secrets and for numbers that identify a process.
///
/// # Errors
/// `Io` when the system has no source of random numbers.
pub fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Error::new(ErrorKind::Io, format!("random numbers: {error}")))?;
    Ok(bytes)
}
