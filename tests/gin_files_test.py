"""The packaged gin files: each run configures every job and builds its objects; each part belongs to a run."""

import importlib
import importlib.util  # gin's file reader uses it without importing it.
import re

import pytest

import gin
from tflearn.config import files, job_config, reader
from tflearn.core.experience import Experience
from tflearn.core.train_step import create_train_step
from tflearn.files.run_dir import RunDir
from tflearn.jobs.run import Run

FOLDER = files.folder()
RUNS = [name for name in files.names() if '/' not in name and name != 'jobs']
PARTS = [name for name in files.names() if '/' in name]
# Run -> the package that its environment needs, and the extra that installs it.
NEEDED = {
    'sac_halfcheetah': ('mujoco', 'mujoco'),
    'bc_halfcheetah': ('mujoco', 'mujoco'),
    'iql_halfcheetah': ('mujoco', 'mujoco'),
    'td3_halfcheetah': ('mujoco', 'mujoco'),
    'sac_hopper': ('mujoco', 'mujoco'),
    'td3_hopper': ('mujoco', 'mujoco'),
    'ppo_walker2d': ('mujoco', 'mujoco'),
    'v_mpo_halfcheetah': ('mujoco', 'mujoco'),
    'dqn_minatar': ('minatar', 'minatar'),
    'ppo_minatar': ('minatar', 'minatar'),
    'impala_minatar': ('minatar', 'minatar'),
    'dqn_lunar_lander': ('Box2D', 'box2d'),
    'dqn_pong': ('ale_py', 'atari'),
    'impala_pong': ('ale_py', 'atari'),
}


JOBS = 'replay_server', 'collect', 'train', 'evaluate'


def job_function(job):
    return getattr(importlib.import_module(f'tflearn.jobs.{job}'), job)


@pytest.fixture
def configure(tmp_path):
    """Configures a job as its program does."""

    def configure(job, run, *bindings):
        return job_config.configure(job_function(job), {'run': Run(RunDir(tmp_path))}, files.resolve(run), bindings)

    return configure


def text(name):
    return files.resolve(name).read_text(encoding='utf-8')


def header(name):
    """The comment that a file begins with."""
    return ''.join(re.match(r'(#.*\n)*', text(name))[0])


@pytest.mark.parametrize('run', NEEDED)
def test_a_run_and_its_environment_name_the_extra(run):
    extra = f'(Extra: {NEEDED[run][1]}.)'
    environment = re.search(r"^include '(environments/\w+)\.gin'$", text(run), re.MULTILINE)[1]
    assert extra in header(run)
    assert extra in header(environment)


def test_there_are_files():
    assert {'dqn_cartpole', 'dqn_acrobot'} <= set(RUNS)
    assert {'algorithms/dqn', 'environments/cartpole', 'environments/acrobot'} <= set(PARTS)


@pytest.mark.filterwarnings('ignore::DeprecationWarning')  # Box2D's own
@pytest.mark.parametrize('run', RUNS)
def test_every_job_is_configured_alike_and_its_objects_are_made(configure, run):
    package, extra = NEEDED.get(run, ('gymnasium', None))
    is_there, texts = importlib.util.find_spec(package), set()
    for job in JOBS:
        configured = configure(job, run)
        texts.add(configured.text)
        if is_there:
            bound = gin.get_bindings(configured.job.function)
            if job != 'evaluate':
                assert isinstance(bound['experience'], Experience)
            if job in ('train', 'evaluate'):  # the others' are those of train, by the same text
                _make(bound, job)
    assert len(texts) == 1
    if not is_there:
        pytest.skip(f'{package} is not installed; pip install ".[{extra}]"')


def _make(bound, job):
    environment = bound['make_environment'](num_environments=2, seed=0)
    try:
        assert environment.reset().reward.shape == (2,)
        if job == 'train':
            agent = bound['make_agent'](environment.specs, create_train_step(), bound['experience'])
            assert agent.collect_policy.action_spec == environment.specs.action
    finally:
        environment.close()


def test_the_settings_that_the_documentation_shows(configure):
    shown = (FOLDER.parent / 'docs' / 'exporting.md').read_text(encoding='utf-8')
    blocks = re.findall(r'^```gin\n(.*?)^```', shown, re.DOTALL | re.MULTILINE)
    lines = [line.partition('#')[0].strip() for block in blocks for line in block.splitlines()]
    modules = [f'from tflearn.jobs import {name}' for name in ('policy_exports', 'evaluate_settings')]
    of_products = [line for line in lines if 'roducts' in line]  # apart: they need other policies
    assert len(of_products) == 4
    configure('train', 'dqn_cartpole', 'from tflearn.policies import products', *of_products)
    modules.append('from tflearn.environments import window')
    bindings = [*modules, *(line for line in lines if line and line not in of_products)]
    assert len(bindings) > 15
    configure('train', 'dqn_cartpole', *bindings)
    exports = gin.get_bindings(job_function('train'))['exports']
    assert (exports.keep_last, exports.update_interval_steps) == (10, 100)
    configure('evaluate', 'dqn_cartpole', *bindings)
    bound = gin.get_bindings(job_function('evaluate'))
    assert (bound['options'].follow, bound['options'].epsilon) == ('each', 0.01)
    assert bound['record_video'] is not None
    environment = bound['make_environment'](num_environments=1, seed=0)
    environment.reset()
    longest = max(leaf.spec.max_episode_steps for leaf in environment._vector_env._environments)
    environment.close()
    assert longest == 1000, 'of evaluation; training has the registered 500'


@pytest.mark.parametrize('run', RUNS)
def test_plain_gin_reads_it_too(run):
    gin.clear_config()
    gin.add_config_file_search_path(str(FOLDER))
    gin.parse_config_file(f'{run}.gin')
    gin.finalize()
    gin.clear_config()


# The quick start's settings, chosen for the time that it takes; a paper's network and rates; small networks in XLA;
# schedules of the learning rate, one with larger iterations, and wider noise; the returns of a distribution.
MORE_OVERRIDES = {
    'awac_inlining': 12,
    'dqn_cartpole': 14,
    'dqn_cartpole_dict': 14,
    'ppo_cartpole': 15,
    'dqn_minatar': 12,
    'ppo_minatar': 22,
    'impala_minatar': 17,
    'dqn_pong': 15,
    'dqn_news': 14,
    'mpo_pendulum': 15,
    'ppo_pendulum': 14,
    'ppo_walker2d': 11,
    'rainbow_cartpole': 13,
    'a2c_cartpole': 13,
    'impala_cartpole': 13,
    'impala_cartpole_hidden': 13,
}


@pytest.mark.parametrize('run', RUNS)
def test_a_run_is_two_includes_and_a_few_overrides(run):
    bindings = reader.read(files.resolve(run)).bindings
    own = [binding for binding in bindings if binding.place.startswith(f'{FOLDER}/{run}.gin:')]
    includes = re.findall(r"^include '(\w+)/\w+\.gin'$", text(run), re.MULTILINE)
    assert includes == ['algorithms', 'environments']
    assert len(own) <= MORE_OVERRIDES.get(run, 10)


@pytest.fixture(scope='module')
def places():
    """Where the bindings of all runs are, FILE:LINE."""
    return {binding.place for run in RUNS for binding in reader.read(files.resolve(run)).bindings}


@pytest.mark.parametrize('part', PARTS)
def test_every_part_belongs_to_a_run(part, places):
    assert any(place.startswith(f'{FOLDER}/{part}.gin:') for place in places)


@pytest.mark.parametrize('name', files.names())
def test_every_file_begins_with_what_it_is(name):
    assert len(header(name).splitlines()[0]) > 10
    statements = [line for line in text(name).splitlines() if line and not line.startswith('#')]
    assert statements[0] == 'from __gin__ import dynamic_registration'


@pytest.mark.parametrize('name', [name for name in PARTS if name.startswith('algorithms/')])
def test_an_algorithm_names_its_source_and_its_units(name):
    for word in ('Papers:', 'Differs from the papers:', 'Must be set:', 'Usually changed:', 'Units:'):
        assert f'\n# {word}' in header(name)
    assert re.search(r'arXiv:\d{4}\.\d{4,5}|Nature', header(name))


@pytest.mark.parametrize('name', [name for name in PARTS if name.startswith('environments/')])
def test_environments_describe_themselves(name):
    for word in ('Observation:', 'Action:', 'Reward:', 'Solved at'):
        assert word in header(name)


def test_only_gin_files_and_spaces_are_there():
    for path in FOLDER.rglob('*'):
        assert path.is_dir() or path.suffix == ('.toml' if path.parent.name == 'spaces' else '.gin')
