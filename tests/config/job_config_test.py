"""A run's configuration: what it configures, and that it rejects what is misspelt, unused or missing."""

import importlib

import pytest

import gin
from tflearn.config import job_config, reader
from tflearn.core.errors import UserError, UserValueError


@pytest.fixture
def configure(gin_folder):
    """Configures the toy run's train job, and checks that the check before a run raises the same."""

    def configure(*bindings, job='train', file='run.gin', more='', **arguments):
        path = gin_folder / file
        path.write_text(path.read_text() + more if path.exists() else more)
        function = getattr(importlib.import_module(f'toy.jobs.{job}'), job)
        arguments = {'run': [], **arguments}
        early = error_of(lambda: job_config.check(path, bindings, [function.__module__]))
        assert early == error_of(lambda: job_config.configure(function, arguments, path, bindings))
        return job_config.configure(function, arguments, path, bindings)

    return configure


def error_of(check):
    """Returns the kind of error that `check` raises, and its message; None if it raises none."""
    try:
        check()
    except (ValueError, ImportError) as error:
        return type(error), str(error)
    return None


def result(job):
    """Returns what the toy job records when it runs."""
    job.run()
    (noted,) = job.arguments['run']
    return noted


def test_one_file_configures_every_job(configure):
    agent = ('dqn', 'specs', 0.5, ('linear', 1.0, 0.5))
    assert result(configure()) == ('train', 5, None, agent, 10)
    assert result(configure(job='collect')) == ('collect', agent, 8)


@pytest.mark.parametrize('name', ['train.train', 'train', 'toy.jobs.train.train'])
def test_names_on_the_command_line(configure, name):
    assert result(configure(f'{name}.num_train_steps=7'))[1] == 7


def test_later_bindings_override_earlier_ones(configure):
    job = configure('make_agent.learning_rate=0.1', 'dqn.make_agent.learning_rate=0.2', 'Experience.max_size = 20')
    assert result(job) == ('train', 5, None, ('dqn', 'specs', 0.2, ('linear', 1.0, 0.5)), 20)


def test_a_schedule_may_be_replaced_by_a_number(configure):
    job = configure('dqn.make_agent.epsilon=0.1')
    assert result(job)[3] == ('dqn', 'specs', 0.5, 0.1)
    assert 'schedules' not in job.text


def test_the_command_line_may_import(configure):
    job = configure('from toy.agents import sac', 'make_agent=@sac.make_agent', 'sac.make_agent.alpha=2')
    assert result(job)[3] == ('sac', 'specs', 2)


MISSPELT = {
    'train.num_train_stpes=1': ('train.train has no parameter', 'train.num_train_steps'),
    'train.train.num_train_stpes=1': ('train.train has no parameter', 'train.train.num_train_steps'),
    'dqn.make_agent.num_train_steps=1': ('dqn.make_agent has no parameter', 'train.train.num_train_steps'),
    'constant.num_train_steps=1': ("no import provides 'constant'; need", 'train.num_train_steps'),
    'trian.num_train_steps=1': ("no import provides 'trian'", 'train.num_train_steps'),
    'train.trian.num_train_steps=1': ("toy.jobs.train has no 'trian'", 'train.train.num_train_steps'),
    'epsilon/schedules.linear.strat=1': ('schedules.linear has no parameter', 'epsilon/schedules.linear.start'),
    'make_agent=@dqn.make_agnet': ("toy.agents.dqn has no 'make_agnet'", '@dqn.make_agent'),
    'make_agent=@dnq.make_agent': ("no import provides 'dnq'", '@dqn.make_agent'),
    'dqn.make_agent.epsilon=@schedules.liner()': ("toy.agents.schedules has no 'liner'", '@schedules.linear'),
}


@pytest.mark.parametrize('binding', MISSPELT)
def test_rejects_misspelt_names_on_the_command_line(configure, binding):
    why, nearest = MISSPELT[binding]
    written = binding.partition('=')[0 if '@' not in binding else 2]
    with pytest.raises(ValueError, match='need') as raised:
        configure(binding)
    assert str(raised.value).startswith(f'got {written} in --gin_bindings, but {why}')
    assert str(raised.value).endswith(f'the nearest is {nearest}')


def test_rejects_misspelt_names_in_a_file(configure, gin_folder):
    with pytest.raises(ValueError, match='need') as raised:
        configure(more='\ntrain.train.max_sces = 1\n')
    assert str(raised.value) == (
        f"got train.train.max_sces in {gin_folder}/run.gin:6, but train.train has no parameter 'max_sces'; "
        'need a valid name: the nearest is train.train.max_secs'
    )


def test_a_file_may_use_only_its_own_imports(configure, gin_folder):
    with pytest.raises(ValueError, match=rf"got dqn.make_agent.epsilon in {gin_folder}/run.gin:5, .* provides 'dqn'"):
        configure(more='dqn.make_agent.epsilon = 1\n')


UNUSED = {
    'num_train_steps=7': ('nothing uses a macro of this name', 'train.num_train_steps'),
    'make_agnet=@dqn.make_agent': ('nothing uses a macro of this name', 'make_agent'),
    'epsilno/schedules.linear.start=1': ("in the scope 'epsilno'", 'epsilon/schedules.linear.start'),
}


@pytest.mark.parametrize('binding', UNUSED)
def test_rejects_unused_bindings_on_the_command_line(configure, binding):
    why, nearest = UNUSED[binding]
    with pytest.raises(ValueError, match='need a binding that is used') as raised:
        configure(binding)
    assert str(raised.value).startswith(f'got {binding.partition("=")[0]} in --gin_bindings, but ')
    assert why in str(raised.value)
    assert f'the nearest is {nearest};' in str(raised.value)


def test_rejects_bindings_of_unused_functions(configure, gin_folder):
    with pytest.raises(ValueError, match='no job of this run uses sac.make_agent') as raised:
        configure(more='from toy.agents import sac\nsac.make_agent.alpha = 2\n')
    assert f'got sac.make_agent.alpha in {gin_folder}/run.gin:6' in str(raised.value)


def test_a_binding_of_another_job_is_used(configure):
    assert 'collect.collect.num_environments = 2' in configure('collect.num_environments=2').text


def test_rejects_bindings_of_what_the_program_gives(configure):
    with pytest.raises(ValueError, match='got collect.run in --gin_bindings, which the job gets from its program'):
        configure('collect.run="x"')


def test_rejects_ambiguous_names(configure):
    with pytest.raises(ValueError, match=r'toy.agents.dqn.make_agent and toy.agents.sac.make_agent'):
        configure('from toy.agents import sac', 'collect.make_agent=@sac.make_agent', 'make_agent.learning_rate=1')


@pytest.mark.parametrize('binding', ['train.num_train_steps=%gin.REQUIRED', 'experience=%gin.REQUIRED'])
def test_rejects_values_left_at_required(configure, binding):
    with pytest.raises(ValueError, match=f'got no value for {binding.partition("=")[0]} in .*run.gin; need one'):
        configure(binding)


def test_rejects_missing_arguments_of_the_job(configure, gin_folder):
    (gin_folder / 'run.gin').write_text("from __gin__ import dynamic_registration\ninclude 'parts/dqn.gin'\n")
    with pytest.raises(ValueError, match=r'got no value for train.train.num_train_steps in .*run.gin; need one: bind'):
        configure()
    configure(job='collect')


def test_missing_arguments_of_a_factory_are_user_errors(configure):
    with pytest.raises(UserValueError, match=r'got no value for schedules.linear.start in .*; need one: bind it there'):
        configure('dqn.make_agent.epsilon=@schedules.linear()')
    job = configure('make_agent=@schedules.linear')  # called by the job, with the specs
    with pytest.raises(
        UserValueError, match=r"^got linear\(\) missing 1 required positional argument: 'end'; need values"
    ):
        job.run()


def test_type_errors_inside_a_factory_are_no_user_errors(configure):
    job = configure('from toy.agents import broken_call', 'make_agent=@broken_call.make_agent')
    with pytest.raises(TypeError) as raised:
        job.run()
    assert not isinstance(raised.value, UserError)


def test_rejects_undefined_macros(configure):
    with pytest.raises(
        ValueError, match=r'got %make_agent in .*jobs.gin:5, but nothing defines this macro; need a line'
    ):
        configure(file='jobs.gin')
    with pytest.raises(ValueError, match=r'\(there is %make_agent\)'):
        configure('make_agent=%make_agnet')


def test_rejects_modules_that_do_not_exist(configure):
    with pytest.raises(
        ValueError, match=r'no module toy.agents.dnq; need one that exists: the nearest is toy.agents.dqn'
    ):
        configure('from toy.agents import dnq')
    with pytest.raises(ValueError, match=r'no module toy.experience.Experience; .* the nearest is toy.experience$'):
        configure('from toy.experience import Experience')


def test_rejects_modules_that_need_a_missing_package(configure):
    with pytest.raises(ImportError, match='toy.agents.broken .* needs the package a_package_that_nobody_has; need it'):
        configure('from toy.agents import broken')


def test_plain_message_drops_what_gin_appends(configure):
    job = configure('dqn.make_agent.learning_rate=-1')
    with pytest.raises(ValueError, match='In call to configurable') as raised:
        job.run()
    assert job_config.plain_message(raised.value) == 'got learning_rate=-1; need a number above 0'


def test_saved_text_configures_the_same_run(configure, gin_folder):
    job = configure('dqn.make_agent.epsilon=0.1', 'train.max_secs=3')
    wanted = result(job)
    (gin_folder / 'config.gin').write_text(job.text)
    again = configure(file='config.gin')
    assert again.text == job.text
    assert result(again) == wanted


def test_lists_bindings_that_the_job_did_not_use(configure, gin_folder):
    job = configure('dqn.make_agent.epsilon=0.1', 'collect.num_environments=2')
    job.run()
    assert job.inoperative() == [
        f'epsilon/schedules.linear.start ({gin_folder}/parts/dqn.gin:9)',
        f'epsilon/schedules.linear.end ({gin_folder}/parts/dqn.gin:10)',
    ]
    assert 'dqn.make_agent.learning_rate = 0.5' in job_config.operative_text()


def test_texts_for_tensorboard(configure, gin_folder):
    job = configure('dqn.make_agent.epsilon=0.1')
    job.run()
    texts = job.texts()
    assert '    train.train.num_train_steps = 5\n' in texts['gin/config']
    assert '    dqn.make_agent.learning_rate = 0.5\n' in texts['gin/operative'], 'a default that was used'
    assert texts['gin/inoperative'].startswith(f'* epsilon/schedules.linear.start ({gin_folder}/parts/dqn.gin:9)\n* ')
    assert configure().texts()['gin/inoperative'] != 'none', 'nothing was used yet'
    (gin_folder / 'run.gin').write_text(job.text)
    plain = configure()
    plain.run()
    assert plain.texts()['gin/inoperative'] == 'none'


OTHER_KIND = {
    'train.num_train_steps=1e3': 'got train.num_train_steps = 1000.0 in --gin_bindings; need int',
    'train.num_train_steps=True': 'got train.num_train_steps = True in --gin_bindings; need int',
    'train.max_secs="3"': "got train.max_secs = '3' in --gin_bindings; need float or None",
    'train.max_secs=-1e999': 'got train.max_secs = -inf in --gin_bindings; need finite numbers',
    'make_agent={"a": [1e999]}': "got make_agent = {'a': [inf]} in --gin_bindings; need finite numbers",
    'Experience.max_size=None': 'got Experience.max_size = None in --gin_bindings; need int',
}


@pytest.mark.parametrize('binding', OTHER_KIND)
def test_rejects_values_of_another_type(configure, binding):
    with pytest.raises(ValueError, match='need') as raised:
        configure(binding)
    assert str(raised.value) == OTHER_KIND[binding]


@pytest.mark.parametrize('value', ['3', '3.5', 'None'])
def test_accepts_values_of_the_right_type(configure, value):
    assert result(configure(f'train.max_secs={value}'))[2] in (3, 3.5, None)


def test_two_modules_with_one_name(configure, gin_folder, toy_modules):
    (toy_modules / 'toy' / 'train.py').write_text('def number():\n    return 3\n')
    job = configure(
        'from toy import train',
        'toy.jobs.train.train.max_secs=@toy.train.number()',
    )
    assert result(job)[2] == 3


ODD = """
from __future__ import annotations
import functools
import sys
import types
from toy.agents import dqn

class Base:
    def __init__(self, size=1):
        self.size = size

class Derived(Base):
    @staticmethod
    def make(specs):
        return ('derived', specs)

@functools.lru_cache
def decorated(specs, **kwargs):
    return ('decorated', specs)

def typed(specs, rate: int = None):
    return ('typed', specs, rate)

alias = dqn.make_agent
# As TensorFlow makes `tensorflow.keras`.
late = sys.modules[__name__ + '.late'] = types.ModuleType(__name__ + '.late')
late.made = lambda specs: ('made', specs)
"""


@pytest.mark.parametrize(
    ('value', 'bindings'),
    [
        ('odd.alias', ['toy.agents.dqn.make_agent.learning_rate=1']),
        ('odd.dqn.make_agent', ['make_agent.learning_rate=1']),
        ('odd.decorated', ['odd.decorated.specs=1']),
        ('odd.Derived', ['odd.Derived.size=1']),
        ('odd.Derived.make', []),
        ('odd.late.made', []),
        ('odd.typed', ['odd.typed.rate=None']),
        ('package.inner.make', ['package.inner.make.rate=2']),
        ('logging.getLogger', ['logging.getLogger.name="x"']),
    ],
)
def test_takes_whatever_a_module_has(configure, toy_modules, value, bindings):
    (toy_modules / 'toy' / 'odd.py').write_text(ODD)
    (toy_modules / 'toy' / 'package').mkdir(exist_ok=True)
    (toy_modules / 'toy' / 'package' / '__init__.py').write_text('from . import inner')
    (toy_modules / 'toy' / 'package' / 'inner.py').write_text('def make(specs, rate=1): return ("inner", specs, rate)')
    imports = ['from toy import odd', 'from toy import package', 'import logging', 'import os.path']
    configure(*imports, f'make_agent=@{value}', *bindings)


def test_locks_the_configuration(configure):
    configure()
    with pytest.raises(RuntimeError, match='locked'):
        gin.bind_parameter('train.num_train_steps', 1)


def test_leaves_are_found_however_deep():
    statements = reader.read(None, ['x = {"a": [(@f.g(), 1)], %b: "c"}'])
    found = [repr(leaf) for leaf in reader.leaves(statements.bindings[0].value)]
    assert sorted(found) == ['%b', '@f.g()']


def test_macros_in_a_value_are_resolved_however_deep():
    statements = reader.read(None, ['f.x = {"a": [(%b, 1)], %c: "e"}', 'b = %c', 'c = 2', 'd = %d'])
    defined = reader.macros(statements.bindings)
    assert reader.resolved(statements.bindings[0].value, defined) == {'a': [(2, 1)], 2: 'e'}
    assert reader.resolved(defined['d'], defined) == reader.Macro('d'), 'in a circle'


CIRCLES = [
    ['num = %num', 'train.train.num_train_steps = %num'],
    [
        'schedules.linear.start = @schedules.linear()',
        'schedules.linear.end = 1',
        'train.max_secs = @schedules.linear()',
    ],
]


@pytest.mark.parametrize('bindings', CIRCLES, ids=str)
def test_rejects_bindings_in_a_circle(configure, bindings):
    with pytest.raises(UserValueError, match='^got bindings that refer to each other in a circle, .*; need values'):
        configure(*bindings).run()
