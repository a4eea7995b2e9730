"""Processes that share an evaluation's episodes: what the first one hears of the others."""

import contextlib
import threading

import pytest

from tflearn.actors.evaluator import EpisodeStatistics
from tflearn.core.errors import UserValueError
from tflearn.jobs.evaluation_processes import EvaluationProcesses

# pytest's threads take no locks that the forks need.
pytestmark = pytest.mark.filterwarnings('ignore:.*multi-threaded, use of fork:DeprecationWarning')
NOTHING = EpisodeStatistics((), 0, '')


def played(make_player, alive=lambda: None):
    with contextlib.closing(EvaluationProcesses(make_player, 2, 2, threading.Event())) as processes:
        return processes.play('policy', lambda asked: NOTHING, alive)


def test_waiting_for_another_process_is_a_sign_of_life():
    signs = []

    def slow(asked):
        threading.Event().wait(1.5)
        return NOTHING

    assert played(lambda index: slow, lambda: signs.append(1)) == NOTHING
    assert signs


def test_the_error_of_a_process_that_never_played_is_shown():
    def make_player(index):
        raise UserValueError('got no simulator; need one')

    with pytest.raises(ValueError, match=r'^got no simulator; need one$'):
        played(make_player)


def test_an_environment_whose_pipe_broke_is_no_end_of_the_evaluation():
    def play(asked):
        raise EOFError('the simulator died')

    with pytest.raises(RuntimeError, match='evaluation_1, which ended with exit code 1; its error is in the log'):
        played(lambda index: play)
