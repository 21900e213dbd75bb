"""Secrets in texts and tracebacks."""

from __future__ import annotations

import json
import traceback

import pytest

from django_delayq.masking import HIDDEN, Mask

MASK = Mask()
#: a text, in which ● stands for what is shown in place of the secret
SHOWN = [
    ("redis://user:hunter2@host:6379/0 refused", "redis://user:●@host:6379/0 refused"),
    ("postgres://u:p@ss@host/db", "postgres://u:●@host/db"),
    ("redis://:hunter2@host", "redis://:●@host"),
    ("401 for token=abc123&user=5", "401 for token=●&user=5"),
    ("user[password]=abc&token[]=def&n=1", "user[password]=●&token[]=●&n=1"),
    ("Authorization: Bearer eyJhbGci.x-y", "Authorization: Bearer ●"),
    ("Authorization: Negotiate abc, then", "Authorization: Negotiate ●, then"),
    ("the header was Bearer 0123456789abcdef0123", "the header was Bearer ●"),
    ("the header was BEARER 0123456789abcdef0123", "the header was BEARER ●"),
    ("the header was bEarer abcdefghijklmnopqrstuvwx==", "the header was bEarer ●"),
    ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-def here", "got ● here"),
    ("password = 'a b c', try again", "password = ●, try again"),
    ('password="ab\\"cd" refused', "password=● refused"),
    ('password="was cut off in the mid', "password=●"),
    ("password=b'abc' refused", "password=● refused"),
    ("password=SecretStr('a b'), n=1", "password=●, n=1"),
    ("error: token = abc", "error: token = ●"),
    ("password == 'abc'", "password == ●"),
    ("password => hunter2, user => ada", "password => ●, user => ada"),
    (":password => 'hunter2', :n => 1", ":password => ●, :n => 1"),
    ("password := hunter2", "password := ●"),
    ('password: str = "hunter2"', "password: str = ●"),
    ("password:\n  hunter2\nuser: ada", "password:\n  ●\nuser: ada"),
    ("{'tokens': ['a', 'b'], 'n': 1}", "{'tokens': ●, 'n': 1}"),
    ('said {\\"password\\": \\"abc\\", \\"n\\": 1}', 'said {\\"password\\": ●, \\"n\\": 1}'),
    ("mysql --password hunter2 -h db", "mysql --password ● -h db"),
    ("call --authorization Basic dXNlcg -h db", "call --authorization Basic ● -h db"),
    ("['mysql', '--password', 'a b', '-h', 'db']", "['mysql', '--password', ●, '-h', 'db']"),
    ("DB_PASS=x db_pass=y pass=z passcode: 1", "DB_PASS=● db_pass=● pass=● passcode: ●"),
    ("otp=123456 jwt=a.b bearer=c access_key=d", "otp=● jwt=● bearer=● access_key=●"),
    ("DETAIL:  Key (token)=(abc) already exists.", "DETAIL:  Key (token)=(●) already exists."),
    ("Key (user_id, token)=(5, a)b) already exists.", "Key (user_id, token)=(●) already exists."),
    ("Key (lower(token::text))=(abc) already exists.", "Key (lower(token::text))=(●) already exists."),
    ("Schlüssel »(token)=(abc)« existiert bereits.", "Schlüssel »(token)=(●)« existiert bereits."),
    ("Key (email)=(ada@example.org) already exists.", "Key (email)=(ada@example.org) already exists."),
    ("Failing row contains (5, hunter2, null).", "Failing row contains (●)."),
    ("Duplicate entry 'abc' for key 'user.token'", "Duplicate entry '●' for key 'user.token'"),
    ("Duplicate entry 'abc' for key 'user.name'", "Duplicate entry 'abc' for key 'user.name'"),
    (
        "-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----●-----END RSA PRIVATE KEY-----",
    ),
]
USEFUL = [
    "nothing to hide: 5 = five",
    "https://host/path?x=1",
    "http://localhost:8000/users/ada@example.org",
    "http://[::1]:8000/users/ada@example.org",
    "amqp://a:5672,b:5672/users/ada@example.org",
    "passenger=Ada compass: north bypass=1 author=Bob",
    "token_count=5 max_tokens=100 token_type=access password_changed_at=2026-11-21",
    "password=None secret=False token=''",
    "the bearer of bad news: bearer instruments, BEARER RESPONSIBILITIES",
    "--token is required",
    "the following arguments are required: --token",
    "UNIQUE constraint failed: shop_user.token",
    'File "/srv/token/pay.py"',
]


@pytest.mark.parametrize(("text", "shown"), SHOWN)
def test_secrets_in_texts_are_hidden(text: str, shown: str) -> None:
    masked = MASK.text(text)
    assert masked == shown.replace("●", HIDDEN)
    assert MASK.text(masked) == masked


@pytest.mark.parametrize("text", USEFUL)
def test_texts_without_secrets_stay_as_they_are(text: str) -> None:
    assert MASK.text(text) == text


def test_a_text_in_json_is_masked_as_the_value_that_it_is() -> None:
    text = '{"password": "x", "said": "{\\"token\\": \\"y\\"}", "n": 1}'
    inner = json.dumps({"token": HIDDEN}, ensure_ascii=False)
    assert json.loads(MASK.text(text)) == {"password": HIDDEN, "said": inner, "n": 1}


@pytest.mark.parametrize("text", [r'["\ud800"]', r'{"\udfff": ["{\"a\": \"\\udc00\"}", "\ude00\ud83d", "é"]}'])
def test_half_a_surrogate_pair_in_a_text_in_json_stays_escaped(text: str) -> None:
    assert MASK.text(text).encode() == text.encode()


# --- tracebacks


def test_values_in_source_lines_and_in_messages_of_a_traceback_are_hidden() -> None:
    trace = (
        'after GatewayError: refused\n    token=abc\n  File "/srv/token/pay.py", line 5, in pay\n'
        '    connect(user, password="hunter2")\n'
        "shop.GatewayError: refused:\n    password: hunter2\n    Key (token)=(abc) already exists.\n"
    )
    shown = MASK.traceback(trace)
    assert "abc" not in shown and "hunter2" not in shown
    assert 'File "/srv/token/pay.py", line 5, in pay' in shown and "connect(user, password=" in shown


def _chained() -> None:
    try:
        try:
            raise ValueError("first:\n    token=one-1")
        except ValueError as error:
            error.add_note("    password: two-2")
            raise KeyError("--password three-3") from error
    except KeyError:
        raise ExceptionGroup(
            "group", [OSError("Key (token)=(four-4) already exists."), OSError("jwt=five-5")]
        ) from None


def test_no_link_of_a_chain_of_exceptions_shows_its_secrets() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        _chained()
    caught.value.__suppress_context__ = False
    trace = "".join(traceback.format_exception(caught.value))
    # what the source shows of the same words stands behind a frame, and is no value
    said = [line for line in trace.splitlines() if "raise " not in line and "add_note" not in line]
    for secret in ("one-1", "two-2", "three-3", "four-4", "five-5"):
        assert any(secret in line for line in said)
        shown = MASK.traceback(trace).splitlines()
        assert not any(secret in line for line in shown if "raise " not in line and "add_note" not in line)


def test_a_traceback_whose_beginning_was_cut_off_begins_with_a_whole_line() -> None:
    from django_delayq.worker.record import record_of

    trace = f"after ValueError: password={'x' * 5000}\n" + '  File "/srv/pay.py", line 5, in pay\n    send()\n'
    stored = json.loads(record_of("ValueError", "no", trace))["traceback"]
    assert stored.startswith("  File ")
