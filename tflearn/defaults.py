"""DefaultInt: distinguishes the default of a setting from a value that was given."""


class DefaultInt(int):
    """The default of an integer setting. What another setting implies may take its place; a given value stays."""
