//! A new server continues with the state of a former one: it restores the store from the journal (`restore.rs`), and each client resumes its
//! session (`resume.rs`).

mod restore;
mod resume;

pub(crate) use resume::Resumed;
