"""A server that does not answer for a while."""

from tflearn.replay import connection


def test_warns_while_a_server_does_not_answer_and_when_it_does_again(monkeypatch, caplog):
    now, answers = [0.0], []
    monkeypatch.setattr(connection.time, 'monotonic', lambda: now[0])
    monkeypatch.setattr(connection, 'server_info', lambda address: answers.pop(0))
    poll = connection.ServerPoll('there:1', 'training goes on')

    def warnings(secs, answer):
        caplog.clear()
        now[0] = secs
        answers.append(answer)
        assert poll.info() == answer
        return [record.getMessage() for record in caplog.records]

    assert warnings(1.0, {}) == []
    assert warnings(8.0, None) == []
    assert warnings(12.0, None) == ['the replay server at there:1 has not answered for 11 s; training goes on']
    assert warnings(15.0, None) == []
    assert warnings(23.0, None) == ['the replay server at there:1 has not answered for 22 s; training goes on']
    assert warnings(24.0, {}) == ['the replay server at there:1 answers again, after 23 s']
    assert warnings(25.0, {}) == []


def test_no_server_answers_at_a_name_that_is_no_text():
    assert connection.server_info('\udcff:80') is None
