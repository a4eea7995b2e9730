"""The script of TF-Agents in docs/their_script.py, run as a program in either lane."""

import os
import re
import subprocess
import sys

from tests.testing import docs_blocks

AFTER = "print(f'train step {train_step.numpy()}, loss {float(loss)}, action {step.action.numpy().item()}')"


def test_it_trains_and_acts(tmp_path):
    text = (docs_blocks.DOCS / 'their_script.py').read_text(encoding='utf-8')
    (tmp_path / 'script.py').write_text('\n'.join([text, AFTER]), encoding='utf-8')
    environment = os.environ | {'PYTHONPATH': str(docs_blocks.ROOT)}
    environment.pop('TF_USE_LEGACY_KERAS', None)
    given = {'cwd': tmp_path, 'env': environment, 'text': True, 'capture_output': True}
    done = subprocess.run([sys.executable, 'script.py'], **given, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r'^train step 100, loss \d+\.\d+, action [01]$', done.stdout, re.M), done.stdout
    run = tmp_path / 'runs' / 'their_dqn'
    assert list(run.glob('train/checkpoints/*.index')) and list(run.glob('policies/greedy_policy/**/saved_model.pb'))
