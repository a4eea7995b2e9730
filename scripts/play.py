"""Shows a policy in a window, records it as videos, or lets a person play by the keyboard.

tflearn play --root_dir=RUN                    the best policy of a run, in a window
tflearn play --root_dir=RUN --video=DIR        the same as videos (extra: video)
tflearn play --root_dir=RUN --gin_file=... --keys=left=0,right=1 --output=data/mine    a person; recorded

Closing the window, or Escape, ends it. Recorded episodes are demonstrations, as those of tflearn data record.
"""

from collections.abc import Sequence

from . import job_flags, job_setup


def main(program: str) -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main(
        'play', __doc__, groups=('policy', 'play'), bindings=_bindings, module='record', program=program,
        shared=lambda: {'make_environment': 'evaluate.make_environment'},
    )  # fmt: skip


def _bindings() -> Sequence[str]:
    job_flags.make_local('video', 'output')
    names = ('policy', 'train_step', 'keys', 'idle', 'fps', 'video', 'output', 'seed')
    return ['import tflearn.jobs.record', *job_flags.statements('record.play', *names, num_episodes='episodes')]
