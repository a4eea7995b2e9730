import pathlib
import re
import subprocess
import sys

CHECKOUT = pathlib.Path(__file__).parents[1]
EXAMPLE = CHECKOUT / 'docs' / 'library_example.py'


def _run(directory):
    command = [sys.executable, str(EXAMPLE)]
    environment = {'PYTHONPATH': str(CHECKOUT), 'TF_CPP_MIN_LOG_LEVEL': '2', 'PATH': ''}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_learns_and_goes_on(tmp_path):
    first = _run(tmp_path)
    losses = [float(loss) for loss in re.findall(r'loss (\S+)', first)]
    assert len(losses) == 3
    assert losses[-1] < losses[0] / 2
    assert 'train step 300' in first
    assert 'train step 600' in _run(tmp_path)


def test_it_needs_none_of_the_rest():
    text = EXAMPLE.read_text()
    assert not re.search(r'^(import|from) (gin|reverb|tflearn\.jobs)', text, re.MULTILINE)
    assert len([line for line in text.splitlines() if line.strip()]) <= 35
