"""What pages, REST and commands say about a run: pure functions, from what is known of it to sentences.

``sentences.build_summary`` says where a run stands, ``timeline.rows`` what has happened, one row a thing. They ask no
database and no clock but the time that they are given; who reads the state for them is ``actions/summary.py``.
"""
