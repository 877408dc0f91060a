"""Runs on a Temporal cluster: what handles, REST, the admin and commands do to them goes to the cluster from here."""
