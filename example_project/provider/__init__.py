"""A payment provider: a process of its own with a ledger of its own, unreliable in a reproducible way."""
