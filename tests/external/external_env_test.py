"""External simulators in threads and processes play in a batched environment; real HTTP, curl included."""

import collections
import contextlib
import http.client
import json
import pathlib
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.testing import certificates
from tflearn.actors.actor import Actor
from tflearn.actors.episode_metrics import EpisodeMetrics
from tflearn.actors.evaluator import Evaluator
from tflearn.data import columns, writer
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.environments import gymnasium_env
from tflearn.external import client, external_env
from tflearn.external.client import Client, CollectorBusyError, EpisodeGoneError
from tflearn.external.server import ExternalOptions, TlsFiles
from tflearn.jobs.record import _Acting
from tflearn.types import IDLE, check_batch

DEADLINE_SECS = 60.0
QUICK = ExternalOptions(ports=(0,), step_timeout_secs=5.0, begin_wait_secs=0.2, slot_timeout_secs=5.0)
HERE = pathlib.Path(__file__).parent


def make(num_environments=2, options=QUICK, observation=None, action=None):
    """Makes an environment whose observation is a pair of numbers: the client's and the step's."""
    return external_env.make(num_environments, None, observation or {'shape': (2,)}, action or {'choices': 5}, options)


class Playing:
    """A policy that answers (number of the client + step) modulo 5, in a thread, until it is closed.

    Attributes:
      time_steps: all time steps that the environment returned.
    """

    def __init__(self, environment, act=None):
        self.environment, self.time_steps, self.idle = environment, [environment.reset()], []
        self._act = act or (lambda observation: (observation.sum(axis=1) % 5).astype(np.int64))
        self._stop, self.error = threading.Event(), None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            while not self._stop.is_set():
                self.idle.append(self.environment.info[IDLE])
                self.time_steps.append(self.environment.step(self._act(self.time_steps[-1].observation)))
        except Exception as error:
            self.error = error

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._stop.set()
        self.environment.close()  # it ends a step that waits for simulators
        self._thread.join(DEADLINE_SECS)
        assert not self._thread.is_alive()
        if self.error:
            raise self.error


def play(address, number, lengths, end='terminated'):
    """Plays episodes of these lengths as the client of this number; returns the actions."""
    simulator, actions = Client(address, DEADLINE_SECS), []
    with contextlib.closing(simulator):
        for length in lengths:
            actions.append(simulator.begin([number, 0]))
            for t in range(1, length + 1):
                action = simulator.step(t / 2, [number, t], **({end: True} if t == length else {}))
                if action is not None:
                    actions.append(action)
            assert action is None
            assert simulator.last_return == sum(t / 2 for t in range(1, length + 1))
    return actions


def steps_of(playing):
    """Returns the episodes of all slots: by client, lists of (step type, reward, discount, step) of each time step."""
    found = collections.defaultdict(list)
    for slot in range(playing.environment.num_environments):
        episode = None
        for time_step, idle in zip(playing.time_steps, [*playing.idle, None], strict=False):
            step_type, observation = int(time_step.step_type[slot]), time_step.observation[slot]
            if step_type == 0:
                episode = None if idle is None or idle[slot] else []
                if episode is not None:
                    found[int(observation[0])].append(episode)
            if episode is not None:
                episode.append(
                    (step_type, float(time_step.reward[slot]), float(time_step.discount[slot]), int(observation[1]))
                )
    return found


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
        for episode, length in zip(found[n], (3, 5), strict=True):
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
        vanishing = Client(address, DEADLINE_SECS)
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


def test_an_episode_that_is_given_up():
    with Playing(make(1)) as playing:
        simulator = Client(playing.environment.address, DEADLINE_SECS)
        simulator.begin([1, 0])
        simulator.give_up()
        with pytest.raises(EpisodeGoneError, match='its client has given it up'):
            simulator.step(0.0, [1, 1])
        assert simulator.begin([2, 0]) == 2
        simulator.close()


def test_a_lost_answer_is_sent_again_and_counted_once():
    with Playing(make(1)) as playing:
        simulator = Client(playing.environment.address, DEADLINE_SECS)
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


def test_more_clients_than_slots_wait_and_then_try_again():
    options = ExternalOptions(ports=(0,), slot_timeout_secs=0.2)
    with Playing(make(1, options)) as playing:
        first, second = Client(playing.environment.address), Client(playing.environment.address)
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
        simulator = Client(environment.address, DEADLINE_SECS)
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


BAD = [
    ('POST', '/v1/episodes', b'{', 400, 'got a body that is no JSON'),
    ('POST', '/v1/episodes', b'[' * 100_000, 400, 'got a body that is no JSON'),
    ('POST', '/v1/episodes', b'\xff', 400, 'got a body that is no JSON'),
    ('POST', '/v1/episodes', b'[1]', 400, 'got a JSON list; need an object with observation'),
    ('POST', '/v1/episodes', b'{}', 400, 'got a message without observation'),
    ('POST', '/v1/episodes', b'{"observation": [1]}', 400, 'got observation with shape [1]; need [2]'),
    ('POST', '/v1/episodes', b'{"observation": [1, NaN]}', 400, 'got observation with numbers that are not finite'),
    ('POST', '/v1/episodes', b'{"observation": [1, 2], "reward": 1}', 400, 'got a message with reward; need only'),
    ('POST', '/v1/episodes/none/steps', b'{"reward": 1, "observation": [1, 2]}', 410, 'there is none'),
    ('POST', '/v1/episodes/{}/steps', b'{"reward": "1", "observation": [1, 2]}', 400, "got reward='1'; need a finite"),
    ('POST', '/v1/episodes/{}/steps', b'{"reward": 1e999, "observation": [1, 2]}', 400, 'got reward=inf'),
    ('POST', '/v1/episodes/{}/steps', b'{"reward": 1e99, "observation": [1, 2]}', 400, 'got reward=1e+99'),
    ('POST', '/v1/episodes/{}/steps', b'{"reward": 1, "observation": [1, 2], "terminated": 1}', 400, 'need true or'),
    ('POST', '/v1/episodes/{}/steps', b'{"reward": 1, "observation": [1, 2], "step": "x"}', 400, "got step='x'"),
    ('POST', '/v1/episodes/{}/steps', b'{"observation": [1, 2]}', 400, 'got a message without reward'),
    ('GET', '/', b'', 404, 'got GET /; need GET /v1/specs'),
    ('DELETE', '/v1/episodes/none', b'', 410, 'there is none'),
    ('POST', '/v1/episodes', b'x' * 2000, 413, 'got a request of 2000 bytes; need at most 1000'),
]


def test_bad_messages_get_one_line_and_nothing_ends():
    options = ExternalOptions(ports=(0,), max_request_bytes=1000, slot_timeout_secs=5.0)
    with Playing(make(1, options)) as playing:
        simulator = Client(playing.environment.address, DEADLINE_SECS)
        simulator.begin([1, 0])
        port = int(playing.environment.address.rpartition(':')[2])
        for method, path, body, status, message in BAD:
            if body.startswith(b'[['):
                body = body[:900]
            connection = http.client.HTTPConnection('localhost', port, timeout=DEADLINE_SECS)
            with contextlib.closing(connection):
                connection.request(method, path.format(simulator._episode), body)
                response = connection.getresponse()
                found = json.loads(response.read())
            assert (response.status, message in found['error']) == (status, True), (path, body, found)
            assert '\n' not in found['error']
        for raw in (b'\x16\x03\x01\x00\x00', b'POST /v1/episodes HTTP/1.1\r\nContent-Length: -4\r\n\r\n', b''):
            connection = http.client.HTTPConnection('localhost', port, timeout=DEADLINE_SECS)
            with contextlib.closing(connection):
                connection.connect()
                connection.sock.sendall(raw)
                connection.sock.shutdown(1)
                connection.sock.recv(1000)
        assert simulator.step(1.0, [1, 1]) == 2, 'the episode goes on'
        simulator.close()


def test_python_program_without_tflearn(tmp_path):
    """The client file alone, in a process that cannot import tflearn, nor numpy."""
    shutil.copy(client.__file__, tmp_path / 'client.py')
    program = """
import sys, client
c = client.Client(sys.argv[1])
print(c.specs()['action']['high'], c.begin([3, 0]), c.step(1, [3, 1]), c.step(1, [3, 2], truncated=True), c.last_return)
"""
    with Playing(make(1)) as playing:
        ended = subprocess.run(
            [sys.executable, '-S', '-c', program, playing.environment.address],
            cwd=tmp_path, env={}, capture_output=True, text=True, timeout=DEADLINE_SECS,
        )  # fmt: skip
    assert (ended.stdout, ended.stderr) == ('4 3 4 None 2.0\n', '')


@pytest.mark.skipif(shutil.which('curl') is None, reason='needs curl')
def test_plain_curl():
    def curl(path, message):
        url = f'{playing.environment.address}/v1/episodes{path}'
        command = ['curl', '-sS', '--max-time', '30', url, '-d', message]
        return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=DEADLINE_SECS).stdout)

    with Playing(make(1)) as playing:
        begun = curl('', '{"observation": [1, 0]}')
        assert begun == {'episode': begun['episode'], 'step': 0, 'action': 1}
        path = f'/{begun["episode"]}/steps'
        assert curl(path, '{"reward": 0.5, "observation": [1, 1]}') == {'step': 1, 'action': 2}
        assert 'need a finite number' in curl(path, '{"reward": null, "observation": [1, 1]}')['error']
        last = curl(path, '{"reward": 2, "observation": [1, 2], "terminated": true}')
        assert last == {'steps': 2, 'return': 2.5}


@pytest.mark.skipif(shutil.which('curl') is None, reason='needs curl')
def test_the_commands_of_the_page():
    page = (HERE.parents[1] / 'docs' / 'external-simulators.md').read_text(encoding='utf-8')
    commands, episode, found = re.findall('^curl .*$', page, re.MULTILINE), '', []
    act = lambda observation: np.ones(len(observation), np.int64)  # noqa: E731
    with Playing(make(1, observation={'shape': (4,)}, action={'choices': 2}), act) as playing:
        for command in commands:
            command = re.sub(r'(?<=/episodes/)\w+', episode, command)
            words = shlex.split(command.replace('http://localhost:8600', playing.environment.address))
            ended = subprocess.run(words, capture_output=True, check=True, timeout=DEADLINE_SECS)
            found.append(json.loads(ended.stdout))
            episode = found[0]['episode']
    assert found == [
        {'episode': episode, 'step': 0, 'action': 1},
        {'step': 1, 'action': 1},
        {'steps': 2, 'return': 2.0},
    ]


def test_tls_with_certificates_of_clients(tmp_path):
    key, certificate = certificates.make(tmp_path, 'server')
    client_key, client_certificate = certificates.make(tmp_path, 'client')
    options = ExternalOptions(ports=(0,), tls=TlsFiles(certificate, key, client_certificate))
    with Playing(make(1, options)) as playing:
        context = ssl.create_default_context(cafile=str(certificate))
        context.load_cert_chain(client_certificate, client_key)
        simulator = Client(playing.environment.address, DEADLINE_SECS, context)
        assert simulator.begin([1, 0]) == 1
        simulator.close()
        for without in (None, ssl.create_default_context(cafile=str(certificate))):
            refused = Client(playing.environment.address, DEADLINE_SECS, without)
            with pytest.raises(OSError):
                refused.begin([1, 0])
            refused.close()


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
        simulator = Client(environment.address, DEADLINE_SECS)
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
    with pytest.raises(ValueError, match='got ExternalOptions.step_timeout_secs=0; need seconds above 0'):
        ExternalOptions(step_timeout_secs=0)
    with pytest.raises(ValueError, match=r'got ExternalOptions.ports=\(\)'):
        ExternalOptions(ports=())
    broken = make(1, ExternalOptions(ports=(0,), tls=TlsFiles('no_file', 'no_file')))
    with pytest.raises(ValueError, match='got the files no_file, no_file .*need a certificate, its key'):
        broken.reset()
