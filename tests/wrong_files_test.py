"""Half-valid message files: whoever reads one takes it, or refuses it in one line that names the file and the field."""

import contextlib
import hashlib
import io
import json
import types

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import wrong_files, wrong_messages
from tflearn.actors import evaluation_record
from tflearn.config import going_on
from tflearn.core.errors import UserError
from tflearn.data import columns, metadata, statistics
from tflearn.files import digests, lock, messages
from tflearn.files.lock import LOCAL
from tflearn.files.manifests import Manifests
from tflearn.files.run_dir import RunDir, read_json
from tflearn.files.status import Status
from tflearn.launch import learner_workers, reports, supervisor, topology
from tflearn.policies import added_metadata, states, versions
from tflearn.replay.checkpoints import CheckpointDirectory
from tflearn.replay.valkey import server as valkey_server
from tflearn.transforms import rewards

COUNTS, SEED = (100, pytest.param(2_000, marks=pytest.mark.slow)), 1
EVALUATION = {
    'train_step': 5,
    'env_steps': 9,
    'mean_return': 1.5,
    'num_episodes': 2,
    'returns': [1.0, 2.0],
    'mean_return_interval': [0.5, 2.5],
    'mean_length': 3.0,
    'metrics': {'info': 1.0},
    'exported_at': 1.7e9,
}
DONE = {
    'reason': 'num_train_steps 5 reached',
    'train_step': 5,
    'env_steps': 9,
    'seconds': 1.5,
    'policy': 'policies/greedy_policy/5',
    'evaluation': EVALUATION,
    'best_policy': None,
}
RESULT = {'reason': 'num_train_steps 5 reached', 'train_step': 5, 'env_steps': 9, 'seconds': 1.5}
STATUS = {
    'job': 'train',
    'pid': 1,
    'started': '5',
    'state': 'running',
    'time': 1.7e9,
    'train_step': 5,
    'env_steps': 9,
    'loss': 0.5,
    'mean_return': None,
}
METADATA = {
    'train_step': 5,
    'env_steps': 9,
    'exported_at': 1.7e9,
    'evaluation': EVALUATION,
    'specs': {'observation': {'dtype': 'float32', 'shape': [2]}, 'action': {'dtype': 'int64', 'shape': []}},
    'observation_names': ['observation'],
    'action_mask': 'mask',
    'vocabularies': {'color': ['red', 'blue']},
    'missing': {'observation.age': 0.0},
    'trained_on': [{'path': 'a', 'digest': 'ab', 'split': {'by': 'id'}, 'from': []}],
}
STATES = {
    'stable': 5,
    'canary': 7,
    'share': 0.1,
    'shadow': None,
    'earlier': [3],
    'history': [{'change': 'stable', 'version': 5, 'at': 1.7e9, 'who': 'me', 'why': 'better'}],
}
DESCRIPTION = {
    'format': 1,
    'columns': [{'name': 'observation', 'dtype': 'float32', 'shape': [2]}],
    'metadata': {
        'split': {
            'by': 'id',
            'share': 0.2,
            'part': 'train',
            'from': [{'path': 'a', 'digest': 'ab', 'split': {}, 'from': []}],
        },
        'recordings': [{'episodes': 1, 'returns': {'mean': 1.0, 'least': 1.0, 'greatest': 1.0}}],
        'stated': {'low': 0, 'high': 1.0, 'whole': True},
        'missing': {'observation.age': 0.0},
        'copied_from': [{'path': 'a', 'digest': 'ab', 'split': {}, 'from': []}],
    },
}
RESOURCES = {'cores': 1, 'memory_gb': None, 'accelerators': 0, 'accelerator': None, 'custom': {'x': 1}}
TOPOLOGY = {
    'jobs': [
        {
            'name': 'train',
            'command': ['a', 'b'],
            'kind': 'train',
            'serves': None,
            'may_finish': True,
            'restart': {'after_error': False, 'spent': 'fail'},
            'stop_stage': 0,
            'resources': RESOURCES,
            'workers': 1,
        }
    ],
    'warm_parent': None,
    'stop_timeout_secs': 30.0,
}
OWNER = {
    'job': 'train',
    'epoch': 1,
    'host': 'a',
    'machine': 'b',
    'pid': 5,
    'started': '1',
    'since': 1.7e9,
    'renewals': 3,
}

REPLAY_TABLES = {'batch': {'max_size': 9, 'sampler': 'uniform', 'signature': {'x': 'float32[2]'}}}
PART = {'epoch': 1, 'checkpoint': 'ckpt-5', 'files': {'train/checkpoints/ckpt-5.index': [3, 'ab']}}
MANIFEST = {'time': '2026-01-01', 'epoch': 1, 'train_step': 5, 'replay': {}, 'parts': {'train': PART}}
TABLES = json.dumps([['replay', 9, [['row', 'uint8', [3], 'row']], 'scan']])
STORED = {'count': 1, 'tables': TABLES, 'scanned': 1, 'queued': 0, 'base': 0, 'past': 0, 'drawn': 0}


def read_done(run_dir):
    done = read_json(run_dir.done, messages.Done)
    reports.already_done_line(run_dir, done)
    reports.done_lines(run_dir, done)
    run_dir.done_line().encode()


def read_version(run_dir):
    version = run_dir.greedy_policy / '5'
    (version / 'saved_model.pb').touch()
    assert added_metadata.add(version)
    read_json(version / versions.METADATA, messages.Metadata)


def watch(run_dir):
    run_dir.living_jobs()
    assert Status(run_dir.status('train'), kept=('restarts', 'train_step')).newest
    supervisor.watch(run_dir, reports.PlainView(io.StringIO(), 1.0), lambda: True)
    reports.metrics_line(supervisor.read_report(run_dir, 1.0)).encode()


def read_data(run_dir):
    directory = run_dir.root / 'data'
    columns.read_columns(directory)
    list(metadata._splits(metadata.lineage([directory]), ()))
    metadata.stated([directory])
    '\n'.join(statistics.origin(directory)).encode()


def read_evaluations(run_dir):
    record = evaluation_record.EvaluationRecord(run_dir.evaluations)
    record.best(), record.best('info'), record.find({'train_step': 1})
    [reports.plain(each['mean_return']) for each in record.evaluations]


def read_owner(run_dir):
    found = lock._read(LOCAL, run_dir.owners / 'train-000001.json')
    lock._described(found or {}), lock._has_died(found or {})


def read_weights(run_dir):
    agent = types.SimpleNamespace(reward_weights=tf.Variable([1.0, 1.0]))
    rewards.weights_reader(agent, run_dir)(0)
    assert np.isfinite(agent.reward_weights.numpy()).all()


def read_stored(run_dir):
    valkey_server.read_status(run_dir.replay_checkpoints)


def read_tables(run_dir):
    """A difference is an error too, which names the checkpoint."""
    saved = CheckpointDirectory(run_dir.replay_checkpoints)
    try:
        saved.refuse_differences(run_dir.replay_checkpoints / '1', REPLAY_TABLES)
    except UserError as error:
        if 'made with other tables' in str(error):
            raise UserError(f'{error} ({saved.path.with_name("tables.json")})') from error
        raise


def read_values(run_dir):
    ' '.join(map(str, going_on._changes(run_dir, going_on.Effective({}, {'train.a': '2'}), 'train'))).encode()


def read_manifests(run_dir):
    """A wrong one is passed over."""
    manifests = Manifests(run_dir.root, run_dir.manifests, 'train', 1)
    ' '.join(map(str, manifests.newest_first())).encode()
    assert not list(manifests.whole())


def signed(value):
    """Returns the bytes of a manifest, whose digest is that of the rest."""
    body = wrong_messages.encoded(value)
    return f'{len(body)} {hashlib.sha256(body).hexdigest()}\n'.encode() + body


def read_digests(run_dir):
    model = run_dir.root / 'model'
    (model / 'a').write_text('x')
    with digests.checked(model):
        pass


def read_group(run_dir):
    with contextlib.suppress(TimeoutError):
        learner_workers.tf_config(run_dir, 1, 2, 0.0)


READERS = {
    'DONE': (DONE, read_done),
    'train/result.json': (RESULT, lambda run_dir: going_on.reopen(run_dir, {'num_train_steps': 5})),
    'train/stop_request.json': (
        {'reason': 'target_return 3 reached', 'evaluation': EVALUATION},
        lambda run_dir: (
            run_dir.train_result.write_text(json.dumps(RESULT)),
            going_on.reopen(run_dir, {'target_return': 3}),
        ),
    ),
    'status/train.json': (STATUS, watch),
    'status/launch.json': ({**STATUS, 'restarts': {'train': 1}}, watch),
    'failure.json': ({'job': 'train', 'message': 'x'}, lambda run_dir: read_json(run_dir.failure, messages.Failure)),
    'addresses/train_0.json': (
        {'address': 'a:1', 'attempt': 'ab', 'count': 1},
        lambda run_dir: learner_workers._make_group(run_dir, 1, (), {'ab': 0}),
    ),
    'addresses/train.json': ({'attempts': ['ab', 'cd'], 'addresses': ['a:1', 'b:1']}, read_group),
    'reward_weights.json': ({'weights': [1.0, 0.5]}, read_weights),
    'replay/checkpoints/1/status.json': (
        STORED,
        lambda run_dir: valkey_server.read_status(run_dir.replay_checkpoints / '1'),
    ),
    'owners/train-000001.json': (OWNER, read_owner),
    'topology.json': (TOPOLOGY, lambda run_dir: topology.load(run_dir)),
    'evaluations.jsonl': (EVALUATION, read_evaluations),
    'policies/greedy_policy/5/metadata.json': (METADATA, read_version),
    'policies/greedy_policy/states.json': (STATES, lambda run_dir: states.read(run_dir.greedy_policy).text().encode()),
    'data/dataset.json': (DESCRIPTION, read_data),
    'replay/tables.json': (REPLAY_TABLES, read_tables),
    'config_values.json': ({'train.a': '1', 'train.b': '@x'}, read_values),
    'manifests/00000001.json': (MANIFEST, read_manifests),
    'model/digests.json': ({'sha256': {'a': hashlib.sha256(b'x').hexdigest()}, 'hmac_sha256': 'ab'}, read_digests),
    'data/vocabularies.json': ({'color': ['a']}, lambda run_dir: metadata.vocabularies([run_dir.root / 'data'])),
}


@pytest.mark.parametrize('count', COUNTS)
@pytest.mark.parametrize('name', READERS)
def test_a_message_file_is_read_or_refused_by_its_name_and_the_fields(name, count, tmp_path):
    good, read = READERS[name]
    run_dir = RunDir(tmp_path)
    encode = signed if name.startswith('manifests') else wrong_messages.encoded
    found, counts = wrong_files.faults(tmp_path / name, good, lambda: read(run_dir), count, SEED, encode)
    assert found == [] and counts['read'] > count // 20, counts
