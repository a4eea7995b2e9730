"""The served versions follow the exported ones, and a model that was served stays served."""

import pathlib
import shutil

import pytest

from tests.testing import example_policies
from tflearn.extensions.serving.exploration import CannotExplore
from tflearn.extensions.serving.models import ModelHolder, Models
from tflearn.extensions.serving.served_version import ServedVersion
from tflearn.net.grpc_server import GrpcRefusal
from tflearn.policies import added_metadata, states, versions
from tflearn.policies.exporter import PolicyExporter


@pytest.fixture(scope='module')
def exporter(tmp_path_factory):
    return PolicyExporter(example_policies.greedy(), tmp_path_factory.mktemp('run') / 'greedy_policy', keep_last=100)


@pytest.fixture
def directory(exporter) -> pathlib.Path:
    """Without versions and states."""
    (exporter._directory / states.FILE).unlink(missing_ok=True)
    for each in exporter._directory.glob('*/PROMOTED'):
        each.unlink()
    for step in versions.versions(exporter._directory):
        versions.remove(exporter._directory / str(step))
    return exporter._directory


def test_the_newest_version_is_served(exporter, directory):
    holder = ModelHolder(directory, ServedVersion)
    assert not holder.refresh() and not holder.ready
    exporter.export(1, {})
    assert holder.refresh() and holder.get().version == 1
    assert not holder.refresh()
    exporter.export(2, {})
    exporter.export(3, {})
    assert holder.refresh() and holder.get().version == 3
    assert holder.get(3) is holder.get()
    assert added_metadata.add(directory / '3', evaluation={'mean_return': 1.0})
    assert not holder.refresh()
    with pytest.raises(GrpcRefusal, match=r"version 1 of 'greedy_policy', which serves \[3\]"):
        holder.get(1)


def test_a_policy_that_cannot_explore_is_left_out_and_not_awaited(exporter, directory, caplog):
    exporter.export(1, {})

    def load(path):
        if path.parent.name == 'collect_policy':
            raise CannotExplore('got Exploration(epsilon=0.1, temperature=1.0)')
        return ServedVersion(path)

    shutil.copytree(directory / '1', directory.parent / 'collect_policy' / '1')
    models = Models(directory.parent, load)
    assert models.refresh() and not models.refresh()
    shutil.rmtree(directory.parent / 'collect_policy')
    assert [(each.name, each.ready, each.awaited) for each in sorted(models.holders, key=lambda each: each.name)] == [
        ('collect_policy', False, False), ('greedy_policy', True, False)
    ]  # fmt: skip
    (line,) = [each for each in caplog.records if 'collect_policy' in each.getMessage()]
    assert line.levelname == 'WARNING' and line.getMessage().endswith('; --policies names what is served')


def test_a_pruned_version_is_served_until_there_is_another(exporter, directory):
    holder = ModelHolder(directory, ServedVersion)
    exporter.export(1, {})
    holder.refresh()
    versions.remove(directory / '1')
    assert not holder.refresh() and holder.get().version == 1


def test_lower_versions_of_resumed_training_are_served(exporter, directory):
    holder = ModelHolder(directory, ServedVersion)
    exporter.export(1, {})
    exporter.export(2, {})
    holder.refresh()
    exporter.drop_newer_than(1)
    assert holder.refresh() and holder.get().version == 1
    exporter.export(2, {})
    assert holder.refresh() and holder.get().version == 2
    first = holder.get()
    versions.remove(directory / '2')
    exporter.export(2, {})
    assert holder.refresh() and holder.get() is not first


def test_only_pinned_versions_are_served(exporter, directory):
    holder = ModelHolder(directory, ServedVersion, pinned=(1, 3))
    for step in (1, 2):
        exporter.export(step, {})
    assert holder.refresh() and holder.get().version == 1
    exporter.export(3, {})
    assert holder.refresh() and holder.get().version == 3 and holder.get(1).version == 1
    with pytest.raises(GrpcRefusal, match='version 2'):
        holder.get(2)
    assert not holder.refresh()


def test_damaged_version_is_skipped(exporter, directory):
    holder = ModelHolder(directory, ServedVersion)
    exporter.export(1, {})
    damaged = exporter.export(2, {})
    (damaged / 'saved_model.pb').write_bytes(b'nothing')
    assert holder.refresh() and holder.get().version == 1
    assert not holder.refresh()
    statuses = holder.statuses()
    assert list(statuses) == [2, 1] and 'damaged' in statuses[2] and statuses[1] is None
    exporter.export(3, {})
    assert holder.refresh() and holder.get().version == 3


def test_states_say_which_versions_are_served(exporter, directory):
    for step in (1, 2, 3, 4):
        exporter.export(step, {})
    states.promote(directory, 1, 'stable', 'first')
    states.promote(directory, 2, 'stable', 'better')
    found = states.promote(directory, 4, 'canary', 'perhaps', share=0.5)
    holder = ModelHolder(directory, ServedVersion)
    assert holder.refresh() and holder.get().version == 2 and not holder.refresh()
    assert holder.of_label('canary').version == 4 and holder.get(1).version == 1
    assert [holder.arm(version) for version in (1, 2, 4)] == ['', 'stable', 'canary']
    keys = [f'user-{i}' for i in range(40)]
    assert [holder.of_key(key).version == 4 for key in keys] == [found.arm(key) == 'canary' for key in keys]
    assert {holder.of_key('').version for _ in range(60)} == {2, 4}
    with pytest.raises(GrpcRefusal, match=r"got the label 'shadow' of 'greedy_policy', which has: canary, stable"):
        holder.of_label('shadow')
    with pytest.raises(GrpcRefusal, match=r'version 3 .*, which serves \[1, 2, 4\]'):
        holder.get(3)
    models = Models(directory.parent, ServedVersion)
    models.refresh()
    assert 'specific { versions: 2 versions: 4 }' in models.serving_config()
    assert 'version_labels { key: "canary" value: 4 }' in models.serving_config()
    loaded = holder.get(1)
    for stable in (2, 1):
        states.rollback(directory, 'bad')
        assert holder.refresh() and holder.get().version == stable and holder.of_key('user-1') is holder.get()
    assert holder.get() is loaded
    (directory / states.FILE).write_text('{')
    assert not holder.refresh() and holder.get().version == 1  # keeps what it knows
    (directory / states.FILE).unlink()
    assert holder.refresh() and holder.get().version == 4


def test_a_damaged_stable_version_is_not_replaced_by_an_unproven_one(exporter, directory):
    for step in (1, 2, 3):
        exporter.export(step, {})
    (directory / '2' / 'saved_model.pb').write_bytes(b'nothing')
    states.promote(directory, 1, 'stable', 'first')
    holder = ModelHolder(directory, ServedVersion)
    assert holder.refresh()
    states.promote(directory, 2, 'stable', 'better')
    states.promote(directory, 3, 'canary', 'perhaps', share=1.0)
    for each in (holder, ModelHolder(directory, ServedVersion)):
        each.refresh()
        assert each.of_key('').version == 1 and 'damaged' in each.statuses()[2]


def test_each_directory_is_a_model(exporter, directory):
    models = Models(directory.parent, ServedVersion)
    assert models.missing == ['any policy']
    exporter.export(1, {})
    assert models.refresh() and models.get('greedy_policy').get().version == 1
    with pytest.raises(GrpcRefusal, match=r"got the model name 'greedy'; need one of \['greedy_policy'\]"):
        models.get('greedy')
    named = Models(directory.parent, ServedVersion, names=['other'])
    assert not named.refresh() and named.missing == ['other']
    assert not models.missing
    with pytest.raises(GrpcRefusal, match="the model 'other' waits for a version in"):
        named.get('other').get()
