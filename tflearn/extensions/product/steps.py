"""The rounds of the loop, and their steps: programs, each with the file or directory that is there when it is done.

A round is a directory, whose first file names its input, and whose last one is its result.
"""

import dataclasses
import functools
import math
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from tflearn.config import files
from tflearn.core.errors import UserValueError
from tflearn.core.settings import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    checked_dataclass,
)
from tflearn.extensions.product import log_files, tables
from tflearn.files import messages
from tflearn.files.numbered import Numbered
from tflearn.files.run_dir import RunDir, local_path, read_json, write_json
from tflearn.policies import states, versions

_INPUTS, _RESULT = 'round.json', 'end.json'
# In a round: what trains and judges its own candidate; what judges one of a round before.
_PARTS, _LATER = 'parts', 'later'
_ID = 'id'


class _Inputs(TypedDict):
    """A round's first file."""

    began: messages.Moment
    new_decisions: NonNegativeInt
    decisions: list[str]
    outcomes: list[str]


class _Estimate(TypedDict):
    value: NotRequired[float | None]
    low: NotRequired[float | None]
    high: NotRequired[float | None]


class _Source(TypedDict):
    path: str


class _Verdict(TypedDict):
    passes: NotRequired[bool]
    outcome: NotRequired[str]
    needed: NotRequired[NonNegativeInt | None]
    data: NotRequired[list[_Source]]
    candidate: NotRequired[_Estimate | None]
    incumbent: NotRequired[_Estimate | None]
    difference: NotRequired[_Estimate | None]


class _Import(TypedDict):
    steps: NotRequired[NonNegativeInt]


# A round's last file.
_Result = TypedDict(
    '_Result',
    {
        'promoted': NotRequired[bool],
        'candidate': NotRequired[NonNegativeInt],
        'waits': NotRequired[NonNegativeInt | None],
        'serves': NotRequired[NonNegativeInt | None],
        'gate': NotRequired[_Verdict | None],
        'import': NotRequired[_Import],
    },
)


class _Judged(TypedDict):
    """Metadata of a candidate."""

    gate: NotRequired[_Verdict | None]


# What becomes a part of the result is checked where it is read: else `_RESULT` would be refused for ever.
_Joined = TypedDict('_Joined', {'import': NotRequired[_Import]})


class _Description(TypedDict):
    """That of the joined data set."""

    metadata: NotRequired[_Joined]


@dataclasses.dataclass(frozen=True)
class Round:
    """A round that has begun.

    Attributes:
      directory: `rounds/<number>` of the loop's directory.
      inputs: when it began, and the files that it reads: `decisions` and `outcomes`.
    """

    directory: pathlib.Path
    inputs: dict[str, Any]

    @property
    def number(self) -> int:
        """Counted from 1."""
        return int(self.directory.name)

    @property
    def result(self) -> dict[str, Any] | None:
        """What came of it; None while it is not finished."""
        return read_json(self.directory / _RESULT, _Result)

    @property
    def run(self) -> RunDir:
        """The run that trains."""
        return RunDir(self.directory / 'run')

    def other(self, number: int) -> 'Round':
        """Returns another round of the loop."""
        return Round(self.directory.with_name(str(number)), {})

    def finish(self, **result: Any) -> None:
        """Writes the result."""
        write_json(self.directory / _RESULT, {'ended': time.time(), **result})


class Rounds:
    """The rounds in the directory of a loop."""

    def __init__(self, root: pathlib.Path):
        self._numbered = Numbered(root / 'rounds', needs=(_INPUTS,))
        self._num_rows = functools.cache(tables.num_rows)  # complete files do not change

    def finished(self) -> list[Round]:
        """Returns those that have a result, in their order."""
        return [each for each in self._all() if each.result is not None]

    def unfinished(self) -> Round | None:
        """Returns the last one, if it has no result."""
        return next((each for each in self._all()[-1:] if each.result is None), None)

    def _all(self) -> list[Round]:
        paths = map(self._numbered.path, self._numbered.numbers())
        return [Round(path, read_json(path / _INPUTS, _Inputs) or {}) for path in paths]

    def begin(
        self, decisions: Sequence[str], outcomes: Sequence[str], num_decisions: int | None, hours: float | None
    ) -> Round | None:
        """Begins the next round, if it is due: its files are settled from then on.

        Args:
          decisions: directories or files.
          outcomes: the same.
          num_decisions: a round is due when there are so many new decisions, ...
          hours: ... or so much time has passed since the last one began. Without both, with any new decision.
        """
        given = {'decisions': decisions, 'outcomes': outcomes}
        try:
            files = {name: log_files.find(paths, name) for name, paths in given.items()}
        except UserValueError:  # nothing is logged yet
            return None
        before = self._all()
        known = set(before[-1].inputs['decisions']) if before else set()
        new = sum(self._num_rows(path) for path in files['decisions'] if str(path) not in known)
        waited = time.time() - before[-1].inputs['began'] if before else float('inf')
        is_late = hours is not None and waited >= hours * 3_600
        if not new or not (is_late or new >= (num_decisions or (1 if hours is None else float('inf')))):
            return None
        path = self._numbered.path((self._numbered.newest or 0) + 1)
        listed = {name: [str(each) for each in paths] for name, paths in files.items()}
        write_json(path / _INPUTS, {'began': time.time(), 'new_decisions': new, **listed})
        return self._all()[-1]


@checked_dataclass(frozen=True)
class Logs:
    """What rounds read; see `tflearn data join`.

    Attributes:
      decisions: directories of decisions, or files.
      outcomes: the same of outcomes.
      columns: the column map.
      window_secs: seconds after a decision in which its outcomes count.
      default_reward: the reward of a decision without an outcome; None leaves it out.
      combine: of several outcomes of a decision.
      settle_secs: seconds before the end of the log in which outcomes may still be on their way.
      outages: times in which outcomes were lost, 'BEGIN,END' [s since 1970]: their decisions are left out.
      last_secs: seconds before the end of the log that a round reads; None is all of it.
      max_bad_rows: bad rows that are left out.
    """

    decisions: Sequence[str]
    outcomes: Sequence[str]
    columns: str
    window_secs: PositiveFloat
    default_reward: float | None = 0.0
    combine: Literal['first', 'sum', 'last'] = 'last'
    settle_secs: NonNegativeFloat = 60.0
    outages: Sequence[str] = ()
    last_secs: PositiveFloat | None = None
    max_bad_rows: NonNegativeInt = 0


@checked_dataclass(frozen=True)
class Training:
    """How the next policy is trained; see `tflearn train-offline`.

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
    """What a new policy has to prove on held-out data before it serves; see `tflearn data split`, `tflearn promote`.

    Attributes:
      held_out: the share of episodes that are held out.
      by: which episodes these are: by 'id' a share of those that are new in a round, so that no policy was trained on
        them; the next round trains on them too.
      held_out_rounds: in how many rounds an episode that is held out judges, its own included, before it is trained on.
        With more of them a smaller share is enough, and of the newest episodes as many train as of those before. Each
        candidate is judged at a quarter of its level for each round more. This needs `by` = 'id'.
      margin: how much worse than what serves it may be, in the unit of the reward.
      level: the confidence level of all rounds together: one minus it is the probability that a loop ever promotes a
        policy that is worse by the margin. Round k has 6 / (pi k)^2 of that, which sums up to all of it; a quarter of
        its share, if its episodes have first judged a candidate that waited.
      gamma: the discount of the value.
      epsilon: the share of random actions with which the policy is served.
      temperature: the temperature with which it is served.
      clips: whether a policy may pass although rewards are below the range that the column map states.
      max_rounds: the most rounds that judge a policy, the one that trains it included. While it is not decided, the
        next rounds train none, and all of their new episodes judge it, which it has never seen: so long as these
        rounds are expected to decide it. This needs `by` = 'id'.
      limits: what a policy may cost: 'NAME=MOST', see `parts` of a column map.
    """

    held_out: Annotated[float, Range(above=0, below=1)] = 0.2
    by: str = 'id'
    held_out_rounds: PositiveInt = 1
    margin: NonNegativeFloat = 0.0
    level: Annotated[float, Range(least=0.5, below=1)] = 0.95
    gamma: Fraction = 1.0
    epsilon: Fraction = 0.0
    temperature: PositiveFloat = 1.0
    clips: bool = False
    max_rounds: PositiveInt = 10
    limits: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.held_out_rounds > 1 and self.by != _ID:
            raise UserValueError(f'got held_out_rounds={self.held_out_rounds} with by={self.by!r}; need by={_ID!r}')

    def level_of(self, number: int, others: int = 0) -> float:
        """Returns the confidence level of the candidate of this round, counted from 1.

        Args:
          number: the round.
          others: in how many of the rounds that hold episodes out for it another candidate waited.
        """
        # An episode that has judged candidates before had a part in this one, by their verdicts only: each changes
        # nothing, what waits, what serves, or also what is the best one. All that can come of them share the level.
        outcomes = 4 ** (self.held_out_rounds - 1 + others)
        return 1 - (1 - self.level) * 6 / (math.pi * number) ** 2 / outcomes


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
        joined = begun.directory / 'joined'
        yield self._step('join', joined.exists, 'data', 'join', *self._join(begun), f'--output={joined}')
        if waiting := self._waiting(begun):
            yield self._split(begun, _LATER, 1.0)
            if any(path.is_relative_to(begun.directory) for path in _evidence(waiting, begun)):
                yield self._judge(waiting, begun)
            if self._waits(waiting, begun):
                return
        data = joined
        if self.gate:
            yield self._split(begun, _PARTS, self.gate.held_out)
            data = begun.directory / f'{_PARTS}/train'
        yield self._step('train', begun.run.train_result.exists, 'train-offline', *self._train(begun), f'--data={data}')
        yield self._judge(begun, begun)

    def result(self, begun: Round) -> dict[str, Any]:
        """Returns what came of a round whose steps are done: for the page, and for its last file."""
        found = states.read(self._served)
        data = read_json(begun.directory / 'joined' / 'dataset.json', _Description) or {}
        # The newest first.
        judged = [begun, *filter(None, [self._waiting(begun)])]
        waits = [each for each in judged if self._waits(each, begun)]
        promoted = [each for each in judged if self._is_promoted(each)]
        shown = [*promoted, *waits, begun][0]
        return {
            'promoted': bool(promoted),
            'candidate': shown.number,
            'waits': waits[0].number if waits else None,
            'serves': found and found.stable,
            'gate': self._verdict(shown),
            'import': data.get('metadata', {}).get('import', {}),
        }

    def _step(self, name: str, is_done: Callable[[], bool], verb: str, *arguments: str) -> Step:
        return Step(name, (sys.executable, '-m', self.package, verb, *arguments), is_done)

    def _split(self, begun: Round, name: str, share: float) -> Step:
        assert self.gate
        output = begun.directory / name
        options = [f'--share={share:g}', f'--by={self.gate.by}']
        earlier = (begun.other(begun.number - 1).directory / each for each in (_PARTS, _LATER))
        if self.gate.held_out_rounds > 1:
            options.append(f'--rounds={self.gate.held_out_rounds}')
        if self.gate.by == _ID and (path := next((each for each in earlier if each.exists()), None)):
            options.append(f'--earlier={path}')
        data = f'--data={begun.directory / "joined"}'
        return self._step('split', output.exists, 'data', 'split', data, f'--output={output}', *options)

    def _judge(self, candidate: Round, begun: Round) -> Step:
        is_done = lambda: self._is_judged(candidate, begun)  # noqa: E731
        return self._step('promote', is_done, 'promote', *self._promote(candidate, begun))

    def _waiting(self, begun: Round) -> Round | None:
        """Returns the round whose candidate the round before has not decided, if what served then still serves."""
        before = begun.other(begun.number - 1).result or {}
        if not (before.get('waits') and self.gate and self.gate.by == _ID):
            return None
        waiting, found = begun.other(before['waits']), states.read(self._served)
        is_same = (found and found.stable) == before.get('serves')
        return waiting if self._is_promoted(waiting) or (is_same and self._verdict(waiting)) else None

    def _waits(self, candidate: Round, begun: Round) -> bool:
        """Whether the next round judges the candidate further."""
        if not self.gate or self.gate.by != _ID or self._is_promoted(candidate):
            return False
        verdict = self._verdict(candidate) or {}
        if verdict.get('outcome') != 'not decided' or verdict.get('needed') is None:
            return False
        rounds = candidate.number + self.gate.max_rounds - 1 - begun.number
        return bool(verdict['needed'] <= rounds * begun.inputs['new_decisions'])

    def _join(self, begun: Round) -> list[str]:
        logs, before = self.logs, begun.other(begun.number - 1).directory / 'joined'
        # Each round would number the categories of its own log; those that the policy lacks are counted as unknown.
        words = self._serving() or (before if before.exists() else None)
        names = ('window_secs', 'default_reward', 'settle_secs', 'last_secs', 'max_bad_rows')
        numbers = {name: getattr(logs, name) for name in names}
        return [
            *(f'--decisions={path}' for path in begun.inputs['decisions']),
            *(f'--outcomes={path}' for path in begun.inputs['outcomes']),
            f'--columns={local_path(logs.columns, "Logs.columns")}',
            f'--combine={logs.combine}',
            *([f'--vocabularies={words}'] if words else []),
            *(f'--outages={each}' for each in logs.outages),
            *(f'--{name}={value}' for name, value in numbers.items() if value is not None),
        ]

    def _train(self, begun: Round) -> list[str]:
        statements = [*self.training.gin_bindings]
        if self.training.warm_start and (policy := self._serving()):
            statements += ['from tflearn.jobs import train', f'train.Initial.policy = {str(policy)!r}']
        return [
            f'--root_dir={begun.run.root}',
            f'--gin_file={files.resolve(self.training.gin_file)}',
            *(f'--gin_bindings={statement}' for statement in statements),
        ]

    def _serving(self) -> pathlib.Path | None:
        """Returns the version that serves; None before there is one."""
        found = states.read(self._served)
        number = found.stable if found else versions.newest_version(self._served)
        return None if number is None else self._served / str(number)

    def _promote(self, candidate: Round, begun: Round) -> list[str]:
        names = ('margin', 'gamma', 'epsilon', 'temperature')
        policy = f'--root_dir={self.serving.root}', f'--policy={self.training.policy}'
        where = *policy, f'--candidate={self._candidate(candidate)}', f'--why={_reason(candidate)}'
        if not self.gate:
            return [*where, '--ungated']
        options = [f'--{name}={getattr(self.gate, name)}' for name in names]
        options += ['--clip_rewards'] if self.gate.clips else []
        options += [f'--limit={each}' for each in self.gate.limits]
        data = [f'--data={path}' for path in _evidence(candidate, begun)]
        first = max(1, candidate.number - self.gate.held_out_rounds + 1)
        held_out = [candidate.other(number).directory for number in range(first, candidate.number + 1)]
        # Of a round whose files were removed nobody knows.
        others = sum((each / _LATER).exists() or not (each / _PARTS).exists() for each in held_out)
        new = candidate.directory / _PARTS / 'new_train'
        if self.gate.held_out_rounds == 1 and (new / 'dataset.json').exists():
            options.append(f'--new_train={new}')
        return [*where, *data, f'--level={self.gate.level_of(candidate.number, others)}', *options]

    def _is_judged(self, candidate: Round, begun: Round) -> bool:
        """Whether the candidate serves, or has failed. One that passed and does not serve yet is judged again."""
        verdict = self._verdict(candidate) or {}
        paths = [pathlib.Path(each['path']) for each in verdict.get('data', [])]
        is_new = candidate.number == begun.number or any(path.is_relative_to(begun.directory) for path in paths)
        return self._is_promoted(candidate) or (verdict.get('passes') is False and is_new)

    def _is_promoted(self, begun: Round) -> bool:
        found = states.read(self._served)
        return any(entry['why'].startswith(_reason(begun)) for entry in (found.history if found else ()))

    def _verdict(self, begun: Round) -> dict[str, Any] | None:
        return (read_json(self._candidate(begun) / versions.METADATA, _Judged) or {}).get('gate')

    @property
    def _served(self) -> pathlib.Path:
        return self.serving.policy(self.training.policy)

    def _candidate(self, begun: Round) -> pathlib.Path:
        directory = begun.run.policy(self.training.policy)
        return directory / str(versions.newest_version(directory))


def _evidence(candidate: Round, begun: Round) -> list[pathlib.Path]:
    """Returns the data sets that judge a candidate: what was held out from it, and all that is new since."""
    later = [candidate.other(number).directory / _LATER for number in range(candidate.number + 1, begun.number + 1)]
    found = [path / 'held_out' for path in (candidate.directory / _PARTS, *later)]
    return [path for path in found if path.exists() or path.parent.name == _PARTS]


def _reason(begun: Round) -> str:
    """Returns what the history of states says of a promotion: so a killed program's is known, and made once."""
    return f'round {begun.number} of {begun.directory.parent}'
