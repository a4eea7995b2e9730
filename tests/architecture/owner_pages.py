"""Writes what has the owner's name or address, from owner.toml: `python -m tests.architecture.owner_pages`."""

import json
import pathlib
import tomllib

import tflearn

ROOT = pathlib.Path(__file__).resolve().parents[2]

_CITATION = """\
# By `python -m tests.architecture.owner_pages`, from owner.toml.
cff-version: 1.2.0
message: If you use this software, please cite it as below.
type: software
title: tflearn-agents
abstract: A learner system for TensorFlow agents, fed by datasets.
version: {version}
license: Apache-2.0
repository-code: {repository}
authors:
  - name: {author}
"""

_SECURITY = """\
# Reports of vulnerabilities

Report a vulnerability to {security_contact}, not in a public issue.
Say which version (`tflearn-train --version`), which job, and which port or file is reached by whom.

| version | gets fixes |
|---|---|
| the newest release | yes, on both [lanes](docs/support-horizon.md) |
| earlier ones | no |

TensorFlow 2.15, on which the classic lane stands, gets no fixes of its own any more:
[what is known of it, and what reaches you](docs/security.md#known-vulnerabilities-of-tensorflow-215).
What the jobs protect, and what the network has to: [docs/security.md](docs/security.md).
"""


def pages(root: pathlib.Path = ROOT) -> dict[str, str]:
    """Returns the files' texts by their names."""
    owner = tomllib.loads((root / 'owner.toml').read_text(encoding='utf-8')) | {'version': tflearn.__version__}
    quoted = {name: json.dumps(value, ensure_ascii=False) for name, value in owner.items()}
    return {'CITATION.cff': _CITATION.format(**quoted), 'SECURITY.md': _SECURITY.format(**owner)}


def main() -> None:
    """Writes the files of this checkout."""
    for name, text in pages().items():
        (ROOT / name).write_text(text, encoding='utf-8')


if __name__ == '__main__':
    main()
