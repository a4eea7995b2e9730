"""The record has only complete lines, and distinguishes repeated training."""

import json
import resource

import pytest

from tflearn.actors import evaluation_record
from tflearn.actors.evaluation_record import EvaluationRecord


def entry(train_step, exported_at=0.0, mean_return=1.0):
    return {'train_step': train_step, 'exported_at': exported_at, 'mean_return': mean_return}


def test_appended_evaluations_are_read_again(tmp_path):
    path = tmp_path / 'run' / 'evaluations.jsonl'
    record = EvaluationRecord(path)
    assert record.evaluations == []
    assert record.best() is None
    record.append(entry(1, mean_return=-3.0))
    record.append(entry(2, mean_return=-5.0))
    again = EvaluationRecord(path)
    assert again.evaluations == record.evaluations == [entry(1, mean_return=-3.0), entry(2, mean_return=-5.0)]
    assert again.best() == -3.0


@pytest.mark.parametrize('torn', ['{"train_step": 3, "mean', '{', '\udcff'])
def test_an_unfinished_last_line_is_dropped(tmp_path, torn):
    path = tmp_path / 'evaluations.jsonl'
    EvaluationRecord(path).append(entry(1))
    with path.open('ab') as file:
        file.write(torn.encode(errors='surrogateescape'))
    record = EvaluationRecord(path)
    record.append(entry(2))
    assert [json.loads(line) for line in path.read_text().splitlines()] == [entry(1), entry(2)]


def test_an_unfinished_first_line_is_dropped(tmp_path):
    path = tmp_path / 'evaluations.jsonl'
    path.write_text('{"train')
    assert EvaluationRecord(path).evaluations == []
    assert path.read_text() == ''


def test_rejects_a_damaged_line(tmp_path):
    path = tmp_path / 'evaluations.jsonl'
    path.write_text(f'{json.dumps(entry(1))}\n\n{json.dumps(entry(2))}\n')
    with pytest.raises(ValueError, match='line 2'):
        EvaluationRecord(path)


@pytest.mark.parametrize(
    'line', ['[]', '{"mean_return": "x"}', '{"mean_return": null}', '3', '{"mean_return": 1' + 400 * '0' + '}']
)
def test_rejects_a_line_that_is_no_evaluation(tmp_path, line):
    (tmp_path / 'evaluations.jsonl').write_text(f'{line}\n')
    with pytest.raises(ValueError, match='got a damaged line 1 in .*; remove that line'):
        EvaluationRecord(tmp_path / 'evaluations.jsonl')


def test_repeated_training_is_another_policy(tmp_path):
    record = EvaluationRecord(tmp_path / 'evaluations.jsonl')
    record.append(entry(9, exported_at=1.0, mean_return=3.0))
    record.append(entry(9, exported_at=1.0, mean_return=4.0))
    assert record.find({'train_step': 9, 'exported_at': 1.0, 'env_steps': 5})['mean_return'] == 4.0
    assert record.find({'train_step': 9, 'exported_at': 2.0}) is None
    assert record.find({'train_step': 8, 'exported_at': 1.0}) is None


def test_what_could_not_be_written_is_written_later(tmp_path):
    """No part of a line is left by a file that may not grow, as on a full disk."""
    path = tmp_path / 'evaluations.jsonl'
    record = EvaluationRecord(path)
    record.append({'train_step': 1, 'mean_return': 1.0})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, before[1]))
    try:
        record.append({'train_step': 2, 'mean_return': 2.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [each['train_step'] for each in evaluation_record.read(path)] == [1]
    assert path.read_text().endswith('\n') and len(record.evaluations) == 2
    record.append({'train_step': 3, 'mean_return': 3.0})
    assert [each['train_step'] for each in evaluation_record.read(path)] == [1, 2, 3]
