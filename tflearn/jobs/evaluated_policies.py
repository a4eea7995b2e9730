"""The sources of the evaluate job's policies: exported by the train job, published by it,
or served.
"""

import dataclasses
import pathlib
import types
from typing import Any

from absl import logging

from tflearn.actors.evaluation_record import EvaluationRecord
from tflearn.coordinator.client import Coordinator, Role
from tflearn.coordinator.published_weights import Subscriber
from tflearn.core import extensions
from tflearn.core.experience import Experience
from tflearn.core.types import AgentFactory, EnvironmentSpecs, EvaluationPolicy
from tflearn.files import messages
from tflearn.files.run_dir import read_json
from tflearn.jobs import initial_agent, run_contract
from tflearn.jobs.evaluate_settings import EvaluateOptions
from tflearn.jobs.run import Run
from tflearn.policies import loader, versions
from tflearn.policies.exporter import PolicyExporter
from tflearn.policies.loader import VersionGone
from tflearn.policies.variables import published_variables


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A policy to evaluate.

    Attributes:
      policy: the policy.
      metadata: train_step, and if known env_steps and exported_at.
      path: the exported version's directory; None if its files are not here, since it is served
        elsewhere.
    """

    policy: EvaluationPolicy
    metadata: dict[str, Any]
    path: pathlib.Path | None

    @classmethod
    def load(cls, path: pathlib.Path, specs: EnvironmentSpecs) -> 'Candidate':
        """Loads an exported version, and checks its specs."""
        policy = loader.load(path)
        policy.check(specs)
        return cls(policy, policy.metadata, policy.path)

    @property
    def train_step(self) -> int:
        return int(self.metadata['train_step'])


class ExportedPolicies:
    """The versions that the train job exports.

    Attributes:
      directory: the directory of the exported versions.
      what: a description of what is waited for.
    """

    def __init__(self, run: Run, name: str, specs: EnvironmentSpecs, each: bool = False):
        """
        Args:
          run: the run.
          name: the policy's name.
          specs: the specs that the policies must have.
          each: whether to find every version; otherwise only the newest.
        """
        self.directory: pathlib.Path = run.dir.policy(name)
        self.what = f'a policy in {self.directory}'
        self._run, self._specs, self._each = run, specs, each

    def result(self) -> dict[str, Any] | None:
        """Returns how training ended; None while it goes on.
        There may be newer policies than those found before.
        """
        return read_json(self._run.dir.train_result, messages.TrainResult)

    def newest(self) -> int | None:
        """Returns the train step of the newest policy; None if there is none."""
        return versions.newest_version(self.directory)

    def find(self, record: EvaluationRecord) -> Candidate | None:
        """Returns the next policy that is not in the record; None if there is none yet.

        Raises:
          ValueError: for a damaged version, or one of another environment.
        """
        while True:
            steps = versions.versions(self.directory)
            wanted = (step for step in (steps if self._each else steps[-1:]) if not self._known(record, step))
            step = next(wanted, None)
            if step is None:
                return None
            try:
                return Candidate.load(self.directory / str(step), self._specs)
            except FileNotFoundError:  # pruned meanwhile
                continue

    def close(self) -> None:
        """Closes connections."""

    def _known(self, record: EvaluationRecord, step: int) -> bool:
        metadata = read_json(self.directory / str(step) / versions.METADATA, messages.Metadata)
        return metadata is not None and record.find(metadata) is not None


class PublishedWeights(ExportedPolicies):
    """The weights that the train job publishes; each publication received becomes a version."""

    def __init__(
        self,
        run: Run,
        make_agent: AgentFactory,
        experience: Experience,
        specs: EnvironmentSpecs,
    ):
        """Waits for the coordinator.

        Raises:
          TimeoutError: if it is not found in time.
          ValueError: if it is for other data or networks.
        """
        super().__init__(run, 'evaluated_policy', specs)
        self.what = f'weights from the coordinator at {run.coordinator.address}'
        agent, storage = initial_agent.make_for_data(make_agent, specs, experience)
        self._exporter = PolicyExporter(agent.policy, self.directory, keep_last=1)
        variables = published_variables(agent.collect_policy)
        self._coordinator = Coordinator(run.coordinator, 'evaluate', run.stop)
        role = Role('evaluate', contract=run_contract.contract(agent, storage))
        self._coordinator.join(role, run.connect_timeout_secs)
        self._weights = Subscriber(self._coordinator, variables, agent.train_step_counter, run.stop)

    def result(self) -> dict[str, Any] | None:
        """See `ExportedPolicies`."""
        self._export_newest()
        newest = self._weights.newest
        if not newest.finished:
            return None
        counts = {'train_step': newest.train_step, 'env_steps': newest.env_steps}
        return super().result() or {'reason': 'training finished', **counts, 'seconds': None}

    def newest(self) -> int | None:
        """See `ExportedPolicies`."""
        self._export_newest()
        return super().newest()

    def close(self) -> None:
        """Stops waiting for weights."""
        self._weights.close()
        self._coordinator.close()

    def _export_newest(self) -> None:
        if not self._weights.pull():
            return
        published = self._weights.newest
        known = super().newest()
        if known is not None and published.train_step < known:
            self._exporter.drop_newer_than(published.train_step)
        facts = {'env_steps': published.env_steps, 'policy_version': published.policy_version}
        self._exporter.export(published.train_step, facts)


class ServedPolicies(ExportedPolicies):
    """The newest version of a policy on a server, which also computes the actions."""

    def __init__(self, run: Run, options: EvaluateOptions, specs: EnvironmentSpecs):
        """Does not connect yet.

        Raises:
          ImportError: without the extra `serving`.
        """
        super().__init__(run, options.policy, specs)
        self.what = f'the policy {options.policy!r} served at {options.served_at}'
        self._address, self._name = str(options.served_at), options.policy
        self._client = extensions.load('policy_client')
        self._model = self._client.PolicyClient(self._address, self._name)
        self._policy: Any = None

    def result(self) -> dict[str, Any] | None:
        """See `ExportedPolicies`. For this source training ends when the server has the last policy."""
        result = super().result()
        return result if result and (self.newest() or 0) >= result['train_step'] else None

    def newest(self) -> int | None:
        """See `ExportedPolicies`."""
        return self._model.newest_version()

    def find(self, record: EvaluationRecord) -> Candidate | None:
        """See `ExportedPolicies`."""
        version = self.newest()
        if version is None:
            return None
        path = self.directory / str(version)
        here = read_json(path / versions.METADATA, messages.Metadata)
        metadata = here or {'train_step': version}
        if record.find(metadata):
            return None
        try:
            like = types.SimpleNamespace(  # the specs of a policy that only the server has
                time_step_spec=self._specs.time_step,
                action_spec=self._specs.action,
                policy_state_spec=self._model.state_spec(version),
                info_spec=(),
            )
        except VersionGone as gone:
            logging.info('%s', gone)
            return None
        self._close_policy()
        self._policy = self._client.RemotePolicy(self._address, self._name, like, version, stop=self._run.stop)
        return Candidate(self._policy, metadata, path if here else None)

    def close(self) -> None:
        """Closes the connections."""
        self._close_policy()
        self._model.close()

    def _close_policy(self) -> None:
        if self._policy is not None:
            self._policy.close()
