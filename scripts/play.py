"""Shows a policy in a window, records it as videos, or lets a person play by the keyboard.

tflearn-play --root_dir=RUN --gin_file=RUN/config.gin                    the best policy of a run, in a window
tflearn-play --root_dir=RUN --gin_file=RUN/config.gin --video=DIR        the same as videos (extra: video)
tflearn-play --root_dir=RUN --gin_file=... --keys=left=0,right=1 --output=data/mine    a person; recorded

Closing the window, or Escape, ends it. Recorded episodes are demonstrations, as those of tflearn-data record.
"""

from collections.abc import Sequence
from typing import Any

from absl import flags

from tflearn.files.run_dir import local_path

from . import data_flags, job_flags, job_setup


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main(
        'play', __doc__, define_flags=_define, bindings=_bindings, module='record',
        shared=lambda: {'make_environment': 'evaluate.make_environment'},
    )  # fmt: skip


def _define() -> None:
    data_flags.define_policy()
    flags.FLAGS['policy'].default = 'best'
    flags.DEFINE_integer('episodes', 1, 'Episodes; of recorded ones all that --output is to hold.', lower_bound=1)
    flags.DEFINE_string('keys', None, "A person acts: keys=actions; '' are the keys that the environment names.")
    job_flags.define_number('idle', 0.0, 'The action of a person while no key is pressed.')
    job_flags.define_number('fps', None, 'Frames per second in the window; default: as the environment names.', 0.1)
    flags.DEFINE_string('video', None, 'A directory for videos, instead of the window.')
    flags.DEFINE_string('output', None, 'A directory for the episodes; without it none are recorded.')
    flags.DEFINE_integer('seed', 0, 'Seed of the environment.')


def _bindings() -> Sequence[str]:
    values: dict[str, Any] = {name: flags.FLAGS[name].value for name in _FLAGS}
    values['num_episodes'] = values.pop('episodes')
    for name in ('video', 'output'):
        if values[name]:
            values[name] = str(local_path(values[name], f'--{name}'))
    lines = (f'tflearn.jobs.record.play.{name} = {each!r}' for name, each in values.items())
    return ['import tflearn.jobs.record', *lines]


_FLAGS = ('policy', 'train_step', 'episodes', 'keys', 'idle', 'fps', 'video', 'output', 'seed')


if __name__ == '__main__':
    main()
