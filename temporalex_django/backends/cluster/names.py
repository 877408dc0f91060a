"""The names that this package uses on a cluster beside those of the adapter (``temporal.names``)."""

from __future__ import annotations

from typing import Final

#: Header: the id of the first run of the chain that a signal is for. Runs of other chains drop it.
CHAIN: Final = "__tx_chain"
#: Memo: the chain whose start has started the run.
STARTED_BY: Final = "temporalex_chain"
#: Query: the events of the server that begin the tasks of a run's activations.
TASKS: Final = "__tx_tasks"
#: Metadata of the result of an activity: the person who ended it by hand, and the failure with which they ended it. The
#: server takes no failure of an activity that waits for its next attempt, but it takes a result.
BY: Final = "by"
FAILURE: Final = "failure"
