"""100 train steps of SAC, TD3 and PPO equal those of Stable-Baselines3.

`python -m benchmarks.train_steps_peers` writes the file with the peer's numbers and versions, and
says which of the peer's settings are not its defaults.
"""

import dataclasses
import functools
import itertools
import json
import math
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tests.agents import example_data
from tflearn.agents import ppo, sac, td3
from tflearn.core.train_step import create_train_step
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions

THEIRS = dict(np.load(pathlib.Path(__file__).with_name('peer_steps.npz')))
SETTINGS = json.loads(str(THEIRS['about']))['settings']
STEPS = 100
ADAM_EPSILON = {'sac': 1e-8, 'td3': 1e-8, 'ppo': 1e-5, 'ppo_continuous': 1e-5}
ROWS = 48  # of a sequence with its padding
MID, LAST, FIRST = (int(kind) for kind in (ts.StepType.MID, ts.StepType.LAST, ts.StepType.FIRST))


class Part:
    """What one optimizer trains: weights, and Adam's moments, as vectors in the peer's order.

    Attributes:
      indices: of each variable's elements, their positions in that vector.
    """

    def __init__(self, optimizer, variables, indices=None):
        self.variables, self.keras = variables, optimizer.keras
        self.indices = indices or _positions([variable.shape for variable in variables])
        self.keras.build(variables)

    def load(self, state):
        """Sets the weights and the optimizer to the peer's."""
        self.set(self.variables, state.weights)
        self.set(self.keras._momentums, state.first)
        self.set(self.keras._velocities, state.second)
        self.keras.iterations.assign(state.count)

    def set(self, variables, vector):
        for variable, index in zip(variables, self.indices, strict=True):
            variable.assign(vector[index])

    def read(self, variables):
        vector = np.zeros(sum(index.size for index in self.indices))
        for variable, index in zip(variables, self.indices, strict=True):
            vector[index] = variable.numpy()
        return vector

    @property
    def weights(self):
        return self.read(self.variables)

    @property
    def first_moments(self):
        return self.read(self.keras._momentums)


def _positions(shapes):
    """Returns where elements of tensors are in the vector that has one tensor after the other."""
    sizes = [math.prod(shape) for shape in shapes]
    parts = zip(itertools.accumulate(sizes), sizes, shapes, strict=True)
    return [np.arange(end - size, end).reshape(shape) for end, size, shape in parts]


@dataclasses.dataclass
class State:
    """The peer's weights and Adam's moments of a part, replayed in float64 from its gradients.

    Attributes:
      factor: of our loss, where the peer's is 1; the moments are of our gradients.
    """

    weights: np.ndarray
    epsilon: float
    factor: float
    count: int = 0

    def __post_init__(self):
        self.first, self.second = np.zeros_like(self.weights), np.zeros_like(self.weights)

    def step(self, gradient):
        """Takes the peer's step, and returns the weights that Keras' Adam has after it.

        Torch adds epsilon to the corrected root, as algorithm 1 of Kingma and Ba 2014 (arXiv
        1412.6980) does; Keras to the root before its correction, as "epsilon hat" of section 2.
        """
        self.count += 1
        self.first = 0.9 * self.first + 0.1 * self.factor * gradient
        self.second = 0.999 * self.second + 0.001 * (self.factor * gradient) ** 2
        correction, root = np.sqrt(1 - 0.999**self.count), np.sqrt(self.second)
        change = SETTINGS['learning_rate'] * correction / (1 - 0.9**self.count) * self.first
        ours = self.weights - change / (root + self.epsilon)
        self.weights = self.weights - change / (root + self.factor * correction * self.epsilon)
        return ours


class Recorded:
    """In place of `Draws`: the noise of the peer's step, in our order."""

    def __init__(self, noise):
        self._noise = [tf.Variable(each) for each in noise]

    def restart(self):
        self._left = iter(self._noise)

    def normal(self, shape):
        del shape
        return next(self._left).read_value()

    def set(self, *noise):
        for variable, each in zip(self._noise, noise, strict=True):
            variable.assign(each)


@dataclasses.dataclass
class Model:
    """Our agent, and what the peer's train steps had.

    Attributes:
      name: the peer's run in the file.
      agent: ours.
      parts: by their names, of what the peer's optimizers train.
      given: returns the arguments of the agent's `train` in a step.
      targets: of parts that have targets, these variables.
      delay: train steps from one step of the actor, and of targets, to the next one.
      factors: our losses' size, where the peer's are 1.
    """

    name: str
    agent: object
    parts: dict
    given: object
    targets: dict = dataclasses.field(default_factory=dict)
    delay: int = 1
    factors: dict = dataclasses.field(default_factory=dict)

    def theirs(self, key):
        return THEIRS[f'{self.name}/{key}'].astype(np.float64)

    def factor(self, part):
        return self.factors.get(part, 1.0)

    def due(self, step):
        """Returns the parts that are trained in a step."""
        is_late = (step + 1) % self.delay > 0
        return [part for part in self.parts if not (part == 'actor' and is_late)]

    def loss(self, info, part):
        return float(info.extra.get(f'{part}_loss', info.loss)) / self.factor(part)


def _optimizer(name):
    return OptimizerOptions(
        SETTINGS['learning_rate'],
        gradient_clipping=SETTINGS['gradient_clipping'] if name.startswith('ppo') else None,
        arguments={'epsilon': ADAM_EPSILON[name]},
    )


def _critics(agent):
    """Returns the critics, and the targets' variables.

    There, one critic's layers come after the other's; here a variable has a layer of both, and a
    layer's bias is before its kernel.
    """
    kernels_first = [1, 0, 3, 2, 5, 4]
    networks = agent._critics, agent._target_critics
    variables, targets = ([each.variables[i] for i in kernels_first] for each in networks)
    single = _positions([variable.shape[1:] for variable in variables] * 2)
    both = [np.stack(pair) for pair in zip(single[:6], single[6:], strict=True)]
    return Part(agent._optimizers['critic'], variables, both), targets


def _transitions(agent, noise):
    """Returns what makes the trajectories of a step; gives the agent the noise of these names."""
    data = {
        name.removeprefix('data/'): values.astype(np.float32)
        for name, values in THEIRS.items()
        if name.startswith('data/')
    }
    agent._draws = Recorded([data[each][0] for each in noise])

    def given(step):
        batch = {name: values[step] for name, values in data.items()}
        agent._draws.set(*(batch[each] for each in noise))
        last = np.where(batch['done'], LAST, MID).astype(np.int32)
        following = np.where(batch['done'], FIRST, MID).astype(np.int32)
        pair = lambda now, then: tf.stack([now, then], axis=1)  # noqa: E731
        return (
            trajectory.Trajectory(
                step_type=pair(np.full_like(last, MID), last),
                observation=pair(batch['observation'], batch['next_observation']),
                action=pair(batch['action'], batch['action']),
                policy_info=(),
                next_step_type=pair(last, following),
                reward=pair(batch['reward'], np.zeros_like(batch['reward'])),
                discount=pair(1 - batch['done'], np.ones_like(batch['done'])),
            ),
        )

    return given


def _actor_critic(name, module, loss):
    return module.make_agent(
        example_data.CONTINUOUS,
        create_train_step(),
        module.EXPERIENCE,
        network=NetworkOptions(tuple(SETTINGS['units'])),
        optimizer=_optimizer(name),
        loss=loss(gamma=SETTINGS['gamma']),
        target_update_tau=SETTINGS['tau'],
    )


def _sac():
    agent = _actor_critic('sac', sac, sac.SACLoss)
    actor = list(agent._actor.trainable_variables)
    # There, means and deviations are two layers.
    *hidden, means, mean_biases, deviations, biases = _positions(
        [*(variable.shape for variable in actor[:-2]), *(2 * [(actor[-2].shape[0], 2), (2,)])]
    )
    heads = [np.concatenate([means, deviations], axis=1), np.concatenate([mean_biases, biases])]
    critics, targets = _critics(agent)
    parts = {
        'critic': critics,
        'actor': Part(agent._optimizers['actor'], actor, [*hidden, *heads]),
        'alpha': Part(agent._optimizers['alpha'], [agent._log_alpha]),
    }
    given = _transitions(agent, ('next_noise', 'noise'))
    return Model('sac', agent, parts, given, {'critic': targets}, factors={'critic': 2.0})


def _td3():
    agent = _actor_critic('td3', td3, td3.TD3Loss)
    critics, targets = _critics(agent)
    parts = {
        'critic': critics,
        'actor': Part(agent._optimizers['actor'], list(agent._actor.trainable_variables)),
    }
    targets = {'critic': targets, 'actor': list(agent._target_actor.trainable_variables)}
    return Model('td3', agent, parts, _transitions(agent, ('next_noise',)), targets, delay=2)


def _ppo(name):
    discrete = dataclasses.replace(
        example_data.DISCRETE, action=tensor_spec.BoundedTensorSpec((), tf.int64, 0, 2, 'action')
    )
    agent = ppo.make_agent(
        discrete if name == 'ppo' else example_data.CONTINUOUS,
        create_train_step(),
        ppo.EXPERIENCE,
        network=NetworkOptions(tuple(SETTINGS['units'])),
        optimizer=_optimizer(name),
        loss=ppo.PPOLoss(
            gamma=SETTINGS['gamma'],
            lambda_=SETTINGS['lambda'],
            clip_epsilon=SETTINGS['clip'],
            entropy_coefficient=SETTINGS['entropy_coefficient'],
            normalize_advantages=False,
        ),
        normalize_observations=False,
        normalize_rewards=False,
    )
    variables = list(agent._network.trainable_variables)
    if name == 'ppo_continuous':  # there, the deviations come first
        variables.insert(0, variables.pop(-3))
    part = Part(agent._optimizer, variables)
    return Model(name, agent, {'ppo': part}, Minibatches(agent, name))


class Minibatches:
    """The peer's minibatches, of sequences that the agent prepares when an iteration begins.

    Attributes:
      prepared: the samples of the iteration's steps.
    """

    def __init__(self, agent, name):
        self._agent, self._prepare = agent, tf.function(agent.prepare, autograph=False)
        self._theirs = {key: THEIRS[f'{name}/{key}'] for key in ('action', 'steps', 'indices')}

    def __call__(self, step):
        iteration, first = divmod(step, STEPS // len(self._theirs['action']))
        if not first:
            self.prepared = self._prepared(iteration)
        chosen = self._theirs['indices'][step].astype(np.int32)
        samples = tf.nest.map_structure(lambda leaf: tf.gather(leaf, chosen), self.prepared)
        return samples, tf.ones(len(chosen))

    def _prepared(self, iteration):
        """Returns the samples, those of one environment after those of the other."""
        actions, length = self._theirs['action'][iteration], SETTINGS['sequence']
        steps = self._theirs['steps'][:, iteration * length : (iteration + 1) * length]
        sequences = [_rows(*each) for each in zip(steps, actions, strict=True)]
        columns = [np.stack(column) for column in zip(*sequences, strict=True)]
        kinds, observations, taken, rewards, discounts, following = columns
        spec, outer = self._agent.action_spec, rewards.shape
        taken = taken.reshape(*outer, *spec.shape).astype(spec.dtype.as_numpy_dtype)

        step = ts.TimeStep(kinds, rewards, discounts, observations)
        flat = tf.nest.map_structure(lambda leaf: tf.reshape(leaf, [-1, *leaf.shape[2:]]), step)
        acted = self._agent.collect_policy.action(flat).info
        info = tf.nest.map_structure(lambda leaf: tf.reshape(leaf, outer + leaf.shape[1:]), acted)
        columns = (kinds, observations, taken, info, following, rewards, discounts)
        experience = trajectory.Trajectory(*tf.nest.map_structure(tf.constant, columns))
        samples, counts = self._prepare(experience)
        return tf.nest.map_structure(lambda leaf: leaf[counts > 0], samples)


def _rows(steps, actions):
    """Returns a sequence's columns; the row after an episode and those at the end are no steps."""
    rows, kind = [], MID
    for step, action in zip(steps, actions, strict=True):
        *observation, reward, terminated, truncated, x, y, z = step
        ends = bool(terminated or truncated)
        rows.append((kind, observation, action, reward, 1 - terminated, LAST if ends else MID))
        if ends:
            rows.append((LAST, [x, y, z], action, 0.0, 1.0, FIRST))
        kind = FIRST if ends else MID
    rows += [(MID, [x, y, z], action, 0.0, 1.0, FIRST)] * (ROWS - len(rows))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return [each.astype(np.int32 if each.dtype.kind == 'i' else np.float32) for each in columns]


MODELS = {
    'sac': _sac,
    'td3': _td3,
    'ppo': functools.partial(_ppo, 'ppo'),
    'ppo_continuous': functools.partial(_ppo, 'ppo_continuous'),
}


@functools.cache
def _model(name):
    """Returns the agent and its traced train step, for all tests of this process."""
    model = MODELS[name]()
    return model, tf.function(model.agent.train, autograph=False)


class Peer:
    """The peer's state before each step, and its gradients."""

    def __init__(self, model):
        self._model = model
        epsilon = ADAM_EPSILON[model.name]
        before = {part: model.theirs(f'before/{part}') for part in model.parts}
        self.states = {part: State(before[part], epsilon, model.factor(part)) for part in before}
        self.targets = {part: before[part] for part in model.targets}
        self.gradients = {part: iter(model.theirs(f'gradient/{part}')) for part in model.parts}

    def load(self, step):
        """Gives the agent this state."""
        self._model.agent.train_step_counter.assign(step)
        for name, part in self._model.parts.items():
            part.load(self.states[name])
        for name, variables in self._model.targets.items():
            self._model.parts[name].set(variables, self.targets[name])

    def follow(self):
        """Moves the targets."""
        for part, target in self.targets.items():
            self.targets[part] = target + SETTINGS['tau'] * (self.states[part].weights - target)


def _distance(ours, theirs):
    return np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)


@pytest.mark.parametrize('name', MODELS)
def test_each_step_from_the_peers_state_is_the_peers(name):
    """Losses and gradients, and targets; and weights, with Adam's epsilon where Keras has it."""
    model, train = _model(name)
    peer, losses = Peer(model), model.theirs('losses')
    for step in range(STEPS):
        peer.load(step)
        info = train(*model.given(step))
        for i, part in enumerate(model.due(step)):
            state, own, gradient = peer.states[part], model.parts[part], next(peer.gradients[part])
            found = (own.first_moments - 0.9 * state.first) / 0.1 / state.factor
            assert model.loss(info, part) == pytest.approx(losses[step, i], rel=1e-4), (step, part)
            assert _distance(found, gradient) < 1e-4, (step, part)
            before, expected = state.weights, state.step(gradient)
            assert _distance(own.weights - before, expected - before) < 2e-4, (step, part)
        if (step + 1) % model.delay == 0:
            for part, variables in model.targets.items():
                own, before = model.parts[part], peer.targets[part]
                expected = before + SETTINGS['tau'] * (own.weights - before)
                assert _distance(own.read(variables), expected) < 1e-6, (step, part)
            peer.follow()
    for part, state in peer.states.items():  # so these were its states
        assert _distance(state.weights, model.theirs(f'after/{part}')) < 1e-6


@pytest.mark.parametrize('name', MODELS)
def test_steps_of_its_own_stay_near_the_peers(name):
    model, train = _model(name)
    Peer(model).load(0)
    losses = model.theirs('losses')
    for step in range(STEPS):
        info = train(*model.given(step))
        for i, part in enumerate(model.due(step)):
            assert model.loss(info, part) == pytest.approx(losses[step, i], rel=1e-2), (step, part)
    for part, own in model.parts.items():
        assert _distance(own.weights, model.theirs(f'after/{part}')) < 1e-2


@pytest.mark.parametrize('name', ['ppo', 'ppo_continuous'])
def test_prepared_steps_are_the_peers(name):
    """Log-probabilities, and advantages with terminated and truncated episodes."""
    model, _ = _model(name)
    Peer(model).load(0)
    model.given(0)
    found = model.given.prepared
    for key in ('log_prob', 'advantage', 'target'):
        theirs = model.theirs(key)[0].ravel()
        np.testing.assert_allclose(getattr(found, key), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', MODELS)
def test_actions_of_an_evaluation_are_the_peers(name):
    """With the peer's last weights."""
    model, _ = _model(name)
    for part, own in model.parts.items():
        own.set(own.variables, model.theirs(f'after/{part}'))
    observation = tf.constant(THEIRS['data/observation'][-1].astype(np.float32))
    found = model.agent.policy.action(ts.restart(observation, len(observation))).action
    np.testing.assert_allclose(found, model.theirs('greedy'), rtol=1e-4, atol=1e-6)
