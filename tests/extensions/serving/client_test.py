"""A remote policy acts as the exported one, sends and receives its state, and waits for its server."""

import threading

import numpy as np
import pytest

pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')

from tests.testing import example_policies, served_policies
from tflearn.core.waiting import Stopped
from tflearn.extensions.serving import client as client_lib
from tflearn.extensions.serving.client import PolicyClient, RemotePolicy
from tflearn.extensions.serving.served_version import BatchOptions
from tflearn.policies import loader
from tflearn.policies.exporter import PolicyExporter
from tflearn.policies.loader import VersionGone


def test_recurrent_policy_and_a_version_that_is_removed(tmp_path):
    policy = example_policies.recurrent()
    exporter = PolicyExporter(policy, tmp_path / 'greedy_policy')
    loaded = loader.load(exporter.export(4, {}))
    with served_policies.serving(tmp_path) as (server, models):
        address = f'localhost:{server.port}'
        model = PolicyClient(address, 'greedy_policy')
        assert model.newest_version() == 4
        spec = model.state_spec(4)
        assert {name: tuple(leaf.shape) for name, leaf in spec.items()} == {'0': (8,), '1': (8,)}
        served, pinned = (RemotePolicy(address, 'greedy_policy', policy, version, 5.0) for version in (None, 4))
        states = [acting.initial_state(3) for acting in (loaded, served)]
        for seed in range(3):
            time_step = example_policies.time_step(policy, 3, seed)
            served.check(time_step)
            actions = []
            for i, acting in enumerate((loaded, served)):
                action, states[i] = acting.action(time_step, states[i])
                actions.append(action)
            np.testing.assert_array_equal(*actions)
        pinned.action(time_step, pinned.initial_state(3))
        exporter.export(5, {})
        models.refresh()
        assert model.newest_version() == 5
        served.action(time_step, states[1])
        with pytest.raises(VersionGone, match="got no version 4 of the policy 'greedy_policy' served at"):
            pinned.action(time_step, pinned.initial_state(3))
        for connected in (model, served, pinned):
            connected.close()


def test_waits_for_an_overloaded_server(tmp_path, monkeypatch):
    publisher = served_policies.Publisher(tmp_path)
    publisher.publish(1)
    like = publisher._linear.policy
    two, three = (example_policies.time_step(like, rows) for rows in (2, 3))
    with (
        served_policies.serving(tmp_path, BatchOptions(max_batch_size=2, max_enqueued_batches=1)) as (server, models),
        served_policies.held(models) as (started, resume),
    ):
        address = f'localhost:{server.port}'
        client, served = PolicyClient(address, timeout_secs=60.0), RemotePolicy(address, 'greedy_policy', like)
        with pytest.raises(TimeoutError, match=r'waiting for the policy .* \(RESOURCE_EXHAUSTED: got 3 rows'):
            RemotePolicy(address, 'greedy_policy', like, timeout_secs=0.3).action(three, ())
        held = threading.Thread(target=client.predict, args=({'observation': two.observation},))
        held.start()
        assert started.wait(60)
        monkeypatch.setattr(client_lib, '_CALL_SECS', 0.1)
        with pytest.raises(TimeoutError, match='DEADLINE_EXCEEDED|got 2 rows, and 2 wait'):
            RemotePolicy(address, 'greedy_policy', like, timeout_secs=0.3).action(two, ())
        assert PolicyClient(address, 'greedy_policy', timeout_secs=-1.0).newest_version() is None
        resume.set()
        held.join(60)
        served.action(two, ())
        for connected in (served, client):
            connected.close()


def test_waits_for_its_server_and_can_be_stopped():
    policy = example_policies.greedy()
    time_step = example_policies.time_step(policy, 2)
    with pytest.raises(TimeoutError, match="waiting for the policy 'greedy_policy' served at localhost:1"):
        RemotePolicy('localhost:1', 'greedy_policy', policy, timeout_secs=0.5).action(time_step, ())
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        RemotePolicy('localhost:1', 'greedy_policy', policy, stop=stop).action(time_step, ())
    assert PolicyClient('localhost:1', 'greedy_policy').newest_version() is None
