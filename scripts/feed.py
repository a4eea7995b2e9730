"""Feeds learners that cannot use Reverb: reads the replay servers for them, and sends batches by tf.data service.

One process is the dispatcher, at --feed_address; each other process is a worker, with its own --worker number. The
train job gets the same --feed_address.
"""

from collections.abc import Sequence

from . import job_flags, job_setup


def bindings() -> Sequence[str]:
    """Returns the gin statements that the flags of this job stand for; raises ValueError for a wrong one."""
    job_flags.feed_address()
    return job_flags.statements('feed.feed', 'feed_address', 'host', 'port', index='worker')


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    groups = ('feed_address', 'feed')
    job_setup.main('feed', __doc__, groups=groups, bindings=bindings, shared=job_flags.shared_with_server)


if __name__ == '__main__':
    main()
