"""The fixtures of a run of fake jobs."""

from tests.launch.conftest import python_path, run, run_dir  # noqa: F401
