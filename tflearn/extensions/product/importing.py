"""`tflearn data import` and `join`: what they are given is checked before TensorFlow is loaded, which takes a while."""

import dataclasses
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tflearn.core import preflight
from tflearn.core.errors import UserValueError
from tflearn.extensions.product import log_files, reward_parts, tables
from tflearn.extensions.product.column_map import DECISIONS, PROBABILITY, ColumnMap, are_of_server, read_map
from tflearn.extensions.product.log_report import Report
from tflearn.extensions.product.outcomes import options_of
from tflearn.extensions.serving.decision_files import begun_at


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
      vocabularies: an earlier data set or a policy, whose vocabularies are taken.
      compress: compress the files with gzip.
      outcomes: the fields of `OutcomeOptions` but the columns: the logs are decisions of a server then. Its paths may
        be directories too.
      **options: see `Report`.
    """
    report, joined = Report(**options), None
    mapped = read_map(column_map, {} if outcomes is None else DECISIONS)
    files = log_files.find(paths, 'from' if outcomes is None else 'decisions')
    names = dict(zip(files, tables.names_of(files, tables.Columns((), separator=mapped.separator)), strict=True))
    if is_served := _are_of_server(names, mapped):
        mapped = mapped.of_server()
    if outcomes is not None:
        propensity = mapped.feature('propensity')
        known = {*itertools.chain.from_iterable([*names.values(), *map(log_files.partitions, names)])}
        if propensity and propensity.columns == (PROBABILITY,) and PROBABILITY not in known:
            mapped = dataclasses.replace(mapped, features=tuple(each for each in mapped.features if each != propensity))
            report.warnings.append(
                f'no decision has a {PROBABILITY!r}, and the column map names no `propensity`: such data train a '
                'policy, tflearn-evaluate estimates the probabilities, and the gate judges nothing; log them for that'
            )
        found = log_files.find(outcomes['paths'], 'outcomes')
        of_reward = {'parts': mapped.parts, 'weights': mapped.weights}
        # What was reported to a server has its names too.
        of = {} if is_served and all(begun_at(path.name, 'outcomes') for path in found) else mapped.outcomes
        joined = options_of(of, **{**outcomes, **of_reward, 'paths': found})
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


def _are_of_server(names: Mapping[pathlib.Path, Sequence[str]], mapped: ColumnMap) -> bool:
    """Returns whether files are a server's log; raises ValueError if only some are, or if it was made CSV."""
    served = [path for path in names if are_of_server(names[path])]
    # A product may write its own decisions as a server does, such as the first ones of a loop.
    needed = {*mapped.of_server().columns.names} if served else set()
    if others := [path for path in names if names[path] and path not in served and not needed <= {*names[path]}]:
        raise UserValueError(
            f"got {served[0]}, a server's log, and {others[0]}, which is none; need one kind; read them one after the "
            'other, the second with --vocabularies of the first'
        )
    if as_csv := [path for path in served if log_files.format_of(path) == 'csv']:
        raise UserValueError(
            f"got {as_csv[0]}, a server's log as CSV, where a number and its text are one; need the server's own files"
        )
    return bool(served)
