"""The jobs of a run, one function each, and the parts that they share."""
