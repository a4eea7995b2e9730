"""Policies over the network: the server, its clients."""
