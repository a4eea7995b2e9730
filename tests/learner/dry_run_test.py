"""Dry runs of topologies that are not here."""

import os
import re
import sys

import pytest
import tensorflow as tf

from tests.testing import lanes
from tests.testing.learner import batch
from tflearn.learner import batches, dry_run, tpu_compiler, tpu_data
from tflearn.learner.dry_run import ClusterShape
from tflearn.learner.train_loop import LoopOptions, TrainLoop

BATCH = {'x': tf.TensorSpec((8, 3)), 'n': tf.TensorSpec((8,), tf.int64)}


def test_reads_a_cluster_shape():
    shape = ClusterShape.parse('2x4')
    assert (shape.hosts, shape.replicas_per_host, shape.replicas, str(shape)) == (2, 4, 8, '2x4')


@pytest.mark.parametrize('text', ['', '8', '2x', '0x4', '2x4x2', 'axb', '-1x2', '2 x 4', '2x9999999'])
def test_rejects_other_topologies(text):
    with pytest.raises(ValueError, match='got the cluster shape .*; need HOSTSxREPLICAS, such as 2x4'):
        ClusterShape.parse(text)


def test_bytes_of_each_link():
    report = dry_run.DryRunReport(ClusterShape(2, 4), BATCH, gradient_bytes=1000)
    of_replica = 8 * 3 * 4 + 8 * 8
    assert report.batch_bytes == of_replica
    assert report.bytes_per_step() == {
        'host to each of its devices': of_replica,
        'host to all of its devices': 4 * of_replica,
        'device to device, gradients': 1750,  # 2 * 7 / 8
        'host to host, gradients': 1750,
        'host to host, batches': 0,
    }
    alone = dry_run.DryRunReport(ClusterShape(1, 1), BATCH, gradient_bytes=1000).bytes_per_step()
    assert alone['device to device, gradients'] == alone['host to host, gradients'] == 0
    one_reader = dry_run.DryRunReport(ClusterShape(2, 4), BATCH, 1000, reads_on_one_host=True)
    assert one_reader.bytes_per_step()['host to host, batches'] == 4 * of_replica


@lanes.compiles
def test_compiles_a_step_without_taking_it():
    counter = tf.Variable(0)

    def step(element):
        counter.assign_add(1)
        return tf.reduce_sum(element['x'])

    report = dry_run.of_step(step, BATCH, 12, ClusterShape(1, 2))
    assert report.refusals == () and report.compile_secs > 0
    assert counter.numpy() == 0
    report.check()
    text = report.text()
    assert 'shape 1x2: 2 replica(s) on 1 host(s)' in text
    assert 'x: float32 (8, 3)' in text and 'device to device, gradients: 12' in text
    assert 'XLA compiled the train step of one replica for a CPU in' in text


@pytest.mark.skipif(not lanes.IS_TPU, reason='other TensorFlows compile for a CPU')
def test_tensorflow_for_tpus_is_refused():
    with pytest.raises(ImportError, match='got TensorFlow for TPUs, .*; need stock TensorFlow for a dry run'):
        dry_run.of_step(lambda element: element['x'], BATCH, 0, ClusterShape(1, 2))


@lanes.compiles
def test_names_what_xla_does_not_have():
    report = dry_run.of_step(lambda element: tf.strings.as_string(element['n']), BATCH, 0, ClusterShape(1, 2))
    (line,) = report.refusals
    made = r'made by <lambda> in \S*dry_run_test\.py:\d+'
    assert re.match(rf'got the host operation AsString in the train step \(AsString, {made}\); need operations', line)
    assert report.compile_secs is None and f'a TPU would refuse: {line}' in report.text()


@lanes.compiles
def test_names_every_refusal_and_raises_the_first():
    step = lambda element: tf.numpy_function(lambda x: x, [element['x']], tf.float32)  # noqa: E731
    report = dry_run.of_step(step, BATCH, 0, ClusterShape(1, 2))
    assert [line.split(',')[0] for line in report.refusals] == [
        'got the host operation PyFunc in the train step (PyFunc'
    ]
    spec = {'name': tf.TensorSpec((8,), tf.string), 'x': tf.TensorSpec((None, 3))}
    report = dry_run.of_step(step, spec, 0, ClusterShape(1, 2))
    assert len(report.refusals) == 2 and report.batch_bytes == 0
    with pytest.raises(ValueError, match=r'got strings in name of the data; .* \(and 1 more\)'):
        report.check()


def _dataset_fn(global_batch_size, pad=0, endless=True):
    def dataset_fn(context):
        size = context.get_per_replica_batch_size(global_batch_size) + pad * context.input_pipeline_id
        dataset = tf.data.Dataset.range(1 << 20).shard(context.num_input_pipelines, context.input_pipeline_id)
        dataset = dataset.batch(size, drop_remainder=True)
        return dataset.repeat() if endless else dataset

    return dataset_fn


def test_calls_a_dataset_function_as_each_host_would():
    seen = []

    def dataset_fn(context):
        seen.append((context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync))
        return _dataset_fn(64)(context)

    spec, refusals = dry_run.of_dataset_fn(dataset_fn, ClusterShape(2, 4))
    assert seen == [(2, 0, 8), (2, 1, 8)]
    assert spec == tf.TensorSpec((8,), tf.int64) and refusals == []


def test_names_a_global_batch_that_does_not_divide():
    spec, (line,) = dry_run.of_dataset_fn(_dataset_fn(60), ClusterShape(2, 4))
    assert spec is None
    assert line.startswith('got no dataset for 8 replicas: The `global_batch_size` 60 is not divisible by')
    assert line.endswith('need a global batch that 8 divides; change it, or use other replicas')


def test_names_hosts_that_differ_and_datasets_that_end():
    _, (line,) = dry_run.of_dataset_fn(_dataset_fn(64, pad=1), ClusterShape(2, 4))
    assert line.startswith('got other elements on host 1 than on host 0')
    _, (line,) = dry_run.of_dataset_fn(_dataset_fn(64, endless=False), ClusterShape(2, 4))
    assert line.startswith('got a dataset that may end; need an endless one')


def test_gradients_of_a_part_without_those_of_its_targets():
    class Critics(tf.Module):
        def __init__(self):
            super().__init__()
            self._networks = [tf.Variable(tf.zeros(3)), tf.Variable(tf.zeros(2))]
            self._targets = [tf.Variable(tf.zeros(3)), tf.Variable(tf.zeros(2))]

    agent = tf.Module()
    agent.critics, agent.counter = Critics(), tf.Variable(0, dtype=tf.int64)
    agent.frozen = tf.Variable(tf.zeros(7), trainable=False)
    assert dry_run.gradient_bytes(agent) == 4 * (3 + 2)


@lanes.compiles
def test_compiles_the_learners_own_step(make_agent, make_dataset_fn):
    agent, strategy = make_agent(), tf.distribute.get_strategy()
    wrapped = batches.wrap(make_dataset_fn(), strategy, agent.train_step_counter)
    agent.initialize()
    before = [variable.numpy() for variable in agent.policy.variables()]
    step = TrainLoop(agent, wrapped, strategy, LoopOptions()).replica_step()
    spec = (
        tf.nest.map_structure(tf.TensorSpec.from_tensor, batch(0)),
        {'policy_version': tf.TensorSpec((8, 2), tf.int64)},
    )
    gradients = dry_run.gradient_bytes(agent)
    assert gradients == 4 * sum(variable.size for variable in before), 'and not those of the target network'
    report = dry_run.of_step(step, spec, gradients, ClusterShape(4, 8))
    assert report.refusals == () and report.compile_secs > 0
    for variable, value in zip(agent.policy.variables(), before, strict=True):
        assert (variable.numpy() == value).all()
    assert agent.train_step_counter.numpy() == 0


# What a TPU refuses, by name.


def test_accepts_numbers_of_known_shapes():
    spec = {'image': tf.TensorSpec((4, 2, 8), tf.uint8), 'step': tf.TensorSpec((4,), tf.int64), 'x': tf.TensorSpec(())}
    assert tpu_data.refused_data(spec) == []
    tpu_data.check_for_tpu(spec)


@pytest.mark.parametrize(
    ('leaf', 'line'),
    [
        (tf.TensorSpec((4, None)), 'got the shape (4, None) of x in the data; need all dimensions known on a TPU; pad'),
        (tf.TensorSpec(None), 'got the shape <unknown> of x in the data; need all dimensions known on a TPU; pad'),
        (tf.TensorSpec((4,), tf.string), 'got strings in x of the data; need numbers on a TPU; leave them out'),
        (tf.TensorSpec((4,), tf.float64), 'got float64 in x of the data; need float32 on a TPU; cast it'),
    ],
)
def test_names_data(leaf, line):
    (found,) = tpu_data.refused_data({'fits': tf.TensorSpec((4,)), 'x': leaf})
    assert found.startswith(line) and '\n' not in found
    with pytest.raises(ValueError, match='need'):
        tpu_data.check_for_tpu({'x': leaf})


def _refusals(step):
    return dry_run.of_step(step, tf.TensorSpec((3,)), 0, ClusterShape(1, 2)).refusals


@lanes.compiles
def test_names_operations_of_the_host_in_functions_too():
    def step(x):
        inner = tf.function(lambda y: tf.numpy_function(lambda z: z, [y], tf.float32), autograph=False)
        return tf.cond(tf.reduce_sum(x) > 0, lambda: inner(x), lambda: x)

    (line,) = _refusals(step)
    assert line.startswith('got the host operation PyFunc in the train step (PyFunc, made by <lambda> in ')


@lanes.compiles
def test_names_summaries(tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path))

    def step(x):
        with writer.as_default(step=0), tf.summary.record_if(True):
            tf.summary.scalar('x', tf.reduce_sum(x))
        return x

    assert 'got the host operation WriteSummary in the train step' in _refusals(step)[0]


# The compiler for TPUs.


@pytest.mark.parametrize(
    ('kind', 'replicas', 'name'),
    [
        *(('v5e', 1, 'v5e:1x1'), ('v5e', 8, 'v5e:2x4'), ('v6e', 32, 'v6e:4x8')),
        *(('v4', 1, 'v4:1x1x1'), ('v4', 8, 'v4:2x2x1'), ('v5p', 8, 'v5p:2x2x2'), ('v5p', 2, 'v5p:1x1x2')),
    ],
)
def test_a_slice_has_a_core_for_each_replica(kind, replicas, name):
    assert tpu_compiler.topology(kind, replicas) == name


def test_reductions_of_a_replica_are_over_all_of_them():
    strategy = tpu_compiler.strategy(8)
    assert strategy.num_replicas_in_sync == 8

    def step(x):
        context = tf.distribute.get_replica_context()
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, x)
        return summed, context.all_reduce(tf.distribute.ReduceOp.MEAN, [x, x])

    graph = tf.function(lambda x: strategy.run(step, (x,)), autograph=False).get_concrete_function(tf.TensorSpec((3,)))
    kinds = [operation.type for operation in graph.graph.get_operations()]
    assert kinds.count('XlaAllReduce') == 3 and kinds.count('RealDiv') == 2


@lanes.compiles
@pytest.mark.skipif(not lanes.IS_CURRENT, reason='TensorFlow 2.15 does not lower reductions over replicas')
def test_an_optimizer_sums_its_gradients_over_the_replicas():
    strategy = tpu_compiler.strategy(4)
    with strategy.scope():
        weights, optimizer = tf.Variable(tf.ones(3)), tf.keras.optimizers.Adam()
        optimizer.build([weights])

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights * x)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        return loss

    compiled = tf.function(lambda x: strategy.run(step, (x,)), autograph=False, jit_compile=True)
    text = compiled.experimental_get_compiler_ir(tf.ones(3))(stage='hlo')
    (line,) = re.findall(r'.*= .*all-reduce\(.*', text)
    assert 'f32[3]' in line and 'replica_groups={{0,1,2,3}}' in line


@pytest.mark.slow
@pytest.mark.skipif(not lanes.IS_CURRENT, reason='TensorFlow 2.15 does not lower reductions over replicas')
@pytest.mark.skipif(tpu_compiler.VARIABLE not in os.environ, reason=f'needs {tpu_compiler.VARIABLE}')
def test_a_step_without_sums_over_the_replicas_says_so():
    strategy, batch, shape = tpu_compiler.strategy(8), tf.TensorSpec((3,)), dry_run.ClusterShape.parse('2x4')

    def summed(x):
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, x)

    with strategy.scope():
        step = lambda x: strategy.run(summed, (x,))  # noqa: E731
        found = [dry_run.of_step(each, batch, 0, shape, tpu='v5e').text() for each in (step, tf.reduce_sum)]
    assert ', with 1 sums over 8 replicas; of each core' in found[0]
    need = 'no replica sums anything with the others: a step of your own needs strategy = tpu_compiler.strategy(8)'
    assert ', with 0 sums over 8 replicas' in found[1] and need in found[1]


@pytest.mark.parametrize(
    ('kind', 'text', 'need'),
    [
        ('v5e', '3x8', '1x1, 1x8, 1x4, 2x4, 4x4, 8x4, 16x4, 32x4, 64x4'),
        *(('v6e', '4x8', ' 64x4'), ('v5e', '128x4', ' 64x4')),
        *(('v4', '2x4', '1x1, 1x8, 2x8, .* and multiples of 16 hosts, up to 1024x8'), ('v5p', '24x4', ' up to 1536x4')),
    ],
)
def test_a_slice_that_does_not_exist_is_refused(kind, text, need):
    shape = dry_run.ClusterShape.parse(text)
    with pytest.raises(ValueError, match=rf'got {text} \(.*\) for a TPU {kind}; need a slice that exists: .*{need}'):
        dry_run.of_step(tf.reduce_sum, tf.TensorSpec((3,)), 0, shape, tpu=kind)


@pytest.mark.parametrize(('kind', 'text'), [('v5e', '64x4'), ('v4', '1x8'), ('v5p', '48x4'), ('v5p', '1x1')])
def test_slices_that_exist(kind, text):
    shape = dry_run.ClusterShape.parse(text)
    tpu_compiler.check_slice(kind, shape.hosts, shape.replicas_per_host)


def test_the_report_compares_memory_with_the_chips():
    text = tpu_compiler.Compiled('v5e', 8, 1, 2.0, 2**33, 0, 0, 0, 1.0, 1.0, None).text()
    assert 'HBM: 8,589,934,592 of 17,179,869,184 bytes, 50.00% (arguments' in text


def test_the_compilers_refusal_is_one_line(tmp_path, monkeypatch):
    python = tmp_path / 'python'
    python.write_text('#!/bin/sh\necho "a.Error: RESOURCE_EXHAUSTED: 20 of 16 GB\nSee" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setenv(tpu_compiler.VARIABLE, str(python))
    monkeypatch.setattr(tf, '__version__', '2.21.0')
    line = r'got a train step that the compiler for TPU v5e refuses \(.*RESOURCE_EXHAUSTED: 20 of 16 GB\); need one'
    with pytest.raises(ValueError, match=line) as error:
        tpu_compiler.compile_hlo(b'', 'v5e', 8)
    assert '\n' not in str(error.value)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # none of the packages
    with pytest.raises(
        ValueError, match=r'whose environment lacks a part .*\(No module named .*; make it by python3.12'
    ):
        tpu_compiler.compile_hlo(b'', 'v5e', 8)
