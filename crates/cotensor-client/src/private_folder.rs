//! Checks that a folder is safe to write to, because another user may have created it.

use cotensor_core::{Error, ErrorKind, Result};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// Which other users may write to a folder.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// None: the folder is owned by this user, has mode 0700 and is not a symbolic link.
    None,
    /// Its group, or all users if it is sticky (as `/tmp`). Its owner may be root.
    Harmless,
}

/// Creates `folder` and its parents with mode 0700 where they are missing, and checks an existing one.
///
/// # Errors
/// `Refused` for a folder that gives other users more rights than `others`; `Io`.
pub fn private_folder(folder: &Path, others: Others) -> Result<()> {
    let io = |error: std::io::Error| Error::io("making a folder", &error).in_file(folder);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(io)?;
    let found = match others {
        Others::None => std::fs::symlink_metadata(folder),
        Others::Harmless => std::fs::metadata(folder),
    };
    let found = found.map_err(io)?;
    let (owner, me, mode) = (found.uid(), rustix::process::geteuid().as_raw(), found.mode());
    let refused = |why: &str| Err(Error::new(ErrorKind::Refused, why).in_file(folder));
    match others {
        _ if !found.is_dir() => refused("not a folder"),
        Others::None if owner != me => refused("this folder belongs to another user: name another one"),
        Others::None if mode & 0o077 != 0 => refused("other users can open this folder: chmod 700"),
        Others::Harmless if owner != me && owner != 0 => {
            refused("this folder belongs to another user: name another one")
        }
        Others::Harmless if mode & 0o002 != 0 && mode & 0o1000 == 0 => {
            refused("every user can replace files in this folder: chmod o-w, or name another one")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn folder_is_created_private_and_a_public_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let made = folder.path().join("a/b");
        for others in [Others::Harmless, Others::None] {
            private_folder(&made, others).unwrap();
        }
        for path in [&made, &folder.path().join("a")] {
            assert_eq!(std::fs::metadata(path).unwrap().mode() & 0o777, 0o700);
        }
        let check = |mode, others| {
            set_permissions(&made, Permissions::from_mode(mode)).unwrap();
            private_folder(&made, others).map_err(|error| (error.kind(), error.file() == Some(made.as_path())))
        };
        let refused = Err((ErrorKind::Refused, true));
        for (mode, harmless, none) in [
            (0o755, Ok(()), refused),
            (0o775, Ok(()), refused),
            (0o777, refused, refused),
            (0o1777, Ok(()), refused),
            (0o700, Ok(()), Ok(())),
        ] {
            assert_eq!((check(mode, Others::Harmless), check(mode, Others::None)), (harmless, none), "{mode:o}");
        }
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&made, &link).unwrap();
        private_folder(&link, Others::Harmless).unwrap();
        assert_eq!(private_folder(&link, Others::None).unwrap_err().kind(), ErrorKind::Refused);
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert!(private_folder(&folder.path().join("file"), Others::None).is_err());
    }

    #[test]
    fn folder_of_another_user_is_refused() {
        // Only root can give a folder away; for other users, a folder of root is not theirs.
        let folder = tempfile::tempdir().unwrap();
        let me = rustix::process::geteuid().as_raw();
        let theirs = if me == 0 {
            std::os::unix::fs::chown(folder.path(), Some(65_534), None).unwrap();
            folder.path()
        } else {
            Path::new("/usr")
        };
        assert_eq!(private_folder(theirs, Others::None).unwrap_err().kind(), ErrorKind::Refused);
        assert_eq!(private_folder(theirs, Others::Harmless).is_err(), me == 0);
        private_folder(Path::new("/tmp"), Others::Harmless).unwrap();
    }
}
