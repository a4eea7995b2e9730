"""`tflearn data import` and `join`: what they are given is checked before TensorFlow is loaded, which takes a while."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tflearn.core import preflight
from tflearn.core.errors import UserValueError
from tflearn.extensions.product import log_files, reward_parts, tables
from tflearn.extensions.product.column_map import DECISIONS, PROBABILITY, read_map
from tflearn.extensions.product.log_report import Report
from tflearn.extensions.product.outcomes import options_of


def import_logs(
    paths: Sequence[str | pathlib.Path],
    column_map: pathlib.Path,
    output: pathlib.Path,
    vocabularies: pathlib.Path | None = None,
    compress: bool = False,
    outcomes: Mapping[str, Any] | None = None,
    **options: Any,
) -> str:
    """Writes the episodes of logs to a new data set, see `log_import.run`; returns what was found, in lines.

    Args:
      paths: files, and directories of such, see `log_files.find`.
      column_map: the file that says what each column means.
      output: the new directory.
      vocabularies: an earlier data set, whose vocabularies are taken.
      compress: compress the files with gzip.
      outcomes: the fields of `OutcomeOptions` but the columns: the logs are decisions of a server then. Its paths may
        be directories too.
      **options: see `Report`.
    """
    report, joined = Report(**options), None
    mapped = read_map(column_map, {} if outcomes is None else DECISIONS)
    files = log_files.find(paths, 'from' if outcomes is None else 'decisions')
    if outcomes is not None:
        propensity = mapped.feature('propensity')
        if propensity and propensity.columns == (PROBABILITY,) and not tables.have_column(files, PROBABILITY):
            mapped = dataclasses.replace(mapped, features=tuple(each for each in mapped.features if each != propensity))
            report.warnings.append(
                f'no decision has a {PROBABILITY!r}, and the column map names no `propensity`: such data train a '
                'policy, tflearn-evaluate estimates the probabilities, and the gate judges nothing; log them for that'
            )
        found = log_files.find(outcomes['paths'], 'outcomes')
        of_reward = {'parts': mapped.parts, 'weights': mapped.weights}
        joined = options_of(mapped.outcomes, **{**outcomes, **of_reward, 'paths': found})
        if joined.weigh_delays and 'episode' in mapped.keys:
            raise UserValueError('got --weigh_delays with an `episode` in the column map; need decisions one by one')
        mapped = dataclasses.replace(mapped, features=tuple(each for each in mapped.features if each.name != 'reward'))
    elif not any(each.name == 'reward' or each.name.startswith(reward_parts.PREFIX) for each in mapped.features):
        raise UserValueError(
            'got a column map whose rewards are in `outcomes`; need `tflearn data join` with their files, or no '
            '`outcomes` and the reward as a column of the log'
        )
    # A run checks its columns too, but is known to be wrong sooner here.
    tables.names_of(files, mapped.columns)
    if joined:
        tables.names_of(joined.paths, joined.columns)
    preflight.import_quietly('tensorflow', 'gym')
    from tflearn.extensions.product import log_import  # It loads TensorFlow.

    log_import.run(files, mapped, output, report, vocabularies, compress, joined)
    return '\n'.join([str(report), *report.actions.lines()])
