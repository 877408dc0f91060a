"""Schedules: their specs, the times at which they fire, and the declarations in code. No Django, no clock."""
