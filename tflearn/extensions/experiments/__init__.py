"""Several runs of one problem: seeds, comparisons, searches for hyperparameters, reports,
checks of metrics.
"""
