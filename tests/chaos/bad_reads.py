"""What reads files, addresses and environment variables, called with random ones by itself."""

import json
import pathlib
import random
import sys
import threading
from typing import Any

from tests.chaos import bad_values
from tflearn.core.errors import UserError

_WAIT_SECS = 0.2


def case(seed: float) -> None:
    """Calls one of the functions; ends with status 2 and one line where it refuses what it is given."""
    rng = random.Random(seed)
    function = rng.choice([value for name, value in sorted(globals().items()) if name.startswith('read_')])
    sys.stdout.write(f'{function.__name__}\n')
    try:
        function(rng)
    except UserError as error:
        sys.stderr.write(f'tflearn-check: error: {" ".join(str(error).split())}\n')
        sys.exit(2)


def _damaged(rng: random.Random, *patterns: str) -> None:
    files = sorted(path for pattern in patterns for path in pathlib.Path().glob(pattern) if path.is_file())
    for _ in range(rng.choice([1, 1, 2])):
        path = rng.choice(files)
        if path.is_file():
            sys.stdout.write(f'{bad_values.damage(rng, path)}\n')


def read_evaluations(rng: random.Random) -> None:
    from tflearn.actors.evaluation_record import EvaluationRecord

    path = pathlib.Path('evaluations.jsonl')
    lines = [{'train_step': n, 'mean_return': 3.5, 'num_episodes': 3, 'exported_at': 1.0} for n in range(3)]
    path.write_text(''.join(json.dumps(line) + '\n' for line in lines))
    if rng.random() < 0.5:
        path.write_text(f'{rng.choice(bad_values.JSON)}\n')
    else:
        _damaged(rng, str(path))
    record = EvaluationRecord(path)
    record.find({'train_step': 1, 'exported_at': 1.0})
    float(record.best_mean_return or 0)


def read_lock(rng: random.Random) -> None:
    from tflearn.files import lock

    lock.LOCK_SECS = _WAIT_SECS
    owners = pathlib.Path('owners')
    with lock.hold(owners, 'train', threading.Event()):
        pass
    (path,) = owners.iterdir()
    if rng.random() < 0.5:
        path.write_text(rng.choice(bad_values.JSON))
    else:
        _damaged(rng, str(path))
    with lock.hold(owners, 'train', threading.Event()) as held:
        assert held


def read_run_files(rng: random.Random) -> None:
    from tflearn.files.run_dir import RunDir, read_json
    from tflearn.jobs.run import Run

    run_dir = RunDir('run')
    run_dir.stop_request.parent.mkdir(exist_ok=True)
    run_dir.stop_request.write_text('{"reason": "x"}')
    _damaged(rng, 'run/DONE', 'run/train/*.json')
    Run(run_dir).is_done()
    read_json(run_dir.stop_request)


def read_policy(rng: random.Random) -> None:
    from tflearn.policies import external, versions

    _damaged(rng, 'run/policies/greedy_policy/1/**/*')
    directory = pathlib.Path('run/policies/greedy_policy').absolute()
    versions.best_version(directory)
    external.load(directory).initial_state(1)


def read_checkpoint(rng: random.Random) -> None:
    import tensorflow as tf

    from tflearn.learner.checkpoints import Checkpoints, random_state

    def checkpoints() -> Any:
        objects = {'weights': tf.Module(), 'random_state': random_state()}
        objects['weights'].variable = tf.Variable(tf.zeros((3, 4)))
        return Checkpoints('checkpoints', objects)

    first = checkpoints()
    for step in (1, 2):
        first.save(step)
    _damaged(rng, 'checkpoints/*')
    restored = checkpoints().restore_newest()
    sys.stdout.write(f'restored {restored}\n')


def read_replay(rng: random.Random) -> None:
    from tests.replay.server_test import UNLIMITED, _fill
    from tests.testing import replay

    with replay.serving(pathlib.Path().absolute()) as serve:
        served = serve(UNLIMITED)
        _fill(served, UNLIMITED)
        served.server.checkpoint()
        served.server.close()
        _damaged(rng, 'replay/checkpoints/**/*', 'replay/tables.json')
        serve(UNLIMITED)


def read_address(rng: random.Random) -> None:
    from tflearn.core import waiting
    from tflearn.replay import backend

    address = rng.choice([each for each in bad_values.ADDRESSES if ':' in each])
    host, _, port = address.rpartition(':')
    if host and port.isascii() and port.isdigit():
        assert not waiting.is_listening(address, _WAIT_SECS)
        assert backend.counts(address) is None


def read_cluster(rng: random.Random) -> None:
    from tflearn.core import strategies

    task = {'type': 'worker', 'index': 0}
    text = json.dumps({'cluster': {'worker': ['localhost:1', 'localhost:2']}, 'task': task})
    part = rng.choice(['worker', '1', '0', 'localhost', '{', 'cluster', ']', '"localhost:1"', '"worker"'])
    text = text.replace(part, bad_values.text(rng), 1)
    strategies.read_tf_config(rng.choice([text, text, rng.choice(bad_values.JSON)]))


def read_external_port(rng: random.Random) -> None:
    from tests import fakes
    from tflearn.environments.external_server import ExternalOptions, SimulatorServer
    from tflearn.environments.external_slots import Slots

    host = rng.choice(['localhost', *(address.rpartition(':')[0] for address in bad_values.ADDRESSES)])
    ports = rng.choice([(0,), (-1,), (65536,), (), '8600', (8600.5,), ('x',), (None,), (1 << 40,), 3])
    environment = fakes.CheckedEnvironment()
    options = ExternalOptions(host=host, ports=ports)
    slots = Slots(2, options.step_timeout_secs, options.begin_wait_secs)
    SimulatorServer(slots, environment.specs, options).close()
