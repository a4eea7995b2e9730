"""Transforms of observations and rewards: the same in collection, in training,
and in the exported policy.
"""
