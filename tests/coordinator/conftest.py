"""The fixture of real coordinators."""

from tests.testing.coordinators import coordinating  # noqa: F401
