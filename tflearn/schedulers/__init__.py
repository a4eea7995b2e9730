"""A run's jobs under a cluster's scheduler: what it is given to start them, and what watches each of them there."""
