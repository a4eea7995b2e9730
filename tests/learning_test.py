"""Whole runs that learn, as users start them, to the return that their task is solved at."""

import pytest

from tests.end_to_end.programs import Program
from tflearn.run_dir import RunDir, read_json


@pytest.mark.slow
@pytest.mark.parametrize('run', ['impala_cartpole', 'appo_cartpole', 'impala_cartpole_hidden'])
def test_it_is_solved(run, tmp_path):
    with Program('launch', '--root_dir=run', f'--gin_file={run}', folder=tmp_path) as launch:
        assert launch.end() == 0, launch.output
    done = read_json(RunDir(tmp_path / 'run').done)
    assert done['reason'].startswith('target_return 475 reached'), launch.output
    assert done['evaluation']['mean_return'] >= 475
