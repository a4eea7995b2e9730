"""The product loop: rounds, which make the next policy of what the last one decided and what came of it."""
