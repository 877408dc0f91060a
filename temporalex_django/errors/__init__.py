"""All errors of the package as one tree; each class has a stable ``code``.

Responses of the REST API, logs and ``docs/reference/errors.md`` carry the code. The first paragraph of a docstring is
the default message of its class.

    TemporalexError
    ├── WorkflowDefinitionError · PayloadError · KeyMissing · OutsideWorkflow · NestingError · DeterminismViolation
    ├── NotAwaited · ScheduleInvalid
    ├── UnknownWorkflow · UnknownVersion · AmbiguousId · WorkflowNotFound · ResumeRefused
    ├── ScheduleNotFound
    ├── InvalidId └── MessageIdTaken
    ├── AlreadyRunning └── AlreadyEnded
    ├── InvalidStart · InvalidHeaders
    ├── NotCancellable · UnknownQuery · UnknownSignal · EngineNotFound · NotConfigured
    ├── QueryFailed └── QueryTimeout · HistoryGone
    ├── ActivityNotFound · WorkerNotFound · TaskNotFound · RunChanged · IdempotencyKeyReused · OutcomeUnknown
    ├── ActionNotPermitted └── FourEyes
    ├── ActionNotPossible
    ├── HumanTaskNotFound · HumanTaskClosed · HumanTaskClaimed · FormChanged
    ├── UpdateRejected
    │   └── WorkflowClosed · RunPaused · RunBlocked · NotAccepting · WorkflowSwitchedOff · TooManyUpdates
    ├── UpdateFailed · UpdateTimeout · ResultTimeout
    ├── ApplicationError └── RetryLater
    ├── UnexpectedError
    ├── WorkflowFailed ├── WorkflowTerminated └── WorkflowTimedOut
    ├── WorkflowCancelled
    ├── ActivityFailure · ChildWorkflowFailure · TaskCancelled
    └── NondeterminismError · DeadlockDetected · EngineChanged · JudgingFailed

    Control (BaseException): travels through workflow code and is not for ``except Exception``
    ├── Cancelled
    └── (private) blocked by nondeterminism or a deadlock, eviction
"""

from __future__ import annotations

from temporalex_django.errors.execution import (
    ActivityFailure,
    ApplicationError,
    Cancelled,
    ChildWorkflowFailure,
    Control,
    DeadlockDetected,
    EngineChanged,
    JudgingFailed,
    NondeterminismError,
    NotAccepting,
    ResultTimeout,
    RetryLater,
    RunBlocked,
    RunPaused,
    TaskCancelled,
    TemporalexError,
    TooManyUpdates,
    UnexpectedError,
    UpdateFailed,
    UpdateRejected,
    UpdateTimeout,
    WorkflowCancelled,
    WorkflowClosed,
    WorkflowFailed,
    WorkflowSwitchedOff,
    WorkflowTerminated,
    WorkflowTimedOut,
)
from temporalex_django.errors.requests import (
    ActionNotPermitted,
    ActionNotPossible,
    ActivityNotFound,
    AlreadyEnded,
    AlreadyRunning,
    AmbiguousId,
    DeterminismViolation,
    DeterminismWarning,
    EngineNotFound,
    FormChanged,
    FourEyes,
    HistoryGone,
    HumanTaskClaimed,
    HumanTaskClosed,
    HumanTaskNotFound,
    IdempotencyKeyReused,
    InterceptorFailed,
    InvalidHeaders,
    InvalidId,
    InvalidStart,
    KeyMissing,
    MessageIdTaken,
    NestingError,
    NotAwaited,
    NotCancellable,
    NotConfigured,
    OutcomeUnknown,
    OutsideWorkflow,
    PayloadError,
    PayloadWarning,
    QueryFailed,
    QueryTimeout,
    ResumeRefused,
    RunChanged,
    ScheduleInvalid,
    ScheduleNotFound,
    TaskNotFound,
    UnknownQuery,
    UnknownSignal,
    UnknownVersion,
    UnknownWorkflow,
    WorkerNotFound,
    WorkflowDefinitionError,
    WorkflowNotFound,
    no_process,
)

__all__ = [
    "ActionNotPermitted",
    "ActionNotPossible",
    "ActivityFailure",
    "ActivityNotFound",
    "AlreadyEnded",
    "AlreadyRunning",
    "AmbiguousId",
    "ApplicationError",
    "Cancelled",
    "ChildWorkflowFailure",
    "Control",
    "DeadlockDetected",
    "DeterminismViolation",
    "DeterminismWarning",
    "EngineChanged",
    "EngineNotFound",
    "FormChanged",
    "FourEyes",
    "HistoryGone",
    "HumanTaskClaimed",
    "HumanTaskClosed",
    "HumanTaskNotFound",
    "IdempotencyKeyReused",
    "InterceptorFailed",
    "InvalidHeaders",
    "InvalidId",
    "InvalidStart",
    "JudgingFailed",
    "KeyMissing",
    "MessageIdTaken",
    "NestingError",
    "NondeterminismError",
    "NotAccepting",
    "NotAwaited",
    "NotCancellable",
    "NotConfigured",
    "OutcomeUnknown",
    "OutsideWorkflow",
    "PayloadError",
    "PayloadWarning",
    "QueryFailed",
    "QueryTimeout",
    "ResultTimeout",
    "ResumeRefused",
    "RetryLater",
    "RunBlocked",
    "RunChanged",
    "RunPaused",
    "ScheduleInvalid",
    "ScheduleNotFound",
    "TaskCancelled",
    "TaskNotFound",
    "TemporalexError",
    "TooManyUpdates",
    "UnexpectedError",
    "UnknownQuery",
    "UnknownSignal",
    "UnknownVersion",
    "UnknownWorkflow",
    "UpdateFailed",
    "UpdateRejected",
    "UpdateTimeout",
    "WorkerNotFound",
    "WorkflowCancelled",
    "WorkflowClosed",
    "WorkflowDefinitionError",
    "WorkflowFailed",
    "WorkflowNotFound",
    "WorkflowSwitchedOff",
    "WorkflowTerminated",
    "WorkflowTimedOut",
    "no_process",
]

# Users import them from here: tracebacks and failure types must name this module, not the one that defines the class.
for _name in __all__:
    globals()[_name].__module__ = __name__
