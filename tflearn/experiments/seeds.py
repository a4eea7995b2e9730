"""One run for each seed, several at the same time. Loads no TensorFlow."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import TextIO

from tflearn.experiments import runs


@dataclasses.dataclass(frozen=True)
class Seeds:
    """Runs of one gin file that differ in their seed only.

    Attributes:
      root_dir: a folder; the run of seed 3 is in `seed_3` below it, and what it prints in `seed_3.log`.
      gin_file: a path, or the name of a packaged gin file.
      numbers: the seeds.
      parallel: how many runs at the same time.
      gin_bindings: gin statements that come after the gin file.
      mode: 'processes' or 'synchronous'; see `tflearn.train`.
    """

    root_dir: pathlib.Path
    gin_file: str
    numbers: Sequence[int]
    parallel: int = 1
    gin_bindings: Sequence[str] = ()
    mode: runs.Mode = 'processes'

    def run(self, out: TextIO) -> dict[int, int]:
        """Runs what is missing of each seed's run. Call it from the main thread: it handles signals, see `runs.Runs`.

        The same call continues what was stopped.

        Args:
          out: gets the lines of `runs.Runs`.

        Returns:
          Seed -> the exit code of its run: 0 if it has reached its end, 130 if it was stopped or not started.

        Raises:
          ValueError: if the gin file or a binding is wrong, or another process works in the folder.
        """
        runs.check(self.gin_file, [*runs.seed_bindings(0), *self.gin_bindings])
        codes, waiting = dict.fromkeys(self.numbers, runs.INTERRUPTED), list(self.numbers)
        with runs.Runs(self.root_dir, self.mode, out) as its:
            while its.running or (waiting and not its.stopping):
                while waiting and len(its.running) < self.parallel and not its.stopping:
                    seed = waiting.pop(0)
                    its.start(f'seed_{seed}', self.gin_file, [*runs.seed_bindings(seed), *self.gin_bindings])
                for name, code in its.ended(f'{len(waiting)} to come' if waiting else ''):
                    codes[int(name.removeprefix('seed_'))] = code
                    its.say(name, its.ending(name, code))
        return codes
