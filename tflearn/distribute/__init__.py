"""Where a learner trains: strategies, workers, the watchdog, precision."""
