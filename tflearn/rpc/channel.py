"""Channels to gRPC servers."""

from typing import Any

import grpc

# A client finds a restarted server within a second; gRPC's own delay grows with each attempt, up to two minutes.
_OPTIONS = (('grpc.max_reconnect_backoff_ms', 1000),)


def connect(address: str, credentials: Any = None) -> Any:
    """Returns a channel, which connects when it is first used.

    Args:
      address: the server's 'host:port'.
      credentials: `grpc.ssl_channel_credentials(...)`; None is no encryption.
    """
    if credentials is None:
        return grpc.insecure_channel(address, _OPTIONS)
    return grpc.secure_channel(address, credentials, _OPTIONS)
