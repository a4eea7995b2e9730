"""tflearn promote: the gate between two exported policies, and the states of the one that passes."""

import dataclasses
import functools
import pathlib
import shutil
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging

from tflearn.core.errors import UserValueError
from tflearn.core.settings import Fraction, checked
from tflearn.data import columns, metadata
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.extensions.product import data_evaluation, gate
from tflearn.extensions.product.evaluation import padded_array
from tflearn.extensions.product.gate import GateOptions, Verdict
from tflearn.files import digests, numbered
from tflearn.policies import loader, states, versions

GATE = 'gate'  # the key of a version's metadata


@checked
def judge(
    candidate: pathlib.Path,
    incumbent: pathlib.Path | None,
    dataset: Dataset,
    options: GateOptions,
    epsilon: Fraction = 0.0,
) -> Verdict:
    """Judges an exported policy by logged episodes, and writes the verdict into its `metadata.json`.

    Args:
      candidate: the directory of its version.
      incumbent: that of the policy that answers now; None is whatever has logged the episodes.
      dataset: the episodes, with the log-probabilities of their actions.
      options: what the candidate has to prove.
      epsilon: the share of random actions of both, as the server has them.

    Raises:
      ValueError: if there are no such policies or data, they are of different environments, or the probabilities of
        the actions are not known.
    """
    reader = EpisodeReader(dataset)
    specs = columns.read_specs(reader.directories[0])
    policies = {path: loader.load(path) for path in (candidate, incumbent) if path is not None}
    for policy in policies.values():
        policy.check(specs)
    episodes, log_behaviour = data_evaluation.read(dataset, specs)
    if log_behaviour is None:
        raise UserValueError(
            f'got {", ".join(dataset.paths)} without the probabilities of the actions; need the column '
            "policy_info.log_probability; log them, see the column map's `propensity`"
        )
    rows, lengths = data_evaluation.joined(episodes)
    counted = np.flatnonzero(data_evaluation.is_step(rows))
    times = np.arange(len(rows.reward)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = np.repeat(np.arange(len(lengths)), lengths)[counted], times[counted]
    padded = functools.partial(padded_array, (len(lengths), int(places[1].max()) + 1), places)
    log_ratios = {}
    for path, policy in policies.items():
        own = data_evaluation.log_probabilities(policy, specs, rows, lengths, epsilon)
        log_ratios[path] = padded((own - log_behaviour)[counted])
    rewards, steps = padded(rows.reward[counted].astype(np.float64)), padded(np.ones(len(counted))) > 0
    others = log_ratios[incumbent] if incumbent else np.zeros_like(rewards)
    verdict = gate.judge(rewards, steps, log_ratios[candidate], others, options)
    used = metadata.lineage(reader.directories)
    verdict = dataclasses.replace(
        verdict,
        warnings=tuple(
            f'{path} was trained on data that may be among these: its value is too good'
            for path, policy in policies.items()
            if metadata.may_share_episodes(policy.metadata.get(metadata.TRAINED_ON) or [], used)
        ),
    )
    facts = {'against': incumbent and str(incumbent), 'epsilon': epsilon, 'data': used, 'at': time.time()}
    if not versions.add_metadata(candidate, **{GATE: {**verdict.json(), **facts}}):
        raise UserValueError(f'got {candidate}, which was removed meanwhile; need a version that stays')
    return verdict


def find(directory: pathlib.Path, name: str) -> pathlib.Path:
    """Returns the directory of a version.

    Args:
      directory: the policy's directory.
      name: a train step of it; or the path, with a '/', of a version anywhere.

    Raises:
      ValueError: if it is not complete.
    """
    path = pathlib.Path(name).expanduser().resolve() if '/' in name else directory / name
    if not (path.name.isdecimal() and versions.is_complete(path)):
        known = ', '.join(map(str, versions.versions(directory))) or 'none'
        raise UserValueError(f'got the version {name!r}; need a path with a /, or a train step in {directory}: {known}')
    return path


def adopt(version: pathlib.Path, directory: pathlib.Path) -> int:
    """Copies a version of another run into a policy's directory, if it is not there; returns its number there.

    The number is its own, or the next one after all that are there.
    """
    if version.parent.resolve() == directory.resolve():
        return int(version.name)
    newest = versions.newest_version(directory)
    number = int(version.name) if newest is None or int(version.name) > newest else newest + 1
    with digests.checked(version) as copy, numbered.writing(directory / str(number)) as written:
        shutil.copytree(copy, written, dirs_exist_ok=True)
        for marker in versions.MARKERS:
            (written / marker).unlink(missing_ok=True)
        versions.add_metadata(written, train_step=number, adopted_from=str(version))
        versions.publish(written, directory / str(number), recorded=(written / digests.RECORD).exists())
    logging.info('copied %s to %s', version, directory / str(number))
    return number


def promote(
    directory: pathlib.Path,
    candidate: str,
    state: states.State,
    why: str,
    incumbent: str = '',
    data: Sequence[str] = (),
    share: float = 0.0,
    **options: Any,
) -> tuple[str, bool]:
    """Promotes a candidate to a state if it passes the gate.

    Args:
      directory: the policy's directory, whose states are changed.
      candidate: see `find`; a version of another run is copied into the directory.
      state: the new state; a shadow, whose answers nobody gets, need not pass a gate.
      why: the reason, for the history.
      incumbent: see `find`; '' is the stable version, or what has logged the episodes if there is none.
      data: the paths of the held-out episodes; () promotes without a gate.
      share: the share of the requests that a canary answers.
      **options: those of `GateOptions`, and `epsilon`, see `judge`.

    Returns:
      What was found and done, in lines; and whether the candidate has the state.
    """
    path, lines = find(directory, candidate), []
    if data:
        epsilon, known = options.pop('epsilon', 0.0), states.read(directory)
        name = incumbent or (str(known.stable) if known else '')
        against = find(directory, name) if name else None
        verdict = judge(path, against, Dataset(data), GateOptions(**options), epsilon)
        lines = [f'candidate {path}, incumbent {against or "the log"}', verdict.text()]
        if not verdict.passes:
            return '\n'.join(lines), False
        facts = '; '.join([f'difference at least {verdict.lower_bound:.4g}', *verdict.warnings])
        why = f'{why}: {facts}' if why else facts
    found = states.promote(directory, adopt(path, directory), state, why or 'without a gate', share)
    return '\n'.join([*lines, f'{state} of {directory}: {found.labels[state]}']), True
