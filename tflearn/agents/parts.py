"""PartsAgent: an agent of parts, such as critics and an actor, each with a loss and an optimizer of its own.

`Problem` is what an agent is made for.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.policies import greedy_policy, tf_policy
from tf_agents.trajectories import time_step as ts

from tflearn.core import strategies, summary_tensors
from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience
from tflearn.core.train_step import Draws
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks.critics import Targets
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import schedules
from tflearn.optimization.optimizers import Optimizer, OptimizerOptions, Rate, summarizes_halves

_SHOWN = 'shown/'  # what the names of metrics begin with that are histograms only
ERRORS = 'td_error'  # the metric that becomes the items' priorities; the default of `Prioritization.error`

Metrics = Mapping[str, tf.Tensor]
# Takes the metrics of the parts that were trained before on this batch. Returns the losses of the
# batch's rows, or this replica's share of their mean, a scalar; and metrics, alike.
Loss = Callable[[Metrics], tuple[tf.Tensor, dict[str, tf.Tensor]]]
# What an agent minimizes on a batch of B items: counts, float32 [B], [B, T] or [B * T], 0 for rows
# that are left out, such as those between two episodes, else 1; and losses of that shape, by the
# names of the parts, in the order in which they are trained. Among the metrics `td_error` is the
# error of a row, of which `errors` makes that of its item.
Losses = tuple[tf.Tensor, Mapping[str, Loss]]


class Problem(NamedTuple):
    """What an agent is made for, and of: the arguments of `make_agent` that are those of all algorithms.

    Attributes:
      specs: the environment's specs, with actions as the agent sees them; see `rescaled_actions`.
      train_step: int64 scalar, counts gradient steps.
      experience: the experience.
      network: the layers.
      optimizer: the optimizers of the parts.
    """

    specs: EnvironmentSpecs
    train_step: tf.Variable
    experience: Experience
    network: NetworkOptions = NetworkOptions()
    optimizer: OptimizerOptions = OptimizerOptions()

    def optimizers(
        self, rates: Mapping[str, Rate | None], clipping: float | None = None, **more: Any
    ) -> dict[str, Optimizer]:
        """Makes the optimizers of the agent's parts; see `OptimizerOptions.make`."""
        return self.optimizer.make(self.train_step, self.experience.per_replica_batch_size, rates, clipping, **more)

    def scheduled(self, value: float | schedules.Schedule) -> Any:
        """Returns a number, or of a schedule a function that returns its present number."""
        return (lambda: value(self.train_step)) if callable(value) else value


class PartsAgent(tf_agent.TFAgent):
    """Minimizes the losses of its parts in turn, each with what the ones before have changed; then targets follow.

    A loss is the mean over the rows of the global batch that count, each times the weight of its
    item. The extra metrics are means over these rows, `valid_share`, their share of all rows, and
    `td_error` [B]. Steps that are summarized write a histogram of each metric's rows, `rows/<metric>`,
    and of what `shown` returned.
    """

    def __init__(
        self,
        problem: Problem,
        collect_policy: tf_policy.TFPolicy,
        optimizers: Mapping[str, Optimizer],
        targets: Targets | None = None,
        policy: tf_policy.TFPolicy | None = None,
    ):
        """Makes the agent, within the strategy's scope.

        Args:
          problem: what the agent is made for.
          collect_policy: the policy that collects.
          optimizers: the optimizers of the parts, by their names.
          targets: what follows the trained networks.
          policy: the policy whose greedy one is the agent's; None is the one that collects.
        """
        specs = problem.specs
        super().__init__(
            specs.time_step,
            specs.action,
            policy=greedy_policy.GreedyPolicy(policy or collect_policy),
            collect_policy=collect_policy,
            train_sequence_length=problem.experience.slicing.sequence_length,
            train_step_counter=problem.train_step,
        )
        self._optimizers, self._targets, self._draws = dict(optimizers), targets, Draws(problem.train_step)
        if len(optimizers) == 1:  # its name in checkpoints
            (self._optimizer,) = optimizers.values()

    def _losses(self, experience: Any, weights: tf.Tensor | None, training: bool) -> Losses:
        """Returns what is minimized; `weights` are those of the items, for those who reduce losses themselves."""
        raise NotImplementedError

    def _trained(self, part: str) -> Sequence[Any]:
        """Returns the networks or variables that an optimizer changes."""
        raise NotImplementedError

    def _optimized(self, part: str) -> Sequence[str]:
        """Returns the names of the optimizers that a part's loss trains."""
        return (part,)

    def _reduces(self, part: str) -> bool:
        """Returns whether a part's loss reduces over the replicas itself, so that XLA cannot compile its gradients."""
        return False

    def _due(self, part: str) -> tf.Tensor | None:
        """Returns whether a part is trained in this train step; None is always."""
        return None

    def errors(self, errors: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Returns the error of each item, float32 [B]; here the mean size of its rows' errors.

        Args:
          errors: float32 [B, T].
          counts: float32 [B, T], 0 for rows that are left out.
        """
        return tf.math.divide_no_nan(tf.reduce_sum(counts * tf.abs(errors), axis=1), tf.reduce_sum(counts, axis=1))

    def _initialize(self) -> None:
        if self._targets:
            self._targets.copy()

    def _train(self, experience: Any, weights: tf.Tensor | None) -> tf_agent.LossInfo:
        return self._step(experience, weights)[0]

    def _step(self, experience: Any, weights: tf.Tensor | None) -> tuple[tf_agent.LossInfo, tf.Tensor | None]:
        """Trains each part; returns also whether the last step was taken, as `Optimizer.apply_gradients` does."""
        self._draws.restart()
        counts, losses = self._losses(experience, weights, training=True)
        reduce = self._reduce(counts, experience, weights)
        shares: list[tf.Tensor] = []
        metrics: dict[str, tf.Tensor] = {}
        taken = None
        for part, loss in losses.items():
            names, due = self._optimized(part), self._due(part)
            groups = [_variables(self._trained(name)) for name in names]
            evaluate: Callable[..., Any] = functools.partial(
                self._evaluated, part, functools.partial(loss, dict(metrics)), reduce, groups
            )
            if not self._reduces(part):
                evaluate = strategies.compiled(evaluate)
            # In replica context a branch may compute gradients, but not apply them.
            if due is None:
                share, found, gradients, halves = evaluate(with_half=summarizes_halves())
            else:
                branches = (lambda: evaluate(dense=True)[:3], lambda: evaluate(still=True)[:3])  # noqa: B023
                (share, found, gradients), halves = tf.cond(due, *branches), [None for _ in names]
            shares.append(share)
            metrics |= found
            for name, variables, computed, half in zip(names, groups, gradients, halves, strict=True):
                # The sum of the losses so far: if one step is skipped, so are those after it on the
                # same batch.
                pairs = zip(computed, variables, strict=True)
                taken = self._optimizers[name].apply_gradients(pairs, tf.add_n(shares), due, half)
                due = taken if len(names) > 1 else due
        info = tf_agent.LossInfo(tf.add_n(shares), self._means(metrics, counts, experience))
        info = self._after_parts(info, taken)
        self.train_step_counter.assign_add(1)
        if self._targets:
            self._targets.update(self.train_step_counter)
        return info, taken

    def _after_parts(self, info: tf_agent.LossInfo, taken: tf.Tensor | None) -> tf_agent.LossInfo:
        """Is called when all parts are trained, and the targets not yet; returns what `train` returns."""
        return info

    def _loss(self, experience: Any, weights: tf.Tensor | None = None, training: bool = False) -> tf_agent.LossInfo:
        self._draws.restart()
        counts, losses = self._losses(experience, weights, training)
        reduce = self._reduce(counts, experience, weights)
        shares: list[tf.Tensor] = []
        metrics: dict[str, tf.Tensor] = {}
        for part, loss in losses.items():
            share, found, *_ = self._evaluated(part, functools.partial(loss, dict(metrics)), reduce, ())
            shares.append(share)
            metrics |= found
        return tf_agent.LossInfo(tf.add_n(shares), self._means(metrics, counts, experience))

    def _reduce(
        self, counts: tf.Tensor, experience: Any, weights: tf.Tensor | None
    ) -> Callable[[tf.Tensor], tf.Tensor]:
        """Returns the function from the losses of rows to this replica's share of their mean."""
        total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(counts))
        if weights is None:
            of_rows = counts
        else:
            of_rows = tf.reshape(_by_item(counts, experience) * weights[:, tf.newaxis], tf.shape(counts))

        def share(values: tf.Tensor) -> tf.Tensor:
            return tf.math.divide_no_nan(tf.reduce_sum(tf.where(of_rows > 0, of_rows * values, 0.0)), total)

        return share

    def _evaluated(
        self,
        part: str,
        loss: Callable[[], tuple[tf.Tensor, dict[str, tf.Tensor]]],
        reduce: Callable[[tf.Tensor], tf.Tensor],
        groups: Sequence[Sequence[tf.Variable]],
        dense: bool = False,
        still: bool = False,
        with_half: bool = False,
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor], list[list[tf.Tensor]], list[list[tf.Tensor] | None]]:
        """Returns a part's share of the loss, its metrics, and the gradients of groups of variables.

        `dense` returns tensors for all of them, and `still` zeros without computing any. The last
        result are the gradients of the first half of the items, if `with_half` and the losses are
        of rows.
        """
        with tf.GradientTape(persistent=with_half, watch_accessed_variables=False) as tape:
            tape.watch([] if still else [variable for group in groups for variable in group])
            values, metrics = loss()
            share, with_half = reduce(values) if values.shape.rank else values, with_half and values.shape.rank > 0
            of_half = reduce(_first_half(values)) if with_half else share
            penalties = [penalty for each in self._trained(part) for penalty in getattr(each, 'losses', ())]
            if penalties:
                share += tf.nn.scale_regularization_loss(tf.add_n(penalties))
        halves: list[Any] = [None for _ in groups]
        if still or not groups:
            return share, metrics, [[tf.zeros_like(variable) for variable in group] for group in groups], halves
        unconnected = tf.UnconnectedGradients.ZERO if dense else tf.UnconnectedGradients.NONE
        optimizer = self._optimizers[self._optimized(part)[0]]
        groups = [list(group) for group in groups]
        gradients = tape.gradient(share, groups, optimizer.output_gradient(share), unconnected_gradients=unconnected)
        gradients = optimizer.unscaled(gradients)
        if dense:
            gradients = tf.nest.map_structure(tf.convert_to_tensor, gradients)
        if with_half:
            halves = optimizer.unscaled(tape.gradient(of_half, groups, optimizer.output_gradient(of_half)))
        return share, metrics, gradients, halves

    def _means(self, metrics: dict[str, tf.Tensor], counts: tf.Tensor, experience: Any) -> dict[str, tf.Tensor]:
        """Returns the metrics of rows as means over the global batch, and the errors of the items."""
        metrics = self._write_rows(metrics, counts)
        errors = metrics.pop(ERRORS, None)
        rows = {name: value for name, value in metrics.items() if value.shape.rank}
        means = {name: value for name, value in metrics.items() if name not in rows}
        if rows:
            parts = tf.stack([*rows.values(), tf.ones_like(counts)])
            masked = tf.where(counts > 0, counts * tf.stop_gradient(parts), 0.0)
            sums = tf.reduce_sum(masked, axis=list(range(1, parts.shape.rank)))
            sums = tf.concat([sums, [tf.cast(tf.size(counts), tf.float32)]], axis=0)
            sums = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, sums)
            means |= dict(zip(rows, tf.unstack(tf.math.divide_no_nan(sums[:-2], sums[-2])), strict=True))
            means['valid_share'] = sums[-2] / sums[-1]
        if errors is not None:
            errors = tf.where(counts > 0, tf.stop_gradient(errors), 0.0)
            means[ERRORS] = self.errors(_by_item(errors, experience), _by_item(counts, experience))
        return means

    def _write_rows(self, metrics: dict[str, tf.Tensor], counts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Adds histograms of numbers of the rows that count to the summary; returns what else are metrics."""
        for name, value in metrics.items():
            if value.shape.rank and summary_tensors.is_collecting():
                extra = [1] * (value.shape.rank - counts.shape.rank)
                counted = tf.reshape(counts > 0, tf.concat([tf.shape(counts), extra], axis=0))
                summary_tensors.histogram(f'rows/{name.removeprefix(_SHOWN)}', tf.where(counted, value, np.nan))
        return {name: value for name, value in metrics.items() if not name.startswith(_SHOWN)}


def shown(**rows: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns metrics that only summaries have, as histograms `rows/<name>`; none if this step is not summarized.

    Args:
      **rows: floats that begin with the dimensions of the losses.
    """
    if not summary_tensors.is_collecting():
        return {}
    return {_SHOWN + name: tf.stop_gradient(each) for name, each in rows.items()}


def _first_half(values: tf.Tensor) -> tf.Tensor:
    """Returns losses of rows, 0 in the second half."""
    size = tf.shape(values)[0]
    return values * tf.cast(tf.reshape(tf.range(size) < size // 2, [-1] + [1] * (values.shape.rank - 1)), values.dtype)


def _by_item(rows: tf.Tensor, experience: Any) -> tf.Tensor:
    """Returns rows of B items as [B, T]."""
    return tf.reshape(rows, [tf.shape(tf.nest.flatten(experience)[0])[0], -1])


def _variables(parts: Sequence[Any]) -> list[tf.Variable]:
    """Returns the trainable variables of networks and variables."""
    return [
        variable
        for part in parts
        for variable in ([part] if isinstance(part, tf.Variable) else part.trainable_variables)
    ]


def now(nest: Any) -> Any:
    """Returns all rows but the last of each sequence, [B, T, ...] of [B, T + 1, ...]."""
    return tf.nest.map_structure(lambda leaf: leaf[:, :-1], nest)


def counts(experience: Any) -> tf.Tensor:
    """Returns float32 [B, T]: 1, but 0 between two episodes, where an environment failed, and in padding."""
    return tf.cast(experience.next_step_type != ts.StepType.FIRST, tf.float32)[:, :-1]


def check_experience(
    experience: Experience, algorithm: str, with_memory: bool = False, burn_in_steps: int | None = None
) -> None:
    """Checks the experience of an algorithm that learns from old items.

    Args:
      experience: the experience.
      algorithm: the algorithm's name, for messages.
      with_memory: whether the policy has a state.
      burn_in_steps: the first steps of a sequence, which are not trained; None for sequences of any
        length.

    Raises:
      ValueError: for a queue, stored states of the policy without memory, or sequences that are too
        short.
    """
    replay, slicing = experience.replay, experience.slicing
    if not replay.learns_from_old_items:
        raise UserValueError(
            f'got a Queue as Experience.replay; {algorithm} needs Uniform or Prioritized: it learns from old items'
        )
    if slicing.store_policy_state and not with_memory:
        raise UserValueError(
            f'got Slicing.store_policy_state=True; {algorithm} needs False: it has no memory; set it to False'
        )
    if burn_in_steps is not None and slicing.sequence_length < burn_in_steps + 2:
        raise UserValueError(
            f'got Slicing.sequence_length={slicing.sequence_length} with burn_in_steps={burn_in_steps}; need at least '
            f'{burn_in_steps + 2}, so that a step is trained, with the observation after it'
        )
