"""Episodes converted to a format and back are equal; the format's own library reads them."""

import contextlib
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests import fakes
from tests.data import data_sets
from tests.testing import forged, structured, two_rewards
from tflearn.data import arrays, columns, conversion, metadata, writer
from tflearn.data import reader as reading
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.environments import spaces
from tflearn.files.run_dir import write_json

DEADLINE_SECS = 120.0
TASKS = [task for task in structured.TASKS if 'masked' not in task]
IMAGES = ('picture and vector', 'nested dict')  # 8 x 8 x 1 bytes
PACKAGES = {'minari': 'minari', 'rlds': 'tensorflow_datasets'}

# Other programs' libraries warn of their own use of numpy, gym and protobuf.
pytestmark = pytest.mark.filterwarnings('ignore')


@pytest.fixture(params=PACKAGES)
def other(request):
    pytest.importorskip(PACKAGES[request.param])
    return request.param


def convert(path, output, target, **settings):
    return conversion.convert(Dataset([str(path)], **settings), output, target, spaces)


def episodes_of(directory):
    return list(EpisodeReader(Dataset([str(directory)])).episodes())


def assert_round_trip(tmp_path, other):
    """Converts tmp_path/'data' to another format and back."""
    num_episodes = convert(tmp_path / 'data', tmp_path / 'other', other)
    assert convert(tmp_path / 'other', tmp_path / 'back', 'tflearn') == num_episodes
    before, after = episodes_of(tmp_path / 'data'), episodes_of(tmp_path / 'back')
    assert len(before) == num_episodes > 0
    for need, got in zip(before, after, strict=True):
        assert list(need) == list(got)
        for name in need:
            assert need[name].dtype == got[name].dtype
            np.testing.assert_array_equal(need[name], got[name], name)
    assert columns.read_specs(tmp_path / 'data') == columns.read_specs(tmp_path / 'back')
    assert columns.read_metadata(tmp_path / 'data') == columns.read_metadata(tmp_path / 'back')


@pytest.mark.parametrize('continuous', [False, True])
@pytest.mark.parametrize('task', TASKS)
def test_round_trip(tmp_path, task, continuous, other):
    environment = structured.make_environment(task, num_environments=3, continuous=continuous)
    data_sets.write(tmp_path / 'data', 20, environment, metadata={'policy': 'random'})
    environment.close()
    if other == 'minari' and task in IMAGES:
        with pytest.raises(ValueError, match=r'got the column observation\..* stores as JPEG, .* use --format=rlds'):
            convert(tmp_path / 'data', tmp_path / 'other', other)
        assert [path.name for path in tmp_path.iterdir()] == ['data']
    else:
        assert_round_trip(tmp_path, other)


UNKNOWN = 3  # of the episodes, whose rewards are not known


def with_unknown(folder):
    """Writes a data set of a log, with episodes of unknown rewards, a vocabulary and a stated range."""
    given = {'observation': {'x': np.arange(12.0, dtype=np.float32)}, 'action': np.arange(12) % 3}
    arrays.from_arrays(folder, **given, reward=np.ones(12))
    unknown = {name: tf.nest.map_structure(lambda leaf: leaf[:UNKNOWN], value) for name, value in given.items()}
    specs = columns.read_specs(folder)
    arrays.from_arrays(folder / 'unknown', **unknown, reward=np.full(UNKNOWN, np.nan), specs=specs)
    write_json(folder / metadata.VOCABULARIES, {'action': ['a', 'b', 'c']})
    columns.write_metadata(folder, {metadata.STATED: {'low': 0.0, 'high': 2.0}})


def num_unknown(directory):
    reader = reading.with_unknown(Dataset([str(directory)]))['unknown']
    assert all(np.isnan(episode['reward'][0]) for episode in reader.episodes())
    return reader.num_episodes


def test_our_own_format_keeps_episodes_with_unknown_rewards(tmp_path):
    with_unknown(tmp_path / 'data')
    assert convert(tmp_path / 'data', tmp_path / 'again', 'tflearn') == 12
    assert num_unknown(tmp_path / 'again') == UNKNOWN
    assert metadata.vocabularies([tmp_path / 'again']) == {'action': ['a', 'b', 'c']}
    assert metadata.stated([tmp_path / 'again']) == {'low': 0.0, 'high': 2.0}
    # What was trained on the one may not be judged by the other.
    (made_of,) = metadata.lineage([tmp_path / 'again'])[0]['from']
    assert made_of['digest'] == metadata.lineage([tmp_path / 'data'])[0]['digest']


def test_round_trip_of_unknown_rewards(tmp_path, other):
    with_unknown(tmp_path / 'data')
    assert_round_trip(tmp_path, other)
    assert num_unknown(tmp_path / 'back') == UNKNOWN


def test_two_programs_do_not_write_the_same_output(tmp_path):
    data_sets.write(tmp_path / 'data', 20)
    with conversion.new_directory(tmp_path / 'output') as first:
        first.mkdir()
        (first / 'kept').touch()
        with pytest.raises(ValueError, match='got the output .*output, which another program writes; need a new'):
            convert(tmp_path / 'data', tmp_path / 'output', 'tflearn')
    assert {path.name for path in tmp_path.iterdir()} == {'data', 'output'}
    assert [path.name for path in (tmp_path / 'output').iterdir()] == ['kept']


def test_round_trip_of_truncated_episodes(tmp_path, other):
    data_sets.write(tmp_path / 'data', 60, fakes.CheckedEnvironment((3, 5), (True, False)))
    assert_round_trip(tmp_path, other)


def test_round_trip_of_what_the_policy_records(tmp_path, other):
    specs = fakes.CheckedEnvironment().specs
    dtype = tf.float64 if other == 'minari' else tf.float32
    info = {'log_probability': tf.TensorSpec((), tf.float32), 'state': [tf.TensorSpec((2, 3), dtype)]}
    stored = columns.columns_of(columns.data_spec(specs, info))
    written = data_sets.split(data_sets.write(tmp_path / 'plain', 40))
    random = np.random.default_rng(1)
    with_info = writer.EpisodeWriter(tmp_path / 'data', specs, stored)
    for step_type, observation, action, *rest in written:
        t = len(step_type)
        more = [random.normal(size=t).astype(np.float32), random.normal(size=(t, 2, 3)).astype(dtype.as_numpy_dtype)]
        with_info.write([step_type, observation, action, *more, *rest])
    with_info.close()
    assert_round_trip(tmp_path, other)


def test_rlds_refuses_what_it_would_round(tmp_path):
    pytest.importorskip(PACKAGES['rlds'])
    specs = fakes.CheckedEnvironment().specs
    info = {'value': tf.TensorSpec((), tf.float64)}
    stored = columns.columns_of(columns.data_spec(specs, info))
    with contextlib.closing(writer.EpisodeWriter(tmp_path / 'data', specs, stored)) as file:
        for step_type, observation, action, *rest in data_sets.split(data_sets.write(tmp_path / 'plain', 20)):
            file.write([step_type, observation, action, np.zeros(len(action)), *rest])
    with pytest.raises(ValueError, match=r'got the column policy_info.value: .*, which TFDS stores as float32'):
        convert(tmp_path / 'data', tmp_path / 'other', 'rlds')


def test_round_trip_of_several_rewards_and_of_a_failed_environment(tmp_path, other):
    environment = two_rewards.make(num_environments=2, seed=1)
    data_sets.write(tmp_path / 'data', 60, environment)
    environment.close()
    assert_round_trip(tmp_path, other)
    specs = fakes.CheckedEnvironment().specs
    with contextlib.closing(writer.EpisodeWriter(tmp_path / 'failed' / 'data', specs)) as failed:
        step_type, next_step_type = np.array([0, 1, 1], np.int32), np.array([1, 1, 0], np.int32)
        reward, ones = np.array([1, 2, 9], np.float32), np.ones(3, np.float32)
        failed.write([step_type, np.ones((3, 2), np.float32), np.ones(3, np.int64), next_step_type, reward, ones])
    assert_round_trip(tmp_path / 'failed', other)


@pytest.mark.parametrize('frame', [forged.header(1 << 40), b'torn'], ids=['length', 'header'])
def test_a_damaged_file_of_rlds_is_named(tmp_path, frame):
    pytest.importorskip(PACKAGES['rlds'])
    data_sets.write(tmp_path / 'data', 60)
    convert(tmp_path / 'data', tmp_path / 'other', 'rlds')
    (file,) = (tmp_path / 'other').glob('*.tfrecord*')
    file.write_bytes(frame + file.read_bytes()[12:])
    with pytest.raises(ValueError, match='got a damaged file of the split train in .*other .*; need what its program'):
        convert(tmp_path / 'other', tmp_path / 'back', 'tflearn')


READ_MINARI = """
import json, sys, minari
data = minari.MinariDataset(sys.argv[1] + '/data')
episode = next(data.iterate_episodes())
print(json.dumps({
    'episodes': data.total_episodes, 'steps': int(data.total_steps), 'observation': episode.observations.tolist(),
    'action': episode.actions.tolist(), 'reward': episode.rewards.tolist(),
    'terminated': episode.terminations.tolist(), 'truncated': episode.truncations.tolist(),
    'observation_space': str(data.observation_space), 'action_space': str(data.action_space),
    'imported': 'tflearn' in sys.modules,
}))
"""

READ_RLDS = """
import json, sys, tensorflow_datasets as tfds
builder = tfds.builder_from_directory(sys.argv[1])
data = builder.as_dataset(split='train', read_config=tfds.ReadConfig(interleave_cycle_length=1))
lengths = [sum(1 for _ in episode['steps']) for episode in data]
steps = next(iter(next(iter(data))['steps'].batch(100).as_numpy_iterator()))
print(json.dumps({
    'episodes': builder.info.splits['train'].num_examples, 'steps': sum(lengths) - len(lengths),
    'observation': steps['observation'].tolist(), 'action': steps['action'].tolist()[:-1],
    'reward': steps['reward'].tolist()[:-1], 'is_first': steps['is_first'].tolist(),
    'is_last': steps['is_last'].tolist(), 'is_terminal': steps['is_terminal'].tolist(),
    'imported': 'tflearn' in sys.modules,
}))
"""


def test_the_library_of_the_format_reads_it_in_a_process_of_its_own(tmp_path, other):
    data_sets.write(tmp_path / 'data', 60, fakes.CheckedEnvironment((3, 5), (True, False)))
    num_episodes = convert(tmp_path / 'data', tmp_path / 'other', other)
    program = READ_MINARI if other == 'minari' else READ_RLDS
    ended = subprocess.run(
        [sys.executable, '-I', '-c', program, str(tmp_path / 'other')],
        cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_SECS,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    episodes = episodes_of(tmp_path / 'data')
    assert found['imported'] is False
    assert (found['episodes'], found['steps']) == (num_episodes, sum(len(each['reward']) - 1 for each in episodes))
    first = episodes[0]
    assert found['observation'] == first['observation'].tolist()
    assert (found['action'], found['reward']) == (first['action'][:-1].tolist(), first['reward'][:-1].tolist())
    if other == 'minari':
        assert (found['terminated'], found['truncated']) == ([False] * 3, [False, False, True])
        assert found['action_space'] == 'Discrete(2)'
    else:
        assert (found['is_first'], found['is_last']) == ([True, False, False, False], [False, False, False, True])
        assert found['is_terminal'] == [False] * 4


WRITE_MINARI = """
import sys, numpy as np, gymnasium as gym
from minari.dataset.minari_storage import MinariStorage
from minari.data_collector import EpisodeBuffer
import minari
storage = MinariStorage.new(sys.argv[1], gym.spaces.Box(-9, 9, (2,), np.float64), gym.spaces.Discrete(3, start=1))
storage.update_metadata({'dataset_id': 'other-v0', 'minari_version': minari.__version__})
last = np.arange(4) == 3
storage.update_episodes([EpisodeBuffer(
    observations=np.arange(10.0).reshape(5, 2), actions=np.array([1, 3, 2, 1]), rewards=np.arange(4.0),
    terminations=last & (i == 0), truncations=last & (i == 1)) for i in range(2)])
"""

WRITE_RLDS = """
import sys, numpy as np, tensorflow as tf, tensorflow_datasets as tfds
from tensorflow_datasets.rlds import rlds_base
config = rlds_base.DatasetConfig(name='other', observation_info=tfds.features.Tensor(shape=(2,), dtype=tf.float32),
                                 action_info=tf.int64, reward_info=tf.float32, discount_info=tf.float32)
identity = tfds.core.dataset_info.DatasetIdentity('other', tfds.core.Version('1.0.0'), sys.argv[1], 'other')
import os; os.makedirs(sys.argv[1])
writer = tfds.core.SequentialWriter(rlds_base.build_info(config, identity), 100)
writer.initialize_splits(['train'])
for i in range(2):
    last = np.arange(5) == 4
    writer.add_examples({'train': [{'steps': {
        'observation': np.arange(10, dtype=np.float32).reshape(5, 2), 'action': np.array([0, 2, 1, 0, 0]),
        'reward': np.array([0, 1, 2, 3, 7], np.float32), 'discount': np.ones(5, np.float32),
        'is_first': np.arange(5) == 0, 'is_last': last, 'is_terminal': last & (i == 0)}}]})
writer.close_all()
"""


def test_data_of_another_program(tmp_path, other):
    program = WRITE_MINARI if other == 'minari' else WRITE_RLDS
    subprocess.run([sys.executable, '-I', '-c', program, str(tmp_path / 'in')], check=True, timeout=DEADLINE_SECS)
    assert convert(tmp_path / 'in', tmp_path / 'data', 'tflearn') == 2
    for i, episode in enumerate(episodes_of(tmp_path / 'data')):
        np.testing.assert_array_equal(episode['observation'], np.arange(10, dtype=np.float32).reshape(5, 2))
        np.testing.assert_array_equal(episode['action'], [1, 3, 2, 1, 0] if other == 'minari' else [0, 2, 1, 0, 0])
        np.testing.assert_array_equal(episode['reward'], [0, 1, 2, 3, 0])
        np.testing.assert_array_equal(episode['discount'], [1, 1, 1, float(i), 1])
        np.testing.assert_array_equal(episode['step_type'], [0, 1, 1, 1, 2])
    specs = columns.read_specs(tmp_path / 'data')
    start = 1 if other == 'minari' else 0
    assert (specs.action.dtype, specs.action.minimum, specs.action.maximum) == (tf.int64, start, start + 2)


def test_mistakes_are_refused(tmp_path, other):
    data_sets.write(tmp_path / 'data', 20)
    with pytest.raises(ValueError, match="got the format 'csv'; need one of tflearn, minari, rlds"):
        convert(tmp_path / 'data', tmp_path / 'out', 'csv')
    with pytest.raises(ValueError, match='got the output .*, which exists'):
        convert(tmp_path / 'data', tmp_path / 'data', other)
    convert(tmp_path / 'data', tmp_path / 'out', other)
    (file,) = (tmp_path / 'out').rglob('main_data.hdf5' if other == 'minari' else 'features.json')
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(ValueError, match='got .*/out.*, which (Minari|TFDS) cannot read'):
        convert(tmp_path / 'out', tmp_path / 'back', 'tflearn')
    assert not (tmp_path / 'back').exists()


@pytest.mark.parametrize('package', PACKAGES)
def test_a_missing_package_is_named(tmp_path, package, monkeypatch):
    data_sets.write(tmp_path / 'data', 20)
    monkeypatch.setitem(sys.modules, PACKAGES[package], None)
    with pytest.raises(ImportError, match=rf'which the format {package} needs; need that installed; pip install'):
        convert(tmp_path / 'data', tmp_path / 'out', package)
