"""The Python front door: a whole run from a script or a notebook. Only users import it; see docs/python.md."""
