"""A run's agent: made for its environment, optionally with values of another run or of recorded episodes; how its
experience is stored; and what all jobs of the run must agree on."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.typing import types

from tflearn.actors.actor import with_policy_state
from tflearn.coordinator import published_weights
from tflearn.core import agent_data, strategies
from tflearn.core.agent_data import WrappedAgent
from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience, Queue
from tflearn.core.train_step import create_train_step
from tflearn.core.types import Agent, AgentFactory, EnvironmentSpecs
from tflearn.core.waiting import Stopped
from tflearn.data.demonstrations import Cloning, Demonstrations
from tflearn.data.reader import EpisodeReader
from tflearn.files.numbered import CheckpointFiles
from tflearn.files.run_dir import RunDir, local_path
from tflearn.jobs.run import Run
from tflearn.jobs.train_settings import Initial
from tflearn.learner import precision as precisions
from tflearn.learner import warm_start
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.stop_conditions import StopConditions
from tflearn.learner.summaries import SummaryOptions
from tflearn.learner.train_loop import LoopOptions
from tflearn.policies import signatures, versions
from tflearn.replay.storage import Storage, signature_text
from tflearn.sampling import sources
from tflearn.transforms.transformed import TransformedAgent

_CLONING_STEPS_PER_CALL = 200
_CLONING_CHECKPOINT_STEPS = 1_000
_CLONING_SUMMARIES = 50


def make(
    make_agent: AgentFactory,
    specs: EnvironmentSpecs,
    experience: Experience,
    strategy: tf.distribute.Strategy,
    precision: str,
) -> Agent:
    """Makes the agent and its train step in the strategy, and logs the devices that train.

    Raises:
      TypeError: if the factory returns no agent.
      ValueError: if the agent cannot train on such data, two parts of the observation or action would be exported
        under one name, or no part of the agent computes in `precision`.
    """
    nests = {'observation': specs.observation, 'action': specs.action}
    signatures.flat_dict(signatures.to_plain(nests))  # the names of an export's tensors, checked before there is one
    logging.info(strategies.describe_devices(strategy))
    with strategy.scope(), precisions.use(precision):
        train_step = create_train_step()
        agent = make_agent(specs, train_step, experience)
        agent_data.check(agent, train_step, experience)
        if not agent_data.is_packaged(agent):
            agent_data.make_policy_variables(agent)
            agent_data.check_counting(agent)
    precisions.check_agent(agent, precision)
    return agent


def make_for_data(make_agent: AgentFactory, specs: EnvironmentSpecs, experience: Experience) -> tuple[Agent, Storage]:
    """Makes an agent that does not train, for its policies and its data; returns it and how its data are stored.

    Raises:
      ValueError: see `data_spec`.
    """
    agent = make_agent(specs, create_train_step(), experience)
    return agent, storage(agent, experience)


def continues(run_dir: RunDir) -> bool:
    """Returns whether the run has a checkpoint, so that it begins with nothing else."""
    return bool(CheckpointFiles(run_dir.checkpoints).numbers())


def load(agent: Agent, initial: Initial, run_dir: RunDir) -> None:
    """Loads values of another run or of an exported policy into the agent, unless its own run has a checkpoint.

    Args:
      agent: the run's agent.
      initial: where the values are.
      run_dir: this run's directory.

    Raises:
      ValueError: if the checkpoint or the policy is a URL, cannot be read, or does not fit.
    """
    source = initial.checkpoint or initial.policy
    if source is None:
        return
    local_path(source, 'initial_checkpoint' if initial.checkpoint else 'initial_policy')
    if continues(run_dir):
        logging.info('loaded nothing from %s: this run continues from its own checkpoint', source)
        return
    if initial.policy:
        warm_start.load_policy(versions.find(pathlib.Path(initial.policy)), _policy_variables(agent))
        return
    _load_checkpoint(agent, initial, initial.prefixes)


def load_optimizers(agent: Agent, initial: Initial, run_dir: RunDir) -> None:
    """Loads values of another run's optimizers, unless the run has a checkpoint; once a learner has made their slots.

    Raises:
      ValueError: if they do not fit.
    """
    if initial.optimizers and not continues(run_dir):
        _load_checkpoint(agent, initial, initial.optimizers, optimizers=True)


def _load_checkpoint(
    agent: Agent, initial: Initial, prefixes: Collection[str] | Mapping[str, str], optimizers: bool = False
) -> None:
    checkpoint = str(initial.checkpoint)
    of_a_run = RunDir(checkpoint).checkpoints
    objects = {'agent': agent, 'train_step': agent.train_step_counter}
    warm_start.load(of_a_run if of_a_run.is_dir() else checkpoint, objects, prefixes, optimizers=optimizers)


def _policy_variables(agent: Agent) -> list[tf.Variable]:
    """Returns the variables of both policies, each once."""
    policies = [agent.policy, agent.collect_policy]
    return list(
        {variable.ref(): variable for policy in policies for variable in published_weights.published(policy)}.values()
    )


def clone(
    agent: Agent,
    cloning: Cloning,
    specs: EnvironmentSpecs,
    run: Run,
    strategy: tf.distribute.Strategy,
    precision: str,
    seed: int,
    alive: Callable[[int], None],
) -> None:
    """Clones recorded episodes, and begins the agent with the policy.

    Checkpoints and summaries are in a directory of their own, from which a restarted job continues.

    Args:
      agent: the run's agent.
      cloning: what is cloned, and how.
      specs: the environment's specs.
      run: the run, whose `stop` ends the cloning.
      strategy: the strategy that the agent was made in, on one worker.
      precision: see `make`.
      seed: of the draws.
      alive: is called with the train step of the cloning about every few seconds.

    Raises:
      ValueError: if the data do not have what the agent needs, or the policies have other variables.
      Stopped: if the run is stopped.
    """
    layout = strategies.layout(strategy)
    if layout.workers > 1:
        raise UserValueError(f'got Initial.cloning on {layout.workers} workers; need one')
    experience = cloning.experience
    cloner = make(cloning.make_agent, specs, experience, strategy, precision)
    batch_size = experience.per_replica_batch_size * layout.replicas
    replay = sources.loaded(cloning.dataset, storage(cloner, experience), batch_size, seed)
    options = LearnerOptions(
        checkpoint_interval_steps=_CLONING_CHECKPOINT_STEPS,
        summaries=SummaryOptions(max(1, cloning.num_train_steps // _CLONING_SUMMARIES)),
        loop=LoopOptions(preprocess=agent_data.preprocessing(cloner)),
        after_run=lambda _: alive(learner.step),
    )
    learner = Learner(cloner, replay, RunDir(run.dir.cloning), strategy=strategy, options=options)
    learner.train(StopConditions(cloning.num_train_steps), _CLONING_STEPS_PER_CALL, stop=run.stop)
    if learner.step < cloning.num_train_steps:
        raise Stopped(f'stopped at train step {learner.step} of the cloning; its checkpoint is saved')
    logging.info('cloned recorded episodes in %d train steps', learner.step)
    warm_start.copy(_policy_variables(cloner), _policy_variables(agent), 'the cloned policy')


def demonstrate(agent: Agent, demonstrations: Demonstrations | None, experience: Experience) -> None:
    """Gives recorded episodes to an agent that learns from a queue.

    Raises:
      ValueError: if it does not imitate episodes, or they do not have the columns that it needs.
    """
    if demonstrations is None or not isinstance(experience.replay, Queue):
        return
    if not hasattr(agent, 'demonstrate'):
        raise UserValueError(
            f'got Initial.demonstrations with a Queue and a {type(agent).__name__}; need an agent that imitates '
            'episodes, such as PPO, or Uniform(...) or Prioritized(...) as Experience.replay'
        )
    spec: Any = agent.collect_data_spec
    episodes = list(EpisodeReader(demonstrations.dataset, spec.replace(policy_info=())).joined())
    if not episodes:
        raise UserValueError('got Demonstrations.dataset without an episode that is read; need at least one')
    joined = tf.nest.map_structure(lambda *columns: tf.constant(np.concatenate(columns)), *episodes)
    agent.demonstrate(joined, demonstrations.share)
    logging.info('imitates the steps of recorded episodes: %d rows', len(joined.reward))


def storage(agent: Agent, experience: Experience) -> Storage:
    """Returns how the experience of an agent is stored; raises ValueError as `data_spec` does."""
    return Storage(experience, data_spec(agent, experience))


def data_spec(agent: Agent, experience: Experience) -> types.NestedTensorSpec:
    """Returns the spec of a Trajectory in the replay: the agent's, with the policy state if it is stored.

    Args:
      agent: the run's agent.
      experience: the run's experience settings.

    Raises:
      ValueError: if the policy state should be stored, but there is none or the policy info cannot hold it; or if items
        have rows that no transform of the agent needs.
    """
    slicing, needed = experience.slicing, getattr(agent, 'extra_steps', (0, 0))
    if (slicing.history_steps, slicing.future_steps) != needed:
        raise UserValueError(
            f'got Slicing.history_steps={slicing.history_steps}, future_steps={slicing.future_steps}; need '
            f'{needed[0]} and {needed[1]}, as the transforms of the agent do'
        )
    spec: Any = agent.collect_data_spec
    if not experience.slicing.store_policy_state:
        return spec
    return spec.replace(policy_info=with_policy_state(spec.policy_info, agent.collect_policy.policy_state_spec))


_AGREED = ('gamma', 'reward_scale', 'n_step')
_ADDRESS = re.compile(r' at 0x[0-9a-f]+')


def contract(agent: Agent, storage: Storage, num_shards: int | None = None) -> dict[str, Any]:
    """Returns the contract of a job; `num_shards` is None if the job does not know it."""
    variables = published_weights.published(agent.collect_policy)
    signature = {key: signature_text(spec) for key, spec in storage.signature.items()}
    return published_weights.contract(variables, signature, agreed_settings(agent, storage.experience), num_shards)


def agreed_settings(agent: Agent, experience: Experience) -> dict[str, str]:
    """Returns the settings by name: the agent's discounts and rewards, its transforms, and how steps are stored.

    The size of a batch is the learner's alone.
    """
    settings = {
        f'Experience.{part}.{field.name}': _ADDRESS.sub('', repr(getattr(value, field.name)))
        for part, value in (('slicing', experience.slicing), ('replay', experience.replay))
        for field in dataclasses.fields(value)
    }
    settings['Experience.replay'] = type(experience.replay).__name__
    inner: Any = agent
    if isinstance(agent, TransformedAgent):
        settings['transforms'] = agent.description
    while isinstance(inner, WrappedAgent):
        inner = vars(inner)['_agent']
    holders = [inner, *(value for value in vars(inner).values() if dataclasses.is_dataclass(value))]
    for name in _AGREED:
        values = [getattr(holder, key) for holder in holders for key in (name, f'_{name}') if hasattr(holder, key)]
        if values and isinstance(values[0], int | float):
            settings[name] = repr(values[0])
    return settings
