"""The learner's side of the replay: batches from a mirror of the table, the server's draws, queues, files, the feed."""
