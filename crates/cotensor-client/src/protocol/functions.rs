//! Functions, as the daemon knows them: their names, and whom to ask.

use super::messages::message;
use super::provider::{TaskInfo, TaskState};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The longest name of a function, in bytes.
pub const FUNCTION_NAME_BYTES_MAX: usize = 256;
/// The longest summary of a function, in bytes.
pub const FUNCTION_SUMMARY_BYTES_MAX: usize = 4096;

message! {
    /// A function, as people and callers see it.
    FunctionInfo {
        /// Its name: letters, digits and any of `_ . : / -`.
        name: String,
        /// What it does, in a sentence or a few.
        #[serde(default)]
        summary: String,
        /// Whether a call is entered among the tasks of its provider.
        #[serde(default)]
        task: bool,
        /// Whether its result stays with the provider, which answers with a reference to it.
        #[serde(default)]
        managed: bool,
    }

    /// What a provider offers.
    RegisterFunctionParams {
        /// The function.
        function: FunctionInfo,
        /// Tells this life of the provider from earlier ones.
        epoch: u64,
    }

    /// A function's name.
    FunctionNameParams {
        /// The name.
        name: String,
    }

    /// Which function, and to whom the caller is connected.
    LookupFunctionParams {
        /// The function's name.
        name: String,
        /// The epochs of providers that the caller has sockets to.
        #[serde(default)]
        connected: Vec<u64>,
    }

    /// A provider.
    ProviderInfo {
        /// Its client's name and process, for people.
        client: String,
        /// Tells this life of the provider from earlier ones.
        epoch: u64,
    }

    /// A function and who provides it.
    FoundFunction {
        /// The function.
        function: FunctionInfo,
        /// Who provides it.
        provider: ProviderInfo,
    }

    /// Which functions to list.
    ListFunctionsParams {
        /// The start of their names.
        #[serde(default)]
        prefix: String,
    }

    /// Functions.
    FunctionList {
        /// In the order of their names.
        functions: Vec<FoundFunction>,
    }

    /// Which tasks, of all providers.
    AllTasksParams {
        /// Only those in this state.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<TaskState>,
        /// The most of each provider; the newest.
        #[serde(default = "tasks_listed")]
        limit: usize,
    }

    /// The tasks of every provider.
    AllTasks {
        /// By the names of their clients.
        providers: Vec<ProviderTasks>,
    }

    /// The tasks of one provider.
    ProviderTasks {
        /// The provider.
        provider: ProviderInfo,
        /// The newest first.
        tasks: Vec<TaskInfo>,
        /// How many more there are.
        left_off: usize,
        /// Why nothing is known: a provider that did not answer in time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    }

    /// Who is at the other end of a socket.
    CallerInfo {
        /// The caller's name and process, for people.
        client: String,
    }
}

fn tasks_listed() -> usize {
    100
}
