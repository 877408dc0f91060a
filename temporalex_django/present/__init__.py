"""Sentences about runs, for pages, REST and commands: pure functions from view models to text.

``sentences.build_summary`` gives the state of a run in a sentence, ``timeline.build_rows`` its history with one row for
each thing. These functions read no database, and no clock but the time that they are given.
``operations/read/run_summary.py`` reads the state for them.
"""
