"""Several runs of one problem: seeds, and what they say when they are compared."""
