"""The model card of an exported version: a README.md whose head is data,
as the Hugging Face Hub reads it.
"""

import json
import pathlib
import re
import shutil
from typing import Any

from tflearn.files import messages, numbered
from tflearn.files.run_dir import RunDir, read_json, write_atomically

_METADATA = 'metadata.json'
_LARGE = ''.join(f'{files} filter=lfs diff=lfs merge=lfs -text\n' for files in ('*.pb', 'variables/*'))
CARD = 'README.md'

# Where a run's configuration names what it has: make_agent = @dqn.make_agent,
# gymnasium_env.make.name = 'CartPole-v1'.
_ALGORITHM = re.compile(r'^make_agent = @(?:\w+\.)*(\w+)\.\w+$', re.M)
_ENVIRONMENT = re.compile(r"^\w+\.make\.name = '([^']+)'$", re.M)
_FACTS = ('train_step', 'env_steps', 'mean_return', 'config_hash', 'code_revision')
_SPECS = ('observation', 'action', 'policy_state')
_VERSIONS = ('tflearn_version', 'tensorflow_version')


def write(version: pathlib.Path) -> None:
    """Writes the card of a version in a run directory, or of one that is being written there."""
    write_atomically(version / CARD, _text_of(version).encode())


def save_repository(version: pathlib.Path, copy: pathlib.Path, output: pathlib.Path) -> None:
    """Writes a version as a repository of the Hugging Face Hub, atomically; it uploads nothing.

    Args:
      version: the version's path in its run directory, where the configuration is.
      copy: a checked copy of it.
      output: the folder's path.

    Raises:
      ValueError: if `output` exists.
    """
    with numbered.new(output) as written:
        shutil.copytree(copy, written, dirs_exist_ok=True)
        shutil.copyfile(copy / _METADATA, written / 'config.json')  # the Hub counts who reads it
        (written / CARD).write_text(_text_of(version), encoding='utf-8')
        (written / '.gitattributes').write_text(_LARGE)
        if config := _configuration(version):
            RunDir(written).config.write_text(config, encoding='utf-8')


def _text_of(version: pathlib.Path) -> str:
    return text(read_json(version / _METADATA, messages.Metadata) or {}, _configuration(version))


def _configuration(version: pathlib.Path) -> str:
    """Returns the run's configuration, which names its data and settings;
    '' if there is none in a file, or no run.
    """
    try:
        run_dir = RunDir(version.parents[2])
        return run_dir.config.read_text(encoding='utf-8') if version.parents[1].name == run_dir.policies.name else ''
    except (OSError, IndexError):
        return ''


def text(metadata: dict[str, Any], config: str) -> str:
    """Returns the card.

    Args:
      metadata: the version's metadata.
      config: the run's configuration.
    """
    algorithm, environment = (
        found[1] if found else '' for found in (p.search(config) for p in (_ALGORITHM, _ENVIRONMENT))
    )
    name = ' on '.join(filter(None, (algorithm, environment))) or 'policy'
    evaluation = metadata.get('evaluation')
    tags = ['reinforcement-learning', 'tensorflow', *filter(None, (algorithm, environment))]
    head: dict[str, Any] = {'library_name': 'tflearn', 'pipeline_tag': 'reinforcement-learning', 'tags': tags}
    if evaluation:
        metric = {
            'type': 'mean_reward',
            'name': 'mean_reward',
            'value': evaluation.get('mean_return'),
            'verified': False,
        }
        kind = {'type': 'reinforcement-learning', 'name': 'reinforcement-learning'}
        data = {'type': environment or 'environment', 'name': environment or 'environment'}
        head['model-index'] = [{'name': name, 'results': [{'task': kind, 'dataset': data, 'metrics': [metric]}]}]
    specs = metadata.get('specs', {})
    sections = {
        '': f'A policy trained with tflearn, a SavedModel of train step {metadata.get("train_step")}.',
        'Evaluation': _evaluation(evaluation),
        'Observation and action': _json({key: specs.get(key) for key in _SPECS}),
        'Training': _table({key: metadata.get(key) for key in (*_FACTS, *_VERSIONS)}),
        'Data and settings': f'```text\n{config.strip()}\n```' if config else 'There is no configuration file.',
        'Load it': _LOAD,
    }
    body = ''.join(f'## {title}\n\n{content}\n\n' if title else f'{content}\n\n' for title, content in sections.items())
    # JSON is YAML, too.
    lines = '\n'.join(f'{key}: {json.dumps(value)}' for key, value in head.items())
    return f'---\n{lines}\n---\n\n# {name}\n\n{body}'.rstrip() + '\n'


_LOAD = """It needs TensorFlow alone. The inputs are a batch of the environment's own observations, each part a tensor
of the dtype that this prints, which need not be the environment's:

```python
import tensorflow as tf

policy = tf.saved_model.load('.')
print(policy.signatures['serving_default'].structured_input_signature[1])
```"""


def _evaluation(evaluation: dict[str, Any] | None) -> str:
    if not evaluation:
        return 'It was not evaluated, or is not the best version.'
    low, high = evaluation.get('mean_return_interval') or (None, None)
    return _table(
        {
            'mean return': evaluation.get('mean_return'),
            '95% interval': f'{low} to {high}',
            'episodes': evaluation.get('num_episodes'),
            'mean length': evaluation.get('mean_length'),
            **evaluation.get('metrics', {}),
        }
    )


def _table(rows: dict[str, Any]) -> str:
    return '\n'.join(
        ['| | |', '|---|---|', *(f'| {key} | {value} |' for key, value in rows.items() if value is not None)]
    )


def _json(value: Any) -> str:
    return f'```json\n{json.dumps(value, indent=2)}\n```'
