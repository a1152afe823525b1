//! The directory of functions: the names that the daemon knows, and their providers.

use super::provider::{TaskInfo, TaskState};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The maximum length of a function's name, in bytes.
pub const FUNCTION_NAME_BYTES_MAX: usize = 256;
/// The maximum length of a function's summary, in bytes.
pub const FUNCTION_SUMMARY_BYTES_MAX: usize = 4096;

message! {
    /// The description of a function.
    FunctionInfo {
        /// The name: letters, digits and any of `_ . : / -`.
        name: String,
        /// A summary for lists of functions.
        #[serde(default)]
        summary: String,
        /// Whether each call is a task of the provider.
        #[serde(default)]
        task: bool,
        /// Whether the result stays with the provider, which answers with a reference.
        #[serde(default)]
        managed: bool,
    }

    /// A function to register.
    RegisterFunctionParams {
        /// The function.
        function: FunctionInfo,
        /// The provider's epoch: a new number each time a provider starts.
        epoch: u64,
        /// The number that all providers of one process have which exchange their objects.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<u64>,
        /// Whether the function is used only while no other session provides one of this name.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        standby: bool,
    }

    /// A function's name.
    FunctionNameParams {
        /// The name.
        name: String,
    }

    /// A function to look up, and the providers that the caller is connected to.
    LookupFunctionParams {
        /// The function's name.
        name: String,
        /// The epochs of these providers.
        #[serde(default)]
        connected: Vec<u64>,
    }

    /// A provider.
    ProviderInfo {
        /// The provider's client name and process, for messages.
        client: String,
        /// The provider's epoch: a new number each time a provider starts.
        epoch: u64,
        /// The number that all providers of one process have which exchange their objects.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<u64>,
    }

    /// A function and its provider.
    FoundFunction {
        /// The function.
        function: FunctionInfo,
        /// The provider.
        provider: ProviderInfo,
    }

    /// A filter of functions.
    ListFunctionsParams {
        /// The prefix of the names.
        #[serde(default)]
        prefix: String,
    }

    /// A list of functions.
    FunctionList {
        /// The functions, sorted by name.
        functions: Vec<FoundFunction>,
    }

    /// A filter of the tasks of all providers.
    AllTasksParams {
        /// Lists only tasks in this state.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<TaskState>,
        /// The maximum number of tasks of each provider. The newest are listed.
        #[serde(default = "tasks_listed")]
        limit: usize,
    }

    /// The tasks of every provider.
    AllTasks {
        /// The providers, sorted by client name.
        providers: Vec<ProviderTasks>,
    }

    /// The tasks of one provider.
    ProviderTasks {
        /// The provider.
        provider: ProviderInfo,
        /// The tasks, newest first.
        tasks: Vec<TaskInfo>,
        /// The number of further tasks that match.
        left_off: usize,
        /// The error of a provider that did not answer in time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    }

    /// The caller at the other end of a socket.
    CallerInfo {
        /// The caller's client name and process, for messages.
        client: String,
    }
}

fn tasks_listed() -> usize {
    100
}
