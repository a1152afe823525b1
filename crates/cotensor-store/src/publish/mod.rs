//! Tensors before they are published.

mod reservation;
mod ticket;

pub use reservation::Reservation;
pub use ticket::Ticket;
