"""Experience in files, with or without an environment; off-policy evaluation of what they hold."""
