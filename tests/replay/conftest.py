"""A real replay server for every test that asks for one."""

from tests.testing.replay import open_source, serve  # noqa: F401
