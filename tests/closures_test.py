"""The import closure of the doors that users take, and the frames between them and a gradient, stay small."""

import pytest

from tests.architecture import closures

# Import -> the most code lines that it loads, and what it does without.
DOORS = {
    'import tflearn.jobs.synchronous': (
        11_500,
        ('tflearn/coordinator/', 'tflearn/net/', 'tflearn/sampling/mirror.py', 'tflearn/sampling/feed_source.py'),
    ),
    'import tflearn.jobs.collect': (9_500, ('tflearn/learner/', 'tflearn/sampling/')),
    'import tflearn; tflearn.load_policy': (2_600, ('tflearn/learner/', 'tflearn/jobs/')),
    'from tflearn.extensions.tf_agents import tf_agents_learner, tf_agents_ppo_learner': (11_500, ('tflearn/jobs/',)),
}


@pytest.fixture(scope='module')
def loaded():
    return dict(zip(DOORS, closures.loaded(list(DOORS)), strict=True))


@pytest.mark.parametrize('door', DOORS)
def test_import_closure_is_within_its_budget(loaded, door):
    most, without = DOORS[door]
    files = loaded[door]
    assert 'tflearn/core/errors.py' in files
    assert [name for name in files if name.startswith(without)] == []
    largest = sorted(files, key=files.get)[-5:]
    assert sum(files.values()) <= most, f'{door} loads {sum(files.values())} code lines, such as {largest}'


def test_code_lines_leave_out_comments_and_docstrings(tmp_path):
    file = tmp_path / 'a.py'
    file.write_text(
        '"""Text,\nmore."""\n\n# A comment.\nx = [\n    1,  # one\n]\n\n\ndef f():\n    """Text."""\n    return x\n'
    )
    assert closures.code_lines(file) == 5
