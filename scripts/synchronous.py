"""Collects and trains alternately in one process, for debugging and for results that can be repeated bit by bit.

Takes the gin file of the other jobs, and from it what is bound for train and for collect. No other job need run; it
writes to --root_dir what train writes there, so evaluate works with it.
"""

import inspect

from tflearn.config import job_config, saved

from . import job_setup


def run(setup: job_setup.Setup) -> None:
    """Configures and runs the job; keeps its configuration with the results."""
    from tflearn.jobs import collect, synchronous, train

    both = (
        inspect.signature(synchronous.synchronous).parameters.keys() & inspect.signature(train.train).parameters.keys()
    )
    configured: job_config.ConfiguredJob = setup.configure(
        synchronous.synchronous,
        takes={
            **{name: (train.train, name) for name in both},
            'learner_options': (train.train, 'options'),
            'num_environments': (collect.collect, 'num_environments'),
            'max_collect_steps': (collect.collect, 'max_env_steps'),
            'collect_seed': (collect.collect, 'seed'),
            'collect_options': (collect.collect, 'options'),
        },
        on_restored=lambda: saved.save(setup.run_dir, configured.text),
        describe=lambda: setup.describe(configured),
        run_dir=setup.run_dir,
        stop=setup.stop,
    )
    setup.run(configured)


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main('synchronous', __doc__, run)


if __name__ == '__main__':
    main()
