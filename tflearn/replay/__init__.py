"""The replay server, and what collectors write to it."""
