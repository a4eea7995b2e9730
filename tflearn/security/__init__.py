"""What protects a run: TLS files, tokens, digests of models."""
