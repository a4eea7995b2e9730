"""The Python front door: a whole run from a script or a notebook; see docs/python.md."""
