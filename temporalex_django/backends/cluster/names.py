"""The names that this package uses on a cluster beside those of the adapter (``temporal.names``)."""

from __future__ import annotations

from typing import Final

#: Header: the id of the first run of the chain that a signal is for. Runs of other chains drop it.
CHAIN: Final = "__tx_chain"
#: Memo: the chain whose start has started the run.
STARTED_BY: Final = "temporalex_chain"
#: Query: the events of the server that begin the tasks of a run's activations.
TASKS: Final = "__tx_tasks"
#: Query: the numbers of signals and updates that a run has received, which the server limits.
COUNTS: Final = "__tx_counts"
#: Activity: takes a message to a run that the cluster does not know to the tables. A patch marker of this id comes
#: before the first such activity of a run.
DELIVERY: Final = "__tx_deliver"
#: Ids of patch markers in which earlier versions stored the answer of the tables begin with this text. The number of
#: the message, a colon and JSON follow.
OLD_ANSWER: Final = "__tx_elsewhere:"
#: Metadata of the result of an activity: the person who ended it by hand, and the failure with which they ended it. The
#: server takes no failure of an activity that waits for its next attempt, but it takes a result.
BY: Final = "by"
FAILURE: Final = "failure"
