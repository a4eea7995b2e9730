"""Discrete spaces that do not start at 0: all that trains, exports, serves, records and evaluates counts as they do."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

import tflearn
from tests.environments import example_environments
from tests.testing import foreign_agents, lanes
from tflearn.agents import bc, discrete_sac, dqn, linear_bandit, r2d2
from tflearn.agents.rescaled_actions import ActionRescaling
from tflearn.core.train_step import create_train_step
from tflearn.core.types import zeros
from tflearn.data import columns
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.environments import vector_env
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.record import Quota, record
from tflearn.jobs.run import Run
from tflearn.networks.networks import NetworkOptions
from tflearn.policies import converted, loader, products
from tflearn.policies.exporter import PolicyExporter

GEAR = spaces.Discrete(3, start=5)
SEVERAL = spaces.MultiDiscrete([2, 3], start=[1, -4])
NESTED = spaces.Dict(gear=GEAR, several=SEVERAL)
FEW, FEW_LAYERS = {'network': NetworkOptions(fc_layer_params=(8,))}, NetworkOptions(fc_layer_params=(8,))


def environment(action_space, masked=0, make=vector_env.in_process):
    return functools.partial(make, functools.partial(example_environments.Numbered, action_space, masked))


def train(module, given, root_dir, make_environment, **settings):
    slicing = tflearn.Slicing(3 if module is r2d2 else 2)
    experience = tflearn.Experience(slicing, tflearn.Uniform(500, 20, 8.0), tflearn.BatchItems(8))
    return tflearn.train(
        make_environment=make_environment,
        make_agent=functools.partial(module.make_agent, **given),
        experience=experience,
        root_dir=root_dir,
        exports=ExportOptions(('greedy_policy',)),
        **{'num_train_steps': 20, 'num_environments': 2, 'num_episodes': 2, 'export_interval_steps': 20, **settings},
    )


def observations(size=12):
    random = np.random.default_rng(2)
    return {'kind': random.integers(-2, 2, size), 'size': random.uniform(-1, 1, (size, 2)).astype(np.float32)}


def named(observation):
    return {f'observation_{name}': value for name, value in observation.items()}


@pytest.mark.extensions
def test_all_count_from_the_start(tmp_path):
    """Training, the loaded policy, the SavedModel by names, the server, TFLite, recorded data and their evaluation."""
    from tests.testing.served_policies import serving
    from tflearn.extensions.product.data_evaluation import evaluate_on_data
    from tflearn.extensions.serving.client import PolicyClient

    make_environment = environment(GEAR, make=vector_env.in_worker_processes)
    run = train(dqn, FEW, tmp_path / 'run', make_environment)
    given, path = observations(), run.policy.path
    np.testing.assert_array_equal(tflearn.load_policy(path)(given), run.policy(given))
    path = run.run_dir.greedy_policy / '20'  # the newest, which is served; an earlier one may be the best
    expected = tflearn.load_policy(path)(given)
    assert {int(action) for action in expected} <= {5, 6, 7}
    metadata = json.loads((path / 'metadata.json').read_text())['specs']
    assert (metadata['action']['minimum'], metadata['action']['maximum']) == (5, 7)
    assert (metadata['observation']['kind']['minimum'], metadata['observation']['kind']['maximum']) == (-2, 1)
    signature = tf.saved_model.load(str(path)).signatures['serving_default']
    np.testing.assert_array_equal(
        signature(**{name: tf.constant(value) for name, value in named(given).items()})['action'], expected
    )
    np.testing.assert_array_equal(
        converted.run_tflite(converted.convert_tflite(path), named(given))['action'], expected
    )
    with serving(run.run_dir.policies) as (server, _):
        client = PolicyClient(f'localhost:{server.port}', timeout_secs=60.0)
        np.testing.assert_array_equal(client.predict(named(given))[0]['action'], expected)
        client.close()
    record(
        run=Run(run.run_dir), make_environment=make_environment, output=str(tmp_path / 'data'),
        quota=Quota(30), num_environments=2, epsilon=0.5, log_probabilities=True,
    )  # fmt: skip
    episodes = list(EpisodeReader(Dataset([str(tmp_path / 'data')])).episodes())
    actions = np.concatenate([episode['action'] for episode in episodes])
    assert set(actions.tolist()) == {5, 6, 7}
    found, _ = evaluate_on_data(run.run_dir, [str(tmp_path / 'data')], {}, epsilon=0.5, num_features=32)
    assert found.effective_sample_size == pytest.approx(found.num_episodes, rel=1e-3)


@lanes.classic
@pytest.mark.parametrize(
    ('module', 'given'),
    [
        pytest.param(
            r2d2,
            {'network': NetworkOptions((8,), lstm_size=(4,)), 'loss': r2d2.R2D2Loss(n_step=1, burn_in_steps=0)},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            discrete_sac,
            {'network': NetworkOptions(fc_layer_params=(8,), critic_fc_layer_params=(8,))},
            marks=pytest.mark.slow,
        ),
        (linear_bandit, {}),
    ],
)
def test_agents_of_one_choice(tmp_path, module, given):
    run = train(module, {**given, 'action_mask': 'mask'}, tmp_path, environment(GEAR, 3))
    acted = run.policy({**observations(), 'mask': np.tile(np.int64([0, 0, 1]), (12, 1))})
    assert set(np.ravel(acted).tolist()) == {7}


def cloned(tmp_path, make_environment, wanted, **given):
    """Returns a run directory with the policy of an agent that has learned to act as `wanted`, and its path."""
    environment = make_environment(num_environments=1, seed=0)
    agent = bc.make_agent(environment.specs, create_train_step(), bc.EXPERIENCE, network=FEW_LAYERS, **given)
    environment.close()
    agent.initialize()
    rows = zeros(agent.collect_data_spec, (8, 2))
    rows = rows._replace(next_step_type=tf.ones_like(rows.next_step_type), step_type=tf.ones_like(rows.step_type))
    rows = rows._replace(action=tf.nest.map_structure(lambda leaf, value: leaf + np.int64(value), rows.action, wanted))
    train = tf.function(agent.train, autograph=False)
    losses = [float(train(rows).loss) for _ in range(300)]
    assert losses[-1] < losses[0] / 4
    run_dir = tflearn.RunDir(tmp_path / 'run')
    return run_dir, PolicyExporter(agent.policy.wrapped_policy, run_dir.policy('raw_policy')).export(0, {})


@lanes.classic
def test_several_choices_with_starts_of_their_own(tmp_path):
    wanted = {'gear': 6, 'several': np.int64([2, -3])}
    _, version = cloned(tmp_path, environment(NESTED), wanted)
    products.ProductOptions(500, parameters=True).save(version, tmp_path / 'product')
    product = tf.saved_model.load(str(tmp_path / 'product')).signatures['action']
    zero = {'observation_kind': tf.zeros(500, tf.int64), 'observation_size': tf.zeros((500, 2))}
    drawn = product(**{name.removeprefix('observation_'): value for name, value in zero.items()})
    policy = loader.load(version)
    acted = policy.action(policy_time_step(policy, 500))[0]
    for gear, several in ((acted['gear'], acted['several']), (drawn['action_gear'], drawn['action_several'])):
        assert {5, 6, 7} >= set(np.ravel(gear).tolist()) and np.mean(gear == 6) > 0.5
        assert all(SEVERAL.contains(row) for row in np.asarray(several))
        assert (np.mean(several == np.int64([2, -3]), axis=0) > 0.5).all()


def policy_time_step(policy, size):
    return tf.nest.map_structure(
        lambda leaf: np.zeros((size, *leaf.shape[1:]), leaf.dtype.as_numpy_dtype), policy.time_step_spec
    )


@lanes.classic
@pytest.mark.extensions
def test_masks_of_several_choices(tmp_path):
    from tflearn.extensions.product.data_evaluation import evaluate_on_data

    make_environment = environment(SEVERAL, 5)
    run_dir, _ = cloned(tmp_path, make_environment, np.int64([2, -3]), action_mask='mask')
    for epsilon in (0.0, 0.5):
        output = str(tmp_path / f'data_{epsilon}')
        record(
            run=Run(run_dir), make_environment=make_environment, output=output,
            policy='raw_policy', quota=Quota(10), num_environments=2, epsilon=epsilon, log_probabilities=True,
        )  # fmt: skip
        found, _ = evaluate_on_data(run_dir, [output], {}, 'raw_policy', epsilon=epsilon, num_features=8)
        assert found.effective_sample_size == pytest.approx(found.num_episodes, rel=1e-3)


@lanes.numpy_1
def test_agents_of_others_count_too_or_are_refused(tmp_path):
    experience = tflearn.Experience(tflearn.Slicing(2), tflearn.Uniform(100, 10, 8.0), tflearn.BatchItems(8))
    given = {'make_environment': environment(GEAR, None), 'experience': experience, 'num_train_steps': 5}
    given['exports'] = ExportOptions(('greedy_policy',))
    with pytest.raises(ValueError, match='got a PPOClipAgent that counts from 0 for the action .*; need an agent that'):
        tflearn.train(make_agent=foreign_agents.ppo, root_dir=tmp_path / 'refused', **given)

    def counting(specs, train_step, experience):
        rescaling = ActionRescaling(specs)
        return rescaling.wrapped(foreign_agents.recurrent_dqn(rescaling.specs, train_step, experience))

    run = tflearn.train(make_agent=counting, root_dir=tmp_path / 'run', num_environments=2, num_episodes=2, **given)
    assert {5, 6, 7} >= set(np.ravel(run.policy(observations()['size'])).tolist())


@lanes.classic
def test_policies_and_data_that_count_from_another_number_are_refused(tmp_path):
    first, other = (environment(space)(num_environments=1, seed=0) for space in (spaces.Discrete(3), GEAR))
    agent = dqn.make_agent(first.specs, create_train_step(), dqn.EXPERIENCE, **FEW)
    run_dir = tflearn.RunDir(tmp_path / 'run')
    PolicyExporter(agent.policy, run_dir.greedy_policy).export(0, {})
    first.close()
    data = {'make_environment': environment(GEAR), 'quota': Quota(1), 'num_environments': 1}
    with pytest.raises(
        ValueError, match=r'got the policy .*, which counts action from 0; the environment counts from 5'
    ):
        record(run=Run(run_dir), output=str(tmp_path / 'data'), **data)
    record(
        run=Run(run_dir), output=str(tmp_path / 'old'), policy='random',
        **{**data, 'make_environment': environment(spaces.Discrete(3))},
    )  # fmt: skip
    with pytest.raises(ValueError, match=r'got .*old, which counts action from 0; need 5, the start of its space'):
        EpisodeReader(Dataset([str(tmp_path / 'old')]), columns.data_spec(other.specs))
    other.close()
