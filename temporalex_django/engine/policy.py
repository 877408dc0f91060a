"""The numbers of the scheduling policy: how much is taken at a time, who waits, and for how long.

Times are in seconds and sizes in items, unless a name says otherwise. The end of each comment names what the number
serves: rows of ``make bench`` (docs/howto/benchmarks.md), or files of ``tests``. A number that serves nothing has no
place here. Limits that a database or a file format dictates stay with the code that knows them.

Read a number as ``policy.NAME``, so that a test can replace it for all of its readers.
"""

from __future__ import annotations

from datetime import timedelta

# --- one turn ---------------------------------------------------------------------------------------------------------

#: Runs in a turn on PostgreSQL. 400 took the same CPU time and 1.1 times the wall time. [one, ten]
POSTGRES_TURN_SIZE = 200
#: Runs in a turn on SQLite: as many as take only a moment, in which no other process can write. [one]
SQLITE_TURN_SIZE = 100
#: A turn claims at least this many runs, and otherwise as many as turns have completed lately. [one, beside]
FEWEST_RUNS = 20
#: Time of the activations of a turn. What is claimed and has not started by then stays due (decision 20). [beside,
#: tests/integration/engine/test_turn_budgets.py]
TURN_SECONDS = 0.025
#: The same for a run that has finished activities: a result that is not delivered now has to become a row. [ten]
TURN_SECONDS_WITH_RESULTS = 2 * TURN_SECONDS
#: Time that the messages of one run may take in a turn that other runs share. [long, beside]
RUN_SECONDS = 0.010
#: Time that the messages of a run with a long inbox get at least, however late it is. [long]
MIN_RUN_SECONDS = 0.005
#: Time after which a turn starts nothing more: the server ends sessions that idle in a transaction.
#: [tests/unit/engine/test_turn_clock.py]
LATE_SECONDS = 1.0
#: Runs about which an engine remembers something (a long inbox, a warning), so that its memory stays bounded.
#: [tests/faults/test_memory.py]
REMEMBERED_RUNS = 10_000
#: Where there is a writer lock, turns that hold it no longer than this claim more runs than the fewest. A waiting
#: process looks for 3 ms at a time and comes in between. [tests/integration/engine/test_turn_budgets.py]
MAX_LOCK_SECONDS = 0.008
#: Part of the cache for runs with an activity in progress: with more of them, each step would have to rebuild its run
#: first. A turn claims as many due runs as these leave. [ten,
#: tests/integration/engine/test_results_in_the_next_turn.py]
BUSY_RUN_SHARE = 2 / 5
#: Other runs are not to wait for them. So up to twice that number each turn claims this part of what is left, at least
#: ``MIN_OTHER_RUNS``. [crowded]
OTHER_RUN_SHARE = 1 / 25
MIN_OTHER_RUNS = 2

# --- inboxes ----------------------------------------------------------------------------------------------------------

#: Most new messages that a turn reads of all its runs together. A long inbox takes many turns, and other runs are
#: served in between. [long]
INBOX_PAGE = 2_000
#: New messages that a turn reads of each run in any case. [tests/integration/engine/test_turn_budgets.py]
SMALLEST_INBOX_PAGE = 100
#: Payloads above this size are read by a statement of their own. [tests/integration/engine/test_turn_budgets.py]
LARGE_PAYLOAD_BYTES = 8_192
#: Bytes of large payloads that a turn reads. [tests/integration/engine/test_turn_budgets.py]
MAX_READ_BYTES = 8_000_000

# --- executors that are not in memory ---------------------------------------------------------------------------------

#: Events of the longest history that a turn rebuilds. Longer ones are rebuilt between turns. [beside,
#: tests/integration/engine/test_turn_budgets.py]
LONG_HISTORY = 1_000
#: Events of all histories that a turn reads. [tests/integration/engine/test_turn_budgets.py]
MAX_READ_EVENTS = 5_000
#: Time of a turn for rebuilding. [beside]
REBUILD_IN_TURN_SECONDS = 0.25
#: Time of one slice of a rebuild between two turns. [beside]
REBUILD_SLICE_SECONDS = 0.025
#: Events of one run that a rebuild has in memory. [tests/integration/engine/test_turn_budgets.py]
HISTORY_PAGE = 1_000
#: Runs that are rebuilt in rotation. [tests/integration/engine/test_turn_budgets.py]
MAX_REBUILDS = 4
#: Time for which a run that is being rebuilt is left alone. It is deferred again if the rebuild takes longer.
#: [tests/integration/engine/test_turn_budgets.py]
REBUILD_DEFER_SECONDS = 5.0

# --- atomic activities ------------------------------------------------------------------------------------------------

#: Activations in one transaction of a run with atomic activities. [atomic]
MAX_ATOMIC_ACTIVATIONS = 20
#: Time after which no further activation starts in it. [atomic]
ATOMIC_RUN_SECONDS = 0.05
#: Time of such transactions in one poll. [atomic, tests/integration/workers/test_isolation.py]
ATOMIC_PHASE_SECONDS = 0.1
#: An atomic activity that takes longer is slow: a warning names it, while it runs and after it.
#: [tests/faults/test_slow_atomics.py]
SLOW_ATOMIC_SECONDS = 1.0
#: Time of an atomic activity after which another thread runs turns. [tests/faults/test_slow_atomics.py]
HANDOVER_SECONDS = 0.25
#: Threads that run turns beside the worker's own. The last one runs no atomic activity, so turns never wait for one.
#: [tests/faults/test_slow_atomics.py]
MAX_HELPERS = 2
#: Longest pause of a run whose business rows others have locked. [tests/integration/workers/test_isolation.py]
LONGEST_LOCK_PAUSE = 1.0
#: Time that a run waits for its locked business rows, from the second try on; other runs wait for as long.
#: [tests/faults/test_fair_queues.py]
BUSINESS_LOCK_SECONDS = 0.5

# --- runs that are left alone -----------------------------------------------------------------------------------------

#: Time for which a worker leaves a run alone that needs something which only another worker has.
#: [tests/integration/workers/test_absent_code.py]
DEFER_SECONDS = 5.0
#: The same from the second time on, when no other worker has taken it. [tests/integration/workers/test_absent_code.py]
LONG_DEFER_SECONDS = 30.0
#: Time for which an engine remembers that it left a run to other workers.
#: [tests/integration/workers/test_absent_code.py]
DEFER_MEMORY_SECONDS = 120.0
#: Time until a run that needs a key is offered again. It is shorter than ``DEFER_SECONDS``, so that a worker that may
#: have the key comes before the one that lacks it. [tests/integration/workers/test_absent_code.py]
KEY_OFFER_DELAY = timedelta(seconds=3)
#: Time until an activity is offered again that a worker released because it lacks what the activity needs.
#: [tests/integration/workers/test_absent_code.py]
REOFFER_DELAY = timedelta(seconds=2)
#: Longest wait between two tries of a blocked run. The first is two seconds, and each doubles it.
#: [tests/unit/engine/test_backoff.py]
LONGEST_BACKOFF = 300.0
#: Time between two lines of the log, as errors, about runs that one cause blocks. [tests/unit/engine/test_block_log.py]
BLOCK_LOG_SECONDS = 60.0

# --- claims of runs ---------------------------------------------------------------------------------------------------

#: Rows that became due longer ago than this are looked for only once in ``FULL_SCAN_SECONDS``. Under an old snapshot
#: the index still holds dead entries of earlier rows, and every claim would crawl over them (60 ms against 0.3). [one]
RECENT_DUE = timedelta(seconds=5)
FULL_SCAN_SECONDS = 1.0
#: Of every so many runs of a turn at least one has been due longest, one is the newest, and one has messages. [crowded,
#: tests/integration/workers/test_fair_claims.py]
MIN_KIND_SHARE = 12
#: One of this many claimed rows is one of the newest, while more wait than a claim takes. [crowded,
#: tests/unit/engine/test_limits.py]
NEWEST_SHARE = 4
#: Time that a caller waits for a chain at a time: below the limit of one second that projects set. [update,
#: tests/integration/db/test_storage_concurrency.py]
CHAIN_WAIT_SECONDS = 0.8
#: Time after which a caller that may hold rows checks whether the holder waits for it in turn.
#: [tests/faults/test_fair_queues.py]
YIELD_SECONDS = 0.1
#: Time for which the versions of live workers are cached: a turn may ask for each of its runs.
#: [tests/integration/workers/test_isolation.py]
LIVE_VERSIONS_SECONDS = 1.0
#: Time that a caller who replaces a run waits while it is being advanced, and tries when another start or an end came
#: in between. [tests/integration/graph/test_durable_graphs.py]
REPLACE_LOCK_SECONDS = 10.0
REPLACE_TRIES = 20

# --- claims of activities ---------------------------------------------------------------------------------------------

#: Number of due activities among which a claim looks for those that this worker can start. [naps]
LOOKAHEAD = 1_000
#: Partitions of a queue that one claim looks at. The next claim continues behind them. [tests/faults/test_many_runs.py]
PARTITION_PAGE = 100
#: Activities that are moved to another partition at a time. [tests/integration/operations/test_switches.py]
MOVE_PAGE = 1_000
#: Time after which another worker may have freed a limit. [tests/integration/operations/test_switches.py]
LIMIT_RETRY_SECONDS = 0.05
#: Longest time between two checks of a limit: other activities of the queue may have come that need not wait.
#: [tests/integration/workers/test_queues.py]
MAX_LIMIT_WAIT = 0.2
#: Most local activities that a turn claims as it schedules them. Further ones wait in the queue of their run. [ten]
MAX_LOCAL = 400

# --- the pool of activities -------------------------------------------------------------------------------------------

#: The most attempts that have not started. Activities that take no time are limited by this, and by the number of
#: polls. [one, tasks]
MAX_PREFETCH = 400
#: The same with those that the worker's own turn scheduled: they cost no claim, and keep no other worker from its own.
#: [one, ten]
MAX_PENDING = 1_000
#: A turn keeps one part in so many of the prefetch limit for the activities that it schedules itself. [ten,
#: tests/unit/engine/test_limits.py]
RESERVE_SHARE = 16
#: Time within which an activity that is claimed ahead is to start. [two, tests/faults/test_claims.py]
PREFETCH_SECONDS = 0.1
#: Time after which one that has not started is released: long ones have all the threads. [tests/faults/test_claims.py]
OVERDUE_SECONDS = 0.5
#: Weight of the latest result of an activity in its pace. [tests/unit/workers/test_pool.py]
LAST_WEIGHT = 0.2
#: Time below which an activity is quick: one thread has started the next one before another has woken up. [one, tasks]
QUICK_SECONDS = 0.001
#: If something waits for this long behind a quick one, another thread is woken. [tests/unit/workers/test_pool.py]
HELP_AFTER = 0.01
#: Pace of unknown activities. Of a dozen quick ones with different names, only the last are claimed ahead.
#: [tests/unit/workers/test_pool.py]
SLOW_PACE = 1.0
#: Time between two looks of a pool that drains. [tests/faults/test_killed_workers.py]
DRAIN_POLL_SECONDS = 0.02
#: Time between two checks that the result of an activity in a process is still wanted. [tests/faults/test_lanes.py]
PROCESS_POLL_SECONDS = 0.1
#: Time that cancelled code has to see the cancellation itself, before its process is killed.
#: [tests/faults/test_lanes.py]
PROCESS_GRACE_SECONDS = 1.0

# --- pauses of the worker loop ----------------------------------------------------------------------------------------

#: Time between two turns where one lock of the database keeps all writers out: web requests need it, too. [update]
WRITER_PAUSE = 0.003
#: Milliseconds that SQLite waits for the writer lock at a time, with looks after 0, 1 and 3. It must not exceed the
#: pause of workers. [update, tests/integration/db/test_storage_concurrency.py]
SQLITE_BUSY_MS = 3
#: Time until the next poll if due work could not be claimed: another worker has locked it, or has its class.
#: [tests/integration/workers/test_isolation.py]
CONTENDED_SECONDS = 0.05
#: Time that a turn of few runs, which has started activities, waits for a result before it polls again. [latency]
RESULT_WAIT = 0.002
#: Polls without a result after which a worker that runs until nothing is due ends.
#: [tests/integration/workers/test_queues.py]
FRUITLESS_POLLS = 10
#: An idle worker that listens to notifications polls this many times less often. [parked]
LISTENING_FACTOR = 5
#: First and longest pause before a worker tries the database again. [tests/faults/test_database_faults.py]
FIRST_RECONNECT = 0.1
LONGEST_RECONNECT = 5.0
#: Time for which a thread of a worker keeps a connection. An idle thread releases it after the same time.
#: [tests/faults/test_database_faults.py]
KEEP_OPEN_SECONDS = 60.0
#: The server ends the session of a worker that froze inside a transaction. Its locks end with the session. In the
#: syntax of the server. [tests/faults/test_database_faults.py]
IDLE_IN_TRANSACTION = "15s"
STATEMENT_TIMEOUT = "60s"
#: About 100 ms, and different in every session. If two workers wait for each other's rows, one gives up first.
#: [tests/faults/test_database_faults.py]
LOCK_TIMEOUT_MS = (50, 150)

# --- starts -----------------------------------------------------------------------------------------------------------

#: Runs that one statement of ``start_many`` inserts. [start_many]
STARTS_TOGETHER = 1000

# --- maintenance ------------------------------------------------------------------------------------------------------

#: The outbox: rows that one claim takes, threads that send them, the time after which a claimed row is due again, and
#: the pauses after a failed try. [tests/integration/outbox/test_outbox.py]
OUTBOX_BATCH = 20
OUTBOX_THREADS = 8
OUTBOX_LEASE = 20.0
OUTBOX_HELD = 4.0
OUTBOX_FIRST_PAUSE = 0.5
OUTBOX_LONGEST_PAUSE = 30.0

#: Time between two passes. [switched]
MAINTENANCE_SECONDS = 0.5
#: Time between two writes of the progress of one attempt. [tests/integration/tasks/test_task_progress.py]
PROGRESS_SECONDS = 1.0
#: Activities that one pass times out at most. [tests/integration/workers/test_isolation.py]
EXPIRED_LIMIT = 200
#: Time between two rounds of what is not part of every pass: activities of owners without a row, old runs, markers of
#: processes without a row, and background hooks. [recover, tests/integration/db/test_retention.py]
ORPHANS_SECONDS = 30.0
RETENTION_SECONDS = 5.0
ABANDONED_SECONDS = 2.0
BACKGROUND_SECONDS = 2.0
#: Time between two looks for schedules that are due, the time for which one round fires them, the schedules that a
#: round reads, and those that share a transaction. [schedules]
SCHEDULE_SECONDS = 1.0
SCHEDULE_BUDGET = 0.5
SCHEDULE_BATCH = 200
SCHEDULES_TOGETHER = 20
#: Time for which a schedule is left to workers that have its code, before another one lists its slot as failed; and
#: time until a schedule is tried again whose slots cannot be computed. [tests/integration/operations/test_schedules.py]
SCHEDULE_CODE_WAIT = 60.0
SCHEDULE_RETRY = 60.0
#: Time that an arguments function of a schedule may take. [tests/integration/operations/test_schedules.py]
ARGUMENTS_SECONDS = 10.0
#: Characters of an error that a slot of a schedule keeps. [tests/integration/operations/test_schedules.py]
SLOT_ERROR_LENGTH = 500
#: Slots that one step passes over, and the slots of a step that get a row each instead of one for all.
#: [tests/unit/engine/schedules/test_firing.py]
PASSED_SLOTS = 10_000
LISTED_SLOTS = 100
#: Time between two rounds of alerts; time after which another process may try if one died in a round; time that a
#: channel, a mail server and the heartbeat address have to answer; time without a round after which a web process does
#: one; and time after which no mail about a human task is begun. [tests/integration/operations/test_alerts.py]
ALERT_SECONDS = 60.0
ALERT_ROUND_SECONDS = 300.0
ALERT_CALL_SECONDS = 10.0
ALERT_WEB_SECONDS = 120.0
MAIL_SECONDS = 30.0
#: Time between two writes of the files that say how a worker and its guardian are. [tests/faults/test_health.py]
REPORT_SECONDS = 1.0
#: Time between two looks for runs that were blocked for lack of code which this worker has.
#: [tests/faults/test_rolling_deploy.py]
CODE_SECONDS = 3.0
#: Time after which every worker has read that something was switched on. [switched]
SWITCH_SECONDS = 5.0
#: Blocked runs that one look makes due. [tests/integration/operations/test_switches.py]
WAKE_LIMIT = 1_000
#: Tries of a starting worker to recover the work of dead ones. Its first passes try again.
#: [tests/integration/workers/test_isolation.py]
RECOVERY_TRIES = 3
#: Time that a stopping worker waits for its maintenance, and for the present piece of background work.
#: [tests/faults/test_health.py]
STOP_SECONDS = 10.0
#: Time between two pieces of background work, in which others can write. [tests/integration/operations/test_bulk.py]
BACKGROUND_PAUSE = 0.1
#: Runs that one page of the retention looks at, and the time of one sweep before its caller continues with other work.
#: [tests/integration/db/test_retention.py]
RETENTION_PAGE = 500
RETENTION_SWEEP_SECONDS = 0.2
#: Time between two looks of the processes of a django-q2 cluster at their children and at themselves.
#: [tests/integration/workers/test_q2.py]
Q2_LOOK_SECONDS = 0.2
#: Time until the broker of the project's tasks is asked again after it failed. [tests/faults/test_killed_clusters.py]
Q2_RETRY_SECONDS = 2.0
#: A worker of a cluster that ends within this time is started again after a pause, which grows up to
#: ``LONGEST_RECONNECT``. [tests/faults/test_killed_clusters.py]
Q2_SOON_SECONDS = 10.0

# --- deaths of processes ----------------------------------------------------------------------------------------------

#: Heartbeats of a worker in one lease. [recover, tests/integration/liveness/test_recovery.py]
HEARTBEATS_PER_LEASE = 3
#: Part of a lease after which a worker elsewhere is late. [tests/integration/liveness/test_recovery.py]
LATE_SHARE = 0.5
#: Leases of life since the last unexplained death, after which no worker is cautious any more.
#: [tests/integration/liveness/test_recovery.py]
CAUTION_LEASES = 5
#: Deaths after which a run is blocked and an external activity fails as ``WorkerLost``.
#: [tests/unit/liveness/test_guardian.py]
MOST_CRASHES = 3
#: Time for which a run is left alone that another worker has announced on its row.
#: [tests/integration/liveness/test_recovery.py]
ANNOUNCED_ELSEWHERE = 0.25
#: Time for which a worker takes no other activity so that its pool empties. Then a suspect starts beside the rest.
#: [tests/faults/test_crash_marks.py]
EMPTY_POOL_SECONDS = 0.5
#: First and longest trial of a suspect: most that kill do so at once. Each attempt doubles the time.
#: [tests/faults/test_crash_marks.py]
FIRST_TRIAL = 0.5
LONGEST_TRIAL = 300.0
#: Time between two looks of a guardian. [tests/unit/liveness/test_guardian.py]
GUARDIAN_SECONDS = 0.5
#: Most time that one look counts. A guardian that was late itself has not seen what happened meanwhile.
#: [tests/unit/liveness/test_guardian.py]
GUARDIAN_MAX_STEP = 0.6
#: Time for which a guardian waits for the database before it ends without a report of the death.
#: [tests/unit/liveness/test_guardian.py]
GUARDIAN_REPORT_TIMEOUT = 5.0

# --- runs on a cluster ------------------------------------------------------------------------------------------------

#: Time between two looks for runs that the cluster has closed without a worker.
#: [tests/integration/cluster/test_mirror.py]
MIRROR_SECONDS = 5.0
#: Time after which a sample of the open runs is compared with the cluster as well.
#: [tests/integration/cluster/test_mirror.py]
MIRROR_SAMPLE_SECONDS = 3600.0

# --- the load of a worker ---------------------------------------------------------------------------------------------

#: Time after which what a worker has measured counts a third (1/e), and the number of attempts below which a queue is
#: forgotten. [tests/unit/liveness/test_load.py]
LOAD_MEMORY_SECONDS = 60.0
LEAST_ATTEMPTS = 0.05
#: Most queues whose activities a worker measures. [tests/unit/liveness/test_load.py]
MAX_MEASURED_QUEUES = 200

# --- code that does not reach a wait ----------------------------------------------------------------------------------

#: Time until code that swallowed an interruption gets the next one; the engine can unwind in between.
#: [tests/acceptance/test_deadlock.py]
INTERRUPT_SECONDS = 1.0
#: Multiple of the limit that all units may take together, one step after the other, until every one is blocked.
#: [tests/acceptance/test_deadlock.py]
TOTAL_DEADLOCK_FACTOR = 3
#: Multiple of a limit of processor time after which code is interrupted that uses none, because it waits for something
#: else than the run. [tests/unit/engine/test_watchdog.py]
PROCESSOR_WAIT_FACTOR = 20
#: Time between two heartbeats while nothing is watched, and the delay from which the process counts as paused.
#: [tests/faults/test_guardian.py]
WATCHDOG_HEARTBEAT_SECONDS = 0.2
WATCHDOG_LATE_SECONDS = 0.2
#: Checks with nothing to watch until the thread sleeps. Waking it costs a caller time, and the next call often comes
#: soon. [tests/unit/engine/test_watchdog.py]
WATCHDOG_IDLE_ROUNDS = 20

# --- what is kept for people ------------------------------------------------------------------------------------------

#: A worker that was declared dead is shown for this time, with at most this number of the activities that it held.
#: [tests/integration/present/test_lost_workers.py]
LOST_WORKER_PERIOD = timedelta(days=1)
LOST_WORKER_HELD = 20
#: Failed attempts of an activity that are kept. [tests/integration/operations/test_kept_attempts.py]
KEPT_ATTEMPTS = 20
