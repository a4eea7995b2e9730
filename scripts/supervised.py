"""Fits a Keras model to labelled examples: from files .npz, or from a function; validates it, and exports it.

The gin file binds the arguments of tflearn.jobs.supervised.supervised. It writes checkpoints and summaries to
--root_dir, and the model to models/<train step> there.
"""

from . import job_setup


def main(program: str) -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main('supervised', __doc__, program=program, module='supervised')
