"""An exporter publishes complete versions, each once, and keeps the last."""

import concurrent.futures
import json
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.testing import example_policies, forks
from tflearn.core.waiting import wait_until
from tflearn.policies import external, loader, versions
from tflearn.policies.exporter import PolicyExporter


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_a_version_that_exists_is_not_overwritten(tmp_path):
    policy = example_policies.greedy()
    version = PolicyExporter(policy, tmp_path).export(5, {'env_steps': 1})
    before = {path: path.read_bytes() for path in version.rglob('*') if path.is_file()}
    example_policies.reweigh(policy)
    again = PolicyExporter(policy, tmp_path)
    assert again.export(5, {'env_steps': 2}) == version
    assert again.checked
    assert {path: path.read_bytes() for path in version.rglob('*') if path.is_file()} == before
    assert names(tmp_path) == ['5', 'latest']


def test_later_version_that_differs_from_its_snapshot_is_not_published(tmp_path, monkeypatch):
    policy = example_policies.greedy()
    exporter = PolicyExporter(policy, tmp_path)
    exporter.export(1, {})
    other = [tf.zeros_like(weight) for weight in exporter._read_all()]
    write = exporter._files.write_weights
    monkeypatch.setattr(type(exporter._files), 'write_weights', lambda self, path, weights: write(path, other))
    with pytest.raises(RuntimeError, match='got .* from the file of the weights, model_variables/.*; need'):
        exporter.export(2, {})
    monkeypatch.undo()
    snapshot = exporter._read_all()
    example_policies.reweigh(policy)
    monkeypatch.setattr(exporter, '_read_all', lambda: snapshot)
    with pytest.raises(RuntimeError, match='got .* from the exported policy; need .* as from the live policy'):
        exporter.export(3, {})
    assert names(tmp_path) == ['1', 'latest']
    monkeypatch.undo()
    exporter.export(4, {})
    assert (tmp_path / 'latest').resolve().name == '4'


def test_export_writes_the_snapshot_of_its_request(tmp_path):
    policy = example_policies.greedy()
    exporter = PolicyExporter(policy, tmp_path)
    expected = {}
    for train_step in (1, 2, 3):
        expected[train_step] = [variable.numpy() for variable in policy.variables()]
        write = exporter.snapshot(train_step, {'env_steps': train_step})
        example_policies.reweigh(policy)
        write()
    for train_step, values in expected.items():
        model = tf.saved_model.load(str(tmp_path / str(train_step)))
        saved = {tuple(variable.shape): variable.numpy() for variable in model.model_variables}
        for value in values:
            np.testing.assert_array_equal(saved[value.shape], value)


def test_a_step_that_is_being_exported_is_exported_once(tmp_path, monkeypatch):
    exporter = PolicyExporter(example_policies.greedy(), tmp_path)
    exporter.export(1, {})
    started, resume, publish = threading.Event(), threading.Event(), versions.publish

    def slow_publish(*args):
        started.set()
        assert resume.wait(30)
        publish(*args)

    monkeypatch.setattr(versions, 'publish', slow_publish)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first = pool.submit(exporter.snapshot(2, {'first': True}))
        assert started.wait(30)
        second = pool.submit(exporter.export, 2, {})
        resume.set()
        first.result(30)
        assert second.result(30) == exporter.export(2, {}) == tmp_path / '2'
    assert names(tmp_path) == ['1', '2', 'latest']
    assert json.loads((tmp_path / '2' / versions.METADATA).read_text())['first']


def test_only_the_last_versions_are_kept(tmp_path):
    exporter = PolicyExporter(example_policies.greedy(), tmp_path, keep_last=2)
    for train_step in (100, 200, 1000, 3000):
        exporter.export(train_step, {})
    assert names(tmp_path) == ['1000', '3000', 'latest']
    assert exporter.export(50, {}).exists()
    with pytest.raises(ValueError, match='keep_last'):
        PolicyExporter(example_policies.greedy(), tmp_path, keep_last=0)


# Exports as fast as it can until it is killed.
EXPORTER = """
import pathlib, sys
from tests.testing import example_policies
from tflearn.policies.exporter import PolicyExporter

directory = pathlib.Path(sys.argv[1])
policy = example_policies.greedy()
exporter = PolicyExporter(policy, directory, keep_last=100)  # so that a slow reader finds a version that is kept
train_step = 0
while True:
    train_step += 1
    exporter.export(train_step, {'env_steps': train_step})
"""


def test_readers_see_only_complete_versions_when_the_exporter_is_killed(tmp_path):
    directory, program = tmp_path / 'policy', tmp_path / 'exporter.py'
    program.write_text(EXPORTER)
    time_step = example_policies.time_step(example_policies.greedy(), 2)
    seen = [None]
    process = forks.start(str(program), directory, log=tmp_path / 'log')
    try:
        for _ in range(4):
            wait_until(lambda: versions.newest_version(directory) != seen[-1], 'another version', timeout_secs=120)
            policy = external.load(directory)
            policy.action(time_step)
            seen.append(policy.train_step)
        wait_until(lambda: any(directory.glob('.writing-*/saved_model.pb')), 'an export', 30, poll_secs=0.0001)
    finally:
        process.kill()
        process.wait(timeout=30)
    assert len(set(seen)) > 4
    complete = versions.versions(directory)
    assert 1 <= len(complete) <= 101
    assert all(loader.load(directory / str(step)).metadata['env_steps'] == step for step in complete)
    PolicyExporter(example_policies.greedy(), directory)
    assert not list(directory.glob('.*'))
