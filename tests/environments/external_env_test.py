"""External simulators, in threads, play in a batched environment over real HTTP."""

import contextlib
import threading
import time
import types

import numpy as np
import pytest
import tensorflow as tf

from tests.environments.playing import DEADLINE_SECS, Playing, make, play, steps_of
from tflearn.actors.actor import Actor
from tflearn.actors.episode_metrics import EpisodeMetrics
from tflearn.actors.evaluator import Evaluator
from tflearn.core.types import check_batch
from tflearn.core.waiting import wait_until
from tflearn.data import columns, writer
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.environments import external_env, gymnasium_env
from tflearn.environments.external_client import CollectorBusyError, EpisodeGoneError, SimulatorClient
from tflearn.environments.external_server import ExternalOptions, TlsFiles
from tflearn.jobs.record import _Acting


def test_each_clients_steps_are_an_episode_of_its_own():
    with Playing(make(2)) as playing:
        address, answers = playing.environment.address, {}
        threads = [
            threading.Thread(target=lambda n=n: answers.update({n: play(address, n, [3, 5])}), daemon=True)
            for n in range(1, 5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_SECS)
    assert answers == {n: [(n + t) % 5 for length in (3, 5) for t in range(length)] for n in range(1, 5)}
    found = steps_of(playing)
    for n in range(1, 5):
        for episode, length in zip(sorted(found[n], key=len), (3, 5), strict=True):
            rows = [(1 + (t == length), t / 2, float(t < length), t) for t in range(1, length + 1)]
            assert episode == [(0, 0.0, 1.0, 0), *rows]
    for time_step in playing.time_steps:
        check_batch(time_step, playing.environment.specs.time_step, 2, 'time step')
    assert playing.environment.num_rebuilt == 0


def test_a_truncated_episode_keeps_its_discount():
    with Playing(make(1)) as playing:
        play(playing.environment.address, 1, [2], 'truncated')
    assert steps_of(playing)[1] == [[(0, 0.0, 1.0, 0), (1, 0.5, 1.0, 1), (2, 1.0, 1.0, 2)]]


def test_a_vanished_client_loses_its_episode_and_the_others_go_on():
    options = ExternalOptions(ports=(0,), step_timeout_secs=0.5, begin_wait_secs=0.1)
    with Playing(make(2, options)) as playing:
        address = playing.environment.address
        vanishing = SimulatorClient(address, DEADLINE_SECS)
        vanishing.begin([7, 0])
        vanishing.step(1.0, [7, 1])
        start = time.monotonic()
        play(address, 1, [30])
        assert time.monotonic() - start < 5.0, 'the others waited for it once'
        with pytest.raises(EpisodeGoneError, match=r'its client did not answer within 0.5 s; begin another one'):
            vanishing.step(1.0, [7, 2])
        assert vanishing.begin([7, 0]) == 2, 'it may come back'
        vanishing.close()
    assert playing.environment.num_rebuilt >= 1
    assert steps_of(playing)[7][0] == [(0, 0.0, 1.0, 0), (1, 1.0, 1.0, 1)]
    assert len(steps_of(playing)[1][0]) == 31


def test_gives_signs_of_life_while_a_client_steps():
    signs, begun = [], time.monotonic()
    with Playing(make(1), report=lambda: signs.append(time.monotonic())) as playing:
        simulator = SimulatorClient(playing.environment.address, DEADLINE_SECS)
        simulator.begin([1, 0])
        wait_until(lambda: len(signs) == 2, 'two signs', 4.0)  # before the step would time out
        assert simulator.step(0.0, [1, 1]) == 2
        simulator.close()
    assert signs[1] - begun > 1.5, 'one a second'


def test_an_episode_that_is_given_up():
    with Playing(make(1)) as playing:
        simulator = SimulatorClient(playing.environment.address, DEADLINE_SECS)
        simulator.begin([1, 0])
        simulator.give_up()
        with pytest.raises(EpisodeGoneError, match='its client has given it up'):
            simulator.step(0.0, [1, 1])
        assert simulator.begin([2, 0]) == 2
        simulator.close()


def test_a_lost_answer_is_sent_again_and_counted_once():
    with Playing(make(1)) as playing:
        simulator = SimulatorClient(playing.environment.address, DEADLINE_SECS)
        simulator.begin([1, 0])
        assert simulator.step(1.0, [1, 1]) == 2
        simulator._step = 0  # as if the answer had not arrived
        assert simulator.step(1.0, [1, 1]) == 2
        with pytest.raises(RuntimeError, match='got step 5 of the episode, which has 1 steps and needs the next one'):
            simulator._step = 5
            simulator.step(1.0, [1, 2])
        simulator._step = 1
        simulator.step(1.0, [1, 2], terminated=True)
        assert simulator.last_return == 2.0
        simulator.close()
    assert [len(episode) for episode in steps_of(playing)[1]] == [3]


def test_one_client_plays_an_evaluation_of_several_environments():
    """Each environment of an evaluation has episodes of its own to play."""
    options = ExternalOptions(ports=(0,), begin_wait_secs=30.0)
    environment = make(3, options)
    environment.reset()  # it listens from now on

    def act(time_step, policy_state):
        return (time_step.observation.sum(axis=1) % 5).astype(np.int64), policy_state

    policy = types.SimpleNamespace(initial_state=lambda size: (), action=act)
    evaluator = Evaluator(environment, num_episodes=7, max_secs=20.0)
    player = threading.Thread(target=play, args=(environment.address, 1, [3] * 7), daemon=True)
    player.start()
    start = time.monotonic()
    statistics = evaluator.run(policy)
    environment.close()
    assert statistics.num_episodes == 7 and not statistics.incomplete
    assert time.monotonic() - start < 10.0, 'no slot waited for a client that there is not'


def test_more_clients_than_slots_wait_and_then_try_again():
    options = ExternalOptions(ports=(0,), slot_timeout_secs=0.2)
    with Playing(make(1, options)) as playing:
        first, second = SimulatorClient(playing.environment.address), SimulatorClient(playing.environment.address)
        first.begin([1, 0])
        with pytest.raises(CollectorBusyError, match='all 1 slots are in use.*try again later'):
            second.begin([2, 0])
        first.step(0.0, [1, 1], terminated=True)
        second.begin([2, 0])
        for simulator in (first, second):
            simulator.close()


def test_closing_answers_those_who_wait():
    environment = make(1)
    environment.reset()
    errors = []

    def begin():
        simulator = SimulatorClient(environment.address, DEADLINE_SECS)
        try:
            simulator.begin([1, 0])
        except CollectorBusyError as error:
            errors.append(str(error))
        simulator.close()

    thread = threading.Thread(target=begin, daemon=True)
    thread.start()
    environment.step(np.zeros(1, np.int64))
    environment.close()
    environment.close()
    thread.join(DEADLINE_SECS)
    assert errors == ['the collector has ended; try again later']
    with pytest.raises(RuntimeError, match='before reset'):
        environment.step(np.zeros(1, np.int64))


def test_episodes_are_recorded_and_counted(tmp_path):
    environment = make(3)
    metrics = EpisodeMetrics(3, read_info=lambda: environment.info)
    with contextlib.closing(environment), contextlib.closing(writer.EpisodeWriter(tmp_path, environment.specs)) as made:
        recorder = writer.EpisodeRecorder(made, 3)
        actor = Actor(environment, _Acting(environment.specs, None, 1.0, 0), [metrics, recorder])
        actor.run(1)
        thread = threading.Thread(target=play, args=(environment.address, 1, [3, 4]), daemon=True)
        thread.start()
        deadline = time.monotonic() + DEADLINE_SECS
        while (metrics.episodes < 2 or thread.is_alive()) and time.monotonic() < deadline:
            actor.run(1)
        actor.run(1)  # the boundary row
    assert (metrics.episodes, metrics.env_steps, metrics.dropped_episodes) == (2, 7, 0)
    assert metrics.means().keys().isdisjoint({'mean_info/idle'})
    episodes = list(EpisodeReader(Dataset([str(tmp_path)])).episodes())
    assert [len(episode['reward']) for episode in episodes] == [4, 5]
    assert columns.read_specs(tmp_path).action.maximum == 4


def test_an_evaluation_waits_for_its_simulators():
    environment = make(2)
    policy = _Acting(environment.specs, None, 1.0, 0)._policy
    stop, threads = threading.Event(), []

    def simulate(number):
        simulator = SimulatorClient(environment.address, DEADLINE_SECS)
        with contextlib.closing(simulator), contextlib.suppress(CollectorBusyError, OSError):
            while not stop.is_set():
                simulator.begin([number, 0])
                while simulator.step(number, [number, 1], terminated=True) is not None:
                    pass

    with contextlib.closing(environment):
        environment.reset()
        for number in (1, 2):
            threads.append(threading.Thread(target=simulate, args=(number,), daemon=True))
            threads[-1].start()
        found = Evaluator(environment, 6).run(policy)
        stop.set()
    for thread in threads:
        thread.join(DEADLINE_SECS)
    assert len(found.returns) == 6
    assert set(found.returns) <= {1.0, 2.0}


def test_makes_specs_like_those_of_gymnasium():
    made = external_env.make(1, None, {'shape': (4,)}, {'choices': 2}).specs
    environment = gymnasium_env.make('CartPole-v1', num_environments=1, seed=0)
    with contextlib.closing(environment):
        pairs = zip(*(tf.nest.flatten(specs.time_step) for specs in (made, environment.specs)), strict=True)
        for own, other in pairs:
            assert (own.dtype, own.shape) == (other.dtype, other.shape)
        assert (made.action.dtype, made.action.maximum) == (environment.specs.action.dtype, 1)


def test_wrong_actions_and_options_are_refused():
    environment = make(1, action={'arm': {'shape': (2,), 'low': -1.0, 'high': 1.0}, 'gear': {'choices': 2}})
    right = {'arm': np.zeros((1, 2), np.float32), 'gear': np.zeros(1, np.int64)}
    with contextlib.closing(environment):
        environment.reset()
        environment.step(right)
        environment.step(right | {'arm': np.full((1, 2), 5.0, np.float32)})
        for wrong, message in [
            ({'gear': np.full(1, 2, np.int64)}, 'got action/gear from 2 to 2; need values from 0 to 1'),
            ({'arm': np.full((1, 2), np.nan, np.float32)}, 'got nan in action/arm; need finite numbers'),
            ({'arm': np.zeros((1, 3), np.float32)}, r'got an action with shape \(1, 3\)'),
        ]:
            with pytest.raises(ValueError, match=message):
                environment.step(right | wrong)
        port = int(environment.address.rpartition(':')[2])
        other = make(1, ExternalOptions(ports=(port,)))
        with pytest.raises(ValueError, match=f'cannot be listened at .{port}: Address already in use'):
            other.reset()
    with pytest.raises(ValueError, match=r'got ExternalOptions.ports=\(\)'):
        ExternalOptions(ports=())
    broken = make(1, ExternalOptions(ports=(0,), tls=TlsFiles('no_file', 'no_file')))
    with pytest.raises(ValueError, match='got the files no_file, no_file .*need a certificate, its key'):
        broken.reset()
