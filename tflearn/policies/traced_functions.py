"""The functions of an exported policy: for Python with plain nests,
for TensorFlow Serving with named tensors; see `signatures`.
"""

import functools
from collections.abc import Callable, Mapping
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
from tflearn.core.types import integer_bounds
from tflearn.policies.signatures import DEFAULT, INITIAL_STATE, NUMBERS, batched, flat, flat_dict, from_plain, to_plain


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
        time_step = ts.TimeStep(*map(from_plain, (step_type, reward, discount, observation), like))
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
        # Nobody has to know of those that say so, such as TF-Agents' greedy ones.
        level = logging.DEBUG if isinstance(error, NotImplementedError) else logging.INFO
        logging.log(level, 'the policy is exported without its distribution: %s', str(error).partition('\n')[0])
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
        time_step = ts.TimeStep(*map(from_plain, (step_type, reward, discount, observation), like))
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
