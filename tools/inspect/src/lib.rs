//! Inspection of a running system: duplicate memory in its processes ([`scan`]), and health checks of the system
//! ([`doctor`]).

pub mod doctor;
pub mod scan;
