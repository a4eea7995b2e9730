"""What is no item of a replay: weights, reports of collectors, credits, heartbeats."""
