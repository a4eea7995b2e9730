"""The programs of docs/your-environment.md that make an environment of another one: a guard, and skills."""

import dataclasses
import functools

import numpy as np
import pytest

import tflearn
from tests.testing import docs_blocks
from tflearn.agents import dqn
from tflearn.core.experience import Experience, Uniform
from tflearn.core.train_step import create_train_step
from tflearn.core.types import specs_of
from tflearn.environments import gymnasium_env, vector_env
from tflearn.files.run_dir import RunDir
from tflearn.jobs.collect_settings import CollectOptions, EpisodeMetricsOptions
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.networks.networks import NetworkOptions
from tflearn.policies.exporter import PolicyExporter

SMALL = NetworkOptions((8,))


@pytest.fixture
def page(tmp_path):
    """The files of the page, in the working directory."""
    with docs_blocks.working_in(tmp_path):
        for block in docs_blocks.of('python'):
            if block.page.name == 'your-environment.md' and block.file_name:
                (tmp_path / block.file_name).write_text(block.text)
        yield tmp_path


def _train(make_one, on_episode=None):
    options = CollectOptions(episode_metrics=dataclasses.replace(EpisodeMetricsOptions(), on_episode=on_episode))
    run = tflearn.train(
        root_dir='run',
        make_environment=functools.partial(vector_env.in_process, make_one),
        make_agent=functools.partial(dqn.make_agent, network=SMALL),
        experience=Experience(replay=Uniform(min_size=300)),
        collect_options=options,
        exports=ExportOptions(('greedy_policy',)),
        num_environments=2,
        num_train_steps=10,
        num_episodes=1,
        seed=1,
    )
    assert run.train_step == 10


def test_the_action_of_a_guard_is_recorded(page):
    import guard
    import walk

    recorded = []
    _train(lambda: guard.Guard(walk.Walk()), recorded.append)
    turned = np.concatenate([episode.action[episode.observation[:-1, 0] < 0] for episode in recorded])
    assert len(turned) and (turned == 1).all()


def test_an_agent_chooses_among_agents(page):
    import skills

    specs = specs_of(functools.partial(gymnasium_env.make, 'CartPole-v1'))
    agent = dqn.make_agent(specs, create_train_step(), Experience(), network=SMALL)
    PolicyExporter(agent.policy, RunDir('runs/dqn_cartpole').greedy_policy).export(0, {'env_steps': 0})
    _train(skills.Skills)
