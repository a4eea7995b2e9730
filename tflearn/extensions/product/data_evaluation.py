"""Off-policy evaluation of a run's exported policy on recorded episodes: no environment is needed."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.trajectories import time_step as ts

from tflearn.core import confidence_sequences
from tflearn.core.confidence_sequences import Support
from tflearn.core.errors import UserValueError
from tflearn.core.settings import Fraction, PositiveFloat, checked_dataclass
from tflearn.core.types import EnvironmentSpecs
from tflearn.data import columns, metadata, reader
from tflearn.data.reader import Dataset, find_directories
from tflearn.extensions.product import evaluation, feature_importance
from tflearn.extensions.product.estimates import Evaluation
from tflearn.extensions.product.evaluation import OpeOptions, RecordedSteps
from tflearn.extensions.product.feature_importance import By
from tflearn.extensions.product.linear_models import MAX_INPUTS
from tflearn.extensions.product.reward_parts import SLOTS
from tflearn.extensions.product.scaled_log import GateOptions
from tflearn.files.run_dir import RunDir
from tflearn.jobs import chosen_policy
from tflearn.policies import signatures, versions
from tflearn.policies.action_probabilities import ActionProbabilities, NoDensityError
from tflearn.policies.loader import LoadedPolicy

_NUM_SAMPLES = 8  # actions of a stochastic policy in each state
_NUM_ROWS, _NUM_EPISODES = 4096, 256  # of a call of the policy
LOG_PROBABILITY, TIME, CLUSTER, WEIGHT = 'log_probability', 'time', 'cluster', columns.WEIGHT  # of a row, see `read`

# Time steps and actions [B], and the policy's state before them -> an array [B, ...], and the next state.
_Call = Callable[..., tuple[np.ndarray, Any]]


def evaluate_on_data(
    run_dir: RunDir,
    paths: Sequence[str],
    filters: Mapping[str, Any],
    policy: str = 'greedy_policy',
    train_step: int | None = None,
    epsilon: float = 0.0,
    temperature: float = 1.0,
    features: By | None = None,
    **options: Any,
) -> tuple[Evaluation, dict[str, Any]]:
    """Estimates the value of an exported policy from recorded episodes.

    Args:
      run_dir: the directory of the run that exported the policy.
      paths: the data sets, see `Dataset`.
      filters: which episodes are read, see `Dataset`.
      policy: the policy that is evaluated, one of those of `chosen_policy.find` that tflearn has exported.
      train_step: the train step of its version; None takes what serves, else the run's result, else the newest.
      epsilon: the share of uniformly random actions among the policy's own, in [0, 1].
      temperature: divides the logits of a policy that draws, as `tflearn-serve` has it.
      features: whether to estimate what each part, or each number, of the observation is worth; see
        `feature_importance`.
      **options: see `OpeOptions`.

    Returns:
      (estimates, facts): the facts, for a JSON file, are the estimates and what was evaluated.

    Raises:
      ValueError: if there is no such policy or data set, they are of different environments, the reward is no single
        number, or the policy draws actions of unknown probabilities.
    """
    dataset, ope_options = Dataset(paths, **filters), OpeOptions(**options)
    loaded = chosen_policy.find(run_dir, policy, train_step)
    if not isinstance(loaded, LoadedPolicy):
        raise UserValueError(
            f'got the policy {policy!r}; need one that tflearn has exported: its name, best, or the path of a version'
        )
    directories = find_directories(dataset)
    specs = columns.read_specs(directories[0])
    stated = evidence(directories)
    slots = ope_options.independent_slots or stated.get(SLOTS, False)
    greatest = ope_options.greatest_weight or stated.get('greatest_weight')
    ranged = reward_range(ope_options, stated)
    ope_options = dataclasses.replace(ope_options, **ranged, greatest_weight=greatest, independent_slots=slots)
    check_policy(loaded, specs, directories)
    logging.info('evaluate the policy %s on %s', loaded.path, ', '.join(map(str, directories)))
    episodes, info = read(dataset, specs)
    served = Served(epsilon, temperature)
    recorded = _recorded(episodes, info.get(LOG_PROBABILITY), specs, loaded, served)
    if CLUSTER in info:
        recorded = dataclasses.replace(recorded, clusters=info[CLUSTER][recorded.starts])
    if WEIGHT in info:
        recorded = dataclasses.replace(recorded, weights=info[WEIGHT][recorded.starts].astype(np.float64))
    if recorded.even is not None:
        words = metadata.vocabularies(directories).get('action')
        low, high = int(specs.action.minimum), int(specs.action.maximum)
        names = tuple(words or map(str, range(low, high + 1)))
        recorded = dataclasses.replace(recorded, action_names=names)
    shuffled = _shuffled(episodes, directories, specs, loaded, served, features, ope_options) if features else ()
    found = evaluation.evaluate(recorded, ope_options, _bounds(specs), shuffled)
    warnings = []
    if unknown := reader.with_unknown(dataset).get(reader.UNKNOWN):
        warnings.append(
            f'no estimate or interval is about {unknown.num_episodes} more episodes, whose rewards are unknown'
        )
    if was_trained_on(loaded, metadata.lineage(directories)):
        warnings.append(
            'the policy may have learned from these episodes, so it looks better than it is; see tflearn data split'
        )
    found = dataclasses.replace(found, policy=str(loaded.path), warnings=(*found.warnings, *warnings))
    facts = {
        'train_step': loaded.train_step,
        'epsilon': epsilon,
        'temperature': temperature,
        'data': [str(directory) for directory in directories],
        'options': dataclasses.asdict(ope_options),
    }
    return found, facts | found.json()


def evidence(directories: Sequence[pathlib.Path]) -> dict[str, Any]:
    """Returns what data sets state; raises ValueError if one of them can only train."""
    if weighed := metadata.weighed(directories):
        raise UserValueError(
            f'got {weighed[0]}, whose decisions are weighed by the delays of their outcomes, which is a guess; need '
            'data that were joined without --weigh_delays'
        )
    return metadata.stated(directories)


def check_policy(policy: LoadedPolicy, specs: EnvironmentSpecs, directories: Sequence[pathlib.Path]) -> None:
    """Raises ValueError if a policy is of another environment than the data, or numbers texts in another way."""
    words = metadata.vocabularies(directories)
    metadata.check_words(directories[0], words, policy.path, policy.metadata.get(versions.VOCABULARIES) or {})
    policy.check(specs)


def was_trained_on(policy: LoadedPolicy, used: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether a policy may have learned from an episode of data sets, see `metadata.lineage`."""
    return metadata.may_share_episodes(policy.metadata.get(metadata.TRAINED_ON) or [], used)


def reward_range(options: OpeOptions | GateOptions, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options `low`, `high` and `whole`; what is not given is as the data sets state, see `metadata`."""
    return {
        'low': stated.get('low') if options.low is None else options.low,
        'high': stated.get('high') if options.high is None else options.high,
        'whole': options.whole or stated.get('whole', False),
    }


def read(
    dataset: Dataset, specs: EnvironmentSpecs, with_unknown: bool = False, parts: Sequence[str] = ()
) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Returns the episodes, many of them joined, and what is logged of all their rows [S], by name.

    What a data set lacks is missing.

    Args:
      dataset: which episodes.
      specs: those of their environment.
      with_unknown: whether to add those with rewards that are not known, which are NaN.
      parts: columns of parts of the reward, which have to be there.

    Raises:
      ValueError: if there are no episodes, or the reward is no single number.
    """
    if tf.nest.is_nested(specs.reward) or specs.reward.shape.rank:
        raise UserValueError(f'got episodes with the reward {specs.reward}; need a single number')
    directories = find_directories(dataset)
    columns.have_weights(directories)  # all, or none
    logged = set.intersection(*(set(columns.read_columns(each)) for each in directories))
    by_name = {column.name.removeprefix('policy_info.'): column for column in logged}
    info = {
        name: tf.TensorSpec(by_name[name].shape, by_name[name].dtype)
        for name in (LOG_PROBABILITY, TIME, CLUSTER, WEIGHT, *parts)
        if name in by_name
    }
    if missing := set(parts) - set(info):
        known = ', '.join(sorted(each for each in by_name if each.startswith('part_'))) or 'none'
        raise UserValueError(f'got no {min(missing)} in the data; need one of the parts of the reward: {known}')
    readers = reader.with_unknown(dataset, columns.data_spec(specs, info))
    episodes = [episode for name, each in readers.items() if with_unknown or not name for episode in each.joined()]
    if not episodes:
        raise UserValueError('got no episodes that pass the filters; need at least two')
    found = {name: np.concatenate([episode.policy_info[name] for episode in episodes]) for name in info}
    if LOG_PROBABILITY in info:
        found[LOG_PROBABILITY] = found[LOG_PROBABILITY].astype(np.float64)
    return episodes, found


def joined(episodes: Sequence[Any]) -> tuple[Any, np.ndarray]:
    """Returns the rows of all episodes, a Trajectory [S] without policy info, and the number of rows of each, [E]."""
    without_info = [episode._replace(policy_info=()) for episode in episodes]
    rows = tf.nest.map_structure(lambda *leaves: np.concatenate(leaves), *without_info)
    starts = np.flatnonzero(rows.step_type == ts.StepType.FIRST)
    return rows, np.diff(starts, append=len(rows.reward))


def is_step(rows: Any) -> np.ndarray:
    """Returns whether an action was taken in each row and had its effect, [S]."""
    return np.asarray((rows.step_type != ts.StepType.LAST) & (rows.next_step_type != ts.StepType.FIRST))


@checked_dataclass(frozen=True)
class Served:
    """How the server makes policies act, see `extensions.serving.exploration.Exploration`.

    Attributes:
      epsilon: the share of actions that are drawn evenly, of those that are legal.
      temperature: divides the logits of a policy that draws.
    """

    epsilon: Fraction = 0.0
    temperature: PositiveFloat = 1.0


class PolicyProbabilities:
    """The probabilities of a policy as it is served.

    Attributes:
      num_choices: the number of choices of a single Discrete action; None for any other.
      edges: of a number, see `ActionProbabilities`.
    """

    def __init__(self, policy: LoadedPolicy, known: ActionProbabilities, even: ActionProbabilities):
        self._policy, self._known, self._even, self.num_choices = policy, known, even, known.num_choices
        self.edges = known.edges

    @property
    def has_memory(self) -> bool:
        """Whether they depend on earlier steps."""
        return bool(tf.nest.flatten(self._policy.initial_state(1)))

    @property
    def even(self) -> 'PolicyProbabilities':
        """Even chance among the actions that are legal."""
        return PolicyProbabilities(self._policy, self._even, self._even)

    def of_actions(self, rows: Any, lengths: np.ndarray) -> np.ndarray:
        """Returns the log-probabilities of the actions in all rows, [S]."""
        return _log_probability(self._known, self._policy, rows, lengths)

    def of_choices(self, rows: Any, index: np.ndarray, edges: np.ndarray | None) -> np.ndarray:
        """Returns the probabilities of all choices in rows, [len(index), A]; with memory these begin an episode.

        Of a number a choice is what is between two of `edges`.
        """
        steps = tf.nest.map_structure(lambda leaf: leaf[index], _time_steps(rows))
        return self._known.probabilities(steps, self._policy.initial_state(len(index)), edges)[0]


def probabilities(policy: LoadedPolicy, specs: EnvironmentSpecs, served: Served) -> PolicyProbabilities:
    """Returns the probabilities of a policy; raises ValueError as `ActionProbabilities`."""
    policy.check(specs)
    if any(name.endswith('previous_action') for name, _ in signatures.flat(policy.initial_state(1), 'state')):
        raise UserValueError(
            f'got the policy {policy.path}, whose memory takes the previous action; need one that takes observations '
            'alone: recorded actions are others than its own'
        )
    mask = chosen_policy.mask_of(policy, specs)
    known = ActionProbabilities(policy, specs, served.epsilon, mask, served.temperature)
    return PolicyProbabilities(policy, known, ActionProbabilities(None, specs, 1.0, mask))


def edges_of(*policies: PolicyProbabilities) -> np.ndarray | None:
    """Returns numbers between which the density of each policy is the same; None if one has no such edges."""
    edges = [each.edges for each in policies if each.edges is not None]
    return np.unique(np.concatenate(edges)) if len(edges) == len(policies) else None


def support(
    rows: Any,
    index: np.ndarray,
    candidate: PolicyProbabilities,
    incumbent: PolicyProbabilities,
    log: PolicyProbabilities,
) -> Support:
    """Returns the support of the rows `index`; see `PolicyProbabilities.of_choices`."""
    found, edges = [], edges_of(candidate, incumbent, log)
    for begin in range(0, len(index), _NUM_ROWS):  # there may be many actions
        block = index[begin : begin + _NUM_ROWS]
        by_policy = {each: each.of_choices(rows, block, edges) for each in {candidate, incumbent, log}}
        found.append(confidence_sequences.support(by_policy[candidate], by_policy[incumbent], by_policy[log]))
    fields = [field.name for field in dataclasses.fields(Support)]
    return Support(*(np.concatenate([getattr(each, name) for each in found]) for name in fields))


def _recorded(
    episodes: Sequence[Any],
    log_behaviour: np.ndarray | None,
    specs: EnvironmentSpecs,
    policy: LoadedPolicy,
    served: Served,
) -> RecordedSteps:
    """Returns the episodes' rows, and what the policy does in them."""
    rows, lengths = joined(episodes)
    acting, mask = chosen_policy.acting(policy, specs, served.epsilon, 0)
    log_target, choices, even, samples = None, None, None, np.zeros((0, len(rows.reward), 0))
    with contextlib.suppress(NoDensityError):
        known = ActionProbabilities(policy, specs, served.epsilon, mask, served.temperature)
        log_target = _log_probability(known, policy, rows, lengths)
        if known.num_choices:
            uniform = ActionProbabilities(None, specs, 1.0, mask)
            choices, even = (_of_choices(each, policy, rows, lengths) for each in (known, uniform))
    if choices is None:
        num_samples = _NUM_SAMPLES if policy.is_stochastic or served.epsilon else 1

        def draw(time_step: ts.TimeStep, _: Any, state: Any) -> tuple[np.ndarray, Any]:
            steps = [acting.action(time_step, state) for _ in range(num_samples)]
            return np.stack([_numbers(action) for action, _ in steps], axis=1), steps[0][1]

        samples = np.clip(_over_rows(policy, draw, rows, lengths).swapaxes(0, 1), *_bounds(specs))
    # As the environment does: an action beyond a bound has the effect of the bound.
    actions = np.clip(_numbers(rows.action), *_bounds(specs))
    if choices is not None:
        actions = actions - float(np.asarray(specs.action.minimum))
    return RecordedSteps(
        lengths,
        _observations(rows.observation),
        is_step(rows),
        rows.reward.astype(np.float64),
        rows.discount.astype(np.float64),
        actions,
        log_behaviour,
        log_target,
        choices,
        samples,
        even=even,
    )


def _shuffled(
    episodes: Sequence[Any],
    directories: Sequence[pathlib.Path],
    specs: EnvironmentSpecs,
    policy: LoadedPolicy,
    served: Served,
    by: By,
    options: OpeOptions,
) -> Iterator[tuple[str, np.ndarray]]:
    """Returns what the policy does without each feature; see `feature_importance.shuffled_policies`."""
    rows, lengths = joined(episodes)
    mask = chosen_policy.mask_of(policy, specs)
    known = ActionProbabilities(policy, specs, served.epsilon, mask, served.temperature)
    if not known.num_choices:
        raise UserValueError(
            f'got feature_importance for the action {specs.action}; need a single Discrete one; leave it out'
        )
    words = metadata.vocabularies(directories)

    def probabilities(observation: Any) -> np.ndarray:
        return _of_choices(known, policy, rows._replace(observation=observation), lengths)

    return feature_importance.shuffled_policies(
        rows.observation, is_step(rows), probabilities, mask, by, words, options.seed
    )


def _time_steps(rows: Any) -> ts.TimeStep:
    """Returns what the policy saw: the reward and the discount of a time step are those of the row before."""
    first = rows.step_type == ts.StepType.FIRST
    reward = np.where(first, 0, np.roll(rows.reward, 1)).astype(rows.reward.dtype)
    discount = np.where(first, 1, np.roll(rows.discount, 1)).astype(rows.discount.dtype)
    return ts.TimeStep(rows.step_type, reward, discount, rows.observation)


def _log_probability(known: ActionProbabilities, policy: LoadedPolicy, rows: Any, lengths: np.ndarray) -> np.ndarray:
    call = lambda time_step, action, state: known.log_probability(time_step, state, action)  # noqa: E731
    return _over_rows(policy, call, rows, lengths)


def _of_choices(known: ActionProbabilities, policy: LoadedPolicy, rows: Any, lengths: np.ndarray) -> np.ndarray:
    return _over_rows(policy, lambda step, _, state: known.probabilities(step, state), rows, lengths)


def _over_rows(policy: LoadedPolicy, call: _Call, rows: Any, lengths: np.ndarray) -> np.ndarray:
    """Returns what `call` returns for all rows [S, ...], in order; a policy with memory takes the episodes in time."""
    given = (_time_steps(rows), rows.action)
    at = lambda index: tf.nest.map_structure(lambda leaf: leaf[index], given)  # noqa: E731
    num_rows, starts = int(lengths.sum()), np.cumsum(lengths) - lengths
    if not tf.nest.flatten(policy.initial_state(1)):
        return np.concatenate([call(*at(slice(i, i + _NUM_ROWS)), ())[0] for i in range(0, num_rows, _NUM_ROWS)])
    result: np.ndarray | None = None
    for begin in range(0, len(lengths), _NUM_EPISODES):
        first, size = starts[begin : begin + _NUM_EPISODES], lengths[begin : begin + _NUM_EPISODES]
        state = policy.initial_state(len(first))
        for t in range(size.max()):
            index, inside = first + np.minimum(t, size - 1), t < size
            found, state = call(*at(index), state)
            result = np.zeros((num_rows, *found.shape[1:])) if result is None else result
            result[index[inside]] = found[inside]
    return np.asarray(result)


def _bounds(specs: EnvironmentSpecs) -> tuple[np.ndarray, np.ndarray]:
    """Returns the least and the greatest of each number of an action, float64 [number of numbers]."""
    broadcast = lambda name: lambda spec: np.broadcast_to(getattr(spec, name), (1, *spec.shape))  # noqa: E731
    low, high = (_numbers(tf.nest.map_structure(broadcast(name), specs.action))[0] for name in ('minimum', 'maximum'))
    return low, high


def _numbers(nest: Any) -> np.ndarray:
    """Returns all numbers of each row, float64 [S, number of numbers]."""
    leaves = tf.nest.flatten(nest)
    return np.concatenate([np.reshape(leaf, (len(leaf), -1)).astype(np.float64) for leaf in leaves], axis=1)


def _observations(observation: Any) -> np.ndarray:
    """Returns the numbers of the observations; without their values if no value is fitted to so many."""
    leaves = tf.nest.flatten(observation)
    size = sum(int(np.prod(leaf.shape[1:])) for leaf in leaves)
    return _numbers(observation) if size <= MAX_INPUTS else np.broadcast_to(0.0, (len(leaves[0]), size))
