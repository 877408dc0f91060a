"""Sentences about runs, for pages, REST and commands: pure functions that turn view models into texts.

``sentences.build_summary`` describes the state of a run in a sentence. ``timeline.build_rows`` describes its history,
with one row for each thing. These functions read no database, and know no time but the one that they are given.
``operations/read/run_summary.py`` builds the view models.
"""
