"""The jobs of a run, one function each: the only place where packages meet."""
