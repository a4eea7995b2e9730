"""The replay backend of Reverb's servers. Only library.py imports reverb, and only `backend` loads this folder."""
