"""gRPC servers and channels of ours: addresses, TLS, limits, health."""
