"""Experience in files: written by any policy in any environment, read by a train job that needs no environment."""
