"""Requests that wait at the same time share a call, each gets its own rows, and none fails another."""

import asyncio
import dataclasses
import threading

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import sequential
from tf_agents.policies import greedy_policy, q_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.testing import example_policies
from tflearn.extensions.serving.request_queue import RequestQueue
from tflearn.extensions.serving.served_version import BatchOptions, ServedVersion
from tflearn.net.grpc_server import GrpcRefusal
from tflearn.policies.exporter import PolicyExporter

BATCHING = BatchOptions(max_batch_size=8, max_enqueued_batches=3)


@pytest.fixture(scope='module')
def path(tmp_path_factory):
    """A policy with a table of actions: 1 for odd observations from 0 to 9, an error for all others."""
    spec = tensor_spec.BoundedTensorSpec((), tf.int32, 0, 9, 'observation')
    table = tf.keras.layers.Embedding(10, 2, tf.constant_initializer([[i % 2 == 0, i % 2] for i in range(10)]))
    network = sequential.Sequential([table], input_spec=spec)
    network.create_variables()
    q_learned = q_policy.QPolicy(ts.time_step_spec(spec), example_policies.DISCRETE_PAIR, network)
    exporter = PolicyExporter(greedy_policy.GreedyPolicy(q_learned), tmp_path_factory.mktemp('policies') / 'lookup')
    return exporter.export(1, {})


def ask(path, observations, batching=BATCHING, cancelled=(), turns=0):
    """Sends all observations, so many turns of the event loop apart;
    returns the responses or errors, and the rows of each call.
    """
    signature = ServedVersion(path, batching).signature('serving_default')
    program, rows = signature._program, []

    def counted(inputs):
        rows.append(inputs[0].shape[0])
        return program(inputs)

    signature._program = counted

    async def all_of_them():
        requests = RequestQueue(num_threads=1)
        inputs = [{'observation': np.array(observation, np.int32)} for observation in observations]
        tasks = []
        for each in inputs:
            tasks.append(asyncio.create_task(requests.run(signature, each)))
            for _ in range(turns):
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        for number in cancelled:
            tasks[number].cancel()
        answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        requests.close()
        return answers

    answers = asyncio.run(all_of_them())
    return [each if isinstance(each, BaseException) else each['action'].tolist() for each in answers], rows


def test_waiting_requests_share_a_call_up_to_the_batch_size(path):
    observations = [[1], [2, 3], [4, 5, 6], [7, 8, 9], [0] * 9]
    answers, rows = ask(path, observations)
    assert answers == [[number % 2 for number in each] for each in observations]
    assert rows == [6, 3, 9]  # the last is more than a batch


def test_an_incomplete_batch_waits_until_it_is_full_or_the_time_is_over(path):
    never = dataclasses.replace(BATCHING, batch_timeout_micros=10**12)
    answers, rows = ask(path, [[1], [2, 3], [4] * 5, [5] * 9], never, turns=3)
    assert (answers, rows) == ([[1], [0, 1], [0] * 5, [1] * 9], [8, 9])
    assert ask(path, [[1], [2, 3]], dataclasses.replace(BATCHING, batch_timeout_micros=20_000)) == ([[1], [0, 1]], [3])


def test_without_batching_each_request_is_its_own_call(path):
    answers, rows = ask(path, [[1], [2], [3, 4]], batching=None)
    assert (answers, rows) == ([[1], [0], [1, 0]], [1, 1, 2])


def test_invalid_values_fail_only_their_own_request(path):
    answers, _ = ask(path, [[1], [2, 77], [3]])
    assert (answers[0], answers[2]) == ([1], [1])
    assert isinstance(answers[1], tf.errors.InvalidArgumentError)


def test_rejects_requests_when_overloaded(path):
    answers, _ = ask(path, [[1] * 8, [2] * 8, [3] * 8, [4], [5]])
    assert answers[:3] == [[1] * 8, [0] * 8, [1] * 8]
    assert [str(answer) for answer in answers[3:] if isinstance(answer, GrpcRefusal)] == [
        'got 1 rows, and 24 wait already; send less at a time, or try again later'
    ] * 2


def test_cancelled_requests_are_not_computed(path):
    answers, rows = ask(path, [[1], [2, 3], [4]], cancelled=[1])
    assert (answers[0], answers[2], rows) == ([1], [0], [2])
    assert isinstance(answers[1], asyncio.CancelledError)


def test_cancelled_requests_do_not_count_as_waiting(path):
    signature = ServedVersion(path, BATCHING).signature('serving_default')
    program, resume = signature._program, threading.Event()

    def held(inputs):
        assert resume.wait(60)
        return program(inputs)

    signature._program = held

    async def answers():
        requests = RequestQueue(num_threads=1)

        async def sent(number):
            task = asyncio.create_task(requests.run(signature, {'observation': np.full(8, number, np.int32)}))
            for _ in range(3):  # until it waits, or is computed
                await asyncio.sleep(0)
            return task

        tasks = [await sent(number) for number in range(5)]  # one is computed, three wait
        tasks[2].cancel()
        tasks.append(await sent(5))
        resume.set()
        answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        requests.close()
        return answers

    refused = {2: asyncio.CancelledError, 4: GrpcRefusal}
    for number, answer in enumerate(asyncio.run(answers())):
        if number in refused:
            assert isinstance(answer, refused[number])
        else:
            assert answer['action'].tolist() == [number % 2] * 8


def test_requests_whose_outputs_have_no_rows_are_answered_too(path):
    """SavedModels of other programs may have such outputs."""
    signature = ServedVersion(path, BATCHING).signature('serving_default')
    signature._program = lambda inputs: [tf.constant(1)]

    async def answers():
        requests = RequestQueue(num_threads=1)
        inputs = {'observation': np.array([1], np.int32)}
        tasks = [requests.run(signature, inputs) for _ in range(3)]
        answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        requests.close()
        return answers

    assert [type(answer) for answer in asyncio.run(answers())] == [IndexError] * 3
