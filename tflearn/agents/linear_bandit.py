"""Linear contextual bandits: LinUCB, Thompson sampling, SquareCB. A ridge regression's posterior instead of a network.

Li et al. 2010, "A Contextual-Bandit Approach to Personalized News Article Recommendation" (arXiv
1003.0146); Agrawal and Goyal 2013, "Thompson Sampling for Contextual Bandits with Linear Payoffs"
(arXiv 1209.3352). With the features x_a of an arm (action) a, the rewards r of the steps at which
it was taken, and the prior precision lambda:

  A = lambda I + sum of x x^T,   b = sum of r x,   theta = A^-1 b
  'ucb'        argmax_a  theta^T x_a + alpha sqrt(x_a^T A^-1 x_a)             Li et al., equations 4 and 5
  'thompson'   argmax_a  mu^T x_a,  mu drawn from N(theta, alpha^2 A^-1)      Agrawal and Goyal, algorithm 1, v = alpha
  `SquareCB`   drawn by the gaps between the theta^T x_a, see `value_exploration`

Without features of the arms, x_a is the observation, and each arm has its own A and b (Li et al.,
algorithm 1). With them there is one A and b for all arms, as in Agrawal and Goyal, and x_a is the
arm's features, followed by their products with each number of the observation (Li et al., section
5.2.2).

With a `discount` gamma below 1 older items weigh less, as rewards drift. With n items in a batch,

  A <- lambda I + gamma^n (A - lambda I) + sum of x x^T,   b <- gamma^n b + sum of r x

so that an item weighs gamma to the power of the number of items in later batches, and the prior
always 1: Russac, Vernade and Cappe 2019, "Weighted Linear Bandits for Non-Stationary Environments"
(arXiv 1909.09146), algorithm 1. Its bounds are by A^-1 V A^-1, where V sums up gamma^2k x x^T;
ours, by A^-1, are wider, since V is at most A.

Differs from the papers: A and b are updated after each batch, not each step, so collectors choose
with a posterior of some steps before; ties are broken at random; alpha is a setting, not the
bound's value at a given confidence; Thompson sampling with one A for each arm draws a mu for each,
independently.

The distribution of an action, which a server draws from and logs (`serving.exploration`), is for
Thompson sampling of two arms exact: the difference of their scores is normal. Of more arms it is
their shares in `NUM_DRAWS` draws of mu, which lose one with a probability of 1% in one of 20,000
answers. An arm of the shares is an arm of the posterior, and its share is its probability given the
draws, so that weights by it are unbiased for what has a share.

TF-Agents' bandit agents are not used: they divide batches by arm with shapes that XLA does not
compile, add up replicas by merge_call, which a compiled loop of train steps cannot contain, take
sequences of one row, count items as train steps, have variables and operations for each arm, and no
mask together with features of the arms.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.agents import tf_agent
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts

from tflearn.agents import parts, value_exploration
from tflearn.agents.algorithm import Example
from tflearn.agents.rescaled_actions import rescaled
from tflearn.agents.smoothing import SmoothedPolicy, Smoothing, Windows
from tflearn.core import moments
from tflearn.core.action_mask import ActionMask, make_mask
from tflearn.core.errors import UserValueError
from tflearn.core.experience import BatchItems, Experience, Queue
from tflearn.core.settings import NonNegativeFloat, PositiveFloat, Range, checked_dataclass
from tflearn.core.types import Agent, EnvironmentSpecs, leaf_paths
from tflearn.networks import encoder, spec_checks

EXPERIENCE = Experience(replay=Queue(max_size=1_000), batch=BatchItems(16))

Exploration = Literal['ucb', 'thompson'] | value_exploration.ByValues

NUM_DRAWS, _AT_ONCE = 1_000, 100  # of the posterior, for the probabilities of Thompson sampling
_TIE = 1e-9  # scores that differ by less are equal


@checked_dataclass(frozen=True)
class LinearOptions:
    """The posterior and what it is used for; see the module.

    Attributes:
      exploration: how the collect policy chooses: by the posterior, or with `SquareCB` or `Boltzmann`
        by its mean alone.
      alpha: the factor of the posterior's deviation in that choice, in the unit of rewards, at
        least 0.
      prior_precision: lambda, above 0: the weight of the prior, which is that all rewards are 0.
      bias: whether a constant 1 is added to the observation.
      discount: gamma, what an item weighs after one more; 1 forgets nothing.
    """

    exploration: Exploration = 'ucb'
    alpha: NonNegativeFloat = 1.0
    prior_precision: PositiveFloat = 1.0
    bias: bool = True
    discount: Annotated[float, Range(above=0, most=1)] = 1.0


EXAMPLE = Example(
    ('discrete',),
    data=('uniform', 'queue', 'recorded'),
    network=None,
    variants={
        'thompson': {'settings': {'options': LinearOptions('thompson')}},
        'squarecb': {'settings': {'options': LinearOptions(value_exploration.SquareCB())}},
    },
)


@rescaled
def make_agent(
    specs: EnvironmentSpecs,
    train_step: tf.Variable,
    experience: Experience,
    *,
    options: LinearOptions = LinearOptions(),
    arm_features: str | None = None,
    action_mask: str | None = None,
    smoothing: Smoothing | None = None,
) -> Agent:
    """Makes a linear bandit for one discrete action, which learns the reward of a step, whatever comes after it.

    With `smoothing` it is for one number, or a vector, whose centres are the arms; a step counts for several of
    them, with weights by the density that it was logged with (`policy_info.log_probability`).

    Args:
      specs: the environment's specs. Categories of the observation become one-hot vectors, bytes
        numbers from 0 to 1.
      train_step: int64 scalar, counts batches.
      experience: the experience. A queue counts each step once. In `Uniform` a step counts as often
        as it is drawn, so `samples_per_insert` should be 1; from files, an epoch counts each step
        once. All rows of a sequence but the last are trained.
      options: the posterior and the exploration.
      arm_features: the path of the observation's part, floats [number of actions, D], with each
        action's features in this step, such as 'items'; None has none.
      action_mask: the path of the observation's part that marks legal actions, such as
        'action_mask'; see `ActionMask`. None has none.
      smoothing: how a number is chosen by centres; None is for a discrete action.

    Raises:
      ValueError: if the action is another one, the experience prefers items or trains on them
        several times, or the observation does not have the features.
    """
    windows, of_arms = None, specs
    if smoothing is None:
        spec_checks.check_one_discrete_action(specs.action, 'a linear bandit')
    elif arm_features is None and action_mask is None:
        windows = Windows(specs.action, smoothing)
        arms = tensor_spec.BoundedTensorSpec((), tf.int64, 0, windows.num - 1)
        of_arms = dataclasses.replace(specs, action=arms)
    else:
        raise UserValueError('got smoothing with arm_features or action_mask; need none of them for a number')
    spec_checks.check_observation(specs.observation, 'a linear bandit')
    replay = experience.replay
    if replay.prioritization or replay.training:
        raise UserValueError(
            f'got Experience.replay={replay!r}; a linear bandit needs a Queue without training, or Uniform: it counts '
            'an item each time that it is drawn'
        )
    if options.discount < 1 and replay.learns_from_old_items:
        raise UserValueError(
            f'got LinearOptions.discount={options.discount} with Experience.replay={replay!r}, which draws items in no '
            'order of time; need a Queue; of recorded data take newer ones, such as Logs.last_secs'
        )
    mask, observation_spec = make_mask(specs, action_mask)
    contexts = _Contexts(observation_spec, int(of_arms.action.maximum) + 1, arm_features, options.bias)
    return LinearBanditAgent(parts.Problem(specs, train_step, experience), of_arms, contexts, mask, options, windows)


class _Contexts:
    """Observations -> features x of the arms: [B, D] if all arms see the same ones, else [B, K, D]."""

    def __init__(self, spec: Any, num_arms: int, arm_features: str | None, bias: bool):
        """Takes the observation's spec without its mask; see `make_agent`."""
        paths, leaves = leaf_paths(spec), tf.nest.flatten(spec)
        self.num_arms, self.is_shared, self._bias = num_arms, arm_features is not None, bias
        self.num_models = 1 if self.is_shared else num_arms
        self._arms = -1
        if arm_features is not None:
            if arm_features not in paths:
                raise UserValueError(f"got arm_features='{arm_features}'; need one of the parts {', '.join(paths)}")
            self._arms = paths.index(arm_features)
            arms = leaves.pop(self._arms)
            if arms.shape.rank != 2 or arms.shape[0] != num_arms or not arms.dtype.is_floating:
                raise UserValueError(
                    f"got arm_features='{arm_features}' of {arms}; need floats [{num_arms}, D]: a row for each action"
                )
        self._encoder = encoder.NestEncoder(leaves, (), dtype='float32') if leaves else None
        zeros = [tf.zeros((1, *leaf.shape), leaf.dtype) for leaf in tf.nest.flatten(spec)]
        self.size = int(self(tf.nest.pack_sequence_as(spec, zeros)).shape[-1])
        if not self.size:
            raise UserValueError(f'got the observation {spec} and bias=False; need at least one feature')
        if self._encoder is not None and self._encoder.weights:
            raise UserValueError(
                f'got more than {encoder.ONE_HOT_SIZE} categories in the observation {spec}; need fewer, since a '
                'linear bandit trains no table; let the environment return features as floats'
            )

    def __call__(self, observation: Any, dtype: tf.DType = tf.float64) -> tf.Tensor:
        """Takes observations [B, ...] without a mask; returns features of `dtype`."""
        leaves = tf.nest.flatten(observation)
        arms = tf.cast(leaves.pop(self._arms), dtype) if self.is_shared else None
        rows = tf.shape(tf.nest.flatten(observation)[0])[0]
        parts = [] if self._encoder is None else [tf.cast(self._encoder(leaves), dtype)]
        if self._bias or arms is not None:
            parts.append(tf.ones((rows, 1), dtype))
        context = tf.concat(parts, axis=-1)
        if arms is None:
            return context
        products = tf.einsum('bc,bkd->bkcd', context, arms)  # the constant 1 among them keeps the features themselves
        return tf.reshape(products, (rows, self.num_arms, context.shape[-1] * arms.shape[-1]))


class _Posterior(tf.Module):
    """A, b, theta and a root of A^-1 of one model, or of one for each arm, float64: float32 would stop at 2^24 items.

    Attributes:
      theta: [M, D].
      root: [M, D, D], root root^T = A^-1.
    """

    def __init__(self, num_models: int, size: int, prior_precision: float, discount: float):
        """Makes the prior's variables."""
        super().__init__(name='posterior')
        self._prior_precision, self._discount = prior_precision, discount
        identity = np.broadcast_to(np.eye(size), (num_models, size, size))
        self.precision = moments.variable(identity * prior_precision, 'precision', tf.float64)
        self.moment = moments.variable(np.zeros((num_models, size)), 'moment', tf.float64)
        self.theta = moments.variable(np.zeros((num_models, size)), 'theta', tf.float64)
        self.root = moments.variable(identity / math.sqrt(prior_precision), 'root', tf.float64)

    def update(self, precision: tf.Tensor, moment: tf.Tensor, count: tf.Tensor) -> None:
        """Adds the sums of this replica and of all others, and their numbers of items, in replica context."""
        context = tf.distribute.get_replica_context()
        precision, moment, count = context.all_reduce(tf.distribute.ReduceOp.SUM, [precision, moment, count])
        # A batch that is not finite would stay in all sums to come.
        finite = tf.reduce_all(tf.math.is_finite(precision)) & tf.reduce_all(tf.math.is_finite(moment))
        kept = tf.where(finite, tf.constant(self._discount, tf.float64) ** count, 1.0)
        identity = tf.eye(precision.shape[-1], batch_shape=precision.shape[:1], dtype=tf.float64)
        prior = self._prior_precision * identity
        precision = prior + kept * (self.precision - prior) + tf.where(finite, precision, 0.0)
        moment = kept * self.moment + tf.where(finite, moment, 0.0)
        inverse = tf.linalg.triangular_solve(tf.linalg.cholesky(precision), identity)
        root = tf.linalg.matrix_transpose(inverse)
        self.precision.assign(precision)
        self.moment.assign(moment)
        self.root.assign(root)
        self.theta.assign(tf.linalg.matvec(root, tf.linalg.matvec(inverse, moment)))


class LinearBanditAgent(parts.PartsAgent):
    """See the module.

    The loss is the mean squared error of the rewards that the posterior before the batch predicts.
    The extra metrics are means over the valid steps of the global batch: `reward`, and `deviation`,
    sqrt(x^T A^-1 x) of the taken arm.

    Attributes:
      counts_items: an item counts each time that it is trained on, which is right once only.
    """

    counts_items = True

    def __init__(
        self,
        problem: parts.Problem,
        of_arms: EnvironmentSpecs,
        contexts: _Contexts,
        mask: ActionMask | None,
        options: LinearOptions,
        windows: Windows | None,
    ):
        """Makes the agent, within the strategy's scope; see `make_agent`. `of_arms` has the arm as its action."""
        self._contexts, self._mask = contexts, mask
        self._windows = lambda: windows  # in a function, since TensorFlow would wrap it
        self._posterior = _Posterior(contexts.num_models, contexts.size, options.prior_precision, options.discount)
        exploration: Any = options.exploration
        if not isinstance(exploration, str):
            exploration = value_exploration.logits_of(exploration, problem.train_step)
        kinds = ('greedy', exploration)
        policy, collect_policy = (
            LinearBanditPolicy(of_arms, contexts, self._posterior, mask, kind, options.alpha) for kind in kinds
        )
        if windows is not None:
            policy, collect_policy = (
                SmoothedPolicy(policy, windows, False),
                SmoothedPolicy(collect_policy, windows, True),
            )
        super().__init__(problem, collect_policy, {}, policy=policy)

    def _train(self, experience: Any, weights: tf.Tensor | None) -> tf_agent.LossInfo:
        info = self._loss(experience, weights)
        counts, owners, reward, x = self._rows(experience, weights)
        counts = tf.cast(tf.reshape(counts, [-1, 1]), tf.float64)
        squares = tf.einsum('nd,ne->nde', counts * x, x)
        products = tf.math.multiply_no_nan(reward, counts) * x
        squares, products = (self._by_model(each, owners, experience) for each in (squares, products))
        self._posterior.update(squares, products, tf.reduce_sum(counts))
        self.train_step_counter.assign_add(1)
        return info

    def _by_model(self, values: tf.Tensor, owners: tf.Tensor, experience: Any) -> tf.Tensor:
        """Returns sums over rows [N, ...] for each model."""
        windows = self._windows()
        if windows is None:
            return tf.math.unsorted_segment_sum(values, owners, self._contexts.num_models)
        logged = policy_step.get_log_probability(experience.policy_info)
        weights = windows.weights(experience.action[:, :-1], logged[:, :-1])
        return tf.tensordot(weights, values, [[0], [0]])

    def _rows(self, experience: Any, weights: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns counts float32 [B, T], and of their rows the taken arm's model [N], reward [N, 1] and x [N, D].

        Of a number it is the model of the nearest centre.
        """
        now = tf.nest.map_structure(lambda leaf: leaf[:, :-1], experience)
        counts = tf.cast(now.next_step_type != ts.StepType.FIRST, tf.float32)
        if weights is not None:
            counts *= weights[:, tf.newaxis]
        observation = now.observation if self._mask is None else self._mask(now.observation)[0]
        x = self._contexts(tf.nest.map_structure(_joined, observation))
        action, windows = _joined(now.action), self._windows()
        if windows is not None:
            action = windows.nearest(action)
        if self._contexts.is_shared:
            x, action = tf.gather(x, action, batch_dims=1), tf.zeros_like(action)
        return counts, action, tf.cast(tf.reshape(now.reward, [-1, 1]), tf.float64), x

    def _losses(self, experience: Any, weights: tf.Tensor | None, training: bool) -> parts.Losses:
        counts, owners, reward, x = self._rows(experience, None)
        predicted = tf.reduce_sum(x * tf.gather(self._posterior.theta, owners), axis=-1)
        deviation = tf.norm(tf.einsum('nd,nde->ne', x, tf.gather(self._posterior.root, owners)), axis=-1)
        shaped = lambda values: tf.reshape(tf.cast(values, tf.float32), tf.shape(counts))  # noqa: E731
        errors = shaped(tf.square(reward[:, 0] - predicted))
        metrics = {'reward': shaped(reward), 'deviation': shaped(deviation)}
        return counts, {'bandit': lambda _: (errors, metrics)}

    def _trained(self, part: str) -> list[Any]:
        return []


class LinearBanditPolicy(tf_policy.TFPolicy):
    """Chooses the legal arm of the highest score: by theta alone, by its upper bound, or by a draw of the posterior.

    Or it draws arms by their scores.
    """

    def __init__(
        self,
        specs: EnvironmentSpecs,
        contexts: _Contexts,
        posterior: _Posterior,
        mask: ActionMask | None,
        kind: str | Callable[[tf.Tensor], tf.Tensor],
        alpha: float,
    ):
        """Takes what the agent has; `kind` is 'greedy', 'ucb', 'thompson', or makes logits of the scores."""
        name = f'{"values" if callable(kind) else kind}_policy'
        super().__init__(specs.time_step, specs.action, observation_and_action_constraint_splitter=mask, name=name)
        self._contexts, self._posterior, self._kind, self._alpha = contexts, posterior, kind, alpha

    def _variables(self) -> list[tf.Variable]:
        return [self._posterior.theta, *([self._posterior.root] if self._has_deviations else [])]

    @property
    def _has_deviations(self) -> bool:
        return self._kind in ('ucb', 'thompson')

    def scores(self, observation: Any) -> tf.Tensor:
        """Returns the arms' scores [B, K] of observations [B, ...] without a mask; see the module.

        Those of the greedy policy are float32, which TFLite has.
        """
        return self._draws(*self._moments(observation))()

    def _moments(self, observation: Any, mask: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the means of scores, [B, K], the lowest number for arms that are not legal, and x^T root, [B, K, D].

        What needs no root has the means twice.
        """
        dtype = tf.float32 if self._kind == 'greedy' else tf.float64
        x, shared = self._contexts(observation, dtype), self._contexts.is_shared
        theta = tf.cast(self._posterior.theta, dtype)
        means = tf.linalg.matvec(x, theta[0]) if shared else tf.linalg.matmul(x, theta, transpose_b=True)
        if mask is not None:
            means = tf.where(tf.cast(mask, tf.bool), means, dtype.min)
        if not self._has_deviations:
            return means, means
        root = self._posterior.root
        return means, x @ root[0] if shared else tf.einsum('bd,kde->bke', x, root)

    def _draws(self, means: tf.Tensor, deviations: tf.Tensor) -> Callable[..., tf.Tensor]:
        """Returns a function that draws scores [B, K], or so many of them, [N, B, K]."""
        if not self._has_deviations:
            return lambda: means
        batch, arms, size = tf.unstack(tf.shape(deviations))
        shared = self._contexts.is_shared

        def draw(*count: int) -> tf.Tensor:
            ties = tf.random.uniform((*count, batch, arms), maxval=_TIE, dtype=tf.float64)
            if self._kind == 'ucb':
                widths = tf.norm(deviations, axis=-1)
            else:
                drawn = tf.random.normal((*count, batch, *(() if shared else (arms,)), size), dtype=tf.float64)
                widths = tf.einsum('bkd,...bd->...bk' if shared else 'bkd,...bkd->...bk', deviations, drawn)
            return means + self._alpha * widths + ties

        return draw

    def _log_shares(self, means: tf.Tensor, deviations: tf.Tensor) -> tf.Tensor:
        """Returns the logarithms of the arms' shares in all draws, [B, K]."""
        if self._contexts.num_arms == 2:
            first, second = deviations[:, 0], deviations[:, 1]
            shared = self._contexts.is_shared
            width = tf.norm(second - first if shared else tf.concat([first, second], -1), axis=-1)
            difference = (means[:, 1] - means[:, 0]) / tf.maximum(self._alpha * width, _TIE)
            normal = tfp.distributions.Normal(tf.zeros((), tf.float64), 1.0)
            return tf.cast(normal.log_cdf(tf.stack([-difference, difference], axis=-1)), tf.float32)
        draw = self._draws(means, deviations)

        def add(sums: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
            chosen = tf.argmax(draw(_AT_ONCE), axis=-1)
            return sums + tf.reduce_sum(tf.one_hot(chosen, self._contexts.num_arms), axis=0)

        times = tf.foldl(add, tf.range(NUM_DRAWS // _AT_ONCE), tf.zeros_like(means, tf.float32))
        return tf.math.log(times / NUM_DRAWS)

    def _legal(self, time_step: ts.TimeStep) -> tuple[tf.Tensor, tf.Tensor]:
        observation, splitter = time_step.observation, self.observation_and_action_constraint_splitter
        return self._moments(observation) if splitter is None else self._moments(*splitter(observation))

    def _action(self, time_step: ts.TimeStep, policy_state: Any, seed: Any = None) -> policy_step.PolicyStep:
        if callable(self._kind):
            return super()._action(time_step, policy_state, seed)
        scores = self._draws(*self._legal(time_step))()
        action = tf.argmax(scores, axis=-1, output_type=self.action_spec.dtype)
        return policy_step.PolicyStep(action, policy_state)

    def _distribution(self, time_step: ts.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        moments_of_scores = self._legal(time_step)
        scores = self._draws(*moments_of_scores)()
        if self._kind == 'greedy':
            action = tf.argmax(scores, axis=-1, output_type=self.action_spec.dtype)
            return policy_step.PolicyStep(tfp.distributions.Deterministic(action), policy_state)
        if callable(self._kind):
            logits = self._kind(scores)
        elif self._kind == 'ucb':
            shares = tf.cast(scores >= tf.reduce_max(scores, axis=-1, keepdims=True) - _TIE, tf.float32)
            logits = tf.math.log(shares)
        else:
            logits = self._log_shares(*moments_of_scores)
        chosen = tfp.distributions.Categorical(logits, dtype=self.action_spec.dtype)
        return policy_step.PolicyStep(chosen, policy_state)


def _joined(leaf: tf.Tensor) -> tf.Tensor:
    """Returns rows [B * T, ...] of [B, T, ...]."""
    return tf.reshape(leaf, [-1, *leaf.shape[2:]])
