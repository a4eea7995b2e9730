"""Makes a full model of one train step, a TFLite model (floats or int8), or a model for products, from a run's exports.

To make a full model from a weights-only update, train needs ExportOptions.update_interval_steps. The ranges of int8 are
fitted to observations from the replay's newest checkpoint, or from --observations: a directory of tflearn-data, or an
npz file with arrays [N, ...] by the names of the inputs.
"""

import threading
from typing import Any

from absl import flags

from tflearn.core import waiting
from tflearn.files.run_dir import display_text, local_path

from . import job_flags, job_setup, preflight

_PRODUCT = ('names', 'time_step', 'parameters')


def define() -> None:
    """Defines the flags of this job."""
    flags.DEFINE_string('policy', 'greedy_policy', 'Name of the exported policy.')
    flags.DEFINE_integer(
        'train_step', None, 'Train step of the version or the weights; the best version by default.', 0
    )
    flags.DEFINE_string('output', None, 'Where to write: a new directory, or a file for TFLite; in the run by default.')
    flags.DEFINE_integer('batch_size', None, 'For compilers: the only batch size of the model at --output.', 1)
    flags.DEFINE_enum('tflite', None, ['float32', 'int8'], 'Converts to TFLite instead of writing a full model.')
    flags.DEFINE_bool('product', False, 'Makes a model for products, as --product_... describe.')
    flags.DEFINE_list('product_names', [], 'Names of inputs and outputs: action=inlining_decision,...')
    flags.DEFINE_bool('product_time_step', False, 'Whether step_type, reward and discount are inputs too.')
    flags.DEFINE_bool('product_parameters', False, "Whether the distribution's parameters are outputs too.")
    flags.DEFINE_string('observations', None, 'For TFLite: recorded episodes, or an npz file.')
    flags.DEFINE_integer('num_observations', 2000, 'The maximum number of observations for TFLite.', 1)


def check() -> None:
    """Checks the paths, without TensorFlow. Raises ValueError if one is a URL."""
    for flag in ('output', 'observations'):
        path: Any = flags.FLAGS[flag].value
        if path:
            local_path(path, f'--{flag}')


def run(stop: threading.Event) -> None:
    """Runs the job with the flags of this program, and prints where the model is."""
    with waiting.may_exit(stop, lambda: None):  # nothing was begun
        preflight.import_quietly('tensorflow', 'gym')
        from tflearn.jobs import export  # After the flags are parsed: it loads TensorFlow.

    names = ('policy', 'train_step', 'output', 'batch_size', 'tflite', 'observations', 'num_observations')
    arguments: dict[str, Any] = {name: flags.FLAGS[name].value for name in names}
    if flags.FLAGS.product:
        given: dict[str, Any] = {name: flags.FLAGS[f'product_{name}'].value for name in _PRODUCT}
        arguments['product'] = export.product_options(arguments.pop('batch_size'), **given)
    with job_flags.opened_run_dir(flags.FLAGS.root_dir, 'export_tflite' if flags.FLAGS.tflite else 'export') as run_dir:
        print(display_text(str(export.export(run_dir=run_dir, **arguments))))


def main() -> None:
    """Runs the program; see `job_setup.plain_main`."""
    job_setup.plain_main('export', __doc__, run, define, '--train_step=4000', check)


if __name__ == '__main__':
    main()
