"""The steps of a round: programs, each with the file or directory that is there when it is done."""

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

from tflearn.config import files
from tflearn.core.settings import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, Range, checked_dataclass
from tflearn.files.run_dir import RunDir, local_path, read_json
from tflearn.policies import states, versions
from tflearn.product.round_files import Round


@checked_dataclass(frozen=True)
class Logs:
    """What rounds read; see `tflearn-data join`.

    Attributes:
      decisions: directories of decisions, or files.
      outcomes: the same of outcomes.
      columns: the column map.
      window_secs: seconds after a decision in which its outcomes count.
      default_reward: the reward of a decision without an outcome; None leaves it out.
      combine: of several outcomes of a decision.
      last_secs: seconds before the end of the log that a round reads; None is all of it.
      max_bad_rows: bad rows that are left out.
    """

    decisions: Sequence[str]
    outcomes: Sequence[str]
    columns: str
    window_secs: PositiveFloat
    default_reward: float | None = 0.0
    combine: Literal['first', 'sum', 'last'] = 'last'
    last_secs: PositiveFloat | None = None
    max_bad_rows: NonNegativeInt = 0


@checked_dataclass(frozen=True)
class Training:
    """How the next policy is trained; see `tflearn-train-offline`.

    Attributes:
      gin_file: the gin file of the agent.
      gin_bindings: gin statements that come after it.
      warm_start: whether a round begins with the policy that serves.
      policy: which of the run's policies serves; one that draws its actions explores by itself.
    """

    gin_file: str
    gin_bindings: Sequence[str] = ()
    warm_start: bool = True
    policy: Literal['greedy_policy', 'raw_policy', 'collect_policy'] = 'greedy_policy'


@checked_dataclass(frozen=True)
class Gate:
    """What a new policy has to prove on held-out data before it serves; see `tflearn-data split`, `tflearn-promote`.

    Attributes:
      held_out: the share of episodes that are held out.
      by: which episodes these are: by 'id' a share of those that are new in a round, so that no policy was trained on
        them; the next round trains on them too.
      margin: how much worse than what serves it may be, in the unit of the reward.
      level: the confidence level of the bound.
      gamma: the discount of the value.
      epsilon: the share of random actions with which the policy is served.
      min_effective_sample_size: the least that the held-out data may be worth for a policy.
    """

    held_out: Annotated[float, Range(above=0, below=1)] = 0.2
    by: str = 'id'
    margin: NonNegativeFloat = 0.0
    level: Annotated[float, Range(least=0.5, below=1)] = 0.95
    gamma: Fraction = 1.0
    epsilon: Fraction = 0.0
    min_effective_sample_size: PositiveFloat = 100.0


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of a round: a program, and whether its result is there, which is atomic."""

    name: str
    command: tuple[str, ...]
    is_done: Callable[[], bool]


@dataclasses.dataclass(frozen=True)
class Steps:
    """The steps of the rounds of a loop.

    Attributes:
      package: the Python package of the programs.
      logs: what rounds read.
      training: how policies are trained.
      serving: the run whose policy is served.
      gate: what a policy has to prove; None: nothing.
    """

    package: str
    logs: Logs
    training: Training
    serving: RunDir
    gate: Gate | None

    def of(self, begun: Round) -> Iterator[Step]:
        """Yields the steps in their order; a step is made when those before are done."""
        joined, parts = (begun.directory / name for name in ('joined', 'parts'))
        yield self._step('join', joined.exists, 'data', 'join', *self._join(begun), f'--output={joined}')
        data = str(joined)
        if self.gate:
            data, options = f'{parts}/train', [f'--share={self.gate.held_out}', f'--by={self.gate.by}']
            earlier = begun.directory.with_name(str(begun.number - 1)) / 'parts'
            if earlier.exists() and self.gate.by == 'id':
                options.append(f'--earlier={earlier}')
            yield self._step('split', parts.exists, 'data', 'split', f'--data={joined}', f'--output={parts}', *options)
        yield self._step('train', begun.run.done.exists, 'train_offline', *self._train(begun), f'--data={data}')
        yield self._step('promote', lambda: self._is_judged(begun), 'promote', *self._promote(begun))

    def result(self, begun: Round) -> dict[str, Any]:
        """Returns what came of a round whose steps are done: for the page, and for its last file."""
        found = states.read(self._served)
        data = read_json(begun.directory / 'joined' / 'dataset.json') or {}
        return {
            'promoted': self._is_promoted(begun),
            'serves': found and found.stable,
            'gate': self._verdict(begun),
            'import': data.get('metadata', {}).get('import', {}),
        }

    def _step(self, name: str, is_done: Callable[[], bool], program: str, *arguments: str) -> Step:
        return Step(name, (sys.executable, '-m', f'{self.package}.{program}', *arguments), is_done)

    def _join(self, begun: Round) -> list[str]:
        logs = self.logs
        numbers = {name: getattr(logs, name) for name in ('window_secs', 'default_reward', 'last_secs', 'max_bad_rows')}
        return [
            *(f'--decisions={path}' for path in begun.inputs['decisions']),
            *(f'--outcomes={path}' for path in begun.inputs['outcomes']),
            f'--columns={local_path(logs.columns, "Logs.columns")}',
            f'--combine={logs.combine}',
            *(f'--{name}={value}' for name, value in numbers.items() if value is not None),
        ]

    def _train(self, begun: Round) -> list[str]:
        statements = [*self.training.gin_bindings]
        found = states.read(self._served)
        served = found.stable if found else versions.newest_version(self._served)
        if self.training.warm_start and served is not None:
            policy = str(self._served / str(served))
            statements += ['from tflearn.jobs import train', f'train.Initial.policy = {policy!r}']
        return [
            f'--root_dir={begun.run.root}',
            f'--gin_file={files.resolve(self.training.gin_file)}',
            *(f'--gin_bindings={statement}' for statement in statements),
        ]

    def _promote(self, begun: Round) -> list[str]:
        held_out = begun.directory / 'parts' / 'held_out'
        names = ('margin', 'level', 'gamma', 'epsilon', 'min_effective_sample_size')
        policy = f'--root_dir={self.serving.root}', f'--policy={self.training.policy}'
        where = *policy, f'--candidate={self._candidate(begun)}', f'--why={_reason(begun)}'
        if not self.gate:
            return [*where, '--ungated']
        return [*where, f'--data={held_out}', *(f'--{name}={getattr(self.gate, name)}' for name in names)]

    def _is_judged(self, begun: Round) -> bool:
        """Whether the candidate serves, or has failed. One that passed and does not serve yet is judged again."""
        return self._is_promoted(begun) or (self._verdict(begun) or {}).get('passes') is False

    def _is_promoted(self, begun: Round) -> bool:
        found = states.read(self._served)
        return any(entry['why'].startswith(_reason(begun)) for entry in (found.history if found else ()))

    def _verdict(self, begun: Round) -> dict[str, Any] | None:
        facts: dict[str, Any] = read_json(self._candidate(begun) / versions.METADATA) or {}
        return facts.get('gate')

    @property
    def _served(self) -> pathlib.Path:
        return self.serving.policy(self.training.policy)

    def _candidate(self, begun: Round) -> pathlib.Path:
        directory = begun.run.policy(self.training.policy)
        return directory / str(versions.newest_version(directory))


def _reason(begun: Round) -> str:
    """Returns what the history of states says of a promotion: so a killed program's is known, and made once."""
    return f'round {begun.number} of {begun.directory.parent}'
