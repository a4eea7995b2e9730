"""The policies that a run exports; a full disk neither removes a version nor ends training."""

import functools
import resource
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.testing import example_policies, forks, lanes
from tflearn.agents import ddpg, discrete_sac, dqn, sac, tqc
from tflearn.core.errors import UserRuntimeError
from tflearn.core.experience import Experience
from tflearn.core.train_step import create_train_step
from tflearn.core.types import specs_of
from tflearn.environments import gymnasium_env
from tflearn.files.run_dir import RunDir, read_json
from tflearn.jobs.evaluate_settings import EvaluateOptions
from tflearn.jobs.policy_evaluation import evaluate_policy
from tflearn.jobs.policy_exports import ExportOptions, PolicyExports
from tflearn.jobs.run import Run
from tflearn.networks.networks import NetworkOptions
from tflearn.policies import loader, updates, versions
from tflearn.policies.products import ProductOptions
from tflearn.transforms import rewards, transformed

SPECS = specs_of(functools.partial(gymnasium_env.make, 'CartPole-v1'))


def small_agent():
    return dqn.make_agent(SPECS, create_train_step(), Experience(), network=NetworkOptions(fc_layer_params=(8,)))


@pytest.mark.parametrize(
    ('make_agent', 'name'),
    [(dqn.make_agent, 'CartPole-v1'), pytest.param(sac.make_agent, 'Pendulum-v1', marks=pytest.mark.slow)],
)
def test_exports_all_policies_from_one_snapshot(make_agent, name, tmp_path):
    specs = specs_of(functools.partial(gymnasium_env.make, name))
    agent = make_agent(specs, create_train_step(), Experience())
    run_dir = RunDir(tmp_path)
    facts = {'env_steps': 10, 'mean_return': 1.5}
    texts = {'run/config_hash': 'abc', 'run/code_revision': 'def', 'run/seed': '1'}
    exports = PolicyExports(agent, run_dir, ExportOptions(), lambda: facts, lambda: texts)
    for step in (0, 5):
        exports.export(step)
    exports.wait()
    time_step = example_policies.time_step(agent.policy, 40)
    loaded = {name: loader.load(run_dir.policy(name) / 'latest') for name in ExportOptions().policies}
    assert {policy.train_step for policy in loaded.values()} == {5}
    greedy = agent.policy.action(tf.nest.map_structure(tf.constant, time_step)).action
    np.testing.assert_allclose(loaded['greedy_policy'].action(time_step)[0], greedy, atol=1e-6)
    for name in ('collect_policy', 'raw_policy'):
        draws = [loaded[name].action(time_step)[0] for _ in range(8)]
        assert any(not np.array_equal(draws[0], draw) for draw in draws[1:]), f'{name} draws'
    metadata = read_json(run_dir.policy('raw_policy') / '5' / 'metadata.json')
    assert {'train_step': 5, **facts, 'config_hash': 'abc', 'code_revision': 'def'}.items() <= metadata.items()


@pytest.mark.parametrize('module', [tqc, pytest.param(discrete_sac, marks=pytest.mark.slow)])
def test_evaluations_have_the_critics_disagreement(tmp_path, module):
    name = 'CartPole-v1' if module is discrete_sac else 'Pendulum-v1'
    make_environment = functools.partial(gymnasium_env.make, name, max_episode_steps=4)
    run_dir, inner = RunDir(tmp_path), functools.partial(module.make_agent, network=NetworkOptions((8,)))
    given = specs_of(make_environment), create_train_step(), Experience()
    agent = transformed.make_agent(*given, make_agent=inner, transforms=[rewards.Scale(0.1)])
    exports = PolicyExports(agent, run_dir, ExportOptions(('greedy_policy',), disagreement=True), dict)
    exports.export(7)
    exports.wait()
    found = []
    options = EvaluateOptions(on_episode=lambda episode: found.append((episode.observation, episode.action)))
    evaluate_policy(
        run=Run(run_dir), make_environment=make_environment, num_episodes=1, num_environments=1, options=options
    )
    (path,) = run_dir.policy_evaluations.glob('[!.]*.json')
    (observations, actions), critics = found[0], agent
    while hasattr(critics, '_agent'):
        critics = critics._agent
    taken = actions if module is discrete_sac else actions / 2  # Pendulum's are in [-2, 2]
    expected = critics.disagreement(tf.constant(observations[: len(actions)]), tf.constant(taken))
    assert read_json(path)['metrics']['info/disagreement'] == pytest.approx(np.mean(expected), rel=1e-4)
    assert np.mean(expected) > 0


@pytest.mark.parametrize(('module', 'message'), [(dqn, 'need an agent with several critics'), (ddpg, 'of one critic')])
def test_rejects_a_disagreement_of_less_than_two_critics(tmp_path, module, message):
    specs = specs_of(functools.partial(gymnasium_env.make, 'CartPole-v1' if module is dqn else 'Pendulum-v1'))
    agent = module.make_agent(specs, create_train_step(), Experience(), network=NetworkOptions((8,)))
    with pytest.raises(ValueError, match=message):
        PolicyExports(agent, RunDir(tmp_path), ExportOptions(disagreement=True), dict)


def test_makes_a_product_of_each_version_but_the_raw_ones(tmp_path):
    agent = small_agent()
    products = ProductOptions(parameters=True, names={'logits': 'q_values'}, tflite=False)
    options = ExportOptions(('greedy_policy', 'raw_policy'), keep_last=1, products=products)
    run_dir = RunDir(tmp_path)
    exports = PolicyExports(agent, run_dir, options, dict)
    for step in (0, 5):
        exports.export(step)
        exports.wait()
    assert [path.name for path in run_dir.product('greedy_policy').parent.iterdir()] == ['greedy_policy']
    assert versions.versions(run_dir.product('greedy_policy')) == [5]
    model = tf.saved_model.load(str(run_dir.product('greedy_policy') / 'latest'))
    got = model.signatures['action'](observation=tf.zeros([1, 4]))
    assert np.argmax(got['q_values'], axis=-1) == got['action']


def test_exports_what_the_agent_makes_of_its_policy(tmp_path):
    """An agent of TF-Agents may make another policy for use than it trains, at each time."""
    agent = small_agent()

    def process():
        made = example_policies.Linear(SPECS.observation, SPECS.action)
        made.set([0.0] * 4, bias=1.0 if int(agent.train_step_counter) else -1.0)
        return made.policy

    agent.post_process_policy = process
    exports = PolicyExports(agent, RunDir(tmp_path), ExportOptions(('greedy_policy', 'raw_policy')), dict)
    time_step = example_policies.time_step(agent.policy, 4)
    for step in (0, 5):
        agent.train_step_counter.assign(step)
        exports.export(step)
        exports.wait()
        loaded = loader.load(RunDir(tmp_path).greedy_policy / str(step))
        assert set(loaded.action(time_step)[0]) == {int(step > 0)}


def test_rejects_invalid_options():
    for policies in ((), ('best_policy',), 'greedy_policy'):
        with pytest.raises(ValueError, match='need a list of one or more of greedy_policy, collect_policy, raw_policy'):
            ExportOptions(policies)
    with pytest.raises(ValueError, match='got ProductOptions.parameters=True and .*; need raw_policy there'):
        ExportOptions(('greedy_policy',), products=ProductOptions(parameters=True))


def test_wait_raises_failed_first_export_unless_a_later_one_succeeds(tmp_path):
    agent = small_agent()
    directory = RunDir(tmp_path).greedy_policy
    exports = PolicyExports(agent, RunDir(tmp_path), ExportOptions(('greedy_policy',)), dict)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        exports.export(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    exports.export_update(2)
    with pytest.raises((OSError, tf.errors.OpError), match='File too large'):
        exports.wait()
    assert (versions.versions(directory), updates.steps(directory)) == ([], [])
    exports.export(3)
    exports.export_update(3)
    exports.wait()
    assert (versions.versions(directory), updates.steps(directory)) == ([3], [3])


def test_exports_that_act_differently_are_not_published_and_end_a_run_after_three_in_a_row(tmp_path, caplog):
    agent = small_agent()
    agent.policy.variables()[-1].assign([0.0, 1e4])  # always 1; without weights it is always 0
    directory = RunDir(tmp_path).greedy_policy
    exports = PolicyExports(agent, RunDir(tmp_path), ExportOptions(('greedy_policy', 'raw_policy')), dict)
    read = exports._exporters[0]._read_all
    exports._exporters[0]._read_all = lambda: [tf.zeros_like(weight) for weight in read()]
    exports.begin(1)
    exports.check()
    exports.export(2)
    exports.check()
    assert (exports.num_failed, versions.versions(directory)) == (2, [])
    exports._exporters[0]._read_all = read
    exports.export(3)
    exports.wait()
    assert (exports.num_failed, versions.versions(directory)) == (0, [3])
    exports._exporters[0]._read_all = lambda: [tf.zeros_like(weight) for weight in read()]
    for step in (4, 5):
        exports.export(step)
        exports.settle()
        exports.raise_failure()
    with pytest.raises(UserRuntimeError, match='as from the live policy.*; 2 exports in a row were not published'):
        exports.wait()
    exports.export(6)
    exports.settle()
    with pytest.raises(UserRuntimeError, match='3 exports in a row'):
        exports.raise_failure()
    assert versions.versions(directory) == [3]
    assert 'training continues, and ends after 3 in a row (this is number 2)' in caplog.text
    assert versions.versions(RunDir(tmp_path).policy('raw_policy')) == [2, 3, 4, 5, 6]


def test_first_export_is_of_its_snapshot_while_training_goes_on(tmp_path):
    agent = small_agent()
    exports = PolicyExports(agent, RunDir(tmp_path), ExportOptions(('greedy_policy', 'raw_policy')), dict)
    bias, time_step = agent.policy.variables()[-1], example_policies.time_step(agent.policy, 4)
    go, exporter = threading.Event(), exports._exporters[0]
    write = exporter._write_version

    def write_later(*arguments):
        assert go.wait(20.0), 'training waits for the first export'
        write(*arguments)

    exporter._write_version = write_later
    for step, action in ((0, 1), (5, 0), (9, 1)):
        bias.assign([0.0, 1e4] if action else [1e4, 0.0])
        (exports.export if step else exports.begin)(step)
        exports.raise_failure()
    bias.assign([0.0, 0.0])
    go.set()
    exports.wait()
    directory = RunDir(tmp_path).greedy_policy
    actions = {step: set(loader.load(directory / str(step)).action(time_step)[0]) for step in (0, 5, 9)}
    assert actions == {0: {1}, 5: {0}, 9: {1}}


# Trains and exports, as the train job does, while files may not grow beyond a limit; prints what there is to read.
PROGRAM = """
import functools, os, pathlib, resource, sys
import numpy as np
import tensorflow as tf
from tflearn.agents import dqn
from tflearn.environments import gymnasium_env
from tflearn.core.experience import BatchItems, Experience
from tflearn.jobs.policy_exports import ExportOptions, PolicyExports
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.triggers import PeriodicAction
from tflearn.policies import external, versions
from tflearn.files.run_dir import RunDir
from tflearn.core.types import specs_of, zeros
from tflearn.core.train_step import create_train_step
from tflearn.networks.networks import NetworkOptions

run_dir = RunDir(sys.argv[1])
make = functools.partial(gymnasium_env.make, 'CartPole-v1')
experience = Experience(batch=BatchItems(4))
agent = dqn.make_agent(specs_of(make), create_train_step(), experience, network=NetworkOptions((400, 300)))
batch = zeros(agent.collect_data_spec, (4, 2))
exports = PolicyExports(agent, run_dir, ExportOptions(('greedy_policy',)), dict)
learner = Learner(
    agent,
    lambda _: tf.data.Dataset.from_tensors((batch, ())).repeat(),
    run_dir,
    triggers=[PeriodicAction(exports.export, every_steps=10)],
    options=LearnerOptions(checkpoint_interval_steps=None, summaries=None),
)
directory = run_dir.greedy_policy
exports.export(0)

def train(limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        learner.run(10)
        exports.wait()
        failed = ''
    except (OSError, RuntimeError, tf.errors.OpError) as error:
        failed = type(error).__name__
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    policy = external.load(directory)
    action, _ = policy.action(make(num_environments=2, seed=0).reset())
    hidden = [path.name for path in directory.glob('.*')]
    print(learner.step, policy.train_step, os.readlink(directory / 'latest'), failed, hidden, flush=True)

graph = (directory / '0' / 'saved_model.pb').stat().st_size
weights = next((directory / '0' / 'variables').glob('*.data*')).stat().st_size
assert graph + 5000 < weights, (graph, weights)
train(resource.RLIM_INFINITY)
train(200)            # within the graph
train(graph + 5000)   # within the weights
train(resource.RLIM_INFINITY)
learner.close()
"""


@lanes.classic
def test_full_disk_keeps_the_previous_version_and_training_continues(tmp_path):
    program = tmp_path / 'program.py'
    program.write_text(PROGRAM)
    ended = forks.run(str(program), tmp_path / 'run', timeout=120)
    lines = ended.stdout.splitlines()
    assert ended.returncode == 0, ended.stderr
    steps = [tuple(map(int, line.split()[:3])) for line in lines]  # of the learner, the newest policy, `latest`
    assert steps == [(10, 10, 10), (20, 10, 10), (30, 10, 10), (40, 40, 40)]
    assert [line.rpartition('[')[0].split()[3:] != [] for line in lines] == [False, True, True, False]
    assert all(line.endswith('[]') for line in lines), 'no temporary files are left'
    assert versions.versions(RunDir(tmp_path / 'run').greedy_policy) == [0, 10, 40]


def test_does_not_export_weights_that_are_not_finite(tmp_path, caplog):
    agent = small_agent()
    run_dir = RunDir(tmp_path)
    exports = PolicyExports(agent, run_dir, ExportOptions(('greedy_policy',)), dict)
    exports.export(0)
    agent.policy.variables()[0].assign(tf.fill(agent.policy.variables()[0].shape, np.nan))
    exports.export(5)
    exports.export_update(5)
    with pytest.raises(FloatingPointError, match='got weights for the export .*5 that are not finite'):
        exports.wait()
    exports.settle()
    assert versions.newest_version(run_dir.greedy_policy) == 0
    assert (run_dir.greedy_policy / 'latest').resolve().name == '0'
    assert not (updates.folder(run_dir.greedy_policy) / '5').exists()
