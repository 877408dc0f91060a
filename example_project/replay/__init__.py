"""Plays a day of a supermarket chain against the running shop, and checks every figure afterwards."""
