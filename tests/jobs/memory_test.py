"""Jobs that load many policies do not leak memory."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

import scripts
from tests.testing import example_policies
from tflearn.core.types import specs_of
from tflearn.core.waiting import wait_until
from tflearn.environments import gymnasium_env
from tflearn.files.run_dir import RunDir, read_json, write_json
from tflearn.launch.local import free_port
from tflearn.policies.exporter import PolicyExporter

CHECKOUT = pathlib.Path(scripts.__path__[0]).parent
NUM_POLICIES = 200
MAX_GROWTH = 0.05  # after the first ten
DEADLINE_SECS = 120.0
OBSERVATION = np.array([[1, 0, 0, 0], [-1, 0, 0, 0]], np.float32)
EVALUATE = """
import functools, sys
from tflearn.environments import gymnasium_env
from tflearn.jobs.evaluate import evaluate
from tflearn.jobs.evaluate_settings import EvaluateOptions
from tflearn.files.run_dir import RunDir
from tflearn.jobs.run import Run
evaluate(
    run=Run(RunDir(sys.argv[1]), connect_timeout_secs=60.0),
    make_environment=functools.partial(gymnasium_env.make, 'CartPole-v1'),
    num_episodes=2,
    num_environments=2,
    options=EvaluateOptions(follow='each'),
)
"""


@contextlib.contextmanager
def started(*arguments):
    environment = {**os.environ, 'PYTHONPATH': str(CHECKOUT)}
    process = subprocess.Popen(
        [sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def resident_bytes(process):
    """Returns the memory of a process that is still running."""
    assert process.poll() is None, 'the job has ended'
    status = pathlib.Path(f'/proc/{process.pid}/status').read_text()
    (line,) = (line for line in status.splitlines() if line.startswith('VmRSS:'))
    return 1024 * int(line.split()[1])


@pytest.mark.slow
@pytest.mark.extensions
def test_reloads_under_load_leak_no_memory(tmp_path):
    pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
    from tests.testing import served_policies
    from tflearn.extensions.serving.client import PolicyClient

    run_dir = RunDir(tmp_path)
    publisher = served_policies.Publisher(run_dir.policies)
    port = free_port()
    stop, answered = threading.Event(), [0] * 4

    def ask(number):
        client = PolicyClient(f'localhost:{port}', timeout_secs=DEADLINE_SECS)
        while not stop.is_set():
            outputs, version = client.predict({'observation': OBSERVATION})
            assert served_policies.agrees(OBSERVATION, outputs['action'], version)
            answered[number] += 1
        client.close()

    def served():
        return (read_json(run_dir.status('serve')) or {}).get('greedy_policy_version')

    memory = []
    with started('-m', 'scripts.serve', f'--root_dir={tmp_path}', f'--port={port}', '--poll_secs=0.05') as process:
        threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(len(answered))]
        try:
            for step in range(1, NUM_POLICIES + 1):
                publisher.publish(step)
                wait_until(lambda step=step: served() == step, f'version {step}', DEADLINE_SECS)
                if step == 1:
                    for thread in threads:
                        thread.start()
                before = min(answered)
                wait_until(lambda before=before: min(answered) > before, 'an answer', DEADLINE_SECS)
                memory.append(resident_bytes(process))
        finally:
            stop.set()
            for thread in threads:
                thread.join(DEADLINE_SECS)
    assert memory[-1] < (1 + MAX_GROWTH) * memory[10], memory


@pytest.mark.slow
def test_evaluations_leak_no_memory(tmp_path):
    run_dir = RunDir(tmp_path)
    specs = specs_of(lambda **arguments: gymnasium_env.make('CartPole-v1', **arguments))
    linear = example_policies.Linear(specs.observation, specs.action)
    exporter = PolicyExporter(linear.policy, run_dir.greedy_policy, keep_last=NUM_POLICIES)
    for step in range(NUM_POLICIES):
        linear.set([0.0, 0.0, 1.0, 1.0] if step % 2 else [0.0] * 4)
        exporter.export(step, {'env_steps': step})

    def evaluated():
        path = run_dir.evaluations
        return len([json.loads(line) for line in path.read_text().splitlines()]) if path.exists() else 0

    memory = []
    with started('-c', EVALUATE, str(tmp_path)) as process:
        for count in (10, NUM_POLICIES):
            wait_until(lambda count=count: evaluated() >= count, f'{count} evaluations', 5 * DEADLINE_SECS)
            memory.append(resident_bytes(process))
        write_json(
            run_dir.train_result,
            {'reason': 'enough', 'train_step': NUM_POLICIES - 1, 'env_steps': 1, 'seconds': 1.0},
        )
        assert process.wait(DEADLINE_SECS) == 0
    assert memory[-1] < (1 + MAX_GROWTH) * memory[0], memory
