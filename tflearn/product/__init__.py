"""The product loop: each round trains the next policy on the decisions of the last one and their outcomes."""
