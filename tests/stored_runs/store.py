"""Small runs of an earlier commit: what is in a run directory is read by later ones, or refused in one line.

`python -m tests.stored_runs.store` makes `<name>.tar.xz` of each run, without its logs, summaries and pictures. Those
here were made at dabe263. They are made again only when a format changes on purpose; CHANGELOG.md then names what is
refused.
"""

import dataclasses
import pathlib
import re
import shutil
import tempfile

from tests.end_to_end.programs import Program
from tflearn.files.run_dir import RunDir

FOLDER = pathlib.Path(__file__).parent
NUM_TRAIN_STEPS = 20
_COMMON = {
    'train.Intervals.steps_per_call': 10,
    'train.SummaryOptions.interval_steps': None,
    'evaluate.num_episodes': 1,
    'evaluate.target_return': None,
}
_DQN = {
    'NetworkOptions.fc_layer_params': (4,),
    'train.Intervals.publish_interval_steps': 10,
    'train.Intervals.export_interval_steps': 20,
    'BatchItems.per_replica': 8,
}
_TABLE = {'min_size': 20, 'max_size': 200, 'samples_per_insert': 8.0}
_PPO = {
    'NetworkOptions.fc_layer_params': (4,),
    'train.Intervals.steps_per_call': 1,
    'train.Intervals.export_interval_steps': 20,
    'collect.num_environments': 2,
    'Slicing.sequence_length': 9,
    'Slicing.stride': 8,
    'BatchItems.per_replica': 2,
    'Queue.max_size': 4,
    'replay_server.checkpoint_interval_secs': 1.0,
    'Iteration.num_epochs': 1,
    'Iteration.minibatch_steps': 8,
}


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """How a run was made.

    Attributes:
      program: its command, without `tflearn-`.
      gin_file: its configuration.
      bindings: its `--gin_bindings`.
    """

    program: str
    gin_file: str
    bindings: dict[str, object]

    def flags(self, num_train_steps: int) -> list[str]:
        """The command's flags in the folder of the run directory."""
        bindings = {**_COMMON, **self.bindings, 'train.StopConditions.num_train_steps': num_train_steps}
        given = [f'--gin_bindings={name}={value!r}' for name, value in bindings.items()]
        return ['--root_dir=run', f'--gin_file={self.gin_file}', *given]


RUNS = {
    'synchronous': StoredRun(
        'synchronous', 'dqn_cartpole',
        {**_DQN, 'synchronous.num_environments': 1, **{f'Uniform.{name}': value for name, value in _TABLE.items()}},
    ),
    'uniform': StoredRun(
        'launch', 'dqn_cartpole', {**_DQN, **{f'Uniform.{name}': value for name, value in _TABLE.items()}}
    ),
    'prioritized': StoredRun(
        'launch', 'dqn_cartpole_prioritized',
        {
            **_DQN,
            **{f'Prioritized.{name}': value for name, value in _TABLE.items()},
            'Prioritized.sampling': 'server',  # the default at that commit
        },
    ),
    'queue': StoredRun('launch', 'ppo_cartpole', _PPO),
}  # fmt: skip


def unpack(name: str, folder: pathlib.Path) -> RunDir:
    """Writes a stored run below the folder."""
    shutil.unpack_archive(FOLDER / f'{name}.tar.xz', folder, filter='data')
    return RunDir(folder / 'run')


def _make(name: str, run: StoredRun, folder: pathlib.Path) -> None:
    with Program(run.program, *run.flags(NUM_TRAIN_STEPS), folder=folder) as program:
        assert program.end() == 0, program.output
    for path in [*folder.glob('run/owners/*.json'), *folder.glob('run/status/*.json')]:
        path.write_text(re.sub(r'("(?:host|machine)": )"[^"]*"', r'\1"another"', path.read_text()))
    for path in folder.glob('run/*'):
        if path.name in ('logs', 'summaries'):
            shutil.rmtree(path)
        elif path.name in ('commands.txt', 'learning_curve.png'):
            path.unlink()
    shutil.make_archive(str(FOLDER / name), 'xztar', folder, 'run')


if __name__ == '__main__':
    for run_name in RUNS:
        with tempfile.TemporaryDirectory() as temporary:
            _make(run_name, RUNS[run_name], pathlib.Path(temporary))
