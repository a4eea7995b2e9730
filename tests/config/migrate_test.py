"""Gin files of version 0.1 load, or are refused in one line and load after `tflearn-migrate`."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tflearn.config import files, migrate, moved, outline, preview, reader

FOLDER = pathlib.Path(__file__).with_name('version_0_1')  # gin/ of that version, without comments
CHECKOUT = pathlib.Path(__file__).parents[2]
RUNS = sorted(path.stem for path in FOLDER.glob('*_*.gin'))
_DQN_CARTPOLE = {
    'tflearn.agents.dqn.make_agent.fc_layer_params',
    'tflearn.optimization.schedules.linear.start',
    'tflearn.optimization.schedules.linear.steps',
    'tflearn.optimization.schedules.linear.end',
    'tflearn.experience.BatchItems.per_replica',
    'tflearn.experience.Uniform.samples_per_insert',
}
CHANGED = {
    'dqn_cartpole': _DQN_CARTPOLE,
    'dqn_cartpole_dict': _DQN_CARTPOLE,
    'dqn_pong': {
        'tflearn.agents.dqn.make_agent.conv_layer_params',
        'tflearn.agents.dqn.make_agent.fc_layer_params',
        'tflearn.agents.dqn.make_agent.target_update_period',
        'tflearn.optimization.schedules.linear.end',
        'tflearn.optimization.schedules.linear.steps',
        'tflearn.experience.Slicing.sequence_length',
        'tflearn.experience.Uniform.max_size',
        'tflearn.experience.Uniform.min_size',
        'tflearn.experience.Uniform.samples_per_insert',
        'tflearn.jobs.train.StopConditions.num_train_steps',
    },
    'sac_pendulum': {
        'tflearn.agents.sac.make_agent.actor_fc_layer_params',
        'tflearn.agents.sac.make_agent.critic_fc_layer_params',
        'tflearn.agents.sac.make_agent.actor_learning_rate',
        'tflearn.agents.sac.make_agent.critic_learning_rate',
        'tflearn.agents.sac.make_agent.alpha_learning_rate',
        'tflearn.agents.sac.make_agent.gamma',
        'tflearn.experience.BatchItems.per_replica',
        'tflearn.experience.Uniform.samples_per_insert',
        'tflearn.jobs.train.StopConditions.num_train_steps',
    },
    'a2c_cartpole': {'tflearn.agents.ppo.make_agent.learning_rate'},
    'impala_cartpole': {'tflearn.agents.impala.make_agent.learning_rate'},
    'impala_cartpole_hidden': {'tflearn.agents.impala.make_agent.learning_rate'},
    'ppo_pendulum': {
        'tflearn.agents.ppo.make_agent.learning_rate',
        'tflearn.experience.Queue.max_size',
        'tflearn.experience.BatchItems.per_replica',
    },
    'ppo_t_maze': {'tflearn.optimization.ppo_loss.LossOptions.entropy_coefficient'},
    'ppo_cartpole': {
        'tflearn.experience.Queue.max_size',
        'tflearn.experience.Slicing.stride',
        'tflearn.experience.Slicing.sequence_length',
        'tflearn.experience.BatchItems.per_replica',
        'tflearn.jobs.collect.collect.num_environments',
    },
}
JOBS = [f'tflearn.jobs.{job}' for job in ('replay_server', 'train', 'evaluate', 'collect')]


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of the old gin files, in the working directory."""
    shutil.copytree(FOLDER, tmp_path / 'old')
    monkeypatch.chdir(tmp_path / 'old')
    return tmp_path / 'old'


def run(*arguments, cwd):
    command = [sys.executable, '-m', 'scripts.migrate', *map(str, arguments)]
    environment = {**os.environ, 'PYTHONPATH': str(CHECKOUT)}
    ended = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stdout, ended.stderr


def effective(path):
    """The last value of each setting of a run, by scope and full name."""
    statements = reader.read(path)
    settings = zip(statements.bindings, moved.settings(statements), strict=True)
    return {(binding.scope, setting.name): repr(setting.value) for binding, setting in settings}


@pytest.mark.parametrize('last_first', [False, True])
@pytest.mark.parametrize('name', RUNS)
def test_old_run_is_refused_until_migrated(old, name, last_first, monkeypatch):
    path = old / f'{name}.gin'
    with pytest.raises(ValueError, match='run tflearn-migrate') as raised:
        preview.check(path, [], JOBS)
    assert 'a name of version 0.1; need tflearn.' in str(raised.value)
    assert '\n' not in str(raised.value)
    files_in_order = [*map(pathlib.Path, migrate.others_to_migrate(path)), path]
    for file in reversed(files_in_order) if last_first else files_in_order:
        file.write_text(migrate.migrate(file)[0])
    preview.check(path, [], JOBS)
    # The packaged run of this name has the same values to this day, but for those that were changed since.
    migrated = {key: value for key, value in effective(path).items() if key[1] not in CHANGED.get(name, ())}
    monkeypatch.chdir(files.folder())  # whose jobs.gin it includes
    packaged = effective(files.folder() / f'{name}.gin')
    assert {key: packaged.get(key) for key in migrated} == migrated


def test_another_kind_of_replay_keeps_the_settings_of_the_table(old):
    path = old / 'own.gin'
    path.write_text(
        'from tflearn import experience\n'
        f"include '{files.folder()}/dqn_lunar_lander.gin'\n"
        "experience.Experience.order = 'prioritized'  # of errors\n"
    )
    assert migrate.migrate(path)[0].splitlines()[2:] == [
        'experience.Experience.replay = @experience.Prioritized()  # of errors',
        'experience.Prioritized.max_size = 100000',
        'experience.Prioritized.min_size = 1000',
        'experience.Prioritized.samples_per_insert = 64.0',
    ]


def test_leaves_out_what_the_kind_of_replay_has_no_use_for(old):
    path = old / 'own.gin'
    lines = ("order = 'queue'", 'min_size = 1', 'reuse = None', 'per_replica_batch_size = None', 'max_mirror_gb = 1.0')
    path.write_text(
        'from tflearn import experience as data\nfrom tflearn.learner import train_loop\n'
        + ''.join(f'data.Experience.{line}\n' for line in (*lines, 'per_replica_batch_steps = 640', 'stride = 2'))
        + 'train_loop.LoopOptions.normalize_weights = True\n'
    )
    assert migrate.migrate(path)[0].splitlines()[2:] == [
        'data.Experience.replay = @data.Queue()',
        'data.Experience.batch = @data.BatchSteps()',
        'data.BatchSteps.per_replica = 640',
        'data.Experience.slicing = @data.Slicing()',
        'data.Slicing.stride = 2',
    ]


def test_puts_settings_of_the_jobs_into_groups(old):
    path = old / 'own.gin'
    path.write_text(
        'from tflearn.jobs import collect\nfrom tflearn.jobs import in_step\nfrom tflearn.jobs import train\n'
        'train.train.num_train_steps = 9\ntrain.train.max_secs = 1.0  # s\ntrain.train.summary_interval_steps = None\n'
        'a/in_step.in_step.initial_checkpoint = "/runs/before"\ncollect.collect.max_env_steps = 3\n'
        'train.train.data = @own()\ntrain.train.data_timeout_secs = 5.0\n'
    )
    assert migrate.migrate(path)[0].splitlines()[1:] == [
        'from tflearn.jobs import synchronous',
        'from tflearn.jobs import train',
        'from tflearn.jobs import collect_settings',
        'train.train.stop_conditions = @train.StopConditions()',
        'train.StopConditions.num_train_steps = 9',
        'train.StopConditions.max_secs = 1.0  # s',
        'train.train.options = @train.LearnerOptions()',
        'train.LearnerOptions.summaries = @train.SummaryOptions()',
        'train.SummaryOptions.interval_steps = None',
        'synchronous.synchronous.initial = @train.Initial()',
        'a/train.Initial.checkpoint = "/runs/before"',
        'collect.collect.options = @collect_settings.CollectOptions()',
        'collect_settings.CollectOptions.max_env_steps = 3',
        'train.train.data = @own()',
        'train.Data.timeout_secs = 5.0',
    ]


def test_names_why_an_option_is_gone(old):
    path = old / 'own.gin'
    path.write_text('from tflearn.learner import train_loop\ntrain_loop.LoopOptions.normalize_weights = True\n')
    with pytest.raises(ValueError, match='need no such binding, since a batch source with `prioritization`'):
        preview.check(path, [], JOBS)


def test_replaces_the_limits_of_each_collector(old):
    text, changes = migrate.migrate(old / 'algorithms' / 'ppo.gin')
    assert 'CollectOptions' not in text
    assert 'experience.Queue.versions_ahead = 1\n' in text
    assert any(change.endswith('max_sequences_per_version = 8 -> removed') for change in changes)


OWN = """# My run.
from __gin__ import dynamic_registration
from tflearn.jobs import in_step  # one process
from tflearn.learner import checkpoints
from tflearn.learner import limits as ends
from tflearn.learner import summaries
from tflearn.agents import dqn
from tflearn.agents import networks
import tflearn.steps
include 'dqn_cartpole.gin'
in_step.in_step.num_environments = 4  # as in_step.in_step says
a/in_step.in_step:
  collect_seed = 3
summaries.SummaryOptions.figures = True
a/summaries.SummaryOptions.figures = ("loss",)  # figures
x = {"in_step.in_step": [@checkpoints.Checkpoints, @b/networks.Pixels()],
  1: [@tflearn.steps.crossed, @ends.Limits()]}
"""
MIGRATED = """# My run.
from __gin__ import dynamic_registration
from tflearn.jobs import synchronous  # one process
from tflearn.checkpoints import checkpoints
from tflearn.learner import stop_conditions as ends
from tflearn.learner import summaries
from tflearn.agents import dqn
from tflearn.networks import networks
import tflearn.train_step
from tflearn.networks import encoder
include 'dqn_cartpole.gin'
synchronous.synchronous.num_environments = 4  # as in_step.in_step says
a/synchronous.synchronous:
  collect_seed = 3
summaries.SummaryOptions.sources = @summaries.SummarySources()
summaries.SummarySources.metrics = True
a/summaries.SummarySources.metrics = ("loss",)  # figures
x = {"in_step.in_step": [@checkpoints.Checkpoints, @b/encoder.Pixels()],
  1: [@tflearn.train_step.crossed, @ends.StopConditions()]}
"""


def test_rewrites_names_only(old):
    path = old / 'own.gin'
    path.write_text(OWN)
    text, changes = migrate.migrate(path)
    assert text == MIGRATED
    assert f'{path}:3: from tflearn.jobs import in_step  # one process -> ' in changes[0]
    path.write_text(text)
    assert migrate.migrate(path) == (text, [])


def test_aliases_a_module_whose_name_is_taken(old):
    path = old / 'own.gin'
    path.write_text('from own import weights\nfrom tflearn import variables\nx = @variables.contract.table\n')
    text, _ = migrate.migrate(path)
    assert text.splitlines()[1:] == ['from tflearn import weights as variables', 'x = @variables.contract.table']


def test_limit_without_versions_ahead_gets_its_default(old):
    path = old / 'own.gin'
    imports = 'from tflearn import experience\nfrom tflearn.jobs import collect_settings\n'
    path.write_text(f'{imports}collect_settings.CollectOptions.max_sequences_per_version = 8\n')
    assert migrate.migrate(path)[0] == f'{imports}experience.Queue.versions_ahead = 0\n'


def test_metrics_of_collectors_move(old):
    path = old / 'mine.gin'
    imports = 'from __gin__ import dynamic_registration\nfrom tflearn.jobs import collect_settings\n'
    path.write_text(f'{imports}collect_settings.CollectOptions.metrics_gamma = 0.9\n')
    text = migrate.migrate(path)[0]
    assert 'collect_settings.CollectOptions.episode_metrics = @collect_settings.EpisodeMetricsOptions()\n' in text
    assert 'collect_settings.EpisodeMetricsOptions.gamma = 0.9\n' in text


def test_rejects_a_block_that_cannot_be_rewritten(old):
    path = old / 'own.gin'
    path.write_text(
        'from tflearn.jobs import collect_settings\ncollect_settings.CollectOptions:\n  max_sequences_per_version = 8\n'
    )
    with pytest.raises(ValueError, match=rf'in a block in {path}:3; need one line .* take it out of the block'):
        migrate.migrate(path)


@pytest.mark.parametrize(
    ('statement', 'new'),
    [
        ('from tflearn import variables', 'tflearn.weights'),
        ('from tflearn.replay import reader', 'tflearn.sampling.reader'),
        ('from tflearn.jobs import in_step', 'tflearn.jobs.synchronous'),
        ('tflearn.jobs.in_step.in_step.num_environments=1', 'tflearn.jobs.synchronous.synchronous.num_environments'),
        ('Experience.max_size=1', 'tflearn.experience.Uniform.max_size'),
        ('train.seed=1', 'tflearn.jobs.train.Initial.seed'),
        ('collect.max_env_steps=1', 'tflearn.jobs.collect_settings.CollectOptions.max_env_steps'),
        ("experience.Experience.order='queue'", 'tflearn.experience.Experience.replay'),
    ],
)
def test_rejects_old_names_on_the_command_line(statement, new):
    with pytest.raises(ValueError, match='a name of version 0.1') as raised:
        preview.check(files.resolve('dqn_cartpole'), [statement], JOBS)
    assert f'in --gin_bindings, a name of version 0.1; need {new}, which replaced it' in str(raised.value)


@pytest.mark.parametrize('old', moved.MOVED)
def test_replacements_exist(old):
    assert outline.module_of(old) != old, 'there is a module of the old name'
    new = moved.MOVED[old]
    module = outline.module_of(new)
    if module != new:
        assert hasattr(outline.Outlines().load(module), new[len(module) + 1 :].partition('.')[0])


def test_program_writes_beside_the_file_or_in_place(old):
    path = old / 'algorithms' / 'ppo.gin'
    text = path.read_text()
    code, output, errors = run(path, cwd=old)
    assert (code, path.read_text()) == (0, text), errors
    assert output.endswith(f'wrote {path}.new\n') and ' -> removed\n' in output
    assert run('a2c_cartpole.gin', '--in_place', cwd=old)[1].count('run tflearn-migrate algorithms/ppo.gin') == 1
    assert (old / 'a2c_cartpole.gin.orig').read_text() == (FOLDER / 'a2c_cartpole.gin').read_text()
    assert 'Queue.versions_ahead = 0' in (old / 'a2c_cartpole.gin').read_text()
    assert run('environments/cartpole.gin', cwd=old)[1] == 'environments/cartpole.gin: nothing to change\n'
    assert not (old / 'environments' / 'cartpole.gin.new').exists()


@pytest.mark.parametrize(
    ('arguments', 'error'),
    [([], 'got no argument; need'), (['x.gin'], 'got the gin file x.gin')],
)
def test_user_errors_take_one_line(tmp_path, arguments, error):
    code, output, errors = run(*arguments, cwd=tmp_path)
    assert (code, output, errors.count('\n')) == (2, '', 1)
    assert errors.startswith(f'tflearn-migrate: error: {error}')
    assert '--in_place' in run('--help', cwd=tmp_path)[1]


def test_packaged_files_have_no_old_names():
    assert list(moved.old_names(reader.read(files.resolve('ppo_cartpole')))) == []
