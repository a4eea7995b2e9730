"""The reference of settings: what is found by a name, and what it says."""

import pytest

import gin
from tests.testing import command_lines
from tflearn.config import files, reference


@pytest.fixture(autouse=True)
def _unlocked():
    """Modules that are imported register their functions with gin, which a locked configuration refuses."""
    gin.clear_config()


def rows(name: str) -> list[tuple[str, str]]:
    return [(each.owner, each.name) for each in reference.find(name)]


def test_a_setting_has_its_values_default_unit_and_text():
    (found,) = reference.find('experience.Uniform.max_mirror_gb')
    assert found == reference.Setting(
        owner='experience.Uniform',
        name='max_mirror_gb',
        values='a number of at least 0',
        default='4.0',
        unit='GB',
        text="the maximum memory of a mirror that 'auto' chooses [GB]",
    )


@pytest.mark.parametrize(
    ('name', 'expected'),
    [
        ('Uniform.max_size', [('experience.Uniform', 'max_size')]),
        ('train.train.make_agent', [('train.train', 'make_agent')]),
        ('linear', [('schedules.linear', name) for name in ('start', 'end', 'steps')]),
        # As gin files write them: by the module of what takes them.
        ('train.StopConditions.num_train_steps', [('stop_conditions.StopConditions', 'num_train_steps')]),
        ('train.Initial.seed', [('train_settings.Initial', 'seed')]),
        # What all algorithms take is described where one of them has it.
        ('dqn.make_agent.network', [('dqn.make_agent', 'network')]),
    ],
)
def test_names_find_settings(name, expected):
    assert rows(name) == expected
    assert all(each.text for each in reference.find(name))


def test_a_name_finds_every_owner():
    owners = {owner for owner, _ in rows('gamma')}
    assert {'dqn.make_agent', 'awac.AWACLoss', 'impala.ImpalaLoss'} <= owners


def test_an_unknown_name_is_refused_with_the_nearest_ones():
    with pytest.raises(ValueError, match="got 'Unifrom'.*the nearest are Uniform, "):
        reference.find('Unifrom')


def test_every_algorithm_describes_each_of_its_settings():
    unknown = [
        f'{owner.configurable.name}.{setting.name}'
        for owner in reference.sections()['Algorithms']
        for setting in owner.settings()
        if not setting.text
    ]
    assert unknown == []


def test_the_program_prints_values_unit_and_default():
    done = command_lines.run('help', 'experience.Uniform', 'train', 'sac_pendulum', timeout=60)
    assert done.returncode == 0, done.stderr
    assert 'experience.Uniform (from tflearn.core.experience)' in done.stdout
    assert '  max_mirror_gb: a number of at least 0 [GB]; default 4.0\n' in done.stdout
    assert '\n\ntrain.train (from tflearn.jobs.train)' in done.stdout
    assert 'Of tflearn.train in Python: tflearn help tflearn.train\n\n' in done.stdout
    assert 'sac_pendulum.gin:\n  SAC on Pendulum-v1' in done.stdout
    for name in ('Learner', 'tflearn.Learner', 'learner.learner.Learner'):
        public = command_lines.run('help', name, timeout=60)
        assert public.stdout.startswith(f'tflearn.{name.removeprefix("tflearn.")}(agent, data, run_dir, ')
        assert 'run_dir: where checkpoints and summaries are written.' in public.stdout
        assert '  run(self, ' in public.stdout and public.stderr == ''
    wrong = command_lines.run('help', 'gama', timeout=60)
    assert (wrong.returncode, wrong.stdout) == (2, '')
    assert 'the nearest are gamma, ' in wrong.stderr


def test_the_program_lists_and_describes_packaged_gin_files():
    every = command_lines.run('help', timeout=60)
    assert (every.returncode, every.stderr) == (0, '')
    lines = {line.split()[0]: line for line in every.stdout.splitlines()}
    assert lines.keys() == set(files.runs()) and 'SAC with an LSTM on Pendulum-v1' in lines['sac_pendulum_hidden']
    for name in ('sac_pendulum', str(files.folder() / 'sac_pendulum.gin')):
        one = command_lines.run('help', name, timeout=60)
        assert (one.returncode, one.stderr) == (0, '')
        assert one.stdout.startswith(f'{files.folder()}/sac_pendulum.gin:\n  SAC on Pendulum-v1')
        assert '\n  networks.NetworkOptions.fc_layer_params = (256, 256)\n' in one.stdout
        # The value that counts, not that of the included file.
        assert one.stdout.count('Uniform.max_size = ') == 1 and 'Uniform.max_size = 100000\n' in one.stdout
        assert 'replay_server' not in one.stdout
    wrong = command_lines.run('help', 'sac_pendlum', timeout=60)
    assert wrong.returncode == 2 and 'the nearest are sac_pendulum, ' in wrong.stderr
