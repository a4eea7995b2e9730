"""The real program that promotes versions: judged by held-out episodes, and taken back without TensorFlow."""

import functools
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tests.testing import forks
from tests.testing.served_policies import Publisher
from tflearn.agents import linear_bandit
from tflearn.agents.smoothing import Smoothing
from tflearn.core import extensions
from tflearn.core.errors import UserValueError
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.data import arrays, columns, conversion, metadata
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.extensions.product import promotion
from tflearn.extensions.product.data_evaluation import evaluate_on_data
from tflearn.extensions.product.split import HELD_OUT, TRAIN, split
from tflearn.files.run_dir import RunDir, write_json
from tflearn.policies import added_metadata, loader, states, versions
from tflearn.policies.action_probabilities import ActionProbabilities
from tflearn.policies.exporter import PolicyExporter

DEADLINE_SECS = 120.0
PARTS = TRAIN, HELD_OUT
RANGE = '--reward_low=0', '--reward_high=1'
ROLLBACK = """
import sys
from scripts import __main__
try:
    sys.argv.insert(1, 'promote')
    __main__.main()
finally:
    print([name for name in ('tensorflow', 'numpy', 'reverb') if name in sys.modules])
"""


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    """A log of random actions, half of it held out; the action that version 1 takes is rewarded."""
    folder = tmp_path_factory.mktemp('data')
    rng = np.random.default_rng(0)
    observation = rng.normal(size=(2_000, 4)).astype(np.float32)
    action = rng.integers(0, 2, 2_000)
    reward = (action == (observation[:, 0] > 0)) * rng.random(2_000)
    policy_info = {'log_probability': np.full(2_000, np.log(0.5), np.float32)}
    given = {'action': action, 'reward': reward, 'policy_info': policy_info}
    arrays.from_arrays(folder / 'log', observation=observation, **given)
    split(Dataset([str(folder / 'log')]), folder / 'parts', 0.5)
    return folder / 'parts'


@pytest.fixture(scope='module')
def publish(tmp_path_factory):
    """Returns a function that gives a run with versions of a policy; odd ones are good, even ones bad."""
    publisher = Publisher(tmp_path_factory.mktemp('run') / 'policies')

    def publish(root, *steps):
        for step in steps:
            path = publisher.publish(step)
            target = root / 'policies' / 'greedy_policy' / str(step)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
        return root

    return publish


def promote(root, *flags):
    ended = forks.run('scripts', 'promote', f'--root_dir={root}', *flags, timeout=DEADLINE_SECS)
    assert 'Traceback' not in ended.stderr, ended.stderr
    return ended


def labels(root):
    found = states.read(root / 'policies' / 'greedy_policy')
    return found and found.labels


def test_only_a_candidate_that_is_not_worse_is_promoted(publish, data, tmp_path):
    root = publish(tmp_path, 1, 2, 3)
    judged = (f'--data={data}/held_out', '--margin=0.05', *RANGE)
    assert promote(root, '--candidate=2', '--ungated', '--why=first').returncode == 0
    ended = promote(root, '--candidate=1', '--to=canary', '--share=0.2', *judged)
    assert ended.returncode == 0, ended.stderr
    assert 'margin 0.05: passes' in ended.stdout and 'warning' not in ended.stdout
    assert labels(root) == {'stable': 2, 'canary': 1}
    verdict = json.loads((root / 'policies/greedy_policy/1/metadata.json').read_text())['gate']
    assert verdict['passes'] and verdict['difference']['low'] > 0.2 and verdict['against'].endswith('/2')
    assert [each['path'] for each in verdict['data']] == [f'{data}/held_out']
    assert promote(root, '--candidate=1', *judged).returncode == 0
    ended = promote(root, '--candidate=2', *judged)
    assert (ended.returncode, labels(root)) == (1, {'stable': 1})
    assert 'margin 0.05: worse: the difference is below -margin' in ended.stdout
    assert 'passes' not in states.read(root / 'policies/greedy_policy').text()
    assert promote(root, '--candidate=3', '--to=shadow').returncode == 0
    assert labels(root) == {'stable': 1, 'shadow': 3}
    # What serves is evaluated, and begins other runs, not the newest version, which is a shadow.
    found, facts = evaluate_on_data(RunDir(root), [f'{data}/held_out'], {}, 'greedy_policy')
    assert found.text().startswith(f'policy {root}/policies/greedy_policy/1\n') and facts['policy'].endswith('/1')
    assert versions.find(root) == root / 'policies' / 'greedy_policy' / '1'
    assert 'first' in promote(root).stdout


def test_what_was_trained_on_the_data_is_refused(publish, data, tmp_path):
    root = publish(tmp_path, 1, 3)
    trained_on = lambda step, path: added_metadata.add(  # noqa: E731
        root / 'policies' / 'greedy_policy' / step, **{metadata.TRAINED_ON: metadata.lineage([path])}
    )
    judged = (f'--data={data}/held_out', '--margin=0.1', *RANGE)
    for seen in (data / 'held_out', data.parent / 'log'):
        trained_on('3', seen)
        ended = promote(root, '--candidate=3', *judged)
        assert ended.returncode == 2 and 'which was trained on data that may be among these' in ended.stderr
    trained_on('3', data / 'train')
    conversion.copy(Dataset([f'{data}/held_out']), tmp_path / 'weighed')
    columns.write_metadata(tmp_path / 'weighed', {metadata.WEIGHED: True})
    ended = promote(root, '--candidate=3', f'--data={tmp_path}/weighed', '--margin=0.1', *RANGE)
    assert ended.returncode == 2 and 'whose decisions are weighed by the delays' in ended.stderr
    for part, is_seen in (('train', True), ('held_out', False)):
        found, _ = evaluate_on_data(RunDir(root), [str(data / part)], {}, 'greedy_policy')
        assert any('may have learned from these episodes' in each for each in found.warnings) == is_seen
    ended = promote(root, '--candidate=3', *judged)
    assert ended.returncode == 0 and 'incumbent the log' in ended.stdout and 'too good' not in ended.stdout
    trained_on('3', data / 'held_out')  # now of the incumbent: that makes it no easier
    ended = promote(root, '--candidate=1', *judged)
    assert ended.returncode == 0 and 'greedy_policy/3 was trained on data that may be among these' in ended.stdout
    assert 'its value is too good' in states.read(root / 'policies' / 'greedy_policy').history[-1]['why']


def test_numbers_of_other_texts_are_refused(publish, data, tmp_path):
    """A policy and data, or two data sets, whose vocabularies differ."""
    root, words = publish(tmp_path, 1), ['cup', 'pot']
    added_metadata.add(root / 'policies' / 'greedy_policy' / '1', vocabularies={'action': words})
    others = {'same': words, 'other': words[::-1], 'more': [*words, 'lid']}
    for name, found in others.items():
        conversion.copy(Dataset([f'{data}/held_out']), tmp_path / name)
        write_json(tmp_path / name / metadata.VOCABULARIES, {'action': found})
    assert promote(root, '--candidate=1', f'--data={tmp_path}/same', '--margin=0.1', *RANGE).returncode == 0
    differs = {'other': "number 0 of the vocabulary of action is 'pot' in the first and 'cup' in the second"}
    differs['more'] = "number 2 of the vocabulary of action is 'lid' in the first and not there in the second"
    for name, message in differs.items():
        ended = promote(root, '--candidate=1', f'--data={tmp_path}/{name}', '--margin=0.1', *RANGE)
        assert ended.returncode == 2 and f'got {tmp_path}/{name} and ' in ended.stderr and message in ended.stderr
        with pytest.raises(UserValueError, match=message):
            evaluate_on_data(RunDir(root), [f'{tmp_path}/{name}'], {}, 'greedy_policy')
        with pytest.raises(UserValueError, match='need one vocabulary; import the log with --vocabularies=DIRECTORY'):
            conversion.copy(Dataset([f'{tmp_path}/same', f'{tmp_path}/{name}']), tmp_path / 'merged')
    assert not (tmp_path / 'merged').exists()


def test_a_range_is_needed_and_each_decision_counts_once(publish, data, tmp_path):
    root = publish(tmp_path, 1)
    held_out = f'--data={data}/held_out'
    ended = promote(root, '--candidate=1', held_out)
    assert ended.returncode == 2 and 'got no range of the rewards; need reward_range' in ended.stderr
    ended = promote(root, '--candidate=1', held_out, held_out, *RANGE)
    assert ended.returncode == 2 and 'which may have episodes in common; need each decision once' in ended.stderr
    ended = promote(root, '--candidate=1', held_out, '--temperature=2', *RANGE)
    assert ended.returncode == 2 and 'need one that draws by them, or temperature=1' in ended.stderr


def test_two_versions_may_have_logged_the_decisions(publish, tmp_path):
    """As in each round of a loop that has promoted one; of both all probabilities are known."""
    root = publish(tmp_path, 1, 2, 3)
    for version in (2, 1):
        assert promote(root, f'--candidate={version}', '--ungated').returncode == 0
    rng = np.random.default_rng(0)
    observation = rng.normal(size=(400, 4)).astype(np.float32)
    good = (observation[:, 0] > 0).astype(np.int64)
    preferred = np.where(np.arange(400) < 200, 1 - good, good)  # by version 2, then by version 1
    action = np.where(rng.random(400) < 0.2, rng.integers(0, 2, 400), preferred)
    probability = np.where(action == preferred, 0.9, 0.1)
    policy_info = {'log_probability': np.log(probability).astype(np.float32), 'time': np.arange(400.0)}
    given = {'action': action, 'reward': np.full(400, 0.5), 'policy_info': policy_info}
    arrays.from_arrays(tmp_path / 'log', observation=observation, **given)
    # Version 3 does what version 1 does. Without the probabilities of what was not done 400 do not say so.
    ended = promote(root, '--candidate=3', f'--data={tmp_path}/log', '--margin=0.1', '--epsilon=0.2', *RANGE)
    assert ended.returncode == 0 and 'passes' in ended.stdout, ended.stdout + ended.stderr
    assert labels(root) == {'stable': 3}


@pytest.mark.parametrize('high', [10.0, (10.0, 4.0)], ids=['number', 'vector'])
def test_numbers_around_centres_are_judged_by_their_densities(tmp_path, high):
    """A smoothed policy that likes what is sold against one, of other windows, that dislikes it and has logged.

    Of a number by all densities; of a vector, whose second number is of no use, by those of what was done.
    """
    shape, high, size = np.shape(high), np.float32(high), float(np.prod(np.subtract(high, 2)))
    price = tensor_spec.BoundedTensorSpec(shape, tf.float32, np.full(shape, 2, np.float32), high, 'action')
    specs = EnvironmentSpecs(tensor_spec.BoundedTensorSpec((1,), tf.float32, -1.0, 1.0, 'observation'), price)
    rng = np.random.default_rng(0)
    prices = lambda action: action[:, 0] if shape else action  # noqa: E731
    sells = lambda observation, action: np.abs(prices(action) - 6 - 2 * observation[:, 0]) < 1.5  # noqa: E731
    observation = rng.uniform(-1, 1, (2_000, 2, 1)).astype(np.float32)
    action = rng.uniform(2, high, (2_000, 2, *shape)).astype(np.float32)
    reward = sells(observation.reshape(-1, 1), action.reshape(-1, *shape)).reshape(2_000, 2).astype(np.float32)
    middle = np.ones((2_000, 2), np.int32)
    info = policy_step.PolicyInfo(log_probability=np.full((2_000, 2), -np.log(size), np.float32))
    for version, sign in ((1, 1), (2, -1)):
        rest = sign * reward, np.ones((2_000, 2), np.float32)
        rows = trajectory.Trajectory(middle, observation, action, info, middle, *rest)
        smoothing = Smoothing(num_centres=8 * version if not shape else 8, bandwidth=1.0)
        agent = linear_bandit.make_agent(specs, create_train_step(), linear_bandit.EXPERIENCE, smoothing=smoothing)
        agent.train(tf.nest.map_structure(tf.constant, rows))
        PolicyExporter(agent.policy.wrapped_policy, tmp_path / 'policies' / 'raw_policy').export(version, {})
    log = loader.load(tmp_path / 'policies' / 'raw_policy' / '2')
    observation = rng.uniform(-1, 1, (800, 1)).astype(np.float32)
    time_step = ts.TimeStep(np.zeros(800, np.int32), np.zeros(800, np.float32), np.ones(800, np.float32), observation)
    is_even = (rng.random(800) < 0.3).reshape(800, *np.ones_like(shape))
    action = np.where(is_even, rng.uniform(2, high, (800, *shape)).astype(np.float32), log.action(time_step)[0])
    logged, _ = ActionProbabilities(log, specs, 0.3, None).log_probability(time_step, (), action)
    given = {'action': action, 'reward': sells(observation, action), 'specs': specs}
    info = {'log_probability': logged.astype(np.float32)}
    arrays.from_arrays(tmp_path / 'log', observation=observation, policy_info=info, **given)
    given = '--policy=raw_policy', f'--data={tmp_path}/log', '--epsilon=0.3', *RANGE
    assert promote(tmp_path, '--policy=raw_policy', '--candidate=2', '--ungated').returncode == 0
    ended = promote(tmp_path, '--candidate=1', '--margin=0.02', *given)
    assert ended.returncode == 0 and 'passes' in ended.stdout, ended.stdout + ended.stderr
    ended = promote(tmp_path, '--candidate=2', '--margin=0.02', *given)
    assert ended.returncode == 1 and 'margin 0.02: worse' in ended.stdout, ended.stdout + ended.stderr
    found, _ = evaluate_on_data(RunDir(tmp_path), [f'{tmp_path}/log'], {}, 'raw_policy', 1, 0.3, low=0.0, high=1.0)
    many = ts.restart(rng.uniform(-1, 1, (50_000, 1)).astype(np.float32), 50_000)
    drawn = loader.load(tmp_path / 'policies' / 'raw_policy' / '1').action(many)[0]
    value = 0.7 * sells(many.observation, drawn).mean() + 0.3 * 3 / 8
    low, high = found.intervals['the policy']
    assert low < value < high and found.estimates['doubly robust'] == pytest.approx(value, abs=0.15)


def test_a_version_of_another_run_is_copied(publish, tmp_path):
    first, second = publish(tmp_path / 'a', 5), publish(tmp_path / 'b', 3)
    served = tmp_path / 'served'
    for root, number in ((first, 5), (second, 6)):
        (version,) = (root / 'policies' / 'greedy_policy').glob('[0-9]*')
        assert promote(served, f'--candidate={version}', '--ungated').returncode == 0
        copied = served / 'policies' / 'greedy_policy' / str(number)
        assert (
            versions.is_complete(copied) and json.loads((copied / 'metadata.json').read_text())['train_step'] == number
        )
    assert labels(served) == {'stable': 6}
    assert not list((second / 'policies' / 'greedy_policy').glob('*/PROMOTED'))


def test_rollback_loads_no_tensorflow(publish, tmp_path):
    root = publish(tmp_path, 1, 2)
    for step in (1, 2):
        assert promote(root, f'--candidate={step}', '--ungated').returncode == 0
    command = [sys.executable, '-c', ROLLBACK, f'--root_dir={root}', '--rollback', '--why=complaints']
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECS, env=os.environ)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith('rollback 2: complaints\n[]\n')
    assert labels(root) == {'stable': 1}


def test_a_candidate_over_its_limit_of_a_cost_is_not_promoted(publish, tmp_path):
    """From a log whose rewards have two parts to the verdict."""
    pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3_000, 4)).round(4)
    action = rng.integers(0, 2, 3_000)
    is_own = action == (x[:, 0] > 0)  # what version 1 does; it costs 2 in a fifth of its decisions
    click, cost = is_own * (rng.random(3_000) < 0.9), 2.0 * is_own * (rng.random(3_000) < 0.2)
    rows = zip(x.tolist(), action.tolist(), click.tolist(), cost.tolist(), strict=True)
    lines = [{'x': a, 'action': b, 'click': int(c), 'cost': d, 'p': 0.5} for a, b, c, d in rows]
    (tmp_path / 'log.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    (tmp_path / 'weights.json').write_text('{"click": 1, "cost": -0.1}')
    (tmp_path / 'map.toml').write_text("""
reward_range = [-0.2, 1]
weights = 'weights.json'
propensity = 'p'
action = {kind = 'integer', high = 1}
observation.observation = {column = 'x', length = 4}
parts.click = 'click'
parts.cost = {column = 'cost', low = 0, high = 2}
""")
    extensions.load('import').import_logs([tmp_path / 'log.jsonl'], tmp_path / 'map.toml', tmp_path / 'log')
    root, publisher = tmp_path / 'run', Publisher(tmp_path / 'run' / 'policies', part='observation')
    publisher.publish(1)
    given = '--candidate=1', f'--data={tmp_path}/log'
    for limit, code, words in (('cost=0.25', 1, 'cost is above 0.25'), ('cost=0.6', 0, 'at most 0.6: within')):
        ended = promote(root, *given, f'--limit={limit}')
        assert ended.returncode == code and words in ended.stdout, ended.stderr
    verdict = json.loads((root / 'policies/greedy_policy/1/metadata.json').read_text())['gate']
    assert verdict['costs']['cost']['value'] == pytest.approx(0.4, abs=0.05)
    for limit, words in (
        ('cost', "got the limit 'cost'; need a name and a number, such as latency=120"),
        ('sum=1', 'got no part_sum in the data; need one of the parts of the reward: part_click, part_cost'),
        ('click=1', 'got no range of click; need low and high of it in `parts` of the column map'),
    ):
        ended = promote(root, *given, f'--limit={limit}')
        assert ended.returncode == 2 and words in ended.stderr, ended.stderr


def test_margins_do_not_add_up(data, tmp_path):
    publisher = Publisher(tmp_path / 'policies')
    for step in range(3):  # of the rewards, which are 0.5 on average, each misses an eighth more
        publisher.publish(step, [np.cos(step * np.pi / 4), np.sin(step * np.pi / 4), 0, 0])
        if step < 2:
            states.promote(publisher.directory, step, 'stable', 'first', is_best=step == 0)
    judged = {'data': [f'{data}/held_out'], 'margin': 0.22, 'low': 0.0, 'high': 1.0}
    text, done = promotion.promote(publisher.directory, '2', 'stable', '', **judged)
    assert not done and 'passes' not in text and f'incumbent {publisher.directory}/0\n' in text, 'the best one'
    assert states.promote(publisher.directory, 1, 'stable', 'by hand').best == 1
    text, done = promotion.promote(publisher.directory, '2', 'stable', '', **judged)
    assert done and f'incumbent {publisher.directory}/1\n' in text
    found = states.read(publisher.directory)
    assert (found.stable, found.best) == (2, 1), 'it is not proved to be better'
    assert (publisher.directory / '1' / 'PROMOTED').exists()


@pytest.mark.parametrize(('steps', 'num'), [(1, 2_000), (2, 20_000)], ids=['decisions', 'sessions'])
def test_what_a_candidate_was_trained_on_compares_what_serves_with_the_best(steps, num, tmp_path):
    """One that does what serves, which is not the best version: a few held-out ones alone do not prove so much."""
    publisher = Publisher(tmp_path / 'policies')
    for step, angle in ((0, 0), (1, np.pi / 4), (2, np.pi / 4)):  # the second and the third lose 0.125 of 0.5
        publisher.publish(step, [np.cos(angle), np.sin(angle), 0, 0])
        if step < 2:
            states.promote(publisher.directory, step, 'stable', 'first', is_best=step == 0)
    rng = np.random.default_rng(0)
    observation = rng.normal(size=(num, 4)).astype(np.float32)
    served = observation[:, 0] + observation[:, 1] > 0
    action = np.where(rng.random(num) < 0.3, rng.integers(0, 2, num), served)
    reward = (action == (observation[:, 0] > 0)) * rng.random(num) / steps
    info = {'log_probability': np.log(np.where(action == served, 0.85, 0.15)).astype(np.float32)}
    whose = {'episode': np.arange(num) // steps, 'policy_info': info}
    arrays.from_arrays(tmp_path / 'log', observation, action, reward, **whose)
    split(Dataset([f'{tmp_path}/log']), tmp_path / 'parts', 0.1)
    held_out, new_train = (f'{tmp_path}/parts/{part}' for part in (HELD_OUT, TRAIN))
    options = {'margin': 0.15, 'epsilon': 0.3, 'low': 0.0, 'high': 1.0, 'whole': steps > 1}
    judged = functools.partial(promotion.promote, publisher.directory, '2', 'stable', '', data=[held_out], **options)
    assert not judged()[1]
    trained_on = {metadata.TRAINED_ON: metadata.lineage([tmp_path / 'parts' / TRAIN])}
    for version in (0, 1):
        added_metadata.add(publisher.directory / str(version), **trained_on)
        with pytest.raises(
            UserValueError, match=f'greedy_policy/{version}, which was trained on data that may be amon'
        ):
            judged(new_train=[new_train])
        added_metadata.add(publisher.directory / str(version), **{metadata.TRAINED_ON: []})
    added_metadata.add(publisher.directory / '2', **trained_on)  # the candidate may be trained on them
    flags = '--margin=0.15', '--epsilon=0.3', *RANGE, *['--whole_sessions'] * (steps > 1)
    ended = promote(tmp_path, '--candidate=2', f'--data={held_out}', f'--new_train={new_train}', *flags)
    assert ended.returncode == 0 and f'/0, also through {publisher.directory}/1\n' in ended.stdout, ended.stdout
    assert states.read(publisher.directory).best == 0


def joined_again(folder, name, first, after, **options):
    """Joins a log of random actions, some of whose rows other joins may have too; returns the data set."""
    rng, lines = np.random.default_rng(0), ['id,at,x,a,p,r']
    for i in range(after):
        action, x = rng.integers(2), rng.normal()
        lines += [f'v{i},{1e9 + i},{x},{"no" if action else "yes"},0.5,{int(action == (x > 0))}'][: i >= first]
    (folder / f'{name}.csv').write_text('\n'.join(lines))
    mapped = "id = 'id'\ntime = 'at'\npropensity = 'p'\nreward = 'r'\nobservation = {x = 'x'}"
    (folder / 'map.toml').write_text(f"{mapped}\naction = {{column = 'a', kind = 'category'}}")
    extensions.load('import').import_logs([folder / f'{name}.csv'], folder / 'map.toml', folder / name, **options)
    return folder / name


def test_data_sets_of_the_same_decisions_share_them_however_they_were_made(tmp_path):
    monday, later = joined_again(tmp_path, 'monday', 0, 400), joined_again(tmp_path, 'later', 400, 900)
    friday = joined_again(tmp_path, 'friday', 0, 1_000, compress=True)
    for path, share in ((monday, 0.5), (friday, 0.5), (later, 0.3)):
        split(Dataset([str(path)]), tmp_path / f'{path.name}_parts', share)
    for path, name in ((monday, 'monday_by_time'), (friday, 'by_time')):
        split(Dataset([str(path)]), tmp_path / name, 0.5, 'time')
    split(Dataset([str(friday)]), tmp_path / 'new', 0.5, earlier=tmp_path / 'monday_parts')
    part = lambda name: [tmp_path / name]  # noqa: E731
    shared = lambda *names: metadata.may_share_episodes(*(metadata.lineage(part(name)) for name in names))  # noqa: E731
    assert shared('monday', 'friday') and shared('monday_parts/train', 'friday') and shared('monday', 'by_time/train')
    assert shared('monday_parts/train', 'by_time/held_out') and shared('monday', 'friday_parts/held_out')
    assert shared('monday_by_time/held_out', 'by_time/train'), 'two times'
    assert not shared('monday_by_time/held_out', 'monday_by_time/train')
    assert not shared('monday', 'later') and not shared('monday_parts/held_out', 'later_parts/held_out')
    # The same hash of the same names, and a split that knows the names of the earlier one.
    assert not shared('monday_parts/train', 'friday_parts/held_out')
    assert not shared('monday_parts/train', 'new/held_out')
    with pytest.raises(UserValueError, match='friday, which may have episodes in common; need each decision once'):
        promotion._check_once(metadata.lineage([monday, friday]))


def test_clusters_count_once(publish, tmp_path):
    root, paths = publish(tmp_path / 'run', 1), []
    for number, users in enumerate((np.arange(50), np.arange(49, 99))):
        info = {'log_probability': np.full(50, np.log(0.5), np.float32), 'cluster': users}
        given = {'action': np.arange(50) % 2, 'reward': np.ones(50), 'policy_info': info}
        observation = np.full((50, 4), number, np.float32)
        arrays.from_arrays(tmp_path / str(number), observation=observation, **given)
        paths.append(f'--data={tmp_path}/{number}')
    ended = promote(root, '--candidate=1', *paths, *RANGE)
    assert ended.returncode == 2 and 'with 1 clusters of the data sets before it; need each cluster' in ended.stderr


def test_bad_outcomes_hide_no_loss(publish, tmp_path):
    """Failures of the candidate's actions come as bad rows, and as many successes of the other ones."""
    pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')
    rng = np.random.default_rng(0)
    observation = rng.normal(size=(4_000, 4)).round(4)
    action = rng.integers(0, 2, 4_000)
    by_candidate = action == (observation[:, 0] > 0)  # as version 1, never as version 2
    reward = rng.random(4_000) < np.where(by_candidate, 0.4, 0.5)
    is_bad = (by_candidate != reward) & (rng.random(4_000) < np.where(by_candidate, 0.4, 0.48))
    lines = {'decisions': [], 'outcomes': []}
    for i in range(4_000):
        decision = {'id': f'd{i}', 'time': 1000.0 + i, 'action': int(action[i]), 'probability': 0.5}
        lines['decisions'].append(decision | {'observation': observation[i].tolist()})
        value = None if is_bad[i] else float(reward[i])
        lines['outcomes'].append({'event_id': f'd{i}', 'time': 1001.0 + i, 'reward': value})
    for name, rows in lines.items():
        (tmp_path / f'{name}-1.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    columns = 'reward_range = [0, 1]\naction = {kind = "integer", high = 1}\n'
    (tmp_path / 'map.toml').write_text(f'{columns}[observation]\nobservation = {{length = 4}}\n')
    outcomes = {'paths': [tmp_path / 'outcomes-1.jsonl'], 'window_secs': 10.0, 'settle_secs': 0.0}
    given = [tmp_path / 'decisions-1.jsonl'], tmp_path / 'map.toml', tmp_path / 'joined'
    found = extensions.load('import').import_logs(*given, outcomes=outcomes, max_bad_rows=4_000)
    assert f'episodes with unknown rewards: {is_bad[:3_989].sum()}\n' in found
    split(Dataset([f'{tmp_path}/joined']), tmp_path / 'parts', 0.9)
    both = [EpisodeReader(Dataset([f'{tmp_path}/parts/{part}/unknown']), need_finite=False) for part in PARTS]
    assert sum(len(list(each.episodes())) for each in both) == is_bad[:3_989].sum() and both[1].num_episodes > 800
    root, publisher = tmp_path / 'run', Publisher(tmp_path / 'run' / 'policies', part='observation')
    for step in (1, 2):
        publisher.publish(step)
    states.promote(publisher.directory, 2, 'stable', 'first')
    ended = promote(root, '--candidate=1', f'--data={tmp_path}/parts/held_out', '--margin=0.05')
    assert ended.returncode == 1 and 'margin 0.05: worse' not in ended.stdout, ended.stderr
    assert f'warning: {both[1].num_episodes} rewards are unknown: they count as the worst' in ended.stdout


@pytest.mark.parametrize(
    ('flags', 'error'),
    [
        (['--rollback'], 'got no states.json in'),
        (['--rollback', '--candidate=1'], 'got --rollback and --candidate=1; need one of them'),
        (['--candidate=1'], 'got --data= with --ungated=False; need held-out episodes'),
        (['--candidate=1', '--ungated', '--data=x'], 'got --data=x with --ungated=True; need held-out episodes'),
        (['--candidate=1', '--ungated', '--share=0.1'], 'got --to=stable with --share=0.1; need a share for a canary'),
        (['--candidate=7', '--ungated'], r"got the version '7'; need a path with a /, or a train step in .*: none"),
        (['--candidate=1', '--apprentice=x', '--ungated'], 'got --apprentice with --data, --ungated or --to; need it'),
        (['--apprentice=x'], 'got --apprentice=x without complete files with a decision of greedy_policy as an'),
        (['--candidate=1', '--data=x', '--margin=-1'], 'got a wrong flag: .*margin'),
        (
            ['--candidate=1', '--data=x', '--to=canary', '--share=nan'],
            'got a wrong flag: flag --share=nan: need a number',
        ),
    ],
)
def test_mistakes_are_one_line(tmp_path, flags, error):
    ended = promote(tmp_path, *flags)
    assert ended.returncode == 2
    assert re.search(f'tflearn promote: error: {error}', ended.stderr), ended.stderr


def test_episodes_without_probabilities_are_refused(publish, tmp_path):
    root = publish(tmp_path, 1)
    specs = EnvironmentSpecs(arrays.spec(np.zeros((1, 4), np.float32)), arrays.action_spec(np.array([0, 1])))
    given = {'observation': np.zeros((9, 4), np.float32), 'action': np.ones(9, np.int64), 'reward': np.ones(9)}
    arrays.from_arrays(tmp_path / 'data', **given, specs=specs)
    ended = promote(root, '--candidate=1', f'--data={tmp_path}/data')
    assert ended.returncode == 2 and 'without the probabilities of the actions; need the column' in ended.stderr
