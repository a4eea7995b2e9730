"""Reverb: the replay server and both of its ends."""
