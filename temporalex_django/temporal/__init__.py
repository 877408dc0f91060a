"""Workflows of this package on a Temporal cluster, through the official SDK (``temporalex-django[temporal]``)."""
