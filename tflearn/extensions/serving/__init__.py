"""Policies over the network: the server and its clients."""
