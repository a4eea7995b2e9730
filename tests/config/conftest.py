"""A small run to configure: jobs, an agent, a schedule and gin files, without TensorFlow."""

import pathlib

import pytest

FILES = {
    'toy/jobs/train.py': """
def train(*, run, make_agent, experience, num_train_steps: int, max_secs: float | None = None):
    run.append(('train', num_train_steps, max_secs, make_agent('specs'), experience.max_size))
""",
    'toy/jobs/collect.py': """
def collect(*, run, make_agent, num_environments=8):
    run.append(('collect', make_agent('specs'), num_environments))
""",
    'toy/agents/dqn.py': """
def make_agent(specs, learning_rate=0.5, epsilon=0.25):
    if learning_rate <= 0:
        raise ValueError(f'got learning_rate={learning_rate}; need a number above 0')
    return ('dqn', specs, learning_rate, epsilon)
""",
    'toy/agents/sac.py': """
def make_agent(specs, alpha=1.0):
    return ('sac', specs, alpha)
""",
    'toy/agents/schedules.py': """
def linear(start, end):
    return ('linear', start, end)

def constant(value):
    return value
""",
    'toy/agents/broken.py': """
import a_package_that_nobody_has
""",
    'toy/agents/broken_call.py': """
def make_agent(specs):
    return len(3)
""",
    'toy/experience.py': """
import dataclasses

@dataclasses.dataclass(frozen=True)
class Experience:
    max_size: int = 10
""",
}
GIN_FILES = {
    'jobs.gin': """# The jobs.
from __gin__ import dynamic_registration
from toy.jobs import collect
from toy.jobs import train
train.train.make_agent = %make_agent
train.train.experience = %experience
collect.collect.make_agent = %make_agent
""",
    'parts/dqn.gin': """from __gin__ import dynamic_registration
from toy import experience
from toy.agents import dqn
from toy.agents import schedules
include '../jobs.gin'
make_agent = @dqn.make_agent
dqn.make_agent.epsilon = @epsilon/schedules.linear()
epsilon/schedules.linear:
  start = 1.0
  end = 0.5
experience = @experience.Experience()
""",
    'run.gin': """from __gin__ import dynamic_registration
from toy.jobs import train
include 'parts/dqn.gin'
train.train.num_train_steps = 5
""",
}


@pytest.fixture(scope='session')
def toy_modules(tmp_path_factory):
    """The folder of the package `toy`. Its modules are imported once a session: gin remembers functions by name."""
    folder = tmp_path_factory.mktemp('toy_modules')
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def gin_folder(toy_modules, tmp_path, monkeypatch) -> pathlib.Path:
    """A folder with run.gin and what it includes; the modules that it imports can be imported."""
    monkeypatch.syspath_prepend(str(toy_modules))
    for name, text in GIN_FILES.items():
        path = tmp_path / 'gin' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / 'gin'
