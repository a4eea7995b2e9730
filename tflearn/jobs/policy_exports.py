"""The policies of an agent that a run exports, and their metadata;
for the jobs train and synchronous.
"""

import collections
import functools
import pathlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf
from absl import logging
from tf_agents.policies import greedy_policy, tf_policy

from tflearn.core.background import Background
from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveInt, checked_dataclass
from tflearn.core.types import Agent
from tflearn.files import temporary
from tflearn.files.run_dir import RunDir
from tflearn.policies import disagreement, versions
from tflearn.policies.export_check import ExportMismatch
from tflearn.policies.exporter import PolicyExporter

_WAIT_SECS = 600.0
_MAX_WAITING = 8  # exports until the first one is checked
# It takes one to three seconds of Python, which the first train steps would share.
_FIRST_DELAY_SECS = 5.0
_FAILURES = (OSError, RuntimeError, FloatingPointError, tf.errors.OpError)
# Exports in a row that act differently from the live policy, after which training ends.
_MAX_MISMATCHES = 3
_RAW = 'raw_policy'
_TEXTS = ('run/config_hash', 'run/code_revision')


class MakesProducts(Protocol):
    """Makes the model of an exported version for a product.
    A run that makes none loads no converters.

    Attributes:
      parameters: whether the model also returns the parameters of the action's distribution.
    """

    @property
    def parameters(self) -> bool: ...

    def save(self, version: pathlib.Path, output: pathlib.Path, raw: pathlib.Path | None = None) -> None:
        """Writes the model of `version`; see `policies.products.ProductOptions`."""


@checked_dataclass(frozen=True)
class ExportOptions:
    """Which policies are exported, and which versions are kept.

    Attributes:
      policies: the names of the exported policies. 'greedy_policy' acts by the mode,
        'collect_policy' explores as collectors do, 'raw_policy' samples from the network's
        distribution. Evaluations use the greedy one.
      keep_last: the number of versions of each policy that are kept, besides the best by
        evaluation.
      update_interval_steps: train steps between two weights-only updates, see `policies.updates`;
        None makes none.
      keep_updates: the number of updates of each policy that are kept.
      disagreement: whether the greedy policy also computes how far the agent's critics disagree on
        its actions, their standard deviation: evaluations have it as 'info/disagreement'. The
        critics are in the exported model then.
      products: the models for products that are made of each version but those of the raw policy,
        in `RunDir.product`: a `policies.products.ProductOptions`; None makes none.
    """

    policies: tuple[str, ...] = ('greedy_policy', 'collect_policy', 'raw_policy')
    keep_last: PositiveInt = 5
    update_interval_steps: PositiveInt | None = None
    keep_updates: PositiveInt = 100
    disagreement: bool = False
    products: MakesProducts | None = None

    def __post_init__(self) -> None:
        if not self.policies or not set(self.policies) <= _POLICIES.keys() or isinstance(self.policies, str):
            raise UserValueError(
                f'got ExportOptions.policies={self.policies!r}; need a list of one or more of {", ".join(_POLICIES)}'
            )
        if self.disagreement and 'greedy_policy' not in self.policies:
            raise UserValueError(
                f'got ExportOptions.disagreement=True and policies={self.policies!r}; need greedy_policy there'
            )
        if self.products and self.products.parameters and _RAW not in self.policies:
            raise UserValueError(
                f'got ProductOptions.parameters=True and ExportOptions.policies={self.policies!r}; need {_RAW} there'
            )


def _processed(agent: Agent) -> tf_policy.TFPolicy:
    """Returns the policy as a TF-Agents agent makes it for use; most return their own one."""
    process = getattr(agent, 'post_process_policy', None)
    return process() if process else agent.policy


def _greedy(policy: tf_policy.TFPolicy) -> tf_policy.TFPolicy:
    return policy if isinstance(policy, greedy_policy.GreedyPolicy) else greedy_policy.GreedyPolicy(policy)


def _raw(policy: tf_policy.TFPolicy) -> tf_policy.TFPolicy:
    while isinstance(policy, greedy_policy.GreedyPolicy):
        policy = policy.wrapped_policy
    return policy


_POLICIES: dict[str, Callable[[Agent, tf_policy.TFPolicy], tf_policy.TFPolicy]] = {
    'greedy_policy': lambda agent, processed: _greedy(processed),
    'collect_policy': lambda agent, processed: agent.collect_policy,
    'raw_policy': lambda agent, processed: _raw(processed),
}


class PolicyExports:
    """A run's policy exporters, on one thread: the policies of a step come from one snapshot."""

    def __init__(
        self,
        agent: Agent,
        run_dir: RunDir,
        options: ExportOptions,
        facts: Callable[[], Mapping[str, Any]],
        texts: Callable[[], Mapping[str, str]] = dict,
    ):
        """Traces the policies; exports nothing yet.

        Args:
          agent: the agent whose policies are exported.
          run_dir: the run's directory.
          options: which policies are exported.
          facts: returns the metadata of the current step: env_steps, policy_version, mean_return.
          texts: returns the run's texts by tag; the metadata include its configuration's hash and
            the code's revision.
        """
        self._agent, self._policy = agent, _processed(agent)
        self._exporters = [
            PolicyExporter(self._exported(name, options), run_dir.policy(name), options.keep_last, options.keep_updates)
            for name in options.policies
        ]
        self._run_dir, self._options, self._facts = run_dir, options, facts
        self._texts = functools.cache(lambda: {tag.partition('/')[2]: texts().get(tag) for tag in _TEXTS})
        self._full, self._updates = Background('policy_exports'), Background('policy_updates')
        # The mismatches since the last good export, of weights alone (True) and of complete
        # versions.
        self._mismatches: dict[bool, list[ExportMismatch]] = {False: [], True: []}
        self._due = threading.Event()  # the first export, which `begin` has put off
        self._begun = False
        self._newest: int | None = None  # step of a complete export
        # For the first one, which takes seconds.
        self._waiting = collections.deque[Callable[[], None]]()

    def _exported(self, name: str, options: ExportOptions) -> tf_policy.TFPolicy:
        policy = _POLICIES[name](self._agent, self._policy)
        return disagreement.added(self._agent, policy) if options.disagreement and name == 'greedy_policy' else policy

    def export(self, step: int) -> None:
        """Takes a snapshot of each policy and exports it on a thread.
        A newer export replaces one that has not begun.

        The first export blocks, see `check`, unless there was a `begin`. Then those that follow
        while it is written wait for it, and none is replaced; it blocks if there are too many. A
        failure is logged; `wait` raises it, unless a later export succeeds.

        Raises:
          FloatingPointError, TimeoutError, UserError: see `check`.
        """
        self._due.set()
        if step == self._newest and not (self._full.failed or self._mismatches[False]):
            return  # the run ends at a step that is exported
        if len(self._waiting) >= _MAX_WAITING:
            self.check()
        self._submit(self._full, step, update=False)
        if not self._begun and not self._checked:
            self.check()

    def begin(self, step: int) -> None:
        """Takes the snapshot of the first export now, and writes it in a few seconds,
        or as soon as the next is due.

        It does not block; `raise_failure` tells if it failed.
        """
        self._begun = True
        self._submit(self._full, step, update=False, delay_secs=_FIRST_DELAY_SECS)

    @property
    def num_failed(self) -> int:
        """The exports in a row that were not published,
        because they act differently from the live policy.
        """
        return max(map(len, self._mismatches.values()))

    def check(self) -> None:
        """Waits for the first export, in which the entire model is compared with the live policy.

        Raises:
          FloatingPointError: if its weights are not finite.
          TimeoutError: if it takes longer than ten minutes.
          UserError: see `raise_failure`.
        """
        self._due.set()
        self._full.join(_WAIT_SECS)
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raises what no later export can cure: does not wait.

        Raises:
          ExportMismatch: if three exports in a row acted differently from the live policy.
          ValueError: if the policy cannot be exported as the options say.
          FloatingPointError: if the first weights are not finite.
        """
        if self.num_failed >= _MAX_MISMATCHES:
            self._raise_mismatch()
        self._full.raise_failure(but=_FAILURES if self._checked else (OSError, tf.errors.OpError))

    def export_update(self, step: int) -> None:
        """Like `export`, for weights only; skipped with a warning if the first full export has failed."""
        if not self._checked:
            self.check()
        self._submit(self._updates, step, update=True)

    def wait(self) -> None:
        """Waits for all exports.

        Raises:
          TimeoutError: if it takes longer than ten minutes.
          OSError, ExportMismatch, FloatingPointError, tf.errors.OpError: if the newest export
            failed.
        """
        self._wait()
        if self.num_failed:
            self._raise_mismatch()

    def _wait(self) -> None:
        self._due.set()
        backgrounds = (self._full, self._updates)
        for background in backgrounds:
            background.join(_WAIT_SECS)
        for background in backgrounds:
            background.raise_failure()

    def _raise_mismatch(self) -> None:
        error = max(self._mismatches.values(), key=len)[-1]
        raise ExportMismatch(
            f'{error}; {self.num_failed} exports in a row were not published: the version before and the checkpoint '
            'stay'
        ) from error

    def settle(self) -> None:
        """Like `wait`, for a job that is being stopped:
        failures are logged, so that they hide no other error.
        """
        try:
            self._wait()
        except _FAILURES as error:
            logging.warning('the newest export failed: %s', error)

    def drop_newer_than(self, step: int) -> None:
        """Moves exports of later steps than `step` aside; see `PolicyExporter.drop_newer_than`."""
        for exporter in self._exporters:
            exporter.drop_newer_than(step)

    def _submit(self, background: Background, step: int, update: bool, delay_secs: float = 0.0) -> None:
        self._process()
        facts = {**self._facts(), **self._texts()}
        works = [exporter.snapshot(step, facts, update) for exporter in self._exporters]
        self._newest = self._newest if update else step
        if self._options.products and not update:
            works += [
                functools.partial(self._make_product, name, step) for name in self._options.policies if name != _RAW
            ]

        def write() -> None:
            if delay_secs:
                self._due.wait(delay_secs)
            self._write(works, update)

        if update or (self._checked and not self._waiting):
            background.submit(write)
        else:
            self._waiting.append(write)
            background.submit(self._write_waiting)

    def _process(self) -> None:
        """Brings the exported policy up to date if the agent makes another one at each time."""
        processed = _processed(self._agent)
        if processed is not self._policy:
            for own, value in zip(self._policy.variables(), processed.variables(), strict=True):
                if own is not value:
                    own.assign(value)

    def _write(self, works: Sequence[Callable[[], None]], update: bool) -> None:
        try:
            _all(works)
            self._mismatches[update].clear()
        except ExportMismatch as error:
            self._mismatches[update].append(error)
            logging.warning(
                '%s; the export was not published; training continues, and ends after %d in a row (this is number %d)',
                error,
                _MAX_MISMATCHES,
                len(self._mismatches[update]),
            )

    def _write_waiting(self) -> None:
        _all([self._waiting.popleft() for _ in range(len(self._waiting))])

    @property
    def _checked(self) -> bool:
        return all(exporter.checked for exporter in self._exporters)

    def _make_product(self, policy: str, step: int) -> None:
        output = self._run_dir.product(policy) / str(step)
        if self._options.products and not output.exists():
            temporary.remove_leftovers(output.parent)
            raw = self._run_dir.policy(_RAW) / str(step)
            self._options.products.save(self._run_dir.policy(policy) / str(step), output, raw)
            versions.point_latest(output.parent)
            versions.prune(output.parent, self._options.keep_last)


def _all(works: Sequence[Callable[[], None]]) -> None:
    """Runs all of them, even if some fail; then raises the first failed comparison,
    otherwise the last failure.
    """
    failure: Exception | None = None
    for work in works:
        try:
            work()
        except _FAILURES as error:
            failure = failure if isinstance(failure, ExportMismatch) else error
    if failure:
        raise failure
