"""What jobs exchange besides experience: weights, reports of collectors, credits, heartbeats."""
