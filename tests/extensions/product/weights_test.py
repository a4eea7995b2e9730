"""Logs whose decisions have weights: what was dropped before it was written down counts all the same."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.extensions.product.log_import_test import import_logs, write
from tests.jobs.train_offline_test import train
from tflearn.agents import dqn, linear_bandit
from tflearn.api import datasets
from tflearn.core.errors import UserError
from tflearn.core.experience import BatchItems, Experience
from tflearn.data import columns
from tflearn.data.reader import Dataset
from tflearn.extensions.product import data_evaluation, promotion
from tflearn.extensions.product.scaled_log import GateOptions
from tflearn.extensions.product.split import split
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.learner.learner import LearnerOptions
from tflearn.learner.stop_conditions import DataStopConditions
from tflearn.learner.summaries import SummaryOptions
from tflearn.networks.networks import NetworkOptions
from tflearn.policies import external
from tflearn.replay.storage import Storage
from tflearn.sampling import recorded
from tflearn.sampling.episode_files import Reading

MAP = """
reward = 'clicked'
reward_range = [0, 1]
propensity = 'p'
action = {column = 'item', kind = 'integer', high = 1}
[observation]
x = {}
"""
WEIGHED = "weight = 'w'\ndrop_probability = 'dropped'\n" + MAP
NAMES = ('x', 'item', 'p', 'clicked', 'w', 'dropped')
LOGGED = {0.0: (0.75, 0.25), 1.0: (0.5, 0.5)}
CLICKS = {0.0: (0.25, 0.5), 1.0: (0.75, 0.25)}  # of 80 decisions there are as many clicks as are likely
BEST = 0.5 * 0.5 + 0.5 * 0.75
LOGGED_VALUE = np.mean([np.dot(LOGGED[x], CLICKS[x]) for x in LOGGED])
SERVED = data_evaluation.Served()
NUM = 1_600  # decisions of each x
BANDIT = functools.partial(linear_bandit.make_agent, options=linear_bandit.LinearOptions(prior_precision=1e-3))
NETWORK = functools.partial(dqn.make_agent, network=NetworkOptions(fc_layer_params=(8,)), epsilon=0.0)


def decisions(keep_each):
    """Yields the decisions, each as often as it is likely; of those without a click each n-th, if it is not 1."""
    numbers = itertools.count()
    for x, item in itertools.product(LOGGED, (0, 1)):
        often = round(NUM * LOGGED[x][item])
        for i in range(often):
            clicked = i < often * CLICKS[x][item]
            if clicked or next(numbers) % keep_each == 0:
                dropped = 0.0 if clicked else 1 - 1 / keep_each
                yield x, item, LOGGED[x][item], int(clicked), 1.0, dropped


@pytest.fixture(scope='module')
def logs(tmp_path_factory):
    """Data sets by name: of all decisions, with weights of 1, of a tenth of those without a click, and read naively."""
    folder = tmp_path_factory.mktemp('logs')
    all_of = write(folder, 'csv', list(decisions(1)), NAMES).rename(folder / 'all.csv')
    some = write(folder, 'csv', list(decisions(10)), NAMES).rename(folder / 'some.csv')
    given = {'all': (all_of, MAP), 'ones': (all_of, WEIGHED), 'weighed': (some, WEIGHED), 'naive': (some, MAP)}
    return {name: import_logs(folder, path, name, mapped)[1] for name, (path, mapped) in given.items()}


def train_on(data, root, make_agent=BANDIT, **reading):
    return train(
        root,
        data,
        num_steps=10_000,
        make_agent=make_agent,
        experience=Experience(batch=BatchItems(64)),
        reading=Reading(**{'order': 'epochs', **reading}),
        data_stop_conditions=DataStopConditions(max_epochs=1),
        exports=ExportOptions(('greedy_policy',)),
        learner_options=LearnerOptions(summaries=SummaryOptions(None)),
    )


@pytest.fixture(scope='module')
def runs(logs, tmp_path_factory):
    folder = tmp_path_factory.mktemp('runs')
    return {name: train_on(logs[name], folder / name) for name in ('all', 'weighed')}


def variables(run):
    path = external.load(run.policy('greedy_policy')).path
    return [each.numpy() for each in tf.saved_model.load(str(path)).model_variables]


def evaluate(run, data, **options):
    return data_evaluation.evaluate_on_data(run, [str(data)], {}, baseline_action='0', **options)[0]


def test_a_posterior_of_weights_is_that_of_all_decisions(runs):
    for one, other in zip(*map(variables, (runs['all'], runs['weighed'])), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_estimates_by_weights_are_those_of_all_decisions(runs, logs):
    """Exact, since each decision is there as often as it is likely; a naive reading is far off."""
    of_all, weighed, naive = (evaluate(runs['all'], logs[name]) for name in ('all', 'weighed', 'naive'))
    truth = {'behaviour policy (mean return)': LOGGED_VALUE} | dict.fromkeys(
        ('importance sampling', 'weighted IS', 'per-decision IS', 'weighted per-decision IS'), BEST
    )
    for name, value in truth.items():
        assert weighed.estimates[name] == pytest.approx(value, abs=1e-6), name
        assert of_all.estimates[name] == pytest.approx(value, abs=1e-6), name
        assert abs(naive.estimates[name] - value) > 0.2, name
    for name in ('doubly robust', 'switch doubly robust', 'fitted Q evaluation'):
        assert weighed.estimates[name] == pytest.approx(BEST, abs=0.03), name
    always = np.mean([CLICKS[x][0] for x in CLICKS])
    assert weighed.baselines['always 0'].estimates['importance sampling'] == pytest.approx(always, abs=1e-6)
    assert weighed.effective_sample_size < of_all.effective_sample_size
    assert 'weights from 1 to 10, and no number as the greatest possible one' in weighed.no_interval
    assert not weighed.intervals


def test_an_interval_of_weighted_decisions_holds_the_value_and_is_wider_than_of_all(runs, logs):
    of_all, weighed = evaluate(runs['all'], logs['all']), evaluate(runs['all'], logs['weighed'], greatest_weight=10.0)
    for name, value in (('the policy', BEST), ('the behaviour policy', LOGGED_VALUE)):
        (low, high), (least, most) = (of.intervals[name] for of in (of_all, weighed))
        assert least < low < value < high < most
    one, other = (of.baselines['uniform'].interval for of in (of_all, weighed))
    assert other[0] < one[0] < one[1] < other[1]
    # Bets for greater weights than any that came are smaller, and need more decisions.
    wider = evaluate(runs['all'], logs['weighed'], greatest_weight=1_000.0).intervals['the policy']
    assert wider[0] < weighed.intervals['the policy'][0] and weighed.intervals['the policy'][1] < wider[1]


def test_a_behaviour_policy_is_estimated_by_weights(runs, logs):
    found = evaluate(runs['all'], logs['weighed'], estimate_behaviour=True)
    assert found.estimates['importance sampling'] == pytest.approx(BEST, abs=0.02)


def test_weights_of_one_change_nothing(runs, logs, tmp_path):
    assert evaluate(runs['weighed'], logs['ones']) == evaluate(runs['weighed'], logs['all'])
    path = external.load(runs['weighed'].policy('greedy_policy')).path
    datasets = [Dataset([str(logs[name])]) for name in ('all', 'ones')]
    one, other = (promotion.judge(path, None, each, GateOptions(), SERVED) for each in datasets)
    assert one.json() == other.json()
    made = [variables(train_on(logs[of], tmp_path / of, NETWORK, storage='stream')) for of in ('all', 'ones')]
    for one, other in zip(*made, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_gate_judges_by_weights_up_to_the_greatest_that_is_stated(runs, logs, tmp_path):
    path = write(tmp_path, 'csv', list(decisions(10)), NAMES)
    _, data = import_logs(tmp_path, path, 'stated', 'greatest_weight = 10\n' + WEIGHED)
    split(Dataset([str(data)]), tmp_path / 'parts', share=0.999)

    def judge(data, run='all', **options):
        candidate = external.load(runs[run].policy('greedy_policy')).path
        return promotion.judge(candidate, None, Dataset([str(data)]), GateOptions(**options), SERVED)

    verdict, of_all = judge(data), judge(logs['all'], 'weighed')  # the same policy, which has not seen them
    assert (verdict.candidate.value, verdict.candidate.mean_weight) == pytest.approx((BEST, 1), abs=1e-6)
    assert verdict.difference.low < of_all.difference.low < BEST - LOGGED_VALUE < verdict.difference.high
    assert (verdict.outcome, verdict.warnings) == ('passes', ())
    assert verdict.candidate.effective_sample_size < of_all.candidate.effective_sample_size
    assert verdict.candidate.overlap == pytest.approx(of_all.candidate.overlap, abs=1e-6)
    assert judge(tmp_path / 'parts' / 'held_out').options.greatest_weight == 10
    assert evaluate(runs['all'], data).intervals == evaluate(runs['all'], data, greatest_weight=10.0).intervals != {}
    assert judge(logs['weighed'], greatest_weight=10.0).json() == verdict.json()
    for given, stated in (({}, 'no number'), ({'greatest_weight': 9.0}, '9.0')):
        with pytest.raises(UserError, match=f'got decisions with weights from 1 to 10, and {stated} as the greatest'):
            judge(logs['weighed'], **given)
    _, users = import_logs(tmp_path, path, 'users', "cluster = 'x'\ngreatest_weight = 10\n" + WEIGHED)
    with pytest.raises(UserError, match='got decisions with weights and a cluster; need one of them'):
        judge(users)
    assert 'got decisions with weights and a cluster' in evaluate(runs['all'], users).no_interval


def test_data_with_weights_beside_data_without_are_refused(runs, logs, tmp_path):
    both = [str(logs['ones']), str(logs['all'])]
    with pytest.raises(UserError, match=r'got .*all without policy_info.weight, and .*ones with it; need it in all'):
        data_evaluation.evaluate_on_data(runs['all'], both, {})


def test_what_cannot_count_weights_refuses_them(logs):
    """Datasets for learners of one's own, demonstrations and cloning."""
    data_spec = columns.data_spec(columns.read_specs(logs['weighed']))
    experience = Experience(batch=BatchItems(64))
    for read in (
        lambda data: datasets.of_episodes(data, experience, data_spec),
        lambda data: recorded.loaded(data, Storage(experience, data_spec), 64, 0),
    ):
        read(Dataset([str(logs['all'])]))
        with pytest.raises(UserError, match=r'got .*weighed with policy_info.weight, which does not count here; need'):
            read(Dataset([str(logs['weighed'])]))


WRONG = {
    'weight 0': ((0, 0.5), 'w = 0.0', 'a weight from 1e-09 to 1e+09'),
    'negative': ((-1, 0.5), 'w = -1.0', 'a weight from 1e-09 to 1e+09'),
    'no number': (('x', 0.5), "w = 'x'", 'a finite number'),
    'NaN': (('nan', 0.5), "w = 'nan'", 'a finite number, or `missing` in the column map'),
    'none': (('', 0.5), 'w = None', 'a finite number, or `missing` in the column map'),
    'all dropped': ((1, 1), 'dropped = 1.0', 'a probability of at least 0, and below 1'),
    'above 1': ((1, 1.5), 'dropped = 1.5', 'a probability of at least 0, and below 1'),
    'below 0': ((1, -0.5), 'dropped = -0.5', 'a probability of at least 0, and below 1'),
    'dropped NaN': ((1, 'nan'), "dropped = 'nan'", 'a finite number, or `missing` in the column map'),
}


@pytest.mark.parametrize('name', WRONG)
def test_wrong_weights_are_bad_rows_by_name(tmp_path, name):
    values, got, need = WRONG[name]
    path = write(tmp_path, 'jsonl', [(0.0, 0, 0.5, 1, 2, 0.5), (0.0, 1, 0.5, 1, *values)], NAMES)
    lines, _ = import_logs(tmp_path, path, mapped=WEIGHED, max_bad_rows=1)
    assert {'bad rows: 1', 'episodes: 1'} <= {*lines}
    with pytest.raises(UserError) as error:
        import_logs(tmp_path, path, 'other', mapped=WEIGHED)
    assert f'got {got} in log.jsonl, row 2; need {need}' in str(error.value)


def test_an_episode_has_one_weight(tmp_path):
    rows = [(i // 2, 0.0, 0, 0.5, 1, weight, 0.5) for i, weight in enumerate([2, 2, 2, 3])]
    path = write(tmp_path, 'csv', rows, ('session', *NAMES))
    lines, _ = import_logs(tmp_path, path, mapped="episode = 'session'\n" + WEIGHED, max_bad_rows=1)
    assert {'episodes: 1', 'episodes left out: 1', 'bad rows that need one weight for an episode: 1'} <= {*lines}
