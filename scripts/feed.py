"""Feeds learners that cannot use Reverb: reads the replay servers for them, and sends batches by tf.data service.

One process is the dispatcher, at --feed_address; each other process is a worker, with its own --worker number. The
train job gets the same --feed_address.
"""

from collections.abc import Sequence

from absl import flags

from . import job_flags, job_setup


def define_flags() -> None:
    """Defines the flags of this job."""
    job_flags.define_feed()
    flags.DEFINE_integer(
        'worker', None, 'Index of this worker, from 0; by default this is the dispatcher.', lower_bound=0
    )
    flags.DEFINE_string('host', None, 'The host name that learners use for this machine; by default its own.')
    flags.DEFINE_integer('port', 0, 'The port of tf.data service; 0 picks a free one.', 0, 65535)


def bindings() -> Sequence[str]:
    """Returns the gin statements that the flags of this job stand for; raises ValueError for a wrong one."""
    values = flags.FLAGS
    given = {'feed_address': job_flags.feed_address(), 'index': values.worker, 'host': values.host, 'port': values.port}
    return [f'tflearn.jobs.feed.feed.{name} = {value!r}' for name, value in given.items()]


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main('feed', __doc__, define_flags=define_flags, bindings=bindings, shared=job_flags.shared_with_server)


if __name__ == '__main__':
    main()
