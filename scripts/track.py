"""Gives what a run records to a tracker: tflearn-track RUN --to=wandb:PROJECT.

RUN is the --root_dir of a run on this machine, which may go on: it is followed until it has ended. Each point is given
once, also if the program is stopped and started again. It loads no TensorFlow, so it may run in an environment of its
own.

--to is jsonl[:FILE], hparams, mlflow[:URI], wandb[:PROJECT], aim[:REPOSITORY], or FILE.py:FUNCTION, a function of yours
that gets each event.
"""

from absl import flags

from tflearn.files.run_dir import RunDir

from . import job_flags


def main() -> None:
    """Runs the program."""
    job_flags.tool('tflearn-track', __doc__, _run, ('track',), required=('to',), arguments='RUN')


def _run(switches: flags.FlagValues, root: str) -> int:
    from tflearn.extensions.experiments import trackers

    run_dir = RunDir(root)
    name, make = trackers.make(run_dir, switches.to)
    count = trackers.follow(run_dir, name, make, switches.poll_secs, switches.once)
    print(f'gave {count} events of {run_dir.root} to {switches.to}')
    return 0


if __name__ == '__main__':
    main()
