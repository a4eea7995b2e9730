"""The configuration of a run: gin files, composed, strict and saved.
The only package that uses gin.
"""
