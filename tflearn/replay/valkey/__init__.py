"""The replay backend of Valkey's servers. Only library.py imports valkey, and only `backend` loads this folder."""
