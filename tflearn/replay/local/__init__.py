"""The replay backend of one process: tables in its memory, with the limits and the order of a server's; no library."""
