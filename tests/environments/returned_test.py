"""What environments return, with each kind of vectorization: one rule."""

import contextlib
import functools
import re

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import tflearn
from tests.environments import example_environments
from tests.testing import lanes
from tflearn.agents import dqn
from tflearn.core.errors import UserError
from tflearn.environments import vector_env
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.networks.networks import NetworkOptions

KINDS = ('in_process', 'worker_processes', 'native')
IMAGE = spaces.Box(0, 255, (2, 3, 1), np.uint8)
PLAIN = np.zeros((2, 3, 1), np.uint8)
NUMBERS = spaces.Box(-1, 1, (2,), np.float32)
ZEROS = np.zeros(2, np.float32)
COUNT = spaces.Discrete(5)
NEST = spaces.Dict(arm=NUMBERS, wheels=spaces.Tuple((COUNT, NUMBERS)))
GOOD = {'arm': ZEROS, 'wheels': (0, ZEROS)}
# Of runs; above them, each kind converts and refuses.
WAYS = (pytest.param(vector_env.in_process, marks=pytest.mark.slow), vector_env.in_worker_processes)


def made(kind, space, good, **wrong):
    if kind == 'native':
        make_all = functools.partial(example_environments.ReturningVector, space, good, **wrong)
        return vector_env.native(make_all, seed=0)
    make_one = functools.partial(example_environments.Returning, space, good, **wrong)
    return (vector_env.in_process if kind == 'in_process' else vector_env.in_worker_processes)(make_one, 2, 0)


def run(kind, space, good, **wrong):
    """Takes three steps; from the second one on, environments return what is wrong."""
    environment = made(kind, space, good, **wrong)
    try:
        environment.reset()
        return [environment.step(np.zeros(2, np.int64)) for _ in range(3)][-1]
    finally:
        environment.close()


def nested(**parts):
    return {**GOOD, **parts}


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(
    ('space', 'good', 'wrong', 'message'),
    [
        (IMAGE, PLAIN, {'observation': PLAIN + 0.7}, r'float64, values from 0.7 to 0.7; need shape .*, uint8; convert'),
        (
            IMAGE,
            PLAIN,
            {'observation': PLAIN.astype(np.int64) + 300},
            r'int64, values from 300 to 300; need .* from 0 to 255',
        ),
        (IMAGE, PLAIN, {'observation': PLAIN.transpose(2, 0, 1)}, r'shape \(.*1, 2, 3\), uint8; need shape'),
        (IMAGE, PLAIN, {'observation': PLAIN[..., 0]}, r'shape \(.*2, 3\), uint8; need shape'),
        (NUMBERS, ZEROS, {'observation': np.zeros(1, np.float32)}, r'shape \(.*1,?\), float32; need shape'),
        (NUMBERS, ZEROS, {'observation': np.zeros(3)}, r'shape \(.*3,?\), float64; need shape'),
        (NUMBERS, ZEROS, {'observation': np.zeros(2, complex)}, 'complex128 .*; need .*; return numbers'),
        (NUMBERS, ZEROS, {'observation': ['a', 'b']}, '; need .*; return numbers'),
        (NUMBERS, ZEROS, {'observation': None}, '; need .*float32; return numbers'),
        (COUNT, 0, {'observation': 2.7}, r'float64, values from 2.7 to 2.7; need shape .*int64; convert'),
        (COUNT, 0, {'observation': [2]}, r'observation of .* with shape \(.*1,?\), int64; need shape'),
        (COUNT, 0, {'observation': 7}, 'got 7 in observation .*need values from 0 to 4'),
        (NEST, GOOD, {'observation': {'arm': ZEROS}}, r"a dict with the keys \['arm'\]; need .*'arm', 'wheels'"),
        (NEST, GOOD, {'observation': nested(more=ZEROS)}, r"the keys \['arm', 'more', 'wheels'\]; need"),
        (
            NEST,
            GOOD,
            {'observation': nested(wheels=(0,))},
            'observation/wheels of .* as a tuple of 1; need a tuple of 2',
        ),
        (NEST, GOOD, {'observation': nested(wheels=(0.5, ZEROS))}, 'got observation/wheels/0 of .*float64.*int64'),
        (NEST, GOOD, {'observation': nested(arm=np.zeros((2, 1)))}, 'got observation/arm of .*need shape'),
        (NEST, GOOD, {'observation': ZEROS}, 'got observation of .* as ndarray .*; need a dict with the keys'),
        (COUNT, 0, {'reward': None}, 'got the reward'),
        (COUNT, 0, {'reward': '3'}, 'got the reward'),
        (COUNT, 0, {'reward': 1j}, 'got the reward'),
        (COUNT, 0, {'reward': np.zeros(3)}, r'got the reward.* with shape \(.*3,?\)'),
        (COUNT, 0, {'terminated': np.zeros(2, bool)}, r'terminated.*shape \(.*2,?\)'),
        (COUNT, 0, {'terminated': None}, 'terminated'),
        (COUNT, 0, {'truncated': 'False'}, 'truncated'),
        (COUNT, 0, {'truncated': 2}, 'truncated'),
        (COUNT, 0, {'truncated': None}, 'got truncated[= ]'),
        (COUNT, 0, {'info': None}, 'got info None from step.*need a dict; return {}'),
        (
            COUNT,
            0,
            {'step': (0, 1.0, False, {})},
            r'got a tuple of 4 from step\(\) of .*need \(observation, reward, term',
        ),
        (COUNT, 0, {'step': (0,)}, r'got a tuple of 1 from step\(\)'),
    ],
)
def test_refuses_what_would_lose_information(kind, space, good, wrong, message):
    with pytest.raises(UserError) as caught:
        run(kind, space, good, **wrong)
    assert re.search(message, str(caught.value)), caught.value
    assert '\n' not in str(caught.value)
    assert ('Returning' in str(caught.value)) or 'got 7' in str(caught.value)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('wrong', [0, np.zeros(2, np.float32), (0, 1)])
def test_refuses_a_reset_without_info(kind, wrong):
    with pytest.raises(UserError, match=r'from reset\(\) of .*Returning.*need \(observation, info\); return'):
        run(kind, COUNT, 0, reset=wrong)


@pytest.mark.parametrize('make', [vector_env.in_process, vector_env.in_worker_processes])
def test_refuses_a_reset_without_a_seed_at_once(make, caplog):
    message = r'^got WithoutSeed.reset\(\) of environment 0 \(WithoutSeed\), which takes no seed; need reset\(\*, seed='
    environment = make(example_environments.WithoutSeed, 2, 0)
    with contextlib.closing(environment), pytest.raises(UserError, match=message):
        environment.reset()
    assert not caplog.messages, 'it is not made again'


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(
    ('space', 'good', 'more', 'expected'),
    [
        (NUMBERS, ZEROS, {'observation': np.array([0.1, 0.2])}, np.array([0.1, 0.2], np.float32)),
        (NUMBERS, ZEROS, {'observation': [0.5, 1]}, np.array([0.5, 1], np.float32)),
        (NUMBERS, ZEROS, {'observation': np.array([1, 0])}, np.array([1, 0], np.float32)),
        (NUMBERS, ZEROS, {'observation': np.array([True, False])}, np.array([1, 0], np.float32)),
        (COUNT, 0, {'observation': np.uint8(3)}, 3),
        (COUNT, 0, {'observation': np.array(3, np.int32)}, 3),
        (COUNT, 0, {'observation': True}, 1),
        (IMAGE, PLAIN, {'observation': PLAIN.astype(np.int64) + 200}, PLAIN + np.uint8(200)),
        (
            spaces.Box(-9, 9, (2,), np.int32),
            np.zeros(2, np.int32),
            {'observation': [3, -4]},
            np.array([3, -4], np.int32),
        ),
        (spaces.MultiBinary(2), [0, 0], {'observation': np.array([True, False])}, np.array([1, 0])),
        (COUNT, 0, {'reward': np.float64(1)}, 0),
        (COUNT, 0, {'reward': 1}, 0),
        (COUNT, 0, {'reward': True}, 0),
        (COUNT, 0, {'terminated': np.bool_(False), 'truncated': 0}, 0),
    ],
)
def test_converts_what_loses_nothing(kind, space, good, more, expected):
    time_step = run(kind, space, good, **more)
    np.testing.assert_array_equal(time_step.observation, [expected] * 2)
    assert time_step.reward.tolist() == [1, 1]
    assert time_step.step_type.tolist() == [1, 1]


@pytest.mark.parametrize('kind', ['in_process', 'worker_processes'])
def test_takes_arrays_of_one_element_as_numbers(kind):
    more = {'reward': np.ones((1, 1)), 'terminated': np.array([False]), 'truncated': np.array([[1]])}
    time_step = run(kind, COUNT, 0, at_step=3, **more)
    assert time_step.reward.tolist() == [1, 1]
    assert time_step.step_type.tolist() == [2, 2]
    assert time_step.discount.tolist() == [1, 1]


NOT_FINITE = [
    ({'observation': np.array([0, np.nan], np.float32)}, 'got nan in observation'),
    ({'observation': np.array([np.inf, 0])}, 'got inf in observation'),
    ({'observation': np.array([1e300, 0])}, 'got inf in observation'),
    ({'reward': float('nan')}, 'got nan in the reward'),
    ({'reward': -np.inf}, 'got -inf in the reward'),
]


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(('wrong', 'message'), NOT_FINITE)
def test_rebuilds_environments_whose_numbers_are_not_finite(kind, wrong, message, caplog):
    environment = made(kind, NUMBERS, ZEROS, at_step=3, **wrong)
    environment.reset()
    action = np.zeros(2, np.int64)
    step_types = [environment.step(action).step_type.tolist() for _ in range(4)]
    assert step_types == [[1, 1], [1, 1], [0, 0], [1, 1]]
    assert environment.num_rebuilt == 2
    time_step = environment.step(action)
    environment.close()
    assert time_step.reward.tolist() == [1, 1]
    assert not time_step.observation.any()
    assert re.search(f'{message} of environment 0 .*Returning.* at step 3 of its episode; need finite', caplog.text)


@pytest.mark.parametrize('kind', KINDS)
def test_a_run_can_end_at_numbers_that_are_not_finite(kind):
    wrong = {'arm': np.array([0, np.nan], np.float32), 'wheels': (0, ZEROS)}
    environment = made(kind, NEST, GOOD, observation=wrong)
    environment._on_nonfinite = 'stop'
    environment.reset()
    environment.step(np.zeros(2, np.int64))
    with pytest.raises(UserError, match='got nan in observation/arm of environment 0 .* at step 2 of its episode'):
        environment.step(np.zeros(2, np.int64))
    environment.close()


def test_an_environment_that_begins_with_nan_is_an_error_after_some_failures():
    make_one = functools.partial(example_environments.Returning, NUMBERS, np.full(2, np.nan, np.float32))
    environment = vector_env.in_process(make_one, 1, 0)
    with pytest.raises(RuntimeError, match='got 6 failures in a row of environment 0; .*got nan in observation'):
        environment.reset()
    environment.close()
    make_one = functools.partial(example_environments.Returning, NUMBERS, ZEROS, at_step=1, reward=np.nan)
    environment = vector_env.in_process(make_one, 1, 0)
    environment.reset()
    with pytest.raises(RuntimeError, match='got 6 failures in a row of environment 0; .*got nan in the reward'):
        for _ in range(6):
            environment.step(np.zeros(1, np.int64))
    environment.close()


def test_keeps_numbers_that_are_not_finite_if_told():
    make_one = functools.partial(example_environments.Returning, NUMBERS, np.full(2, np.nan, np.float32))
    environment = vector_env.in_process(make_one, 1, 0, on_nonfinite='keep')
    assert np.isnan(environment.reset().observation).all()
    assert np.isnan(environment.step(np.zeros(1, np.int64)).observation).all()
    environment.close()
    with pytest.raises(UserError, match="got on_nonfinite='no'; need one of rebuild, stop, keep"):
        vector_env.in_process(make_one, 1, 0, on_nonfinite='no')


class Counting(example_environments.TwoStates):
    """Observes the number of its steps; an episode has three."""

    observation_space = spaces.Box(-9, 9, (1,), np.float32)

    def reset(self, **kwargs):
        super().reset(**kwargs)
        return np.zeros(1, np.float32), {'steps': 0}

    def step(self, action):
        _, _, terminated, truncated, _ = super().step(1)
        return np.full(1, self._steps, np.float32), float(self._steps), terminated, truncated, {'steps': self._steps}


def test_same_step_vector_environments_return_final_observations():
    makers = [functools.partial(Counting, length) for length in (3, 4)]
    environment = vector_env.native(lambda: SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP), seed=0)
    steps = [environment.reset()]
    infos = []
    for _ in range(6):
        steps.append(environment.step(np.zeros(2, np.int64)))
        infos.append(environment.info['steps'].tolist())
    environment.close()
    assert [step.step_type.tolist() for step in steps] == [[0, 0], [1, 1], [1, 1], [2, 1], [0, 2], [1, 0], [2, 1]]
    assert [step.observation[:, 0].tolist() for step in steps] == [
        [0, 0],
        [1, 1],
        [2, 2],
        [3, 3],
        [1, 4],
        [2, 1],
        [3, 2],
    ]
    assert [step.reward.tolist() for step in steps[1:]] == [[1, 1], [2, 2], [3, 3], [0, 4], [2, 0], [3, 2]]
    assert [step.discount.tolist() for step in steps[3:5]] == [[0, 1], [1, 1]]
    assert infos[2:4] == [[3, 3], [1, 4]]


def test_vector_environments_that_do_not_reset_are_refused():
    with pytest.raises(UserError, match=r'autoreset mode Disabled; need NextStep or SameStep .*SyncVectorEnv or Async'):
        vector_env.native(lambda: SyncVectorEnv([Counting], autoreset_mode=AutoresetMode.DISABLED), seed=0)


@pytest.mark.parametrize('kind', KINDS)
def test_environments_see_the_progress(kind):
    one = example_environments.Course
    if kind == 'native':
        environment = vector_env.native(lambda: CourseVector([one] * 2), seed=0)
    else:
        environment = (vector_env.in_process if kind == 'in_process' else vector_env.in_worker_processes)(one, 2, 0)
    environment.reset()
    environment.set_progress(7, 20)
    observation = environment.step(np.zeros(2, np.int64)).observation
    environment.close()
    assert observation.tolist() == [[7, 20, 0]] * 2


class CourseVector(SyncVectorEnv):
    """A vector environment with the method itself."""

    def set_progress(self, train_step, env_steps):
        self.call('set_progress', train_step, env_steps)


@pytest.mark.parametrize(
    ('space', 'message'),
    [
        (spaces.Dict({'a_b': NUMBERS, 'a': spaces.Dict(b=NUMBERS)}), 'several tensors named observation_a_b.*rename'),
        (spaces.Dict({'größe': NUMBERS, 'gräße': NUMBERS}), 'several tensors named observation_gr__e'),
        (spaces.Dict({1: NUMBERS}), 'got the key 1 in the observation space'),
        (spaces.Dict(a=NUMBERS, b=spaces.Box(0, 1, (0,))), 'got the observation/b space Box.* without numbers'),
        (spaces.Text(4), 'got the observation space Text'),
        (spaces.Sequence(COUNT), 'got the observation space Sequence'),
        (spaces.Graph(NUMBERS, None), 'got the observation space Graph'),
        (spaces.OneOf([COUNT, NUMBERS]), 'got the observation space OneOf'),
    ],
)
@pytest.mark.parametrize('make', [vector_env.in_process, vector_env.in_worker_processes])
def test_a_run_refuses_spaces_before_it_starts(tmp_path, make, space, message):
    with pytest.raises(UserError, match=message):
        tflearn.train(
            root_dir=tmp_path,
            make_environment=functools.partial(make, functools.partial(example_environments.Returning, space, None)),
            make_agent=dqn.make_agent,
            experience=dqn.EXPERIENCE,
            num_train_steps=10,
            num_environments=1,
        )


@pytest.mark.parametrize('make', WAYS)
@lanes.classic
def test_a_run_takes_keys_and_dtypes_of_all_kinds(tmp_path, make):
    parts = {'größe': np.float16, 'a b': np.uint16, 'c/d': np.int8, 'e': np.uint64, 'f': np.bool_, 'g': np.uint32}
    space = spaces.Dict({key: spaces.Box(0, 1, (2,), dtype) for key, dtype in parts.items()})
    good = {key: np.ones(2, dtype) for key, dtype in parts.items()}
    run = tflearn.train(
        root_dir=tmp_path,
        make_environment=functools.partial(
            make, functools.partial(example_environments.Returning, space, good, at_step=3, terminated=True)
        ),
        make_agent=functools.partial(dqn.make_agent, network=NetworkOptions(fc_layer_params=(4,))),
        experience=tflearn.Experience(replay=tflearn.Uniform(min_size=8), batch=tflearn.BatchItems(4)),
        num_train_steps=4,
        exports=ExportOptions(('greedy_policy',)),
        num_episodes=1,
        num_environments=1,
    )
    assert run.policy(good) in (0, 1)
