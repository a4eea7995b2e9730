"""The learner's end of replay: batches from a mirror of the table, from the server's draws, or from queues."""
