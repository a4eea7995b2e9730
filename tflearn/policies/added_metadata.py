"""What becomes known of a version of a policy after its export, such as its evaluation."""

import json
import os
import pathlib
from typing import Any

from tflearn.files import messages, numbered, temporary
from tflearn.files.run_dir import read_json
from tflearn.policies import versions


def add(version: pathlib.Path, **facts: Any) -> bool:
    """Adds JSON values to the metadata of a version. Returns False if it does not exist any more."""
    written = temporary.temporary(version / versions.METADATA)
    try:
        written.write_text(
            json.dumps({**(read_json(version / versions.METADATA, messages.Metadata) or {}), **facts}, indent=2) + '\n'
        )
        numbered.sync(written)
        os.replace(written, version / versions.METADATA)
    except FileNotFoundError:
        return False
    return True
