"""tflearn promote: the gate between two exported policies, and the states of the one that passes."""

import dataclasses
import functools
import itertools
import pathlib
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from tflearn.core.confidence_sequences import Support
from tflearn.core.errors import UserValueError
from tflearn.core.settings import checked
from tflearn.core.types import EnvironmentSpecs
from tflearn.data import columns, metadata
from tflearn.data.reader import Dataset, EpisodeReader, with_unknown
from tflearn.extensions.product import data_evaluation, gate, reward_parts, row_weights
from tflearn.extensions.product.data_evaluation import CLUSTER, TIME, WEIGHT, PolicyProbabilities, Served
from tflearn.extensions.product.evaluation import padded_array
from tflearn.extensions.product.gate import Verdict
from tflearn.extensions.product.scaled_log import GateOptions, Limit, LoggedEpisodes, Through
from tflearn.files import digests, numbered
from tflearn.policies import added_metadata, loader, states, versions

GATE = 'gate'  # the key of a version's metadata
_SAME = 1e-4  # of log-probabilities, which are stored as float32


@checked
def judge(
    candidate: pathlib.Path,
    incumbent: pathlib.Path | None,
    dataset: Dataset,
    options: GateOptions,
    served: Served,
    logged_by: Sequence[pathlib.Path] = (),
    serving: pathlib.Path | None = None,
    new_train: Sequence[str] = (),
) -> Verdict:
    """Judges an exported policy by logged episodes, and writes the verdict into its `metadata.json`.

    Args:
      candidate: the directory of its version.
      incumbent: that of the policy that answers now; None is whatever has logged the episodes.
      dataset: the episodes, with the log-probabilities of their actions.
      options: what the candidate has to prove.
      served: how the server makes both act.
      logged_by: versions that may have logged some of the episodes, besides the incumbent.
      serving: what the candidate is also compared through, by `new_train`; None: nothing.
      new_train: the paths of episodes of the same time as the first ones of `dataset`, which may have trained the
        candidate, but neither `serving` nor the incumbent.

    Raises:
      ValueError: if there are no such policies or data, they are of different environments, the probabilities of
        the actions are not known, the candidate was trained on the episodes, or another one on `new_train`.
    """
    reader = EpisodeReader(dataset)
    specs = columns.read_specs(reader.directories[0])
    new_train = new_train if serving else ()
    _check_clusters(EpisodeReader(Dataset([*dataset.paths, *new_train])))
    policies = {path: loader.load(path) for path in (candidate, incumbent, serving) if path is not None}
    for policy in policies.values():
        data_evaluation.check_policy(policy, specs, reader.directories)
    used = metadata.lineage(reader.directories)
    trained = metadata.lineage(EpisodeReader(Dataset(new_train)).directories) if new_train else []
    for path, unseen in ((candidate, used), (incumbent, trained), (serving, trained)):
        if path and data_evaluation.was_trained_on(policies[path], unseen):
            raise UserValueError(
                f'got {path}, which was trained on data that may be among these, {unseen[0]["path"]}; need episodes '
                'that it has never seen, see tflearn data split'
            )
    _check_once([*used, *trained])
    stated = data_evaluation.evidence(reader.directories)
    given = data_evaluation.reward_range(options, stated)
    given |= {name: getattr(options, name) or stated.get(name) for name in ('longest', 'greatest_weight')}
    options = dataclasses.replace(options, **given, limits=[_ranged(limit, stated) for limit in options.limits])
    acting = {path: data_evaluation.probabilities(policy, specs, served) for path, policy in policies.items()}
    acting_log = functools.cache(lambda path: data_evaluation.probabilities(loader.load(path), specs, served))
    costs = [limit.name for limit in options.limits]

    def logged(of: Dataset, one: pathlib.Path, other: pathlib.Path | None, controls: bool = False) -> LoggedEpisodes:
        beside, loggers = acting[other] if other else None, map(acting_log, logged_by)
        return logged_episodes(of, specs, acting[one], beside, loggers, costs, options.greatest_weight, controls)

    through = None
    if serving and new_train:
        first, *rest = dataset.paths
        later = logged(Dataset(rest), candidate, incumbent, controls=True) if rest else None
        others = logged(Dataset(new_train), serving, incumbent, controls=True)
        through = Through(logged(Dataset([first]), candidate, serving), others, later)
    verdict = gate.judge(logged(dataset, candidate, incumbent), options, through)
    if incumbent and data_evaluation.was_trained_on(policies[incumbent], used):
        warning = f'{incumbent} was trained on data that may be among these: its value is too good'
        verdict = dataclasses.replace(verdict, warnings=(*verdict.warnings, warning))
    facts = {
        'against': incumbent and str(incumbent),
        **dataclasses.asdict(served),
        'data': used,
        'at': time.time(),
    }
    if not added_metadata.add(candidate, **{GATE: {**verdict.json(), **facts}}):
        raise UserValueError(f'got {candidate}, which was removed meanwhile; need a version that stays')
    return verdict


def _ranged(limit: Limit, stated: Mapping[str, Any]) -> Limit:
    """Returns a limit with the range that the data set states, unless it has one."""
    low, high = map(stated.get, reward_parts.ends(limit.name))
    low, high = low if limit.low is None else limit.low, high if limit.high is None else limit.high
    return dataclasses.replace(limit, low=low, high=high)


def _check_once(used: Sequence[Mapping[str, Any]]) -> None:
    """Raises ValueError if a decision would count twice."""
    for one, other in itertools.combinations(used, 2):
        if metadata.may_share_episodes([one], [other]):
            raise UserValueError(
                f'got {one["path"]} and {other["path"]}, which may have episodes in common; need each decision once'
            )


def _check_clusters(reader: EpisodeReader) -> None:
    """Raises ValueError if two data sets have decisions of one cluster, which counts once."""
    column, seen = f'policy_info.{CLUSTER}', set[int]()
    if len(reader.directories) == 1 or column not in {each.name for each in reader.columns}:
        return
    for directory in reader.directories:
        episodes = [each for one in with_unknown(Dataset([str(directory)])).values() for each in one.episodes()]
        found = {int(episode[column][0]) for episode in episodes}
        if seen & found:
            raise UserValueError(
                f'got {directory} with {len(seen & found)} clusters of the data sets before it; need each cluster once'
            )
        seen |= found


def logged_episodes(
    dataset: Dataset,
    specs: EnvironmentSpecs,
    candidate: PolicyProbabilities,
    incumbent: PolicyProbabilities | None,
    loggers: Iterable[PolicyProbabilities] = (),
    costs: Sequence[str] = (),
    greatest_weight: float | None = None,
    controls: bool = False,
) -> LoggedEpisodes:
    """Returns episodes in the order of their times, and what the policies make of them; `loggers` see `judge`."""
    parts = {name: reward_parts.column(name) for name in costs}
    episodes, info = _read(dataset, specs, [*parts.values()])
    log_behaviour = info[data_evaluation.LOG_PROBABILITY]
    rows, lengths = data_evaluation.joined(episodes)
    starts = np.cumsum(lengths) - lengths
    times, clusters, weights = (info[each][starts] if each in info else None for each in (TIME, CLUSTER, WEIGHT))
    is_step = data_evaluation.is_step(rows)
    counted = np.flatnonzero(is_step)
    order = np.argsort(times, kind='stable') if times is not None else np.arange(len(lengths))
    places = np.repeat(np.argsort(order), lengths)[counted], counted - np.repeat(starts, lengths)[counted]
    shape = len(lengths), int(places[1].max()) + 1
    padded = lambda values: padded_array(shape, places, values[counted])  # noqa: E731
    own = candidate.of_actions(rows, lengths)
    others = log_behaviour if incumbent is None else incumbent.of_actions(rows, lengths)
    found = LoggedEpisodes(
        padded(rows.reward.astype(np.float64)),
        padded(np.ones(len(is_step))) > 0,
        padded(own - log_behaviour),
        padded(others - log_behaviour),
        clusters=None if clusters is None else clusters[order],
        shares=None if weights is None else row_weights.shares(weights[order], greatest_weight, clusters is not None),
        costs={name: padded(info[each].astype(np.float64)) for name, each in parts.items()},
    )
    edges = data_evaluation.edges_of(candidate, incumbent or candidate)
    if not candidate.num_choices and edges is None:
        return found
    log_even, known = candidate.even.of_actions(rows, lengths), None
    is_single = shape[1] == 1 and len(counted) == len(lengths)
    # `controls` need the greatest weights of sessions. What depends on earlier steps is not known of each step.
    usable = lambda log: (log.num_choices or log.edges is not None) and (is_single or not log.has_memory)  # noqa: E731
    if is_single or (controls and all(map(usable, (candidate, incumbent or candidate)))):
        # An incumbent that is the log has no probabilities of its own.
        own_log = [(incumbent, others)] if incumbent else []
        computed = ((log, log.of_actions(rows, lengths)) for log in filter(usable, loggers))
        logs = itertools.chain(own_log, [(candidate.even, log_even)], computed)
        known = _known(rows, counted, log_behaviour, candidate, incumbent, logs)
    if known and is_single:
        found = dataclasses.replace(found, known=Support(**{name: of[order] for name, of in vars(known).items()}))
    elif known and not known.incumbent_untaken.any():
        found = dataclasses.replace(found, greatest=padded_array(shape, places, known.greatest_incumbent))
    actions, log_sizes = _choices(rows.action, edges)
    return dataclasses.replace(
        found,
        actions=padded(actions.astype(np.float64)).astype(np.int64),
        log_behaviour=padded(log_behaviour + log_sizes),
        log_even=padded(log_even + log_sizes),
    )


def _read(dataset: Dataset, specs: EnvironmentSpecs, parts: Sequence[str]) -> tuple[Sequence[Any], Any]:
    """Returns the episodes and their policy info; raises ValueError if it has no probabilities of the actions."""
    episodes, info = data_evaluation.read(dataset, specs, with_unknown=True, parts=parts)
    if data_evaluation.LOG_PROBABILITY not in info:
        raise UserValueError(
            f'got {", ".join(dataset.paths)} without the probabilities of the actions; need the column '
            "policy_info.log_probability; log them, see the column map's `propensity`"
        )
    return episodes, info


def _choices(actions: np.ndarray, edges: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | float]:
    """Returns the index of each action, and the logs of their sizes: of numbers, of what is between two edges."""
    if edges is None:
        return actions.astype(np.int64), 0.0
    index = np.clip(np.searchsorted(edges, actions, 'right') - 1, 0, len(edges) - 2)
    return index, np.log(np.diff(edges))[index]


def _known(
    rows: Any,
    index: np.ndarray,
    logged: np.ndarray,
    candidate: PolicyProbabilities,
    incumbent: PolicyProbabilities | None,
    logs: Iterable[tuple[PolicyProbabilities, np.ndarray]],
) -> Support | None:
    """Returns what the probabilities of all actions say of decisions that one or several policies have logged.

    Args:
      rows: as of `data_evaluation.support`.
      index: the row of each decision.
      logged: the logged log-probabilities of the actions in all rows.
      candidate: the candidate.
      incumbent: the incumbent; None is the log.
      logs: policies, with their log-probabilities of the same actions. A decision may be of each
        that has the logged one: it gets the worst of what they say.

    Returns:
      The support; None if a decision is of none of them.
    """
    found = {field.name: np.zeros(len(index)) for field in dataclasses.fields(Support)}
    is_known = np.zeros(len(index), bool)
    for log, log_probabilities in logs:
        is_same = np.isclose(log_probabilities[index], logged[index], rtol=0, atol=_SAME)
        if is_same.any():
            said = data_evaluation.support(rows, index[is_same], candidate, incumbent or log, log)
            for name, values in found.items():
                values[is_same] = np.maximum(values[is_same], getattr(said, name))
        if is_same.all():  # it has logged all of them: nothing is left to doubt
            break
        is_known |= is_same
    else:
        return Support(**found) if is_known.all() else None
    return said


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


def _loggers(known: states.States | None, directory: pathlib.Path) -> list[pathlib.Path]:
    """Returns the versions that answer or have answered before."""
    if known is None:
        return []
    numbers = known.stable, known.canary, *known.earlier
    paths = [directory / str(number) for number in dict.fromkeys(numbers) if number is not None]
    return [path for path in paths if versions.is_complete(path)]


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
        added_metadata.add(written, train_step=number, adopted_from=str(version))
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
    new_train: Sequence[str] = (),
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
      new_train: the paths of episodes which compare it with the best version through the incumbent, see `judge`.
      **options: those of `GateOptions`, and of `Served`.

    Returns:
      What was found and done, in lines; and whether the candidate has the state.
    """
    path, lines, is_best = find(directory, candidate), [], True
    if data:
        served = Served(**{name: options.pop(name) for name in ('epsilon', 'temperature') if name in options})
        known = states.read(directory)
        name = incumbent or (str(known.stable) if known else '')
        best = str(known.best) if known and known.best is not None else name
        # The incumbent comes last: the version's metadata have its verdict.
        for each in dict.fromkeys((best, name)):
            against = find(directory, each) if each else None
            beside = find(directory, name) if new_train and each != name else None
            loggers = _loggers(known, directory)
            verdict = judge(path, against, Dataset(data), GateOptions(**options), served, loggers, beside, new_train)
            through = f', also through {beside}' if beside else ''
            lines += [f'candidate {path}, incumbent {against or "the log"}{through}', verdict.text()]
            if not verdict.passes:
                return '\n'.join(lines), False
            is_best = is_best and (each != best or not best or verdict.difference.low > 0)
        facts = '; '.join([f'difference at least {verdict.difference.low:.4g}', *verdict.warnings])
        why = f'{why}: {facts}' if why else facts
    number = adopt(path, directory)
    found = states.promote(directory, number, state, why or 'without a gate', share, is_best=is_best)
    return '\n'.join([*lines, f'{state} of {directory}: {found.labels[state]}']), True
