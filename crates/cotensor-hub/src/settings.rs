//! Settings, from the variables that other programs of the hub read.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// The folder of records of verified files, in the cache folder of this program.
pub const RECORDS_FOLDER: &str = "hub";
/// The most bytes of the file with the token.
const TOKEN_BYTES_MAX: u64 = 4096;

/// Where the hub and its cache are, and how downloads are bounded.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder of the cache: `models--OWNER--NAME` and others.
    pub cache: PathBuf,
    /// The address of the hub; `None` is the public hub.
    pub endpoint: Option<String>,
    /// The token of the user. It is sent to the hub only, never to a host to which the hub redirects.
    pub token: Option<String>,
    /// Whether the network must not be used.
    pub offline: bool,
    /// The folder that records which files were verified; without it, each process verifies.
    pub records: Option<PathBuf>,
    /// Whether files are verified again that were verified since the boot.
    pub verify: bool,
    /// The bounds of downloads.
    pub limits: Limits,
}

/// The bounds of downloads.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest wait for the answer to a request of metadata, its body included.
    pub metadata: Duration,
    /// The longest wait for a connection, and for the next bytes of a file.
    pub idle: Duration,
    /// A file of which fewer than [`slow_bytes`](Self::slow_bytes) arrive in this time is given up.
    pub slow: Duration,
    /// See [`slow`](Self::slow).
    pub slow_bytes: u64,
    /// How often a file is requested before its download fails.
    pub attempts: u32,
    /// The longest wait for another process that downloads the same file and writes none of its bytes.
    pub lock: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            metadata: Duration::from_secs(30),
            idle: Duration::from_secs(30),
            slow: Duration::from_secs(60),
            slow_bytes: 64 << 10,
            attempts: 5,
            lock: Duration::from_secs(600),
        }
    }
}

impl Settings {
    /// The settings of this process's environment: `HF_HUB_CACHE`, `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH`,
    /// `HF_HUB_OFFLINE`, `HF_HUB_DISABLE_IMPLICIT_TOKEN`, `HF_HUB_DOWNLOAD_TIMEOUT` and `HF_HUB_ETAG_TIMEOUT`, with their
    /// meaning and their defaults in `huggingface_hub`; records are below this program's own cache folder.
    pub fn from_env() -> Self {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// As [`from_env`](Self::from_env), with the value of each variable from `variable`. An empty value counts as unset.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let text = |name: &str| set(name).and_then(|value| value.into_string().ok());
        let user = set("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
        let path = |name: &str| set(name).map(|path| expanded(PathBuf::from(path), &user));
        let is_true = |name: &str| {
            let value = text(name).map(|value| value.to_ascii_uppercase());
            value.is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.as_str()))
        };
        let home = path("HF_HOME").unwrap_or_else(|| {
            let caches = path("XDG_CACHE_HOME").unwrap_or_else(|| user.join(".cache"));
            caches.join("huggingface")
        });
        let own = path("COTENSOR_CACHE").or_else(|| {
            let caches = path("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".cache")));
            caches.map(|caches| caches.join("cotensor"))
        });
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let token = || {
            let file = path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
            text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN")).or_else(|| read_token(&file))
        };
        let seconds = |name: &str| {
            let seconds = text(name).and_then(|value| value.trim().parse().ok());
            seconds.filter(|&seconds| seconds > 0).map(Duration::from_secs)
        };
        let mut limits = Limits::default();
        limits.metadata = seconds("HF_HUB_ETAG_TIMEOUT").unwrap_or(limits.metadata);
        limits.idle = seconds("HF_HUB_DOWNLOAD_TIMEOUT").unwrap_or(limits.idle);
        limits.slow = limits.slow.max(limits.idle);
        Self {
            cache: cache.unwrap_or_else(|| home.join("hub")),
            endpoint: text("HF_ENDPOINT").map(|address| address.trim_end_matches('/').to_owned()),
            token: if is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN") { None } else { token().as_deref().and_then(clean) },
            offline: is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE"),
            records: own.filter(|folder| folder.is_absolute()).map(|folder| folder.join(RECORDS_FOLDER)),
            verify: false,
            limits,
        }
    }
}

/// Replaces a leading `~` by the user's folder.
fn expanded(path: PathBuf, user: &std::path::Path) -> PathBuf {
    path.strip_prefix("~").map(|rest| user.join(rest)).unwrap_or(path)
}

/// A token without line ends and spaces around it. `None` if a header cannot contain it.
fn clean(token: &str) -> Option<String> {
    let token = token.trim();
    (!token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic())).then(|| token.to_owned())
}

fn read_token(file: &std::path::Path) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::metadata(file).ok().filter(std::fs::Metadata::is_file)?;
    std::fs::File::open(file).ok()?.take(TOKEN_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Settings {
        Settings::from_variables(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn cache_is_where_other_programs_put_it() {
        let cache = |variables: &[(&str, &str)]| with(variables).cache;
        let home = ("HOME", "/home/u");
        assert_eq!(cache(&[home]), PathBuf::from("/home/u/.cache/huggingface/hub"));
        assert_eq!(cache(&[home, ("XDG_CACHE_HOME", "/x")]), PathBuf::from("/x/huggingface/hub"));
        let hf_home = ("HF_HOME", "~/hf");
        assert_eq!(cache(&[home, ("XDG_CACHE_HOME", "/x"), hf_home]), PathBuf::from("/home/u/hf/hub"));
        let older = ("HUGGINGFACE_HUB_CACHE", "/older");
        assert_eq!(cache(&[home, hf_home, older]), PathBuf::from("/older"));
        assert_eq!(cache(&[home, older, ("HF_HUB_CACHE", "/newer")]), PathBuf::from("/newer"));
        assert_eq!(cache(&[home, ("HF_HUB_CACHE", "")]), cache(&[home]));
    }

    #[test]
    fn tokens_come_from_the_variable_or_the_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        std::fs::write(folder.path().join("other"), "bad token\r\nX-Header: 1").unwrap();
        let home = ("HF_HOME", folder.path().to_str().unwrap());
        let other = folder.path().join("other");
        assert_eq!(with(&[home]).token.as_deref(), Some("hf_file"));
        assert_eq!(with(&[home, ("HF_TOKEN", " hf_variable ")]).token.as_deref(), Some("hf_variable"));
        assert_eq!(with(&[home, ("HF_TOKEN_PATH", other.to_str().unwrap())]).token, None);
        assert_eq!(with(&[home, ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]).token, None);
        assert_eq!(with(&[("HF_HOME", "/nowhere")]).token, None);
    }

    #[test]
    fn switches_have_the_usual_values() {
        assert!(with(&[("HF_HUB_OFFLINE", "yes")]).offline && with(&[("TRANSFORMERS_OFFLINE", "1")]).offline);
        assert!(!with(&[("HF_HUB_OFFLINE", "0")]).offline && !with(&[]).offline);
        assert_eq!(with(&[("HF_ENDPOINT", "http://a.test/")]).endpoint.as_deref(), Some("http://a.test"));
        assert_eq!(with(&[("HF_HUB_DOWNLOAD_TIMEOUT", "90")]).limits.idle, Duration::from_secs(90));
        assert_eq!(with(&[("HF_HUB_DOWNLOAD_TIMEOUT", "0")]).limits.idle, Limits::default().idle);
    }
}
