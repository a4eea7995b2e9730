"""What do the algorithms learn, beside other libraries? `python -m benchmarks.suite` makes runs and their page."""
