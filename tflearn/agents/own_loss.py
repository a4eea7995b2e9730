"""A term of one's own in a loss: the argument `extra_loss` of PPO, SAC, DQN and IMPALA."""

from collections.abc import Mapping
from typing import Any, Protocol

import tensorflow as tf

from tflearn.core.errors import UserTypeError, UserValueError
from tflearn.core.experience import Experience
from tflearn.core.types import Agent, check_call, zeros
from tflearn.networks import recurrent


class ExtraLoss(Protocol):
    """Computes a term that is added to the loss of the policy; of DQN, to that of the values."""

    def __call__(
        self, distribution: Any, values: tf.Tensor, samples: Any, /
    ) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        """Returns a number for each row, and metrics.

        It is a part of the compiled train step of each replica, so it consists of TensorFlow's
        operations. The loss is the mean of the rows that count, over the global batch. Of the
        others, such as those between two episodes, the numbers have no effect, but they have to be
        finite, or gradients are not.

        The rows R are [B] in SAC and DQN; in PPO [B], or [B, T] if it trains on sequences (with
        memory, or without an `Iteration`); in IMPALA [B, T + 1], of which the last does not count.

        Args:
          distribution: of the actions, batch shape R, float32 parameters; a nest for composed
            actions. In DQN the logits of a categorical distribution are the values.
          values: float32 R, of the observations; in SAC the critics' of actions that the policy
            drew, which are no variables of this loss; in DQN of each action, [B, number of
            actions].
          samples: has `observation` and `action`, nests of tensors R + shape of the spec, of its
            dtypes, as the agent sees them: observations are normalized, and floats of actions in
            [-1, 1]. It is a `ppo.Samples`, an `actor_critic.Transitions` (SAC, DQN), or a
            Trajectory (IMPALA).

        Returns:
          The term, floats of the shape R; and metrics by name, of the shape R or scalars, which
          appear as `extra/own/<name>`: means of the rows that count; in DQN of all rows.
        """


def term_of(
    function: ExtraLoss, rows: tf.Tensor, distribution: Any, values: tf.Tensor, samples: Any
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Returns the term and the metrics that a function computes, float32.

    Args:
      function: the function.
      rows: of the shape R.
      distribution: see `ExtraLoss`, as for the others.

    Raises:
      TypeError: if it returns something else.
      ValueError: if a shape is another one.
    """
    found = function(distribution, values, samples)
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
        raise UserTypeError(
            f'got {found!r:.100} from extra_loss; need (term, metrics), a tensor and a dictionary; return term, {{}} '
            'if there are no metrics'
        )
    metrics = {f'own/{name}': tf.cast(value, tf.float32) for name, value in found[1].items()}
    term = tf.convert_to_tensor(found[0])
    if not term.dtype.is_floating:
        raise UserTypeError(f'got a term of {term.dtype.name} from extra_loss; need floats; cast what it is made of')
    for name, value in {'a term': term, **{f'the metric {name!r}': value for name, value in metrics.items()}}.items():
        is_row = value.shape.rank == rows.shape.rank and value.shape.is_compatible_with(rows.shape)
        if not is_row and (value.shape.rank or value is term):
            raise UserValueError(
                f'got {name} of the shape {value.shape} from extra_loss; need {rows.shape}, a number for each row, '
                'which the agent reduces over the global batch; see tflearn.agents.extra_loss'
            )
    return tf.cast(term, tf.float32), metrics


def checked(agent: Agent, function: ExtraLoss | None, experience: Experience) -> Agent:
    """Returns the agent, whose loss of zeros is computed: what the function returns is checked before a run's work.

    Raises:
      TypeError: see `term_of`, and if it cannot be called.
      ValueError: see `term_of`.
    """
    if function is None:
        return agent
    example = 'lambda distribution, values, samples: (-distribution.entropy(), {})'
    check_call('extra_loss', function, example, 'distribution', 'values', 'samples')
    spec: Any = agent.collect_data_spec
    if experience.slicing.store_policy_state:
        state = {recurrent.POLICY_STATE: agent.collect_policy.policy_state_spec}
        spec = spec.replace(policy_info={**(spec.policy_info or {}), **state})
    batch = zeros(spec, (2, experience.slicing.sequence_length))
    tf.distribute.get_strategy().run(agent.loss, (batch,))
    return agent
