import numpy as np
import pytest
import tensorflow as tf

from tflearn.core import strategies
from tflearn.core.workers import ReplicaConsistency, named_variables
from tflearn.learner.triggers import PeriodicAction


class Model(tf.Module):
    """Variables of several kinds, made in a strategy."""

    def __init__(self, strategy):
        super().__init__()
        with strategy.scope():
            self.kernel = tf.Variable(tf.random.stateless_normal((5, 3), (1, 2)))
            self.parts = [tf.Variable(tf.zeros((4,))), tf.Variable([True, False])]
            self.step = tf.Variable(7, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
            self.metric = tf.Variable(
                0.0,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
                trainable=False,
            )


def _on_replica(strategy, variable, replica):
    return strategy.experimental_local_results(variable)[replica]


@pytest.fixture(params=['default', 'mirrored:2', 'mirrored:4'])
def strategy(request):
    return strategies.make(request.param)


def test_equal_replicas_have_no_difference(strategy):
    consistency = ReplicaConsistency(strategy, Model(strategy))
    assert consistency.difference is None
    assert consistency(10) == 0.0
    assert consistency.difference == 0.0


@pytest.mark.parametrize(
    ('name', 'value', 'statistic'),
    [
        ('kernel', lambda value: value + tf.one_hot(0, 3) * 1e-4, 'L1|L2|mean|std'),
        ('kernel', lambda value: -value, 'mean'),
        ('parts/0', lambda value: value + tf.constant([1.0, -1.0, 0.0, 0.0]), 'L1'),
        ('parts/0', lambda value: value + tf.constant([np.nan, 0.0, 0.0, 0.0]), 'mean'),
        ('step', lambda value: value + 1, 'mean|L1|L2'),
    ],
)
@pytest.mark.parametrize('replica', [0, 1])
def test_names_the_variable_that_differs(name, value, statistic, replica):
    strategy = strategies.make('mirrored:2')
    model = Model(strategy)
    consistency = ReplicaConsistency(strategy, model)
    consistency(10)
    changed = _on_replica(strategy, named_variables(model)[name], replica)
    changed.assign(value(changed))
    with pytest.raises(
        RuntimeError,
        match=rf'train step 20 in 1 of 3 variable\(s\), most in {name}: ({statistic}) \[.*\] by replica; need',
    ):
        consistency(20)
    assert consistency.difference > 1e-6


def test_reports_a_difference_within_the_tolerance():
    strategy = strategies.make('mirrored:2')
    model = Model(strategy)
    consistency = ReplicaConsistency(strategy, model)
    changed = _on_replica(strategy, model.kernel, 1)
    changed.assign(changed + 1e-8)
    assert 0.0 <= consistency(1) < 1e-6


def test_nan_on_all_replicas_is_not_a_difference():
    strategy = strategies.make('mirrored:2')
    model = Model(strategy)
    model.kernel.assign(model.kernel * np.nan)
    assert ReplicaConsistency(strategy, model)(1) == 0.0


def test_metrics_that_are_summed_up_when_read_may_differ():
    strategy = strategies.make('mirrored:2')
    model = Model(strategy)
    strategy.run(
        lambda: model.metric.assign_add(
            tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
        )
    )
    assert ReplicaConsistency(strategy, model)(1) == 0.0


def test_runs_as_the_action_of_a_trigger():
    strategy = strategies.make('mirrored:2')
    consistency = ReplicaConsistency(strategy, Model(strategy))
    trigger = PeriodicAction(consistency, every_steps=10)
    trigger(0, 9)
    assert consistency.difference is None
    trigger(9, 11)
    assert consistency.difference == 0.0


def test_variable_names_are_those_of_the_checkpoint(make_agent):
    names = named_variables(make_agent())
    assert len({id(variable) for variable in names.values()}) == len(names) >= 13
    assert any('kernel' in name and '_q_network' in name for name in names), list(names)


def test_rejects_an_object_without_variables():
    with pytest.raises(ValueError, match='got Module without variables; need an agent'):
        ReplicaConsistency(strategies.make('default'), tf.Module())
