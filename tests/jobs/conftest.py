"""The fixture of a small run."""

from tests.testing.jobs import small_run  # noqa: F401
