"""Acting: a policy in a batched environment, what it earned, and how good it is."""
