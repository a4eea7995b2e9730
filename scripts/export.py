"""Makes a full model of one train step, an ONNX or TFLite model, or a model for products, from a run's exports.

To make a full model from a weights-only update, train needs ExportOptions.update_interval_steps. The ranges of
tflite_int8 are fitted to observations from the replay's newest checkpoint, or from --observations: a directory of
tflearn data, or an npz file with arrays [N, ...] by the names of the inputs.
"""

import threading

from absl import flags

from tflearn.core import extras, preflight, waiting
from tflearn.core.verbs import values_of
from tflearn.files.run_dir import display_text, opened_run_dir

from . import job_flags, job_setup


def check() -> None:
    """Checks paths and packages, without TensorFlow. Raises ValueError if a path is a URL, ImportError without one."""
    extras.check_installed(flags.FLAGS.format, f'--format={flags.FLAGS.format}')
    job_flags.make_local('output', 'observations')


def run(stop: threading.Event) -> None:
    """Runs the job with the flags of this program, and prints where the model is."""
    with waiting.may_exit(stop, lambda: None):  # nothing was begun
        preflight.import_quietly('tensorflow', 'gym')
        from tflearn.jobs import export  # After the flags are parsed: it loads TensorFlow.

    names = ('policy', 'train_step', 'output', 'batch_size', 'format', 'signature')
    arguments = values_of(flags.FLAGS, *names, 'observations', 'num_observations')
    if flags.FLAGS.product:
        given = (flags.FLAGS.product_names, flags.FLAGS.product_time_step, flags.FLAGS.product_parameters)
        arguments['product'] = export.product_options(arguments.pop('batch_size'), *given)
    role = 'export_int8' if flags.FLAGS.format == 'tflite_int8' else 'export'
    with opened_run_dir(flags.FLAGS.root_dir, role) as run_dir:
        print(display_text(str(export.export(run_dir=run_dir, **arguments))))


def main(program: str) -> None:
    """Runs the program; see `job_setup.plain_main`."""
    job_setup.plain_main(program, __doc__, run, '--train_step=4000', check, ('export',))
