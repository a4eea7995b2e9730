"""DefaultInt: distinguishes the default of a setting from a value that was given."""


class DefaultInt(int):
    """An integer setting's default. A value implied by another setting may replace it; an explicit value stays."""
