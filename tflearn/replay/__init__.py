"""The replay server, the collectors' writers, and the one rule of how steps become items."""
