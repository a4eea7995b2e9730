"""Off-policy evaluation: the value of a policy from episodes that another policy has recorded. Pure functions."""
