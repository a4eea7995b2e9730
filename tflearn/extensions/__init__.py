"""The extensions: what stands around the core packages, one folder and one extra each.
No core package imports them.
"""
