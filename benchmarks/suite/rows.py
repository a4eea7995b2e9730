"""The suite's rows: which algorithm learns which task for how long, and what it is compared with.

A row is data, the first line of the file of its results: {"row": {"algorithm": ..., "environment": ..., ...}} with the
fields of `Row`, whose `peers` are sides with the names of their classes. A new file with this line is a new row, and
budget.json has its hours.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.suite import zoo

EPISODES = 20  # of one evaluation, which acts by the mode
MARKS = 10  # evaluations of a run, after the one of the untrained policy
OURS = 'tflearn'
SEEDS = 5  # fresh ones of each side, from which on a row counts
# Sides are equal if they differ by less than this share of what the peer has learned: its median score less that of
# the untrained policy.
BAND = 0.05


@dataclasses.dataclass(frozen=True)
class Peer:
    """A run of another library, at RL Zoo's settings.

    Attributes:
      algorithm: the class's name in that library.
      zoo: the zoo's file of hyperparameters, in its folder hyperparams/.
      settings: of that file, as `zoo.SETTINGS` has them.
    """

    algorithm: str
    zoo: str
    settings: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Row:
    """An algorithm in an environment.

    Attributes:
      algorithm: its name.
      environment: gymnasium's name of the task.
      gin_file: the packaged gin file.
      train_steps: of our run.
      env_steps: environment steps of the peers' runs: what ours takes for `train_steps`.
      bindings: gin statements after those of the file.
      mode: see `tflearn.train`; 'synchronous' takes one process, for algorithms that draw uniformly.
      peers: 'SB3' or 'SBX' -> what is compared.
      published: a published return and its source, or the task's best possible or its reference's.
      minutes: an estimate of a seed's on two cores, of the slowest side.
      episodes: of one evaluation.
      fresh_seed: the first seed that chose no setting; those below are for tuning.
      remark: what to know of a figure, or, where the row is below a peer, why and what was tried.
    """

    algorithm: str
    environment: str
    gin_file: str
    train_steps: int
    env_steps: int
    bindings: Sequence[str] = ()
    mode: str = 'processes'
    peers: Mapping[str, Peer] = dataclasses.field(default_factory=dict)
    published: tuple[float, str] | None = None
    minutes: float = 5.0
    episodes: int = EPISODES
    fresh_seed: int = 11
    remark: str = ''

    def settings(self, side: str) -> dict[str, Any]:
        """Returns all that decides a run but its seed, as JSON. A result counts only for equal settings."""
        marks = {'episodes': self.episodes, 'marks': MARKS}
        if side != OURS:
            peer = self.peers[side]
            fixed = {'algorithm': peer.algorithm, 'environment': self.environment, 'env_steps': self.env_steps}
            return {**fixed, **marks, 'settings': dict(peer.settings)}
        bindings = [f'train.StopConditions.num_train_steps={self.train_steps}', *self.bindings]
        return {'gin_file': self.gin_file, 'bindings': bindings, 'mode': self.mode, **marks}


def _read(path: pathlib.Path) -> Row | None:
    """Returns the row of a file of results, None if it has none; see `results`."""
    with path.open(encoding='utf-8') as file:
        made = json.loads(file.readline()).get('row')
    if made is None:
        return None
    for side, algorithm in made.get('peers', {}).items():
        settings = zoo.SETTINGS[f'{algorithm} {made["environment"]}']
        made['peers'][side] = Peer(algorithm, f'{algorithm.lower()}.yml', settings)
    published = made.pop('published', None)
    return Row(**made, published=published and tuple(published))


RESULTS = pathlib.Path(__file__).resolve().parents[1] / 'results'
_FOUND = {path.stem: row for path in RESULTS.glob('*.jsonl') if (row := _read(path))}
# Row -> hours for the fresh seeds of all its sides, in the order in which they are run.
BUDGET: dict[str, float] = json.loads(pathlib.Path(__file__).with_name('budget.json').read_text(encoding='utf-8'))
ROWS: dict[str, Row] = dict(sorted(_FOUND.items(), key=lambda each: (each[1].environment, each[0])))
