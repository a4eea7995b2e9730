"""The functions of an exported policy: for Python with plain nests,
for TensorFlow Serving with named tensors.

Plain nests are made of dicts, lists and tuples, and their leaves have flat names. A policy takes
and returns only these, so a program that loads it needs no class of tflearn or TF-Agents.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.distributions import utils as distributions
from tf_agents.policies import greedy_policy, q_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts

from tflearn.core.action_mask import mask_of
from tflearn.core.errors import UserValueError
from tflearn.core.types import integer_bounds


def to_plain(nest: Any) -> Any:
    """Turns named tuples and mappings into dicts; lists, tuples and leaves stay."""
    if hasattr(nest, '_fields'):
        return {name: to_plain(getattr(nest, name)) for name in nest._fields}
    if isinstance(nest, Mapping):
        return {name: to_plain(value) for name, value in nest.items()}
    if isinstance(nest, list | tuple):
        plain = [to_plain(value) for value in nest]
        return plain if isinstance(nest, list) else tuple(plain)
    return nest


def from_plain(plain: Any, like: Any) -> Any:
    """Returns the leaves of the plain nest `plain` in the structure of `like`:
    the inverse of `to_plain`.
    """
    if hasattr(like, '_fields'):
        return like._make(from_plain(plain[name], getattr(like, name)) for name in like._fields)
    if isinstance(like, Mapping):
        return {name: from_plain(plain[name], value) for name, value in like.items()}
    if isinstance(like, list | tuple):
        values = [from_plain(value, like_value) for value, like_value in zip(plain, like, strict=True)]
        return values if isinstance(like, list) else tuple(values)
    return plain


def batched(spec: Any, name: str) -> Any:
    """Returns `spec` as a plain nest of `tf.TensorSpec` with a leading unknown batch size,
    each named by its path.
    """
    plain = to_plain(spec)
    specs = [tf.TensorSpec([None, *leaf.shape], leaf.dtype, path) for path, leaf in flat(plain, name)]
    return tf.nest.pack_sequence_as(plain, specs)


def flat(plain: Any, name: str = '') -> Iterator[tuple[str, Any]]:
    """Yields (name, leaf) in the order of `tf.nest.flatten`.

    Names are the keys of the path joined with '_': 'observation' for a single leaf,
    'observation_position' and 'observation_velocity' for those of a dict, 'policy_state_0' for the
    first of a list. All are valid keywords of ASCII, as TensorFlow's signatures need them.
    """
    if isinstance(plain, Mapping):
        children = [(str(key), plain[key]) for key in sorted(plain)]
    elif isinstance(plain, list | tuple):
        children = [(str(index), value) for index, value in enumerate(plain)]
    else:
        yield name, plain
        return
    for key, value in children:
        key = re.sub(r'\W', '_', key, flags=re.ASCII)
        yield from flat(value, f'{name}_{key}' if name else key)


def flat_dict(plain: Any) -> dict[str, Any]:
    """Returns the leaves by their names. Raises ValueError if two leaves have the same name."""
    leaves = list(flat(plain))
    names = [name for name, _ in leaves]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserValueError(
            f'got several tensors named {", ".join(sorted(twice))}, after joining the keys of their nests with "_"; '
            'need names of their own; rename a key of the spec'
        )
    return dict(leaves)


def describe(spec: Any) -> Any:
    """Returns a spec as JSON: the plain nest, with shape,
    dtype and (if bounded) minimum and maximum at each leaf.
    """
    return tf.nest.map_structure(_describe_leaf, to_plain(spec))


def names_in_order(nest: Any, name: str) -> list[str]:
    """Returns the names of the leaves of a nest in the order in which `tf.nest.flatten` returns the leaves.

    It differs from the order in the plain nest for a named tuple whose fields are not in
    alphabetical order.
    """
    numbered = tf.nest.pack_sequence_as(nest, range(len(tf.nest.flatten(nest))))
    leaves = sorted((index, path) for path, index in flat(to_plain(numbered), name))
    return [path for _, path in leaves]


def _describe_leaf(spec: Any) -> dict[str, Any]:
    described: dict[str, Any] = {'shape': list(spec.shape), 'dtype': spec.dtype.name}
    for bound in ('minimum', 'maximum'):
        if hasattr(spec, bound):
            described[bound] = _bound(np.asarray(getattr(spec, bound)))
    return described


def _bound(bound: np.ndarray) -> Any:
    """Returns one number where all are the same; None for infinity, which JSON does not have."""
    if bound.size and np.all(bound == bound.flat[0]):
        bound = np.asarray(bound.flat[0])
    numbers = bound.astype(object)
    numbers[~np.isfinite(bound)] = None
    return numbers.tolist()


def completed(given: Mapping[str, np.ndarray], specs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns all inputs of a signature, in its order:
    those given [B, ...], else those of a step in an episode.
    """
    rows, fill = len(next(iter(given.values()))), {'step_type': ts.StepType.MID, 'discount': 1}
    missing = {name: spec for name, spec in specs.items() if name not in given}
    made = {
        name: np.full((rows, *spec.shape[1:]), fill.get(name, 0), spec.dtype.as_numpy_dtype)
        for name, spec in missing.items()
    }
    return {name: given[name] if name in given else made[name] for name in specs}


DEFAULT = 'serving_default'
INITIAL_STATE = 'get_initial_state'
# The parameter of a distribution of the user's own (`NetworkOptions.make_head`), which only the policy can evaluate.
NUMBERS = 'numbers'


def traced(policy: Any) -> tf.Module:
    """Returns a module with the functions of a TF-Agents policy,
    which use the policy's own variables.

    They are `action`, `get_initial_state`, and `distribution` and `q_values` if the policy has
    them; `log_probability` of actions if a distribution is one by `NUMBERS`. `action` takes the
    fields of a time step or, for TF-Agents, a TimeStep and the policy state; `action_of_fields`
    takes only the fields.
    """
    module = tf.Module(name='policy')
    module.action_of_fields = _on_time_steps(policy, lambda time_step, state: _action(policy, time_step, state))
    module.action = _action_of_either(policy, module.action_of_fields)
    module.get_initial_state = tf.function(
        lambda batch_size: to_plain(policy.get_initial_state(batch_size)),
        input_signature=[tf.TensorSpec((), tf.int32, 'batch_size')],
        autograph=False,
    )
    functions = [module.action_of_fields, module.get_initial_state]
    if distribution := _distribution_function(policy):
        module.distribution = distribution
        functions.append(distribution)
        parameters = distribution.get_concrete_function().structured_outputs['distribution']
        if any(name.endswith(f'_{NUMBERS}') for name, _ in flat(parameters, 'distribution')):
            module.log_probability = _log_probability_function(policy)
            functions.append(module.log_probability)
    if (valued := _valued(policy)) is not None:
        module.q_values = _on_time_steps(policy, lambda time_step, state: _q_values(valued, time_step, state))
        functions.append(module.q_values)
    concrete = [function.get_concrete_function() for function in functions]
    used = {variable.ref(): variable for function in concrete for variable in function.variables}
    module.model_variables = sorted(used.values(), key=lambda variable: variable.name)
    return module


def named(policy: Any, module: tf.Module) -> Mapping[str, Callable[..., Any]]:
    """Returns the functions of `traced` as functions of named tensors,
    by the names of their signatures.

    'serving_default' and 'q_values' take only observations (and the policy state, if there is one;
    and the reward, if the policy's memory takes it), the others the complete step.
    """
    like = policy.time_step_spec
    time_step = {name: batched(getattr(like, name), name) for name in like._fields}
    state = {'policy_state': batched(policy.policy_state_spec, 'policy_state')}

    def within_episodes(function: Callable[..., Any], observation: Any, policy_state: Any, reward: Any = None) -> Any:
        batch_size = tf.shape(tf.nest.flatten(observation)[0])[0]
        if reward is None:
            reward = tf.nest.map_structure(
                lambda spec: tf.zeros([batch_size, *spec.shape[1:]], spec.dtype), time_step['reward']
            )
        step_type = tf.fill([batch_size], ts.StepType.MID)
        step = function(step_type, reward, tf.ones([batch_size]), observation, policy_state)
        return {name: values for name, values in step.items() if name != 'info'}

    observed = {'observation': time_step['observation'], **state}
    if takes_reward(policy):
        observed['reward'] = time_step['reward']
    signatures = {
        DEFAULT: _flat_function(functools.partial(within_episodes, module.action_of_fields), observed),
        'action': _flat_function(module.action_of_fields, {**time_step, **state}),
    }
    if hasattr(module, 'distribution'):
        signatures['distribution'] = _flat_function(module.distribution, {**time_step, **state})
    if hasattr(module, 'q_values'):
        signatures['q_values'] = _flat_function(functools.partial(within_episodes, module.q_values), observed)
    if tf.nest.flatten(policy.policy_state_spec):
        signatures[INITIAL_STATE] = _flat_function(
            lambda batch_size: {'policy_state': module.get_initial_state(batch_size)},
            {'batch_size': tf.TensorSpec((), tf.int32, 'batch_size')},
        )
    return signatures


def takes_reward(policy: Any) -> bool:
    """Returns whether the reward of a time step matters for a policy's actions."""
    while policy is not None:
        if getattr(policy, 'takes_reward', False):
            return True
        policy = getattr(policy, 'wrapped_policy', None)
    return False


def _on_time_steps(policy: Any, function: Callable[[Any, Any], Any]) -> Any:
    """Returns `function` of a `TimeStep` and a policy state as a `tf.function` of plain nests."""
    like = policy.time_step_spec
    state_spec, mask = policy.policy_state_spec, mask_of(policy)
    specs = [batched(getattr(like, name), name) for name in like._fields]

    @tf.function(input_signature=[*specs, batched(state_spec, 'policy_state')], autograph=False)
    def compiled(step_type: Any, reward: Any, discount: Any, observation: Any, policy_state: Any = ()) -> Any:
        # With a seed that was set for training, every process that loads the policy would draw the
        # same numbers.
        tf.random.set_seed(None)
        _check_categories(observation, like.observation)
        plain = {'step_type': step_type, 'reward': reward, 'discount': discount, 'observation': observation}
        time_step = ts.TimeStep(**{name: from_plain(plain[name], getattr(like, name)) for name in plain})
        if mask is not None:
            mask.assert_possible(time_step)
        return to_plain(function(time_step, from_plain(policy_state, state_spec)))

    return compiled


def _check_categories(observation: Any, spec: Any) -> None:
    """Makes the program fail for integers out of their bounds.

    0 is always accepted, since loaders such as TF-Agents' run a policy once on zeros.
    """
    leaves = tf.nest.flatten(to_plain(spec))
    for (name, values), leaf in zip(flat(observation, 'observation'), leaves, strict=True):
        bounds = integer_bounds(leaf)
        if bounds is None:
            continue
        accepted = np.minimum(bounds[0], 0), np.maximum(bounds[1], 0)
        low, high = (tf.constant(bound, values.dtype) for bound in accepted)
        found = [f'got {name} from', tf.reduce_min(values), 'to', tf.reduce_max(values)]
        needed = f'need {np.asarray(leaf.minimum).tolist()} to {np.asarray(leaf.maximum).tolist()}'
        tf.debugging.Assert(tf.reduce_all((values >= low) & (values <= high)), [*found, needed])


def _action_of_either(policy: Any, of_fields: Callable[..., Any]) -> Any:
    """Returns a `tf.function` of the fields of a time step and the policy state,
    or of a TimeStep and the state.
    """

    @tf.function(autograph=False)
    def action(
        step_type: Any, reward: Any = (), discount: Any = (), observation: Any = (), policy_state: Any = ()
    ) -> Any:
        if not isinstance(step_type, ts.TimeStep):
            return of_fields(step_type, reward, discount, observation, policy_state)
        time_step, state = step_type, reward
        step = of_fields(*(to_plain(field) for field in time_step), state)
        specs = {'action': policy.action_spec, 'info': policy.info_spec}
        nests = {name: from_plain(step[name], spec) for name, spec in specs.items()}
        return policy_step.PolicyStep(nests['action'], step['policy_state'], nests['info'])

    like = policy.time_step_spec
    state = batched(policy.policy_state_spec, 'policy_state')
    action.get_concrete_function(*(batched(getattr(like, name), name) for name in like._fields), state)
    rows = tensor_spec.add_outer_dim(tensor_spec.from_spec(like))
    time_step = tf.nest.map_structure(lambda spec: tf.TensorSpec(spec.shape, spec.dtype, spec.name), rows)
    action.get_concrete_function(time_step, state)
    return action


def _action(policy: Any, time_step: ts.TimeStep, state: Any) -> dict[str, Any]:
    step = policy.action(time_step, state)
    return {'action': step.action, 'policy_state': step.state, 'info': step.info}


def _distribution(policy: Any, time_step: ts.TimeStep, state: Any) -> dict[str, Any]:
    """Returns the parameters of the action's distribution that depend on the row,
    and the policy state.
    """
    step = policy.distribution(time_step, state)
    parameters = tf.nest.map_structure(
        lambda leaf: distributions.parameters_to_dict(distributions.get_parameters(leaf), tensors_only=True),
        step.action,
    )
    return {'distribution': _rows(to_plain(parameters)) or {}, 'policy_state': step.state}


def _valued(policy: Any) -> Any:
    """Returns the policy whose distribution's logits are the values of which `policy` takes the greatest, if any."""
    while isinstance(policy, greedy_policy.GreedyPolicy):
        policy = policy.wrapped_policy
    inner = policy
    while hasattr(inner, 'with_wrapped'):  # one that converts observations or actions
        inner = inner.wrapped_policy
    return policy if isinstance(inner, q_policy.QPolicy) else None


def _q_values(policy: Any, time_step: ts.TimeStep, state: Any) -> dict[str, Any]:
    """Returns the values of all actions, of an illegal one the lowest number,
    and the policy state.
    """
    step = policy.distribution(time_step, state)
    (distribution,) = tf.nest.flatten(step.action)
    return {'q_values': distribution.logits, 'policy_state': step.state}


def _rows(nest: Any) -> Any:
    """Returns `nest` with only the tensors that have a leading batch dimension;
    None if there are none.
    """
    if isinstance(nest, Mapping):
        kept = {name: rows for name, value in nest.items() if (rows := _rows(value)) is not None}
        return kept or None
    if isinstance(nest, list | tuple):
        return _rows({str(index): value for index, value in enumerate(nest)})
    return nest if isinstance(nest, tf.Tensor) and nest.shape.rank and nest.shape[0] is None else None


def _distribution_function(policy: Any) -> Any:
    function = _on_time_steps(policy, lambda time_step, state: _distribution(policy, time_step, state))
    try:
        outputs = function.get_concrete_function().structured_outputs
    except Exception as error:  # Many policies have none, and raise various errors; the export does not need it.
        logging.info('the policy is exported without its distribution: %s', str(error).partition('\n')[0])
        return None
    return function if tf.nest.flatten(outputs['distribution']) else None


def _log_probability_function(policy: Any) -> Callable[..., Any]:
    """Returns a function of a step, the policy state before it, and an action:
    the log-probability of each tensor of the action, [B].
    """
    like, state_spec, action_spec = policy.time_step_spec, policy.policy_state_spec, policy.action_spec
    specs = {name: batched(getattr(like, name), name) for name in like._fields}
    signature = [*specs.values(), batched(state_spec, 'policy_state'), batched(action_spec, 'action')]

    @tf.function(input_signature=signature, autograph=False)
    def log_probability(
        step_type: Any, reward: Any, discount: Any, observation: Any, policy_state: Any, action: Any
    ) -> list[tf.Tensor]:
        plain = {'step_type': step_type, 'reward': reward, 'discount': discount, 'observation': observation}
        time_step = ts.TimeStep(**{name: from_plain(plain[name], getattr(like, name)) for name in plain})
        step = policy.distribution(time_step, from_plain(policy_state, state_spec))
        leaves = zip(tf.nest.flatten(step.action), tf.nest.flatten(action), strict=True)
        found = [leaf.log_prob(value) for leaf, value in leaves]
        return [tf.reduce_sum(each, axis=range(1, each.shape.rank)) for each in found]

    return log_probability


def _flat_function(function: Callable[..., Any], specs: dict[str, Any]) -> Callable[..., Any]:
    """Returns `function`, which takes nests of `specs` and returns a dict of nests,
    as a function of named tensors.
    """

    @tf.function(input_signature=list(flat_dict(specs).values()), autograph=False)
    def flat_function(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        return flat_dict(function(**tf.nest.pack_sequence_as(specs, tensors)))

    return flat_function
