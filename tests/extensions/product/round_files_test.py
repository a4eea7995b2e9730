"""Rounds begin when they are due, with files that are settled then; steps that are done are not done again."""

import dataclasses
import json
import shutil
import time

import numpy as np
import pytest

from tflearn.extensions.product.steps import Gate, Logs, Round, Rounds, Steps, Training
from tflearn.files.run_dir import RunDir, write_json
from tflearn.policies import states

VERDICT = {'passes': False, 'candidate': {'value': 1.0, 'low': 0.5, 'high': 1.5}}


@pytest.fixture
def logs(tmp_path):
    """Returns a function that adds a complete file of so many decisions."""
    for name in ('decisions', 'outcomes'):
        (tmp_path / name).mkdir()
    (tmp_path / 'outcomes' / 'outcomes-1.jsonl').write_text('{}\n')

    def add(name, count):
        (tmp_path / 'decisions' / f'decisions-{name}.jsonl').write_text('{}\n' * count)

    return add


def begin(rounds, tmp_path, *due):
    return rounds.begin([str(tmp_path / 'decisions')], [str(tmp_path / 'outcomes')], *due)


def test_a_round_is_due_by_new_decisions_or_by_time(tmp_path, logs):
    rounds = Rounds(tmp_path)
    logs('1', 5)
    (tmp_path / 'decisions' / '.decisions-2.jsonl').write_text('{}\n' * 9)  # not complete
    assert begin(rounds, tmp_path, 6, None) is None and rounds.unfinished() is None
    first = begin(rounds, tmp_path, 5, None)
    assert (first.number, first.inputs['new_decisions']) == (1, 5)
    first.finish(promoted=False)
    assert begin(rounds, tmp_path, None, None) is None, 'no decision is new'
    logs('3', 2)
    assert begin(rounds, tmp_path, 3, 1.0) is None
    write_json(first.directory / 'round.json', {**first.inputs, 'began': time.time() - 3_601})
    assert begin(rounds, tmp_path, 3, 1.0).inputs['new_decisions'] == 2, 'an hour has passed'


def test_what_a_round_reads_is_settled_when_it_begins(tmp_path, logs):
    logs('1', 5)
    begun = begin(Rounds(tmp_path), tmp_path, None, None)
    logs('2', 5)
    again = Rounds(tmp_path).unfinished()  # of a loop that was killed
    assert again == begun and again.inputs['decisions'] == [str(tmp_path / 'decisions' / 'decisions-1.jsonl')]
    begun.finish(promoted=True)
    assert Rounds(tmp_path).unfinished() is None and Rounds(tmp_path).finished()[0].result['promoted']


def test_a_directory_without_a_round_is_none(tmp_path, logs):
    (tmp_path / 'rounds' / '1').mkdir(parents=True)  # killed before the first file was there
    logs('1', 5)
    assert Rounds(tmp_path).finished() == [] and begin(Rounds(tmp_path), tmp_path, 1, None).number == 1


def test_no_round_is_due_before_anything_is_logged(tmp_path, logs):
    assert begin(Rounds(tmp_path), tmp_path, None, None) is None
    (tmp_path / 'decisions').rmdir()  # which the server makes
    assert begin(Rounds(tmp_path), tmp_path, None, None) is None


def test_a_round_takes_no_number_twice(tmp_path, logs):
    for number in (1, 2):
        logs(str(number), 5)
        begin(Rounds(tmp_path), tmp_path, None, None).finish(promoted=True)
    shutil.rmtree(tmp_path / 'rounds' / '1')  # to free the disk
    logs('3', 5)
    assert begin(Rounds(tmp_path), tmp_path, None, None).number == 3


def _export(directory, **facts):
    directory.mkdir(parents=True)
    (directory / 'saved_model.pb').touch()
    (directory / 'metadata.json').write_text(json.dumps(facts))


@pytest.fixture
def steps(tmp_path):
    logs = Logs(['d'], ['o'], 'columns.toml', 60.0, last_secs=600.0)
    return Steps('scripts', logs, Training('dqn_news'), RunDir(tmp_path / 'serving'), Gate(margin=0.5))


def test_each_step_is_done_when_its_result_is_there(tmp_path, steps):
    begun = Round(tmp_path / '1', {'began': 0.0, 'decisions': ['d/1'], 'outcomes': ['o/1']})
    begun.directory.mkdir()
    of = steps.of(begun)
    join = next(of)
    assert {'--decisions=d/1', '--window_secs=60.0', '--last_secs=600.0', f'--output={tmp_path}/1/joined'} <= set(
        join.command
    )
    (tmp_path / '1' / '.joined').mkdir()  # of a killed program
    assert not join.is_done()
    (tmp_path / '1' / 'joined').mkdir()
    split = next(of)
    assert join.is_done() and not split.is_done() and '--rounds=2' not in split.command
    longer = dataclasses.replace(steps, gate=dataclasses.replace(steps.gate, held_out_rounds=2))
    assert '--rounds=2' in [*longer.of(begun)][1].command
    (tmp_path / '1' / 'parts').mkdir()
    train = next(of)
    assert split.is_done() and not train.is_done() and f'--data={tmp_path}/1/parts/train' in train.command
    assert not any('Initial.policy' in word for word in train.command), 'nothing serves'
    _export(tmp_path / '1' / 'run' / 'policies' / 'greedy_policy' / '500')
    assert not train.is_done()
    begun.run.train_result.parent.mkdir()
    begun.run.train_result.touch()
    promote = next(of)
    assert train.is_done() and not promote.is_done()
    level = next(float(word.partition('=')[2]) for word in promote.command if word.startswith('--level='))
    assert '--margin=0.5' in promote.command and level == steps.gate.level_of(1)


def test_rounds_spend_the_level_of_the_loop(steps):
    spent = [1 - steps.gate.level_of(number) for number in range(1, 2_000)]
    assert spent[0] == pytest.approx(0.05 * 6 / np.pi**2) and spent == sorted(spent, reverse=True)
    assert 0.0499 < sum(spent) < 0.05
    longer = dataclasses.replace(steps.gate, held_out_rounds=3)
    assert 1 - longer.level_of(4) == pytest.approx(spent[3] / 16), 'what came of the verdicts of two rounds before'
    with pytest.raises(ValueError, match="got held_out_rounds=3 with by='time'; need by='id'"):
        dataclasses.replace(longer, by='time')


OPEN = {'passes': False, 'outcome': 'not decided', 'needed': 1_600}


def _round(tmp_path, number, **verdict):
    """Makes a round whose candidate is trained."""
    inputs = {'began': 0.0, 'new_decisions': 200, 'decisions': [], 'outcomes': []}
    begun = Round(tmp_path / 'rounds' / str(number), inputs)
    _export(begun.directory / 'run' / 'policies' / 'greedy_policy' / '500', **verdict)
    (begun.directory / 'parts').mkdir()
    return begun


def test_what_is_not_decided_is_judged_by_all_that_comes_later(tmp_path, steps):
    first = _round(tmp_path, 1, gate={**OPEN, 'data': [{'path': f'{tmp_path}/rounds/1/parts/held_out'}]})
    result = steps.result(first)
    assert (result['waits'], result['candidate'], result['promoted']) == (1, 1, False)
    first.finish(**result)
    begun = dataclasses.replace(first, directory=first.directory.with_name('2'))
    for name in ('joined', 'later', 'later/held_out'):
        (begun.directory / name).mkdir(parents=True)
    _, split, judge = steps.of(begun)
    assert {'--share=1', f'--earlier={tmp_path}/rounds/1/parts'} <= set(split.command) and split.is_done()
    data = [f'--data={tmp_path}/rounds/{part}/held_out' for part in ('1/parts', '2/later')]
    assert [word for word in judge.command if word.startswith('--data')] == data
    assert {f'--level={steps.gate.level_of(1)}', f'--why=round 1 of {tmp_path}/rounds'} <= set(judge.command)
    assert not judge.is_done(), 'the verdict is that of the round before'
    metadata = first.run.policy('greedy_policy') / '500' / 'metadata.json'
    judged = [{'path': word.removeprefix('--data=')} for word in data]
    write_json(metadata, {'gate': {**OPEN, 'data': judged}})
    assert judge.is_done() and [step.name for step in steps.of(begun)] == ['join', 'split', 'promote']
    assert steps.result(begun)['waits'] == 1
    # Once it is decided, the same round trains the next one.
    write_json(metadata, {'gate': {**OPEN, 'outcome': 'worse', 'data': judged}})
    assert [step.name for step in steps.of(begun)] == ['join', 'split', 'promote', 'split', 'train', 'promote']
    begun.finish(**steps.result(begun))
    third = dataclasses.replace(begun, directory=begun.directory.with_name('3'))
    *_, split, _, _ = steps.of(third)
    assert f'--earlier={begun.directory}/later' in split.command, 'which has the names of all that came before'
    # What decides one that waited decides what the next one is compared with.
    _round(tmp_path, 2)
    *_, judge = steps.of(begun)
    assert f'--level={steps.gate.level_of(2, others=1)}' in judge.command
    assert 1 - steps.gate.level_of(2, others=1) == pytest.approx((1 - steps.gate.level_of(2)) / 4)
    _round(tmp_path, 3)
    new_train = third.directory / 'parts' / 'new_train'
    new_train.mkdir()
    (new_train / 'dataset.json').touch()
    for rounds, others in ((1, 0), (2, 1)):
        rolling = dataclasses.replace(steps, gate=dataclasses.replace(steps.gate, held_out_rounds=rounds))
        *_, judge = rolling.of(third)
        assert f'--level={rolling.gate.level_of(3, others)}' in judge.command
        assert (f'--new_train={new_train}' in judge.command) == (rounds == 1)


def test_a_candidate_waits_while_the_same_version_serves_and_not_for_ever(tmp_path, steps):
    first = _round(tmp_path, 1, gate={**OPEN, 'data': []})
    first.finish(**steps.result(first))
    begun = dataclasses.replace(first, directory=first.directory.with_name('2'))
    assert [step.name for step in steps.of(begun)] == ['join', 'split']
    short = dataclasses.replace(steps, gate=dataclasses.replace(steps.gate, max_rounds=8))
    assert short.result(first)['waits'] is None, 'seven more rounds of 200 decisions do not decide it'
    serving = tmp_path / 'serving' / 'policies' / 'greedy_policy'
    _export(serving / '7')
    states.promote(serving, 7, 'stable', 'by hand')
    assert [step.name for step in steps.of(begun)] == ['join', 'split', 'train', 'promote'], 'another comparison'


def test_another_policy_can_serve(tmp_path, steps):
    begun = Round(tmp_path / '1', {'began': 0.0, 'decisions': [], 'outcomes': []})
    serving = tmp_path / 'serving' / 'policies' / 'collect_policy' / '400'
    candidate = tmp_path / '1' / 'run' / 'policies' / 'collect_policy' / '500'
    for version in (serving, candidate):
        _export(version)
    training = dataclasses.replace(steps.training, policy='collect_policy')
    *_, train, promote = dataclasses.replace(steps, training=training).of(begun)
    assert any(str(serving) in word for word in train.command)
    assert {'--policy=collect_policy', f'--candidate={candidate}'} <= set(promote.command)


def test_without_a_gate_all_is_trained_on_and_serves(tmp_path, steps):
    begun = Round(tmp_path / '1', {'began': 0.0, 'decisions': [], 'outcomes': []})
    join, train, promote = dataclasses.replace(steps, gate=None).of(begun)
    assert (join.name, train.name, promote.name) == ('join', 'train', 'promote')
    assert f'--data={tmp_path}/1/joined' in train.command
    assert '--ungated' in promote.command and not any(word.startswith('--data') for word in promote.command)


def test_a_verdict_is_final_and_a_promotion_is_made_once(tmp_path, steps):
    serving, candidate = (
        tmp_path / name / 'policies' / 'greedy_policy' / '500' for name in ('serving', 'rounds/2/run')
    )
    begun = Round(tmp_path / 'rounds' / '2', {'began': 0.0, 'decisions': [], 'outcomes': []})
    _export(serving)
    _export(candidate, gate={**VERDICT, 'passes': True})
    *_, train, promote = steps.of(begun)
    assert any(str(serving) in word for word in train.command), 'a warm start with what serves'
    assert not promote.is_done(), 'killed between the verdict and the change of state'
    reason = next(word.partition('=')[2] for word in promote.command if word.startswith('--why='))
    states.promote(serving.parent, 500, 'stable', f'{reason}: difference at least 1')
    assert promote.is_done() and steps.result(begun) == {
        'promoted': True,
        'candidate': 2,
        'waits': None,
        'serves': 500,
        'gate': {**VERDICT, 'passes': True},
        'import': {},
    }
    other = Round(tmp_path / 'rounds' / '21', begun.inputs)
    _export(tmp_path / 'rounds' / '21' / 'run' / 'policies' / 'greedy_policy' / '500', gate=VERDICT)
    assert [*steps.of(other)][-1].is_done() and not steps.result(other)['promoted'], 'it was refused'
