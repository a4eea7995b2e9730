"""The learner's side of the replay: batches from a mirror of the table, from the server's draws, or from queues."""
