//! Groups: tensors that consist of named members in one segment.

use super::limits::check_name;
use crate::backend::{DIMENSION_BYTES, TEXT_COPIES};
use cotensor_core::{DType, Error, Layout, Result, padded};
use std::collections::HashSet;
use std::sync::Arc;

/// The most members of a group.
pub const MEMBERS_MAX: usize = 4096;

/// The most bytes of the names of all members of a group together.
pub const MEMBER_NAMES_BYTES_MAX: usize = 256 << 10;

/// Metadata of a member without its name and dimensions, in bytes.
const MEMBER_BYTES: u64 = 128;

/// One tensor of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    name: Box<str>,
    layout: Layout,
}

impl Member {
    /// The name within the group.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How its elements lie: row-major, with the offset from the start of the group.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
}

/// The table of a group's members.
///
/// Each member begins at the first multiple of [`ALIGNMENT`](cotensor_core::ALIGNMENT) bytes after the previous one.
/// The order, the dtypes and the shapes thus determine every offset, and no two members overlap.
#[derive(Debug, PartialEq, Eq)]
pub struct Members {
    members: Box<[Member]>,
    size_bytes: usize,
}

impl Members {
    /// Lays out members, each of which has a name, a dtype and a shape in elements.
    ///
    /// # Errors
    /// `Invalid` with the name of the member, for an empty name, a repeated name, or an impossible shape. `Invalid`
    /// without a member, for more than [`MEMBERS_MAX`] members, and for names of more than
    /// [`MEMBER_NAMES_BYTES_MAX`] bytes.
    pub fn new<N: Into<Box<str>>, S: AsRef<[usize]>>(
        members: impl IntoIterator<Item = (N, DType, S)>,
    ) -> Result<Arc<Self>> {
        let (mut laid, mut text_bytes, mut end) = (Vec::new(), 0, 0);
        for (name, dtype, shape) in members {
            let name: Box<str> = name.into();
            text_bytes += name.len();
            if laid.len() == MEMBERS_MAX || text_bytes > MEMBER_NAMES_BYTES_MAX {
                return Err(Error::invalid(format!(
                    "a group has at most {MEMBERS_MAX} members, whose names have at most {MEMBER_NAMES_BYTES_MAX} bytes together"
                ))
                .in_field("members"));
            }
            let layout = lay_out(&name, dtype, shape.as_ref(), end).map_err(|error| error.in_field(&*name))?;
            end = layout.offset_bytes() + layout.size_bytes();
            laid.push(Member { name, layout });
        }
        if laid.is_empty() {
            return Err(Error::invalid("a group needs at least one member").in_field("members"));
        }
        let mut names = HashSet::with_capacity(laid.len());
        if let Some(again) = laid.iter().find(|member| !names.insert(member.name())) {
            return Err(Error::invalid("two members of the group have this name").in_field(again.name()));
        }
        Ok(Arc::new(Self { members: laid.into(), size_bytes: end }))
    }

    /// The members in their order.
    pub fn iter(&self) -> std::slice::Iter<'_, Member> {
        self.members.iter()
    }

    /// The number of members; at least 1.
    #[allow(clippy::len_without_is_empty, reason = "a group has at least one member")]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// The bytes of the group: from its start to the end of the last member.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// The member of that name.
    ///
    /// # Errors
    /// `NotFound` with the names of the first members.
    pub fn find(&self, name: &str) -> Result<&Member> {
        const SHOWN: usize = 8;
        self.iter().find(|member| member.name() == name).ok_or_else(|| {
            let known: Vec<&str> = self.iter().map(Member::name).take(SHOWN).collect();
            let more = if self.len() > SHOWN { ", ..." } else { "" };
            Error::not_found(format!("no member is named {name:?}; the members are {}{more}", known.join(", ")))
        })
    }

    /// The bytes that the budget counts for the table.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        let each = |member: &Member| {
            let (text, rank) = (member.name.len() as u64, member.layout.shape().len() as u64);
            MEMBER_BYTES + TEXT_COPIES * text + DIMENSION_BYTES * rank
        };
        self.iter().map(each).sum()
    }
}

/// How a member's elements lie in a segment where its group begins at `start` bytes. Without `members`, the tensor is
/// not a group.
pub(crate) fn member_layout(members: Option<&Members>, name: &str, start: usize) -> Result<Layout> {
    let members =
        members.ok_or_else(|| Error::not_found(format!("it is not a group, so it has no member {name:?}")))?;
    members.find(name)?.layout().moved(start)
}

/// The layout of a member after `end` bytes of other members.
fn lay_out(name: &str, dtype: DType, shape: &[usize], end: usize) -> Result<Layout> {
    if name.is_empty() {
        return Err(Error::invalid("a member needs a name"));
    }
    check_name(name, name)?;
    let start = padded(end)?;
    Layout::contiguous(dtype, shape)?.moved(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::{ErrorKind, TENSOR_BYTES_MAX};

    #[test]
    fn members_are_aligned_and_do_not_overlap() {
        let shapes: [(&str, DType, &[usize]); 4] = [
            ("codes", DType::U8, &[3, 5]),
            ("empty", DType::F32, &[0, 7]),
            ("scale", DType::F64, &[]),
            ("zeros", DType::F16, &[40]),
        ];
        let members = Members::new(shapes).unwrap();
        let found: Vec<_> = members
            .iter()
            .map(|member| (member.name(), member.layout().byte_range(), member.layout().shape()))
            .collect();
        let wanted: [(&str, _, &[usize]); 4] =
            [("codes", 0..15, &[3, 5]), ("empty", 64..64, &[0, 7]), ("scale", 64..72, &[]), ("zeros", 128..208, &[40])];
        assert_eq!(found, wanted);
        assert_eq!((members.size_bytes(), members.len()), (208, 4));
        assert_eq!(members.find("scale").unwrap().layout().dtype(), DType::F64);
        let error = members.find("bias").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("\"bias\"") && error.to_string().contains("codes, empty, scale, zeros"));
    }

    #[test]
    fn invalid_members_are_refused_by_name() {
        let refused = |members: &[(&str, &[usize])]| {
            let error = Members::new(members.iter().map(|&(name, shape)| (name, DType::U8, shape))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            error.field().map(str::to_owned)
        };
        let max = usize::try_from(TENSOR_BYTES_MAX).unwrap_or(isize::MAX as usize);
        assert_eq!(refused(&[]).as_deref(), Some("members"));
        assert_eq!(refused(&[("a", &[1]), ("", &[1])]).as_deref(), Some(""));
        assert_eq!(refused(&[("a", &[1]), ("b", &[1]), ("a", &[2])]).as_deref(), Some("a"));
        assert_eq!(refused(&[("a", &[1]), ("b", &[usize::MAX, 2])]).as_deref(), Some("b"));
        assert_eq!(refused(&[("a", &[max]), ("b", &[1])]).as_deref(), Some("b"), "together they are too large");
        assert_eq!(refused(&[("a", &[1; 17])]).as_deref(), Some("a"));
        let long = "n".repeat(crate::NAME_BYTES_MAX + 1);
        assert_eq!(refused(&[(&long, &[1])]), Some(long.clone()));
        let each = |count: usize, len: usize| (0..count).map(move |index| (format!("{index:0len$}"), DType::U8, [1]));
        assert!(Members::new(each(MEMBERS_MAX, 4)).is_ok() && Members::new(each(MEMBERS_MAX + 1, 4)).is_err());
        let count = MEMBER_NAMES_BYTES_MAX / 1024;
        assert!(Members::new(each(count, 1024)).is_ok() && Members::new(each(count + 1, 1024)).is_err());
    }
}
