"""tflearn: a learner system for TensorFlow agents, fed by datasets.
Installed by the distribution tflearn-agents.

The public names are those of `__init__.pyi`. They are loaded on first use: `import tflearn` loads
no TensorFlow.
"""

import ast
import itertools
import os
import pathlib
import sys
import warnings
from importlib import metadata, util
from typing import Any

from tflearn.core.errors import UserImportError
from tflearn.core.extensions import imported

__version__ = '0.1.0'
# Name -> its module, and its name there.
_HOMES = {
    alias.asname or alias.name: (node.module, alias.name)
    for node in ast.parse(pathlib.Path(__file__).with_suffix('.pyi').read_text(encoding='utf-8')).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
__all__ = sorted(_HOMES)
# Whether a name was loaded, and TensorFlow has printed what it prints at its first use.
_is_used = False


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f'module tflearn has no attribute {name!r}; it has {", ".join(__all__)}')
    global _is_used
    module, attribute = _HOMES[name]
    if _is_used:
        return getattr(imported(module), attribute)
    _is_used = True
    from tflearn.core import preflight  # which imports this package

    with preflight.quiet_imports():
        return getattr(imported(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _warn_of_namesake() -> None:
    """Warns if the other distribution that is imported as `tflearn` is installed too:
    both write to one folder.
    """
    try:
        other = metadata.distribution('tflearn')
    except metadata.PackageNotFoundError:
        return
    here, there = pathlib.Path(__file__).parent, pathlib.Path(str(other.locate_file(''))).resolve()
    warnings.warn(
        f'got two distributions that are imported as tflearn: tflearn-agents, which was imported (from {here}), and '
        f'tflearn {other.version} (in {there}); need only one; run `pip uninstall tflearn`, then install '
        'tflearn-agents again',
        stacklevel=3,  # where it is imported
    )


def _use_keras_2() -> None:
    """Makes `tf.keras` Keras 2, as TF-Agents needs:
    TensorFlow 2.16 and later read this variable when imported.

    Raises:
      ImportError: if it is Keras 3 already, or shall be.
    """
    wanted = os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')
    tensorflow = sys.modules.get('tensorflow')
    is_late = tensorflow is not None and tensorflow.keras.layers.Dense.__module__.startswith('keras.')
    if is_late or wanted not in ('1', 'true', 'True'):
        raise UserImportError(
            'got Keras 3 as tf.keras; need Keras 2 (the package tf-keras): set the environment variable '
            'TF_USE_LEGACY_KERAS=1, or import tflearn before tensorflow and tf_agents ("# isort: split" keeps it there)'
        )


def _use_no_tpu_metadata(root: pathlib.Path = pathlib.Path('/')) -> None:
    """Makes TensorFlow for TPUs ask no metadata server where there is no TPU:
    its import would wait for minutes.

    libtpu reads this variable when it is loaded. A TPU is a PCI device of Google, which a container
    may only see as a device file.

    Args:
      root: of the file system.
    """
    vendors = (file.read_text().strip() for file in root.glob('sys/bus/pci/devices/*/vendor'))
    devices = itertools.chain(root.glob('dev/accel*'), root.glob('dev/vfio/*'))
    if util.find_spec('libtpu') and '0x1ae0' not in vendors and not any(devices):
        os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')


_warn_of_namesake()
_use_no_tpu_metadata()
if sys.version_info >= (3, 12):  # where TensorFlow is 2.21
    _use_keras_2()
