"""The configuration with which TensorFlow Serving serves the same directory in the same way."""

import json
import pathlib
from collections.abc import Sequence


def models(root: pathlib.Path, names: Sequence[str], pinned: Sequence[int] = ()) -> str:
    """Returns TensorFlow Serving's --model_config_file.

    Args:
      root: the directory with a directory for each policy.
      pinned: the versions to serve; none serves the newest one of each policy.
    """
    policy = ''.join(f' versions: {version}' for version in pinned)
    which = f'    model_version_policy {{ specific {{{policy} }} }}\n' if pinned else ''
    configs = [
        f'  config {{\n    name: {json.dumps(name)}\n    base_path: {json.dumps(str(root / name))}\n'
        f'    model_platform: "tensorflow"\n{which}  }}\n'
        for name in names
    ]
    return f'model_config_list {{\n{"".join(configs)}}}\n'
