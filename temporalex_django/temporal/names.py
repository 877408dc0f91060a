"""The names that this package itself uses on a cluster, in addition to those of your workflows and messages."""

from __future__ import annotations

from typing import Final

#: Update: a request of a process, or the decision of a human task (``core.process``).
RESUME: Final = "__tx_resume"
#: Signal: let a timer fire now. Its payload is ``{"seq": number}``, with ``by`` if a person asked for it.
SKIP_TIMER: Final = "__tx_skip"
#: Query: what a run shows, and its history in the form of this package.
STATE: Final = "__tx_state"
#: Header: the person who sent a signal or an update (``Sender.as_dict``).
SENDER: Final = "__tx_sender"
#: Header: the headers of this package that travel with a signal, an update or an activity, by name.
HEADERS: Final = "__tx_headers"
#: Header: the id that the sender gave to a signal.
MESSAGE_ID: Final = "__tx_id"
#: Header of an activity: the facts of its call (``activities.CallFacts``).
CALL: Final = "__tx_call"
#: Ids of patch markers that hold a ``DeliveryRecord`` begin with this text. A number and a colon follow, then JSON.
RECORD: Final = "__tx_record:"
#: Numbers of the timers after which the rest of a long inbox is delivered begin here; those of commands are lower.
REST_TIMERS: Final = 2**31
