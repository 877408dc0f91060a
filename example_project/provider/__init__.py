"""A payment provider: a separate process with its own ledger, unreliable in a reproducible way."""
