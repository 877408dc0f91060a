"""The replay: plays a day of a supermarket chain against the running shop and then checks every figure."""
