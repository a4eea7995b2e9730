from tests.testing import written_summaries
from tflearn.jobs.run_outputs import CollectSummaries


def test_writes_metrics_by_environment_steps(tmp_path):
    summaries = CollectSummaries(tmp_path)
    summaries.write({'env_steps': 10, 'mean_return': None})
    assert not list(tmp_path.iterdir()), 'no episode yet'
    summaries.write({'env_steps': 20, 'mean_return': 1.5, 'mean_info/speed': 3.0})
    summaries.write({'env_steps': 20, 'mean_return': 2.5})  # no new environment steps
    summaries.write({'env_steps': 40, 'mean_return': 2.5})
    summaries.close()
    written = written_summaries.scalars(tmp_path)
    assert written['collect/mean_return'] == {20: 1.5, 40: 2.5}
    assert written['collect/mean_info/speed'] == {20: 3.0}
