"""An app of the processes that tests start: classes on a cluster, with activities that write to the database."""
