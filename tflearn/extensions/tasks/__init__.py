"""Tasks: small environments that show one ability of an agent each, one file for each task.

`make` of each is an `EnvironmentFactory`: it makes `num_environments`, and environment i is seeded
with seed + i. Its docstring has the other arguments.
"""
