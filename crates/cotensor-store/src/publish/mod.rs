//! Tensors before they are published.

mod reservation;

pub use reservation::{Reservation, Ticket};
