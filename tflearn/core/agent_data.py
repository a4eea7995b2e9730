"""The data of any TF-Agents agent: checks of what it needs, and its preprocessing of sequences.
WrappedAgent: an agent that changes the data before another agent trains on them.

`TFAgent.preprocess_sequence` maps collected sequences (`collect_data_spec`) to what `train` takes
(`training_data_spec`): TF-Agents' PPO agents compute returns and advantages there.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience
from tflearn.core.types import DEMONSTRATED, Agent, check_agent, check_keras, integer_bounds, zeros

# Agents of TF-Agents whose `train` collects its variables in a set.
UNORDERED = ('CqlSacAgent', 'SacAgent', 'Td3Agent')

_item_info: contextvars.ContextVar[dict[str, Any]] = contextvars.ContextVar('item_info')


def check(agent: Any, train_step: tf.Variable, experience: Experience) -> None:
    """Checks what an agent factory returned.

    Args:
      agent: the agent.
      train_step: the train step that the factory was given.
      experience: the run's experience settings.

    Raises:
      TypeError: if it is not an agent.
      ValueError: if the agent counts train steps by another variable, trains on sequences of
        another length, or collects data of an unknown shape.
    """
    kind = type(agent).__name__
    check_agent(agent)
    if agent.train_step_counter is not train_step:
        raise UserValueError(
            f'got a {kind} with a train step of its own; need the train step that make_agent is given; make the agent '
            'with train_step_counter=train_step'
        )
    length, own = experience.slicing.sequence_length, own_length(agent)
    if own is not None and max(own, 2) != length:
        raise UserValueError(
            f'got Slicing.sequence_length={length} with a {kind} that trains on '
            f'{"single steps" if own == 1 else f"sequences of {own} steps"}; need {max(own, 2)}; set '
            f'Slicing.sequence_length = {max(own, 2)}'
        )
    for spec in tf.nest.flatten(agent.collect_data_spec):
        if not spec.shape.is_fully_defined():
            raise UserValueError(
                f'got a {kind} whose data have {spec.name or "a tensor"} of the shape {spec.shape}; need all '
                'dimensions known, since the replay stores rows of a fixed size; pad it, and add a mask'
            )
    if experience.replay.iteration:
        _check_iteration(agent, kind)


def initialize(agent: Agent, strategy: tf.distribute.Strategy) -> None:
    """Initializes an agent, in the scope of the strategy that trains it.

    Raises:
      ValueError: if a variable was made outside of the scope; TensorFlow's own assertion says nothing.
      TypeError: for an optimizer of Keras 3, which `make_slots` and snapshots would not know as one.
    """
    made_here = strategy.extended.variable_created_in_scope
    variables = getattr(getattr(agent, 'policy', None), 'variables', None)
    acting = variables() if callable(variables) else ()  # a policy of one's own may have others
    others = [each.name for each in (agent.train_step_counter, *acting) if not made_here(each)]
    if others:
        raise UserValueError(
            f'got an agent whose variable {others[-1]} was not made in the scope of the {type(strategy).__name__} that '
            'trains it; need train step, networks and agent made there; make them below `with strategy.scope():`'
        )
    for name, part in getattr(agent, '__dict__', {}).items():
        check_keras(f'an agent with {name.lstrip("_")}', part)
    agent.initialize()


def is_packaged(agent: Agent) -> bool:
    """Returns whether an agent is one of tflearn's own,
    which count each call of `train` as one train step.
    """
    return type(agent).__module__.partition('.')[0] == __name__.partition('.')[0]


def make_policy_variables(agent: Agent) -> None:
    """Calls the collect policy once, so that the variables exist that some policies make at their first action.

    Those of DDPG's noise would otherwise be in the checkpoint of a run, but not yet there when it
    is restored.
    """
    policy = agent.collect_policy
    policy.action(zeros(policy.time_step_spec, (1,)), policy.get_initial_state(1))


def check_counting(agent: Agent) -> None:
    """Checks that a policy that draws integers counts them from their minimum,
    which not all of TF-Agents' do.

    Raises:
      ValueError: if it counts from 0.
    """
    policy = agent.collect_policy
    bounds = [integer_bounds(leaf) for leaf in tf.nest.flatten(policy.action_spec)]
    if not any(bound is not None and bound[0].any() for bound in bounds):
        return
    with contextlib.suppress(NotImplementedError):  # of policies that have no distribution
        step = policy.distribution(zeros(policy.time_step_spec, (1,)), policy.get_initial_state(1))
        for leaf, bound in zip(tf.nest.flatten(step.action), bounds, strict=True):
            counted = hasattr(leaf, 'logits') and not hasattr(leaf, 'shift')
            if counted and bound is not None and bound[0].any():
                raise UserValueError(
                    f'got a {type(agent).__name__} that counts from 0 for the action {policy.action_spec}; need an '
                    'agent that counts from its minimum; make it for ActionRescaling(specs).specs, and return '
                    'ActionRescaling(specs).wrapped(agent)'
                )


def demonstrated() -> tf.Tensor | None:
    """Returns which items of the batch that an agent trains on are demonstrations, bool [B];
    None if there are none.

    For losses of one's own, within `train`.
    """
    return _item_info.get({}).get(DEMONSTRATED)


def policy_versions() -> tf.Tensor | None:
    """Returns the version of the weights that took each step of the batch, integers [B, T]; None if none is known."""
    return _item_info.get({}).get('policy_version')


@contextlib.contextmanager
def demonstrated_by(info: Any) -> Iterator[None]:
    """Makes `demonstrated` return what the info of a batch says, during the block."""
    token = _item_info.set(info if isinstance(info, dict) else {})
    try:
        yield
    finally:
        _item_info.reset(token)


def make_slots(agent: Any) -> None:
    """Makes the optimizers' slots in a fixed order,
    for an agent that hands them its variables in the order of a set.

    Keras' optimizers number their slots. TF-Agents' TD3, SAC and CQL-SAC would number them by
    memory addresses, so that a checkpoint fits no other process, or slots of equal shapes change
    places. The slots that an optimizer does not need, since it trains another network, stay unused.
    """
    # Only these collect their variables in a set without sorting them.
    names = {kind.__name__ for kind in type(agent).__mro__ if kind.__module__.startswith('tf_agents.')}
    if names.isdisjoint(UNORDERED):
        return
    targets = {
        variable.ref()
        for name, part in vars(agent).items()
        if name.startswith('_target') and isinstance(part, tf.Module)
        for variable in part.variables
    }
    variables = [variable for variable in agent.trainable_variables if variable.ref() not in targets]
    for optimizer in vars(agent).values():
        if isinstance(optimizer, tf.keras.optimizers.Optimizer):
            optimizer.build(variables)


def module_tree(agent: Any) -> str:
    """Returns the agent's parts that have variables, as a list of Markdown:
    name, class, and the number of values.
    """
    seen: set[int] = set()
    lines: list[str] = []

    def add(name: str, part: Any, depth: int) -> None:
        view = tf.train.TrackableView(part)
        sizes = [each.shape.num_elements() for each in view.descendants() if isinstance(each, tf.Variable)]
        if id(part) in seen or isinstance(part, tf.Variable) or not sizes:
            return
        seen.add(id(part))
        lines.append(f'{"    " * depth}* `{name}` ({type(part).__name__}): {sum(sizes):,}')
        for child_name, child in view.children(part).items():
            add(child_name, child, depth + 1)

    add('agent', agent, 0)
    return '\n'.join(lines)


def own_length(agent: Any) -> int | None:
    """Returns the number of rows of a sequence that `train` takes; None for any."""
    return 1 if _outer_dims(agent) == 1 else getattr(agent, 'train_sequence_length', None)


def preprocessing(agent: Any) -> Callable[[Any], Any] | None:
    """Returns a function from stored sequences [B, T, ...] to what `agent.train` takes;
    None if they are that already.

    It calls `preprocess_sequence`, and leaves out the second row where the agent trains on single
    steps ([B, ...], or [B, 1, ...]), since stored sequences have two rows at least.
    """
    cuts, preprocesses = own_length(agent) == 1, not is_packaged(agent) and _overridden(agent)
    if not cuts and not preprocesses:
        return None
    first = 0 if _outer_dims(agent) == 1 else slice(1)

    def preprocess(experience: Any) -> Any:
        if preprocesses:
            experience = agent.preprocess_sequence(experience)
        return tf.nest.map_structure(lambda column: column[:, first], experience) if cuts else experience

    return preprocess


def preparation(agent: Any) -> Callable[[Any], tuple[Any, tf.Tensor]]:
    """Returns the function that prepares the sequences of an `Iteration`:
    the agent's own, or `preprocess_sequence`.

    Returns:
      A replica's sequences [B, T + 1, ...] -> their samples, and the samples' weights. Of a
      TF-Agents agent samples are [B, T, 1, ...], since it trains on sequences, here of one step,
      with weights float32 [B, T, 1]: 0 between two episodes. Afterwards the sequences are added to
      the agent's normalizers, if it leaves that to its caller.
    """
    if hasattr(agent, 'prepare'):
        return agent.prepare
    updates_itself = getattr(agent, 'update_normalizers_in_train', True)

    def update(strategy: tf.distribute.Strategy, observation: Any, reward: tf.Tensor) -> None:
        # TF-Agents' normalizers cannot be updated in replica context.
        join = lambda value: tf.concat(strategy.experimental_local_results(value), axis=0)  # noqa: E731
        agent.update_observation_normalizer(tf.nest.map_structure(join, observation))
        agent.update_reward_normalizer(join(reward))

    def prepare(experience: Any) -> tuple[Any, tf.Tensor]:
        samples = tf.nest.map_structure(lambda column: column[:, :-1, None], agent.preprocess_sequence(experience))
        if not updates_itself:
            context = tf.distribute.get_replica_context()
            context.merge_call(update, (experience.observation, experience.reward))
        return samples, tf.cast(samples.next_step_type != ts.StepType.FIRST, tf.float32)

    return prepare


def _outer_dims(agent: Any) -> int:
    """Returns the outer dimensions of what `train` takes: 1 for [B, ...], 2 for [B, T, ...]."""
    converter = getattr(agent, '_as_trajectory', agent)  # which behavioral cloning alone gives 1
    return int(getattr(converter, '_num_outer_dims', 2))


def _overridden(agent: Any) -> bool:
    """Returns whether an agent has a `preprocess_sequence` of its own:
    TFAgent's returns the sequences as they are.
    """
    functions = (getattr(kind, '_preprocess_sequence', None) for kind in type(agent).__mro__)
    first = next((function for function in functions if function), None)
    return first is not None and first.__module__ != 'tf_agents.agents.tf_agent'


def _check_iteration(agent: Any, kind: str) -> None:
    """Checks that the agent can train on single steps of sequences that were prepared once."""
    if hasattr(agent, 'prepare'):
        return
    if not _overridden(agent):
        raise UserValueError(
            f'got Queue.training=Iteration(...) with a {kind}; need an agent that prepares sequences for several '
            'epochs, such as PPO; or training=None'
        )
    if 'advantage' not in getattr(agent.training_data_spec, 'policy_info', ()):
        raise UserValueError(
            f'got Queue.training=Iteration(...) with a {kind} that computes advantages in train; need them computed '
            'from complete sequences, before these are shuffled; make it with compute_value_and_advantage_in_train='
            'False, update_normalizers_in_train=False and num_epochs=1, or set training=None'
        )
    if tf.nest.flatten(agent.collect_policy.policy_state_spec):
        raise UserValueError(
            f'got Queue.training=Iteration(...) with a {kind} with memory; need complete sequences for it; set '
            'training=None'
        )
    if getattr(agent, 'update_normalizers_in_train', False):
        raise UserValueError(
            f'got Queue.training=Iteration(...) with a {kind} that updates its normalizers in train, with each '
            'minibatch of each epoch; need update_normalizers_in_train=False: they are updated once for each iteration'
        )


def innermost(agent: Any) -> Any:
    """Returns the agent that trains, which others wrap."""
    return innermost(vars(agent)['_agent']) if isinstance(agent, WrappedAgent) else agent


class WrappedAgent(tf.Module):
    """An `Agent` that trains another one. Checkpoints hold that one as `_agent`.

    Subclasses override `collect_data_spec`, `convert`, and `after_train` if they learn from the
    data too. Samples of an agent's `prepare`, which it has if the other one has it (PPO), are
    converted once, when they are made.

    Attributes:
      description: what it does to the data, in one line, on which all jobs of a run must agree; ''
        for nothing.
    """

    description = ''

    def __init__(self, agent: Agent, policy: Any, collect_policy: Any, name: str):
        """
        Args:
          agent: the agent that trains.
          policy: its policy, as the environment needs it.
          collect_policy: its collect policy, as the environment needs it.
          name: the module's name.
        """
        super().__init__(name)
        self._agent = agent
        self.policy, self.collect_policy = policy, collect_policy
        self.train_step_counter = agent.train_step_counter
        self.trains_on_sequences: bool = getattr(agent, 'trains_on_sequences', False)
        if hasattr(agent, 'prepare'):
            self.prepare = self._prepare

    @property
    def collect_data_spec(self) -> Any:
        """The spec of a Trajectory as the environment and the collect policy make it."""
        return self._agent.collect_data_spec

    @property
    def training_data_spec(self) -> Any:
        """The same: `train` and `loss` convert batches."""
        return self.collect_data_spec

    def convert(self, experience: Any) -> tuple[Any, Any]:
        """Returns a Trajectory [B, T, ...] as the other agent trains on it,
        and what `after_train` gets.
        """
        return experience, None

    def after_train(self, converted: Any) -> None:
        """Is called after a train step, and after `prepare`, with what `convert` returned."""

    def post_process_policy(self) -> Any:
        """Returns the policy for use, of the one that the other agent makes."""
        process = getattr(self._agent, 'post_process_policy', None)
        processed = process() if process else self._agent.policy
        same = processed is self._agent.policy or not hasattr(self.policy, 'with_wrapped')
        return self.policy if same else self.policy.with_wrapped(processed)

    def initialize(self) -> Any:
        """Prepares the first train step."""
        return self._agent.initialize()

    def train(self, experience: Any, weights: tf.Tensor | None = None) -> Any:
        """Takes one gradient step on a Trajectory [B, T, ...], or on samples of `prepare`."""
        if not isinstance(experience, trajectory.Trajectory):
            return self._agent.train(experience, weights)
        experience, converted = self.convert(experience)
        info = self._agent.train(experience, weights)
        self.after_train(converted)
        return info

    def loss(self, experience: Any, weights: tf.Tensor | None = None) -> Any:
        """Returns the LossInfo without an update."""
        if isinstance(experience, trajectory.Trajectory):
            experience, _ = self.convert(experience)
        return self._agent.loss(experience, weights)

    def _prepare(self, experience: Any) -> tuple[Any, tf.Tensor]:
        """Computes samples of new sequences, once; see the agent's own."""
        experience, converted = self.convert(experience)
        prepared = self._agent.prepare(experience)  # type: ignore[attr-defined]
        self.after_train(converted)
        return prepared


class WrappingPolicy:
    """What policies have in common that change the steps of another one;
    a base class before `TFPolicy`.
    """

    def _wrap(self, policy: Any, *parts: Any) -> None:
        """Keeps the other policy, and what the constructor takes after it."""
        self._wrapped_policy = policy
        # In a function, since TensorFlow would wrap lists and dictionaries in attributes.
        self._parts = lambda: parts

    @property
    def wrapped_policy(self) -> Any:
        """The other policy."""
        return self._wrapped_policy

    def with_wrapped(self, policy: Any) -> Any:
        """Returns a policy that changes the steps of `policy` in the same way."""
        return type(self)(policy, *self._parts())  # type: ignore[call-arg]
