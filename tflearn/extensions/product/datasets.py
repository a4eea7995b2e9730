"""Logs as datasets for a `Learner`: Parquet, CSV, Arrow and JSON lines, by a column map. See `tflearn.api.datasets`."""

import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

from tflearn.api import datasets
from tflearn.data.reader import Dataset
from tflearn.extensions.product import importing


def of_logs(paths: Sequence[str], column_map: str, *settings: Any, **more: Any) -> Any:
    """Returns a function of datasets of the logs' episodes.

    Args:
      paths: the files.
      column_map: the file that says what each column means, as for `tflearn data import`.
      *settings: those of `datasets.of_episodes` after the data set.
      **more: the same by name.

    Raises:
      ValueError: if the files, or the map, are wrong; it names how.
    """
    with tempfile.TemporaryDirectory() as directory:
        imported = pathlib.Path(directory, 'episodes')
        importing.import_logs([*map(pathlib.Path, paths)], pathlib.Path(column_map), imported)
        return datasets.of_episodes(Dataset([str(imported)]), *settings, **more)
