//! One `mmap` of a file and what belongs to it.

mod aliased;
mod cache;
mod count;
mod dirty_pages;
mod huge_pages;
mod mmap;
mod windows;

pub(crate) use aliased::AliasedMapping;
pub(crate) use cache::MappingCache;
pub(crate) use dirty_pages::dirty_bytes;
pub(crate) use huge_pages::huge_page_bytes;
pub(crate) use mmap::{Access, Mapping, OnFork};
pub(crate) use windows::{WindowPart, Windows};
