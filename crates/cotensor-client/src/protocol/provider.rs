//! What a provider of functions answers to those who call it, on a socket that the daemon made for the two.
//!
//! Values are JSON. What JSON cannot express is an object with one key: `{"$tensor": …}`, `{"$object": …}`, `{"$lent": …}`,
//! `{"$bytes": hexadecimal digits}`, `{"$float": "nan" | "inf" | "-inf"}`, and `{"$map": [[key, value], …]}` for a map with a key
//! that begins with `$`. Bytes and texts of more than 64 KiB travel beside the message, in a tensor of `uint8`:
//! `{"$bytes": {"$tensor": …}}` and `{"$text": {"$tensor": …}}`, or `$lent` in place of `$tensor`.
//!
//! Either end sends `lent.open` and `lent.return`, as notifications, and fields named `returned`.

use super::messages::{Empty, message};
use super::service::Document;
use super::tensor::Id;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The code of an error that a function itself gave; `data` is a [`FailureInfo`].
pub const FAILED_CODE: i32 = -32050;

message! {
    /// A tensor among the values: the receiver leases it from the daemon while the sender still does.
    TensorRef {
        /// Which version of which tensor.
        id: Id,
        /// Its element type.
        dtype: String,
        /// Its dimensions, in elements.
        shape: Vec<usize>,
    }

    /// Where a tensor lies that is lent.
    #[derive(Copy, PartialEq, Eq, Hash)]
    LentRange {
        /// A slab that its sender opened with `lent.open`.
        slab: u64,
        /// Where in it the tensor begins, in bytes.
        offset: u64,
    }

    /// A tensor among the values, in memory of its sender's, which leaves it alone until the receiver gives it back.
    LentRef {
        /// Where it lies.
        #[serde(flatten)]
        range: LentRange,
        /// What its sender calls it.
        name: String,
        /// Its element type.
        dtype: String,
        /// Its dimensions, in elements; row-major.
        shape: Vec<usize>,
    }

    /// Memory from which tensors will be lent.
    #[derive(Copy)]
    OpenLentParams {
        /// The sender's number of it.
        slab: u64,
        /// How long it is.
        bytes: u64,
    }

    /// What the receiver of lent tensors reads no more.
    ReturnLentParams {
        /// One for each time that a tensor was sent.
        ranges: Vec<LentRange>,
    }

    /// Something that stays with its provider.
    #[derive(Copy)]
    ObjectRef {
        /// Its number on this socket.
        id: u64,
        /// The life of the provider that it belongs to.
        epoch: u64,
    }

    /// What to call, and with what.
    CallParams {
        /// The function's name.
        function: String,
        /// By position.
        #[serde(default)]
        args: Vec<Value>,
        /// By name.
        #[serde(default)]
        kwargs: Map<String, Value>,
        /// The longest to wait for the answer, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
        /// What the sender reads no more of what was lent to it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        returned: Vec<LentRange>,
    }

    /// A value.
    CallResult {
        /// The value.
        value: Value,
        /// Present when tensors are in the value: the provider keeps them until it hears `result.taken` with this number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        taken: Option<u64>,
        /// What the sender reads no more of what was lent to it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        returned: Vec<LentRange>,
    }

    /// What a function's failure tells, in the `data` of an error.
    FailureInfo {
        /// The failure's type, such as the name of an exception.
        r#type: String,
        /// Where it came from, in the provider's words.
        #[serde(default)]
        trace: String,
        /// What caused it, the nearest cause first; at most 8.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        causes: Vec<CauseInfo>,
    }

    /// What caused a failure.
    CauseInfo {
        /// Its type, such as the name of an exception.
        r#type: String,
        /// Its message.
        message: String,
        /// Where it came from, in the provider's words.
        #[serde(default)]
        trace: String,
    }

    /// A task that was taken on.
    SubmitResult {
        /// Its number.
        task: u64,
        /// The life of the provider that it belongs to.
        epoch: u64,
    }

    /// Which task.
    TaskParams {
        /// Its number.
        task: u64,
    }

    /// Which task, and how long to wait for its end.
    WaitParams {
        /// Its number.
        task: u64,
        /// In milliseconds; without it, until the end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
    }

    /// A task.
    TaskInfo {
        /// Its number.
        task: u64,
        /// The function.
        function: String,
        /// How far it is.
        state: TaskState,
        /// Who submitted it.
        client: String,
        /// Since it was submitted, in milliseconds.
        age_ms: u64,
        /// What went wrong, for one that failed; a long error is cut.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    }

    /// Which tasks to list.
    ListTasksParams {
        /// Only those in this state.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<TaskState>,
        /// The most to list; the newest.
        #[serde(default = "tasks_listed")]
        limit: usize,
    }

    /// Tasks.
    TaskList {
        /// The newest first.
        tasks: Vec<TaskInfo>,
        /// How many more there are.
        left_off: usize,
    }

    /// A method of an object.
    CallObjectParams {
        /// The object.
        object: ObjectRef,
        /// The method's name.
        method: String,
        /// By position.
        #[serde(default)]
        args: Vec<Value>,
        /// By name.
        #[serde(default)]
        kwargs: Map<String, Value>,
        /// The longest to wait for the answer, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
        /// What the sender reads no more of what was lent to it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        returned: Vec<LentRange>,
    }

    /// Which object.
    ObjectParams {
        /// The object.
        object: ObjectRef,
    }

    /// Which result.
    TakenParams {
        /// Its number.
        taken: u64,
    }
}

fn tasks_listed() -> usize {
    1000
}

/// How far a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// It waits for its turn.
    Pending,
    /// It runs.
    Running,
    /// Its result is there.
    Completed,
    /// It gave an error.
    Failed,
    /// Somebody cancelled it.
    Cancelled,
}

impl TaskState {
    /// Whether it stays so.
    pub fn is_final(self) -> bool {
        matches!(self, TaskState::Completed | TaskState::Failed | TaskState::Cancelled)
    }

    /// The name used in messages.
    pub fn name(self) -> &'static str {
        match self {
            TaskState::Pending => "pending",
            TaskState::Running => "running",
            TaskState::Completed => "completed",
            TaskState::Failed => "failed",
            TaskState::Cancelled => "cancelled",
        }
    }
}

super::methods! { METHODS:
    /// Calls a function and answers with its result.
    Call "call": CallParams => CallResult;
    /// Has a function called and answers at once.
    Submit "task.submit": CallParams => SubmitResult;
    /// How far a task is.
    Status "task.status": TaskParams => TaskInfo;
    /// A task's result.
    TaskResult "task.result": TaskParams => CallResult;
    /// Answers when a task has ended, or when the time is over.
    Wait "task.wait": WaitParams => TaskInfo;
    /// Cancels a task: one that runs is asked to stop.
    Cancel "task.cancel": TaskParams => TaskInfo;
    /// The provider's tasks.
    ListTasks "task.list": ListTasksParams => TaskList;
    /// Calls a method of an object that stays with the provider.
    CallObject "object.call": CallObjectParams => CallResult;
    /// Gives an object back, once.
    ReleaseObject "object.release": ObjectParams => Empty;
    /// The caller leases the tensors of a result itself now.
    Taken "result.taken": TakenParams => Empty;
    /// Opens memory from which the sender lends tensors: descriptor 0, sealed against resizing and new writers.
    OpenLent "lent.open": OpenLentParams => Empty;
    /// Gives back what was lent: its sender may write there again.
    ReturnLent "lent.return": ReturnLentParams => Empty;
    /// The description of every method, as OpenRPC has it, and the provider's functions.
    Discover "rpc.discover": Empty => Document;
}
