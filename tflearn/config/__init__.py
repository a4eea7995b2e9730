"""The configuration of a run: gin files, composed, strict and saved. The door to gin."""
