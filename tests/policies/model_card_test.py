"""Model cards: written beside each version, completed by an evaluation, and the head of a repository of the Hub."""

import numpy as np
import pytest
import tensorflow as tf
import yaml

from tests.testing import example_policies, forks
from tflearn.files import digests
from tflearn.files.run_dir import RunDir, read_json
from tflearn.jobs.export import export
from tflearn.policies import added_metadata, model_card, versions
from tflearn.policies.exporter import PolicyExporter

CONFIG = """make_agent = @dqn.make_agent
gymnasium_env.make.name = 'CartPole-v1'
"""


def head_of(path):
    _, head, body = path.read_text().split('---\n', 2)
    return yaml.safe_load(head), body


def test_an_evaluation_is_added_to_the_card_and_the_repository_has_it(tmp_path):
    run_dir = RunDir(tmp_path / 'run')
    run_dir.root.mkdir()
    run_dir.config.write_text(CONFIG)
    version = PolicyExporter(example_policies.greedy_actor(), run_dir.greedy_policy).export(3, {'env_steps': 70})
    head, body = head_of(version / model_card.CARD)
    assert head['tags'] == ['reinforcement-learning', 'tensorflow', 'dqn', 'CartPole-v1'] and 'model-index' not in head
    assert '# dqn on CartPole-v1\n' in body and '| env_steps | 70 |' in body and CONFIG in body
    evaluation = {'mean_return': 4.5, 'mean_return_interval': [4.0, 5.0], 'num_episodes': 7, 'metrics': {'reward': 1.0}}
    assert added_metadata.add(version, evaluation=evaluation)
    assert 'README.md' not in (version / digests.RECORD).read_text()

    ended = forks.run('scripts', 'export', f'--root_dir={run_dir.root}', f'--hub={tmp_path / "hub"}', timeout=120)
    hub = tmp_path / 'hub'
    assert (ended.returncode, ended.stdout) == (0, f'{hub}\n'), ended.stderr
    for folder in (version, hub):
        head, body = head_of(folder / model_card.CARD)
        (result,) = head['model-index'][0]['results']
        assert result['dataset']['name'] == 'CartPole-v1' and result['metrics'][0]['value'] == 4.5
        assert '| 95% interval | 4.0 to 5.0 |' in body and '| episodes | 7 |' in body
    assert read_json(hub / 'config.json') == read_json(version / versions.METADATA)
    assert (hub / 'config.gin').read_text() == CONFIG and 'variables/* filter=lfs' in (
        hub / '.gitattributes'
    ).read_text()
    loaded = tf.saved_model.load(str(hub)).signatures['serving_default']
    assert loaded(observation=tf.constant(np.zeros((2, 4), np.float32)))['action'].shape[0] == 2
    with pytest.raises(ValueError, match='got output=.*hub, which exists; need a new path'):
        export(run_dir=run_dir, hub=str(hub))
    with pytest.raises(ValueError, match='got output=., which exists'):
        export(run_dir=run_dir, hub='')
    with pytest.raises(ValueError, match='got hub=.* with another output; need it alone'):
        export(run_dir=run_dir, hub=str(tmp_path / 'other'), format='tflite')


def test_a_version_elsewhere_takes_no_configuration_of_others(tmp_path):
    (tmp_path / 'config.gin').write_text(CONFIG)
    version = PolicyExporter(example_policies.greedy_actor(), tmp_path / 'models' / 'exported').export(3, {})
    assert 'There is no configuration file.' in (version / model_card.CARD).read_text()


def test_a_version_without_facts_has_a_card():
    assert '# policy\n' in model_card.text({}, '')
