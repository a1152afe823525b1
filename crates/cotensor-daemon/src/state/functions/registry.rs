//! The registry of functions. A function is removed at the end of its session.

use super::slots::Slots;
use crate::state::EndMark;
use cotensor_client::protocol::{
    CallerInfo, FUNCTION_NAME_BYTES_MAX, FUNCTION_SUMMARY_BYTES_MAX, FoundFunction, FunctionInfo, ProviderInfo,
    RegisterFunctionParams,
};
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The most functions of one session.
const FUNCTIONS_MAX: usize = 1024;
/// The most functions in one list.
const LIST_MAX: usize = 10_000;

/// A client that provides functions.
pub(crate) trait FunctionProvider: Send + Sync {
    /// The number of its session.
    fn session(&self) -> u64;

    /// The mark of the end of its session.
    fn end_mark(&self) -> &EndMark;

    /// Its name, for messages.
    fn client(&self) -> &str;

    /// The slots of its calls over HTTP.
    fn slots(&self) -> &Slots;

    /// Sends the provider a socket to a new caller. False when the session has ended or ends now.
    fn connect(&self, caller: &CallerInfo, socket: OwnedFd) -> bool;
}

/// All functions, by name.
pub(crate) struct Registry {
    functions: Mutex<Entries>,
    /// The slots of all calls over HTTP.
    pub(crate) slots: Slots,
}

/// The functions of all sessions.
#[derive(Default)]
struct Entries {
    functions: BTreeMap<String, RegisteredFunction>,
    /// Functions that are used while no session provides others of these names: those of the daemon's model process, so that
    /// `serve-models` of a user takes their place.
    standby: BTreeMap<String, RegisteredFunction>,
}

struct RegisteredFunction {
    function: FunctionInfo,
    provider: ProviderInfo,
    session: u64,
    /// Weak: the registry does not keep a session that has ended.
    owner: Weak<dyn FunctionProvider>,
}

impl Default for Registry {
    fn default() -> Self {
        Self { functions: Mutex::default(), slots: Slots::of_all() }
    }
}

impl Registry {
    /// Registers a function. Replaces the description of one that this session has registered.
    ///
    /// # Errors
    /// `Invalid` for an invalid name or summary; `Conflict` for a name that another session has, both `standby` or both not,
    /// when this session has too many, or when it has ended.
    pub(crate) fn add(&self, provider: Arc<dyn FunctionProvider>, params: RegisterFunctionParams) -> Result<()> {
        let RegisterFunctionParams { function, epoch, group, standby } = params;
        check(&function)?;
        let mut entries = self.lock();
        provider.end_mark().check()?;
        let is_another =
            |entry: &&RegisteredFunction| entry.session == provider.session() && entry.function.name != function.name;
        let count = entries.all().filter(is_another).count();
        let same = if standby { &mut entries.standby } else { &mut entries.functions };
        if let Some(other) = same.get(&function.name).filter(|entry| entry.session != provider.session()) {
            let message = format!("{} is provided by {} already", function.name, other.provider.client);
            return Err(Error::new(ErrorKind::Conflict, message).in_field("name"));
        }
        if count >= FUNCTIONS_MAX {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("{FUNCTIONS_MAX} functions are registered in this session: unregister one"),
            ));
        }
        let (session, owner) = (provider.session(), Arc::downgrade(&provider));
        let provider = ProviderInfo { client: provider.client().to_owned(), epoch, group };
        let entry = RegisteredFunction { provider, session, owner, function };
        same.insert(entry.function.name.clone(), entry);
        Ok(())
    }

    /// Removes a function of a session.
    ///
    /// # Errors
    /// `NotFound` for a function that the session does not provide.
    pub(crate) fn remove(&self, session: u64, name: &str) -> Result<()> {
        let Entries { functions, standby } = &mut *self.lock();
        for entries in [functions, standby] {
            if entries.get(name).is_some_and(|entry| entry.session == session) {
                entries.remove(name);
                return Ok(());
            }
        }
        Err(Error::not_found(format!("this session has no function {name:?}")).in_field("name"))
    }

    /// The number of functions.
    pub(crate) fn count(&self) -> usize {
        self.lock().starting_with("").count()
    }

    /// Removes the functions of a session that has ended.
    pub(crate) fn remove_session(&self, session: u64) {
        let Entries { functions, standby } = &mut *self.lock();
        for entries in [functions, standby] {
            entries.retain(|_, entry| entry.session != session);
        }
    }

    /// All providers, ordered by the names of their clients.
    pub(crate) fn providers(&self) -> Vec<(ProviderInfo, Arc<dyn FunctionProvider>)> {
        let entries = self.lock();
        let by_session: BTreeMap<u64, &RegisteredFunction> =
            entries.all().map(|entry| (entry.session, entry)).collect();
        let alive = by_session.values().filter_map(|entry| Some((entry.provider.clone(), entry.owner.upgrade()?)));
        let mut providers: Vec<_> = alive.collect();
        drop(entries);
        providers.sort_by(|(left, _), (right, _)| left.client.cmp(&right.client));
        providers
    }

    /// A function and its provider.
    ///
    /// # Errors
    /// `NotFound` for a name without a function.
    pub(crate) fn find(&self, name: &str) -> Result<(FoundFunction, Arc<dyn FunctionProvider>)> {
        let missing =
            || Error::not_found(format!("function {name:?} not found: no client provides it")).in_field("name");
        let entries = self.lock();
        let registered = [entries.functions.get(name), entries.standby.get(name)];
        let found = registered.into_iter().flatten().find_map(|entry| Some((entry.found(), entry.owner.upgrade()?)));
        found.ok_or_else(missing)
    }

    /// The functions whose names start with `prefix`, ordered by name.
    pub(crate) fn list(&self, prefix: &str) -> Vec<FoundFunction> {
        self.lock().starting_with(prefix).take(LIST_MAX).map(RegisteredFunction::found).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        lock(&self.functions)
    }
}

impl Entries {
    /// All functions of all sessions.
    fn all(&self) -> impl Iterator<Item = &RegisteredFunction> {
        self.functions.values().chain(self.standby.values())
    }

    /// The functions that are used, whose names start with `prefix`, ordered by name.
    fn starting_with(&self, prefix: &str) -> impl Iterator<Item = &RegisteredFunction> {
        fn starting<'e>(
            entries: &'e BTreeMap<String, RegisteredFunction>,
            prefix: &str,
        ) -> impl Iterator<Item = (&'e String, &'e RegisteredFunction)> {
            let from = entries.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
            from.take_while(move |(name, _)| name.starts_with(prefix))
        }
        let mut used: BTreeMap<_, _> = starting(&self.standby, prefix).collect();
        used.extend(starting(&self.functions, prefix));
        used.into_values()
    }
}

impl RegisteredFunction {
    fn found(&self) -> FoundFunction {
        FoundFunction { function: self.function.clone(), provider: self.provider.clone() }
    }
}

fn check(function: &FunctionInfo) -> Result<()> {
    let name = &function.name;
    if name.is_empty() || name.len() > FUNCTION_NAME_BYTES_MAX {
        let message = format!("a name has 1 to {FUNCTION_NAME_BYTES_MAX} bytes");
        return Err(Error::invalid(message).in_field("name"));
    }
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.:/-".contains(&byte)) {
        return Err(Error::invalid("a name has letters, digits and any of _ . : / -").in_field("name"));
    }
    if function.summary.len() > FUNCTION_SUMMARY_BYTES_MAX {
        let message = format!("a summary has at most {FUNCTION_SUMMARY_BYTES_MAX} bytes");
        return Err(Error::invalid(message).in_field("summary"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::session::Session;
    use crate::{Config, Daemon};

    /// A call of a lost connection is done after the client has begun its next session.
    #[test]
    fn late_call_of_a_replaced_session_leaves_the_name_to_the_next_one() {
        let daemon = Daemon::new(Config::default()).unwrap();
        let [former, next] = [(); 2].map(|()| daemon.begin_session(None, None));
        let add = |session: &Arc<Session>| {
            let params = serde_json::from_str(r#"{"function": {"name": "f"}, "epoch": 1}"#).unwrap();
            daemon.functions.add(Arc::clone(session) as Arc<dyn FunctionProvider>, params)
        };
        drop(daemon.end_session(&former));
        assert_eq!(add(&former).unwrap_err().kind(), ErrorKind::Conflict);
        add(&next).unwrap();
        assert_eq!(daemon.functions.count(), 1);
    }
}
