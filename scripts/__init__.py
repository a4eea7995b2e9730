"""The programs: flags, gin and one call each. Installed as `tflearn_scripts`: `python -m tflearn_scripts.train`."""
