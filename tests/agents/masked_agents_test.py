"""Every agent that takes a mask never chooses, counts or bootstraps from an illegal action."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data
from tests.testing.algorithms import ALGORITHMS, names
from tflearn.actors import exploration
from tflearn.actors.actor import Actor
from tflearn.actors.exploration import EpsilonPolicy
from tflearn.core.action_mask import mask_of
from tflearn.core.types import EnvironmentSpecs

# TF-Agents' CategoricalProjectionNetwork makes an array of one element a number.
pytestmark = pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')


def bounded(shape, dtype, low, high):
    return tensor_spec.BoundedTensorSpec(shape, dtype, low, high, 'leaf')


STATE = bounded((3,), tf.float32, -1.0, 1.0)
ONE = EnvironmentSpecs({'mask': bounded((4,), tf.int64, 0, 1), 'state': STATE}, bounded((), tf.int64, 0, 3))
TWO = EnvironmentSpecs({'mask': bounded((5,), tf.int64, 0, 1), 'state': STATE}, bounded((2,), tf.int64, [0, 0], [1, 2]))
NAMES = names('dqn', 'r2d2', 'bc', 'ppo', 'impala', 'reinforce', argument='action_mask', action='discrete')
SEVERAL = names(action='multi-discrete')
# So that all actions are drawn.
EXPLORING = {'dqn': {'epsilon': 0.5}, 'r2d2': {'epsilon': 0.5}}


def make_agent(name, specs=ONE, **changes):
    return ALGORITHMS[name].make(specs, action_mask='mask', **EXPLORING.get(name, {}), **changes)


def time_steps(masks):
    states = tf.random.stateless_uniform((len(masks), 3), (1, 2))
    return ts.restart({'mask': tf.constant(masks, tf.int64), 'state': states}, len(masks))


def actions_of(policy, masks):
    return policy.action(time_steps(masks), policy.get_initial_state(len(masks))).action.numpy()


@pytest.mark.parametrize('name', NAMES)
def test_actions_are_legal(name):
    agent = make_agent(name)
    assert mask_of(agent.policy).path == mask_of(agent.collect_policy).path == 'mask'
    masks = np.random.default_rng(1).integers(0, 2, (500, 4))
    masks[np.arange(500), np.arange(500) % 4] = 1
    for policy in (agent.policy, agent.collect_policy):
        chosen = actions_of(policy, masks)
        assert masks[np.arange(500), chosen].all()
    assert len(np.unique(actions_of(agent.collect_policy, masks))) == 4


@pytest.mark.parametrize('name', SEVERAL)
def test_several_actions_are_legal(name):
    agent = make_agent(name, TWO)
    masks = np.random.default_rng(1).integers(0, 2, (500, 5))
    masks[np.arange(500), np.arange(500) % 2] = masks[np.arange(500), 2 + np.arange(500) % 3] = 1
    for policy in (agent.policy, agent.collect_policy):
        chosen = actions_of(policy, masks)
        assert masks[np.arange(500), chosen[:, 0]].all() and masks[np.arange(500), 2 + chosen[:, 1]].all()


@pytest.mark.parametrize('name', SEVERAL)
def test_entropy_and_probabilities_are_of_legal_actions(name):
    agent = make_agent(name)
    policy = agent.collect_policy
    steps = time_steps([[0, 1, 0, 0], [1, 0, 0, 1], [1, 1, 1, 1]])
    distribution = policy.distribution(steps, policy.get_initial_state(3)).action
    probabilities = distribution.probs_parameter().numpy()
    assert (probabilities[:2] > 0).tolist() == [[False, True, False, False], [True, False, False, True]]
    assert distribution.entropy().numpy() == pytest.approx(
        -np.nansum(probabilities * np.log(probabilities + 1e-30), axis=1), abs=1e-4
    )
    assert distribution.log_prob([1, 0, 0])[0].numpy() == 0


@pytest.mark.parametrize('name', NAMES)
def test_training_is_finite_and_ignores_illegal_logits(name):
    """Padding has a mask of zeros; a step with one legal action has no policy gradient."""
    agent = make_agent(name)
    data = example_data.sequences(agent, 8, ALGORITHMS[name].length)
    mask = np.zeros(data.observation['mask'].shape)
    mask[:4, :, 1] = 1
    if name == 'r2d2':
        state = tf.nest.map_structure(
            lambda leaf: tf.zeros((8, ALGORITHMS[name].length, *leaf.shape)), agent.collect_policy.policy_state_spec
        )
        data = data._replace(policy_info={'policy_state': state})
    data = data._replace(
        observation=data.observation | {'mask': tf.constant(mask, tf.int64)}, action=tf.ones_like(data.action)
    )
    assert np.isfinite(agent.train(data).loss)
    assert all(np.isfinite(variable).all() for variable in agent.policy.variables())


@pytest.mark.parametrize('double', [True, False])
def test_targets_are_of_legal_actions(double):
    agent = make_agent('dqn', double=double)
    steps = time_steps([[0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]])
    values, _ = agent._target_q_network({'state': steps.observation['state']})
    targets = agent._compute_next_q_values(steps, ()).numpy()
    assert targets[0] == values[0, 1]
    assert targets[1] == max(values[1, 2:])
    assert targets[2] == max(values[2]), 'after an end, in which nothing is legal, the value is one of the others'


def test_random_actions_are_legal():
    masks = [[0, 1, 0, 0], [1, 0, 0, 1]] * 100
    for policy in (
        exploration.uniform(make_agent('dqn').collect_policy),
        exploration.with_epsilons(make_agent('dqn').collect_policy, np.ones(200, np.float32)),
        exploration.uniform(make_agent('reinforce').collect_policy),
    ):
        drawn = actions_of(policy, masks)
        assert set(drawn[::2]) == {1} and set(drawn[1::2]) == {0, 3}
    with pytest.raises(ValueError, match='got random actions for a mask of the action .*; need one Discrete'):
        exploration.uniform(make_agent('reinforce', TWO).collect_policy)


class Zeros:
    def initial_state(self, batch_size):
        return ()

    def action(self, time_step, policy_state):
        return np.zeros(len(time_step.step_type), np.int64), policy_state


def test_evaluations_with_epsilon_draw_legal_actions():
    mask = mask_of(make_agent('dqn').policy)
    policy = EpsilonPolicy(Zeros(), 0.5, ONE.action, seed=1, action_mask=mask)
    steps = tf.nest.map_structure(lambda leaf: np.asarray(leaf), time_steps([[1, 0, 1, 0]] * 400))
    actions, _ = policy.action(steps, ())
    assert set(actions) == {0, 2} and 60 < np.count_nonzero(actions) < 140
    stuck = tf.nest.map_structure(lambda leaf: np.asarray(leaf), time_steps([[1, 0, 0, 0], [0, 0, 0, 0]]))
    with pytest.raises(ValueError, match="got no legal action in 'mask' of environment 1 in step 1; need"):
        policy.action(stuck, ())


class Stuck:
    """Two environments; in step 3 nothing is legal in the second."""

    num_environments, specs, info, num_rebuilt = 2, ONE, {}, 0

    def reset(self):
        self._steps = 0
        return self._time_step()

    def step(self, action):
        self._steps += 1
        return self._time_step()

    def _time_step(self):
        mask = np.ones((2, 4), np.int64)
        mask[1] = self._steps != 3
        observation = {'mask': mask, 'state': np.zeros((2, 3), np.float32)}
        step_type = np.full(2, min(self._steps, 1), np.int32)
        return ts.TimeStep(step_type, np.zeros(2, np.float32), np.ones(2, np.float32), observation)


def test_an_actor_refuses_a_step_in_which_nothing_is_legal():
    actor = Actor(Stuck(), make_agent('dqn').collect_policy)
    actor.run(3)
    with pytest.raises(ValueError, match="got no legal action in 'mask' of environment 1 in step 3; need"):
        actor.run(1)
