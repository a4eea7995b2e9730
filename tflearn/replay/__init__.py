"""The replay server, and the collectors' writers."""
