"""The jobs of a run, one function each."""
