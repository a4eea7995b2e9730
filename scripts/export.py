"""Makes a full model of one train step, an ONNX or TFLite model, or a model for products, from a run's exports.

To make a full model from a weights-only update, train needs ExportOptions.update_interval_steps. The ranges of
tflite_int8 are fitted to observations from the replay's newest checkpoint, or from --observations: a directory of
tflearn-data, or an npz file with arrays [N, ...] by the names of the inputs.
"""

import threading
from typing import Any

from absl import flags

from tflearn.core import extras, waiting
from tflearn.files.run_dir import display_text, local_path

from . import job_flags, job_setup, preflight

_EXPORT = ('policy', 'train_step', 'output', 'batch_size', 'format', 'signature', 'observations', 'hub')


def define() -> None:
    """Defines the flags of this job."""
    flags.DEFINE_string('policy', 'greedy_policy', 'Name of the exported policy.')
    flags.DEFINE_integer('train_step', None, 'Train step of the version or weights; None takes the best version.', 0)
    flags.DEFINE_string('output', None, 'Where to write: a new directory, or a file of --format; in the run if none.')
    flags.DEFINE_integer('batch_size', None, 'For compilers: the only batch size of the model at --output.', 1)
    flags.DEFINE_enum('format', None, ['onnx', 'tflite', 'tflite_int8'], 'The format, if it is not to be a SavedModel.')
    flags.DEFINE_string('signature', 'serving_default', 'For --format: the function, such as action or distribution.')
    flags.DEFINE_bool('product', False, 'Makes a model for products, as --product_... describe.')
    flags.DEFINE_list('product_names', [], 'Names of inputs and outputs: action=inlining_decision,...')
    flags.DEFINE_bool('product_time_step', False, 'Whether step_type, reward and discount are inputs too.')
    flags.DEFINE_bool('product_parameters', False, "Whether the distribution's parameters are outputs too.")
    flags.DEFINE_string('hub', None, 'Writes a repository of the Hugging Face Hub to this new directory.')
    flags.DEFINE_string('observations', None, 'For --format: recorded episodes, or an npz file.')
    flags.DEFINE_integer('num_observations', 2000, 'The maximum number of observations for --format.', 1)


def check() -> None:
    """Checks paths and packages, without TensorFlow. Raises ValueError if a path is a URL, ImportError without one."""
    extras.check_installed(flags.FLAGS.format, f'--format={flags.FLAGS.format}')
    for flag in ('output', 'observations', 'hub'):
        if path := flags.FLAGS[flag].value:
            local_path(str(path), f'--{flag}')


def run(stop: threading.Event) -> None:
    """Runs the job with the flags of this program, and prints where the model is."""
    with waiting.may_exit(stop, lambda: None):  # nothing was begun
        preflight.import_quietly('tensorflow', 'gym')
        from tflearn.jobs import export  # After the flags are parsed: it loads TensorFlow.

    arguments: dict[str, Any] = {name: flags.FLAGS[name].value for name in (*_EXPORT, 'num_observations')}
    if flags.FLAGS.product:
        given = (flags.FLAGS.product_names, flags.FLAGS.product_time_step, flags.FLAGS.product_parameters)
        arguments['product'] = export.product_options(arguments.pop('batch_size'), *given)
    role = 'export_int8' if flags.FLAGS.format == 'tflite_int8' else 'export'
    with job_flags.opened_run_dir(flags.FLAGS.root_dir, role) as run_dir:
        print(display_text(str(export.export(run_dir=run_dir, **arguments))))


def main() -> None:
    """Runs the program; see `job_setup.plain_main`."""
    job_setup.plain_main('export', __doc__, run, define, '--train_step=4000', check)


if __name__ == '__main__':
    main()
