"""Tasks: small environments that show one ability of an agent each, one file for each task."""
