"""The Learner on 1, 2 and 4 replicas with the same global batch: one result, for every agent.

Compared over 50 steps: the loss (TF-Agents' convention, the mean over the global batch), the extras, the global norm of
the gradients before and after clipping, and all parameters in the end. SAC and TD3 draw noise in their losses:
replicas draw differently, as they should, so here it is a function of the data.
"""

import dataclasses
import functools
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.agents.sac import tanh_normal_projection_network
from tf_agents.distributions import utils as distribution_utils
from tf_agents.networks import actor_distribution_network
from tf_agents.specs import distribution_spec, tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import common

from tests.agents import example_data
from tests.testing import experiences, lanes
from tests.testing.algorithms import ALGORITHMS, names
from tests.testing.learner import without_autotuning
from tflearn.agents import appo, bc, discrete_sac, mpo, ppo, reinforce, sac
from tflearn.core import strategies
from tflearn.core.experience import BatchItems
from tflearn.core.types import EnvironmentSpecs
from tflearn.files.run_dir import RunDir
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.train_loop import LoopOptions
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import optimizers
from tflearn.optimization.conservative import Conservative

NUM_STEPS = 50
BATCH_SIZE = 8
CLIPPING = 0.05  # clips nearly every gradient, each by another factor


class Recorder(optimizers.Optimizer):
    """Keeps the norms of the gradients, before and after clipping, summed over the steps: float32 [2]."""

    def __init__(self, *settings):
        super().__init__(*settings)
        self.norms = tf.Variable(
            tf.zeros(2), trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA, name='norms'
        )

    def clip(self, gradients, norm):
        clipped = super().clip(gradients, norm)
        self.norms.assign_add(tf.stack([norm, tf.linalg.global_norm(clipped)]))
        return clipped


class _Recording(optimizers.OptimizerOptions):
    """Makes recorders."""

    def make(self, *args, **kwargs):
        with mock.patch.object(optimizers, 'Optimizer', Recorder):
            return super().make(*args, **kwargs)


class _NoiseOfData(tfp.distributions.MultivariateNormalDiag):
    """Draws a function of its mean: the same for an item on every replica."""

    def sample(self, sample_shape=(), seed=None, name='sample'):
        return self.loc + self.stddev() * tf.sin(10.0 * tf.stop_gradient(self.loc))


class _Projection(tanh_normal_projection_network.TanhNormalProjectionNetwork):
    """The actor's projection, onto that distribution."""

    def _output_distribution_spec(self, sample_spec, network_name):
        spec = super()._output_distribution_spec(sample_spec, network_name)

        def build(*args, **kwargs):
            return distribution_utils.scale_distribution_to_spec(_NoiseOfData(*args, **kwargs), sample_spec)

        return distribution_spec.DistributionSpec(build, spec.input_params_spec, sample_spec=sample_spec)


class _Equal:
    """Draws the same numbers on every replica."""

    def restart(self):
        pass

    def uniform(self, shape):
        return tf.fill(shape, 0.3)

    def normal(self, shape):
        return tf.fill(shape, 0.7)


NESTED = EnvironmentSpecs(
    {
        'arm': (example_data.CONTINUOUS.observation, tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0)),
        'kinds': tensor_spec.BoundedTensorSpec((2,), tf.int64, 0, 2),
        'mask': tensor_spec.BoundedTensorSpec((2,), tf.int64, 0, 1),
    },
    example_data.DISCRETE.action,
)
# AWAC, discrete SAC and MPO draw nothing for discrete actions.
SPECS = {'nested ppo': NESTED, **dict.fromkeys(('iql', 'bc', 'ppo', 'v_mpo'), example_data.CONTINUOUS)}


def _normalized(spec, name):
    normalization = tf.keras.layers.BatchNormalization(momentum=0.9, synchronized=True)
    return tf.keras.Sequential([normalization, tf.keras.layers.Dense(16, 'tanh')], name)


def _normalized_by_keras_3(spec, name):
    layers = [keras.layers.BatchNormalization(momentum=0.9, synchronized=True), keras.layers.Dense(16, 'tanh')]
    return keras.Sequential([*layers, keras.layers.LayerNormalization()], name=name)


BOTH = {'network': NetworkOptions(fc_layer_params=(16,), critic_fc_layer_params=(16,))}
# More than an example has, or what has greater gradients.
SETTINGS = {
    **{name: {} for name in ('iql', 'awac', 'v_mpo', 'impala')},
    **dict.fromkeys(('td3', 'td3_bc', 'ddpg'), BOTH),
    'cql': {'conservative': Conservative(0.5, 2.0)},
    'discrete_sac': {'loss': discrete_sac.DiscreteSACLoss(reward_scale=10.0, initial_log_alpha=3.0)},
    'mpo': {'loss': mpo.MPOLoss(reward_scale=10.0, initial_eta=0.1)},
    'bc': {'loss': bc.BCLoss(weight='return_to_go', weight_temperature=0.5, entropy_coefficient=0.01)},
    'ppo': {
        'loss': ppo.PPOLoss(entropy_coefficient=0.01, kl_coefficient=0.1, value_clipping=0.5),
        'normalize_values': True,
    },
    'nested ppo': {'action_mask': 'mask'},
    'synchronized bc': {'network': NetworkOptions(make_network=_normalized)},
    'keras_3 bc': {'network': NetworkOptions(make_network=_normalized_by_keras_3)},
    'a2c': {'loss': ppo.PPOLoss(lambda_=1.0, clip_epsilon=None, normalize_advantages=False)},
    'reinforce': {
        'network': NetworkOptions(fc_layer_params=(16,), critic_fc_layer_params=(8,), lstm_size=(8,)),
        'loss': reinforce.ReinforceLoss(entropy_coefficient=0.01),
        'normalize_observations': True,
        'normalize_rewards': True,
    },
    'appo': {
        'surrogate': appo.SurrogateOptions(target_update_interval=3, kl_coefficient=0.1),
        'normalize_values': True,
    },
    'tqc': {**BOTH, 'num_critics': 3, 'loss': sac.SACLoss(reward_scale=10.0, initial_log_alpha=1.0)},
}


def _make(name, experience, **settings):
    """Makes an agent whose draws are the same on every replica, or a function of the data."""
    algorithm = ALGORITHMS[name.rpartition(' ')[2]]
    if name in SETTINGS:
        settings = {'network': NetworkOptions(fc_layer_params=(16,)), **SETTINGS[name], **settings}
    if name in ('sac', 'cql'):
        settings |= _networks_of_sac()
    if not algorithm.takes('optimizer'):
        del settings['optimizer']
    agent = algorithm.make(SPECS.get(name), experience, **settings)
    if name not in ('sac', *SETTINGS):
        agent._draws = _Equal()
    if name in ('td3', 'td3_bc', 'ddpg'):
        agent._noise = lambda actions: tf.sin(10.0 * actions)
    if name == 'cql':
        agent._draw_others = _others
    if name == 'tqc':
        agent._drawn = _mode
    return agent


def _networks_of_sac():
    specs = example_data.CONTINUOUS
    actor = actor_distribution_network.ActorDistributionNetwork(
        specs.observation, specs.action, fc_layer_params=(16,), continuous_projection_net=_Projection
    )
    return {'network': NetworkOptions(critic_fc_layer_params=(16,)), 'actor_network': actor}


def _others(batch):
    actions = tf.stack([tf.sin(k * batch.observation[:, :2]) for k in range(4)], axis=1)
    return actions, tf.reduce_sum(actions, axis=2)


def _mode(distribution):
    action = distribution.mode()
    return action, common.log_probability(distribution, action, example_data.CONTINUOUS.action)


CHANGED = {
    'bc': {'sequence_length': 3},
    'td3': {'sequence_length': 3},
    'a2c': {'training': None},
    'reinforce': {'sequence_length': 7, 'stride': 6},
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Of one run.

    Attributes:
      loss: mean over the steps.
      extra: means over the steps, by name.
      norms: of each optimizer, the sums over the steps of the norms before and after clipping.
      parameters: everything a checkpoint of the agent holds, in one order.
    """

    loss: float
    extra: dict[str, float]
    norms: list[np.ndarray]
    parameters: list[np.ndarray]


def _set_weights(agent):
    """Sets the initial weights by their indices: the same in every strategy."""
    for i, variable in enumerate(_variables(agent)):
        if variable.trainable and variable.shape.rank > 1:
            variable.assign(tf.random.stateless_uniform(variable.shape, (i, 7), -0.5, 0.5))


def _recorders(agent):
    return [view for view in tf.train.TrackableView(agent).descendants() if isinstance(view, Recorder)]


def _variables(agent):
    views = tf.train.TrackableView(agent).descendants()
    return [view for view in views if isinstance(view, tf.Variable)]


def _episodes(data):
    """An episode of one to five steps in each sequence, and padding."""
    size, length = data.step_type.shape
    steps = np.arange(size)[:, np.newaxis] % 5 + 1
    index = np.arange(length)[np.newaxis]
    step_type = np.select([index == 0, index < steps], [ts.StepType.FIRST, ts.StepType.MID], ts.StepType.LAST)
    next_step_type = np.select([index < steps - 1, index == steps - 1], [ts.StepType.MID, ts.StepType.LAST], 0)
    return data._replace(step_type=tf.constant(step_type), next_step_type=tf.constant(next_step_type))


def _dataset_fn(agent, length, context):
    """The global batch of step i, cut into the replicas' parts: they come from the pipeline one after the other."""
    replicas = context.num_replicas_in_sync
    size = BATCH_SIZE // replicas
    batches = [example_data.sequences(agent, BATCH_SIZE, length, seed) for seed in range(NUM_STEPS)]
    if isinstance(agent, reinforce.ReinforceAgent):
        batches = [_episodes(batch) for batch in batches]
    complete = tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *batches)
    dataset = tf.data.Dataset.from_tensor_slices(complete).batch(size, drop_remainder=True)
    return without_autotuning(dataset.repeat())


@functools.cache
def _run(name, replicas, directory):
    experience = experiences.changed(ALGORITHMS[name.rpartition(' ')[2]].experience, **CHANGED.get(name, {}))
    experience = dataclasses.replace(experience, batch=BatchItems(BATCH_SIZE // replicas))
    strategy = strategies.make('default' if replicas == 1 else f'mirrored:{replicas}')
    with strategy.scope():
        agent = _make(name, experience, optimizer=_Recording(gradient_clipping=CLIPPING))
        _set_weights(agent)
    dataset_fn = functools.partial(_dataset_fn, agent, experience.slicing.sequence_length)
    options = LearnerOptions(loop=LoopOptions(jit_compile=False))
    learner = Learner(agent, dataset_fn, RunDir(directory / f'{name}_{replicas}'), strategy=strategy, options=options)
    result = learner.run(NUM_STEPS)
    assert (result.num_steps, learner.step) == (NUM_STEPS, NUM_STEPS)
    parameters = [variable.numpy() for variable in _variables(agent)]
    # V-MPO's optimizer of temperature and multipliers does not clip.
    norms = [optimizer.norms.numpy() for optimizer in _recorders(agent) if optimizer._gradient_clipping is not None]
    return Outcome(result.loss, result.extra, norms, parameters)


SLOW = pytest.mark.slow
# The others' losses and updates are mostly those of one of these.
OF_KERAS_3 = pytest.param('keras_3 bc', marks=pytest.mark.skipif(not lanes.IS_CURRENT, reason='keras is Keras 2'))
NAMES = [*names('sac', 'ppo', 'linear_bandit'), 'synchronized bc', OF_KERAS_3, pytest.param('nested ppo', marks=SLOW)]


@pytest.fixture(scope='module')
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp('replicas')


@pytest.mark.parametrize('name', lanes.sample(NAMES, 'sac', 'keras_3 bc'))
@pytest.mark.parametrize('replicas', [2, pytest.param(4, marks=SLOW)])
def test_replicas_agree_with_one(directory, name, replicas):
    alone, together = _run(name, 1, directory), _run(name, replicas, directory)
    assert together.loss == pytest.approx(alone.loss, rel=1e-4)
    assert together.extra == pytest.approx(alone.extra, rel=1e-3, abs=1e-5)
    np.testing.assert_allclose(together.norms, alone.norms, rtol=1e-4)
    assert alone.norms or name in ('linear_bandit', 'thompson')
    for before, after in alone.norms:
        assert after <= CLIPPING * NUM_STEPS * 1.0001
        assert before > 2 * after, 'or nothing would be clipped'
    assert len(alone.parameters) == len(together.parameters) > 4
    for a, b in zip(alone.parameters, together.parameters, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-5)
