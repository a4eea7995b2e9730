"""Servers and clients of ours: HTTP and gRPC, with TLS, limits and deadlines."""
