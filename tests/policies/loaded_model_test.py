"""SavedModels of one graph share its functions, whoever saved them; each version has its own weights."""

import gc
import json
import shutil
import warnings

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.policies import policy_saver

from tests.testing import example_policies
from tflearn.core.errors import UserValueError
from tflearn.policies import loaded_model, loader
from tflearn.policies.exporter import PolicyExporter

OBSERVATION = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)


def call(model, signature='serving_default', **inputs):
    """Calls a signature of a `LoadedModel` by name."""
    function = model.signatures[signature]
    outputs = function([tf.constant(inputs[each.op.name], each.dtype) for each in function.inputs])
    return {name: value.numpy() for name, value in outputs.items()}


def expected(path, signature='serving_default', **inputs):
    signatures = tf.saved_model.load(str(path)).signatures
    return {name: value.numpy() for name, value in signatures[signature](**inputs).items()}


@pytest.mark.parametrize('kind', ['recurrent', 'nested', 'random'])
def test_versions_share_functions_and_no_weights(kind, tmp_path):
    policy = getattr(example_policies, kind)()
    exporter = PolicyExporter(policy, tmp_path)
    models = []
    for step in (1, 2):
        example_policies.reweigh(policy, step)
        models.append(loaded_model.load(exporter.export(step, {})))
    for name, first in models[0].signatures.items():
        second = models[1].signatures[name]
        assert first.definition is second.definition
        handles = [{id(weight) for weight in function.weights} for function in (first, second)]
        assert not handles[0] & handles[1]


def test_a_version_keeps_its_weights_while_others_come_and_go(tmp_path):
    policy = example_policies.greedy_actor()
    exporter = PolicyExporter(policy, tmp_path)
    paths = []
    for step in range(3):
        example_policies.reweigh(policy, step)
        paths.append(exporter.export(step, {}))
    answers = [expected(path, observation=OBSERVATION)['action'] for path in paths]
    first = loaded_model.load(paths[0])
    for path, answer in zip(paths, answers, strict=True):
        np.testing.assert_array_equal(call(loaded_model.load(path), observation=OBSERVATION)['action'], answer)
        gc.collect()
        np.testing.assert_array_equal(call(first, observation=OBSERVATION)['action'], answers[0])
    assert not np.array_equal(answers[0], answers[1])


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    """The paths of two versions that TF-Agents saved; each saver traces the policy, as in two runs."""
    policy, folder = example_policies.with_info(), tmp_path_factory.mktemp('saved')
    paths = [folder / str(step) for step in range(2)]
    for step, path in enumerate(paths):
        saver = policy_saver.PolicySaver(policy, batch_size=None)
        example_policies.reweigh(policy, step)
        with warnings.catch_warnings():
            # The saver also saves the policy's distribution.
            warnings.filterwarnings('ignore', 'Encoding a StructuredValue with type tfp', UserWarning)
            saver.save(str(path))
        (path / 'metadata.json').write_text(json.dumps({'train_step': step}))
    return paths


def test_policies_that_tf_agents_saved_share_functions(saved):
    first, second = saved
    assert (first / 'saved_model.pb').read_bytes() != (second / 'saved_model.pb').read_bytes()
    for signature in ('action', 'get_train_step', 'get_metadata'):
        functions = [loaded_model.load(path).signatures[signature].definition for path in saved]
        assert functions[0] is functions[1]


@pytest.mark.extensions
def test_servers_of_policies_that_tf_agents_saved_have_weights_of_their_own(saved):
    from tflearn.extensions.serving.served_version import BatchOptions, ServedVersion

    served = [ServedVersion(path, BatchOptions()).signature('action') for path in saved]
    ones = np.ones(50, np.float32)
    inputs = {'0/step_type': ones.astype(np.int32), '0/reward': ones, '0/discount': ones, '0/observation': OBSERVATION}
    for step, signature in enumerate(served):
        # The actions are random; the parameters of their distribution depend only on the weights.
        wanted = expected(saved[step], 'action', **inputs)
        got = signature.run(inputs)
        assert set(got) == set(wanted)
        for name in set(wanted) - {'action'}:
            np.testing.assert_allclose(got[name], wanted[name], atol=1e-6)
    assert not np.allclose(*(signature.run(inputs)['info/dist_params/loc'] for signature in served))


def save(path, module, function):
    specs = tf.TensorSpec([None], tf.string, 'key')
    module.call = tf.function(lambda key: {'value': function(key)}, input_signature=[specs], autograph=False)
    tf.saved_model.save(module, str(path), signatures={'serving_default': module.call})


def save_table(path, values):
    """Saves a model with a lookup table, which is not part of a checkpoint."""
    module = tf.Module()
    module.weight = tf.Variable(1)
    content = tf.lookup.KeyValueTensorInitializer(tf.constant(['a', 'b']), tf.constant(values))
    module.table = tf.lookup.StaticHashTable(content, -1)
    save(path, module, lambda key: module.weight * module.table.lookup(key))


def save_vocabulary(path, keys):
    """Saves a model that looks up the index of a key in an asset file."""
    module = tf.Module()
    file = path.with_suffix('.txt')
    file.write_text('\n'.join(keys))
    content = tf.lookup.TextFileInitializer(
        str(file), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
    )
    module.table = tf.lookup.StaticHashTable(content, -1)
    save(path, module, module.table.lookup)


@pytest.mark.parametrize(
    ('save', 'contents', 'answers'),
    [(save_table, ([1, 2], [3, 4]), ([1, 2], [3, 4])), (save_vocabulary, ('ab', 'ba'), ([0, 1], [1, 0]))],
    ids=['table', 'asset'],
)
def test_model_with_resources_other_than_variables_shares_nothing(save, contents, answers, tmp_path):
    functions = []
    for number, content in enumerate(contents):
        save(tmp_path / str(number), content)
        functions.append(loaded_model.load(tmp_path / str(number)).signatures['serving_default'])
        shutil.rmtree(tmp_path / str(number))
    gc.collect()
    for function, answer in zip(functions, answers, strict=True):
        np.testing.assert_array_equal(function([tf.constant(['a', 'b'])])['value'], answer)


def test_different_graphs_have_different_digests(tmp_path):
    models = []
    for dtype in (tf.int32, tf.int64):
        version = PolicyExporter(example_policies.greedy(dtype), tmp_path / dtype.name).export(0, {})
        serving = tf.saved_model.load(str(version)).signatures['serving_default']
        assert serving.structured_outputs['action'].dtype == dtype
        models.append(loaded_model.load(version))
    assert [model.function('action_of_fields').definition.structured_outputs['action'].dtype for model in models] == [
        tf.int32,
        tf.int64,
    ]
    with pytest.raises(ValueError, match="with the functions .*'action_of_fields'.*; need train"):
        models[0].function('train')


def test_rejects_a_damaged_version_of_a_known_graph(tmp_path):
    policy = example_policies.greedy()
    exporter = PolicyExporter(policy, tmp_path)
    intact, damaged, missing = (exporter.export(step, {}) for step in range(3))
    answer = call(loaded_model.load(intact), observation=OBSERVATION)
    (data,) = damaged.glob('variables/*.data*')
    data.write_bytes(data.read_bytes()[:100])
    other = tf.train.Checkpoint(other=tf.Variable(1.0)).write(str(tmp_path / 'other'))
    for suffix in ('index', 'data-00000-of-00001'):
        shutil.copy(f'{other}.{suffix}', missing / 'variables' / f'variables.{suffix}')
    for path in (damaged, missing):
        with pytest.raises(ValueError, match=f'got a damaged policy at {path}'):
            loader.load(path)
    np.testing.assert_array_equal(call(loaded_model.load(intact), observation=OBSERVATION)['action'], answer['action'])


def test_whatever_the_loader_raises_names_the_damaged_policy(tmp_path):
    for path in (tmp_path / 'nothing', tmp_path):
        with (
            pytest.raises(UserValueError, match=f'got a damaged policy at {path} .*; remove it'),
            loaded_model.naming_damage(path),
        ):
            tf.saved_model.load(str(path))
        (tmp_path / 'saved_model.pb').write_bytes(b'\x12')
    with pytest.raises(UserValueError, match='^as it is$'), loaded_model.naming_damage(tmp_path):
        raise UserValueError('as it is')
