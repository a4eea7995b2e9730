"""Tokens come from files or the environment, are long enough, and are not quoted in errors."""

import traceback

import pytest

from tflearn.core import tokens

GOOD = '0123456789abcdef'


def test_sources(tmp_path, monkeypatch):
    (tmp_path / 'token').write_text(f'{GOOD}\n')
    monkeypatch.setenv('A_TOKEN', f' {GOOD} ')
    assert tokens.read(str(tmp_path / 'token'), '--token') == tokens.read('env:A_TOKEN', '--token') == GOOD


@pytest.mark.parametrize('text', ['', 'short', 'fifteen letters', f'{GOOD} {GOOD}', f'{GOOD}\n{GOOD}', 'ä' * 20])
def test_rejects_what_is_no_token_and_does_not_quote_it(tmp_path, monkeypatch, text):
    (tmp_path / 'token').write_text(text)
    monkeypatch.setenv('A_TOKEN', text)
    for source in ('env:A_TOKEN', str(tmp_path / 'token')):
        with pytest.raises(ValueError, match=f'got --token={source}') as raised:
            tokens.read(source, '--token')
        assert not text or text not in str(raised.value)


@pytest.mark.parametrize('source', [GOOD, f'env:{GOOD}', f'/{GOOD}', f'~{GOOD}', f'{GOOD}\0', GOOD * 300])
def test_does_not_show_a_token_that_is_given_as_its_source(source):
    with pytest.raises(ValueError, match='got a --token that cannot be read .*; need the path of a file') as raised:
        tokens.read(source, '--token')
    assert GOOD not in ''.join(traceback.format_exception(raised.value))


def test_headers():
    assert tokens.received(tokens.header(GOOD)) == GOOD
    assert [tokens.received(value) for value in (None, '', GOOD, f'Basic {GOOD}')] == [''] * 4
    assert tokens.equal(GOOD, GOOD) and not tokens.equal(GOOD, '') and not tokens.equal(GOOD, GOOD.upper())
