//! The methods of a provider of functions. A caller sends them over a socket pair that the daemon creates for the two
//! processes.
//!
//! Values are JSON. A value without a JSON form is an object with one key: `{"$tensor": …}`, `{"$object": …}`,
//! `{"$arena": …}`, `{"$tuple": […]}`, `{"$bytes": hexadecimal digits}`, `{"$float": "nan" | "inf" | "-inf"}`, and
//! `{"$map": [[key, value], …]}` for a map with a key that starts with `$`. Bytes and texts of more than 64 KiB are
//! tensors of dtype `uint8` beside the message: `{"$bytes": {"$tensor": …}}` and `{"$text": {"$tensor": …}}`, or
//! `$arena` in place of `$tensor`.
//!
//! Both ends send `arena.open`, `arena.close` and `arena.release`, as notifications, and fields named `released`.

use super::messages::Empty;
use super::service::Document;
use super::tensor::Id;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The code of a function's own error; `data` is a [`FailureInfo`].
pub const FAILED_CODE: i32 = -32050;

message! {
    /// A tensor of the store. The sender keeps its lease until the receiver has leased the tensor.
    TensorRef {
        /// The tensor's id: that of its name, and its version.
        id: Id,
        /// The element type.
        dtype: String,
        /// The dimensions, in elements.
        shape: Vec<usize>,
    }

    /// The start of a tensor in the connection arena.
    #[derive(Copy, PartialEq, Eq, Hash)]
    ArenaRange {
        /// The number of a slab that the sender opened with `arena.open`.
        slab: u64,
        /// The offset of the tensor in the slab, in bytes.
        offset: u64,
    }

    /// A tensor in the connection arena. The sender does not reuse its range before the receiver releases it.
    ArenaTensorRef {
        /// The tensor's range.
        #[serde(flatten)]
        range: ArenaRange,
        /// The name that the sender uses.
        name: String,
        /// The element type.
        dtype: String,
        /// The dimensions, in elements; row-major.
        shape: Vec<usize>,
    }

    /// A slab of the sender's connection arena.
    #[derive(Copy)]
    OpenSlabParams {
        /// The sender's number of the slab.
        slab: u64,
        /// The slab's length, in bytes.
        bytes: u64,
        /// Whether it holds one tensor at a time. The sender closes it when it was not used for some seconds.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        block: bool,
    }

    /// Slabs that the sender uses no more. The receiver has released all ranges in them. Without a slab, the message says
    /// that its sender knows the method and, as a caller, reads its messages from time to time while slabs are open.
    CloseSlabsParams {
        /// The sender's numbers of the slabs.
        slabs: Vec<u64>,
    }

    /// Ranges that the receiver of their tensors no longer reads.
    ReleaseRangesParams {
        /// Each range once for each time that it was sent.
        ranges: Vec<ArenaRange>,
    }

    /// A reference to a remote object: an object that stays in its provider's process.
    #[derive(Copy)]
    ObjectRef {
        /// The number of the reference on this connection.
        id: u64,
        /// The epoch of the object's provider.
        epoch: u64,
    }

    /// A run of a function or a method.
    #[derive(Copy, PartialEq, Eq, Hash)]
    RunRef {
        /// The epoch of the run's provider.
        epoch: u64,
        /// The number of the run at its provider.
        run: u64,
    }

    /// A function and its arguments.
    CallParams {
        /// The function's name.
        function: String,
        /// The positional arguments.
        #[serde(default)]
        args: Vec<Value>,
        /// The named arguments.
        #[serde(default)]
        kwargs: Map<String, Value>,
        /// The time limit of the call, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
        /// The runs that wait for this call, outermost first: at most 128.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        waiting: Vec<RunRef>,
        /// Ranges of the other end's arena that the sender no longer reads.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        released: Vec<ArenaRange>,
    }

    /// A call that the caller no longer waits for.
    #[derive(Copy)]
    CancelCallParams {
        /// The id of the call's request, an integer.
        call: u64,
    }

    /// The result of a call.
    CallResult {
        /// The value.
        value: Value,
        /// Present when the value has tensors of the store. The provider keeps its leases until `result.taken` with this number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        taken: Option<u64>,
        /// Ranges of the other end's arena that the sender no longer reads.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        released: Vec<ArenaRange>,
    }

    /// The failure of a function: the `data` of an error.
    FailureInfo {
        /// The failure's type, such as the name of an exception.
        r#type: String,
        /// The stack trace, in the provider's format.
        #[serde(default)]
        trace: String,
        /// The arguments of the exception, if all are numbers, truth values, texts, null, `$bytes`, lists or `$tuple`s.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        args: Option<Vec<Value>>,
        /// The causes, nearest first; at most 8.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        causes: Vec<CauseInfo>,
    }

    /// A cause of a failure.
    CauseInfo {
        /// The cause's type, such as the name of an exception.
        r#type: String,
        /// The message.
        message: String,
        /// The stack trace, in the provider's format.
        #[serde(default)]
        trace: String,
        /// The arguments of the exception, if all are numbers, truth values, texts, null, `$bytes`, lists or `$tuple`s.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        args: Option<Vec<Value>>,
    }

    /// A submitted task.
    SubmitResult {
        /// The task's number.
        task: u64,
        /// The epoch of the task's provider.
        epoch: u64,
    }

    /// A task.
    TaskParams {
        /// The task's number.
        task: u64,
    }

    /// A task, and the time limit of the wait for its end.
    WaitParams {
        /// The task's number.
        task: u64,
        /// The time limit, in milliseconds. Without it, the answer comes when the task ends.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
    }

    /// The state of a task.
    TaskInfo {
        /// The task's number.
        task: u64,
        /// The function's name.
        function: String,
        /// The state.
        state: TaskState,
        /// The name and process of the client that submitted the task.
        client: String,
        /// The time since the submission, in milliseconds.
        age_ms: u64,
        /// The error of a failed task, truncated to 512 bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    }

    /// A filter of tasks.
    ListTasksParams {
        /// Lists only tasks in this state.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<TaskState>,
        /// The maximum number of tasks. The newest are listed.
        #[serde(default = "tasks_listed")]
        limit: usize,
    }

    /// The tasks of one provider.
    TaskList {
        /// The tasks, newest first.
        tasks: Vec<TaskInfo>,
        /// The number of further tasks that match.
        left_off: usize,
    }

    /// A method of a remote object, and its arguments.
    CallObjectParams {
        /// The object.
        object: ObjectRef,
        /// The method's name.
        method: String,
        /// The positional arguments.
        #[serde(default)]
        args: Vec<Value>,
        /// The named arguments.
        #[serde(default)]
        kwargs: Map<String, Value>,
        /// The time limit of the call, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
        /// The runs that wait for this call, outermost first: at most 128.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        waiting: Vec<RunRef>,
        /// Ranges of the other end's arena that the sender no longer reads.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        released: Vec<ArenaRange>,
    }

    /// A remote object.
    ObjectParams {
        /// The object.
        object: ObjectRef,
    }

    /// A result whose tensors the caller has leased.
    TakenParams {
        /// The field `taken` of the result.
        taken: u64,
    }
}

fn tasks_listed() -> usize {
    1000
}

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// The task waits for a thread.
    Pending,
    /// The task runs.
    Running,
    /// The task has a result.
    Completed,
    /// The task has an error.
    Failed,
    /// The task was cancelled.
    Cancelled,
}

impl TaskState {
    /// Whether the task has ended.
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
    /// Calls a function. Answers with its result.
    Call "call": CallParams => CallResult;
    /// Cancels a `call`, `object.call` or `task.wait` of this connection that has no answer. Its answer is an error, and its
    /// run is cancelled unless another call waits for it. A cancelled `task.wait` leaves the task as it is.
    CancelCall "call.cancel": CancelCallParams => Empty;
    /// Submits a call as a task. Answers before the task runs.
    Submit "task.submit": CallParams => SubmitResult;
    /// The state of a task.
    Status "task.status": TaskParams => TaskInfo;
    /// The result of a task that has ended.
    TaskResult "task.result": TaskParams => CallResult;
    /// Answers when a task has ended or the time limit has passed.
    Wait "task.wait": WaitParams => TaskInfo;
    /// Cancels a task. A running function gets a request to stop.
    Cancel "task.cancel": TaskParams => TaskInfo;
    /// The provider's tasks.
    ListTasks "task.list": ListTasksParams => TaskList;
    /// Calls a method of a remote object.
    CallObject "object.call": CallObjectParams => CallResult;
    /// Releases a reference to a remote object.
    ReleaseObject "object.release": ObjectParams => Empty;
    /// Tells the provider that the caller has leased the tensors of a result.
    Taken "result.taken": TakenParams => Empty;
    /// Opens a slab of the sender's arena: descriptor 0, sealed against resizing and new writers.
    OpenSlab "arena.open": OpenSlabParams => Empty;
    /// Closes slabs of the sender's arena.
    CloseSlabs "arena.close": CloseSlabsParams => Empty;
    /// Releases ranges of the other end's arena, which that end may write again.
    ReleaseRanges "arena.release": ReleaseRangesParams => Empty;
    /// The OpenRPC document of all methods, with the provider's functions.
    Discover "rpc.discover": Empty => Document;
}
