"""A small run for every test that asks for one."""

from tests.testing.jobs import small_run  # noqa: F401
