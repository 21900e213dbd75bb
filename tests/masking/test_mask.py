"""Masking of values that people may not read."""

from __future__ import annotations

import json

import pytest

from django_delayq.masking import HIDDEN, Mask, MaskError

MASK = Mask()
SECRET = """
    password db_password userPassword PASSWORD2 old-password token accessToken csrftoken tokens client_secret
    Authorization proxy-authorization api_key apiKey API-KEY apikey xApiKey2 pin card card_number cardNumber
    creditcard cvv sessionid Set-Cookie auth basic_auth ssn pass db_pass dbPass DB_PASS passcode otp totp_code
    jwt bearer access_key AWS_ACCESS_KEY_ID accessKey
"""
HARMLESS = """
    order_id author authority discarded cardinality spinning pinned customer passenger compass bypass
    secretary_id tokenizer token_count max_tokens password_changed_at session_type access_key_expires_in
    has_password
"""


@pytest.mark.parametrize("name", SECRET.split())
def test_a_name_that_sounds_like_a_secret_hides_its_value(name: str) -> None:
    assert MASK.hides(name)
    assert MASK.value({name: "s3cret"}) == {name: HIDDEN}


@pytest.mark.parametrize("name", [*HARMLESS.split(), "", None, 5])
def test_a_name_that_only_looks_like_one_hides_nothing(name: object) -> None:
    assert not MASK.hides(name)


def test_values_are_hidden_at_any_depth_and_the_rest_stays() -> None:
    value = {"user": {"name": "Ada", "credentials": {"a": 1}}, "rows": [{"id": 1, "token": "abc"}], "n": 3, "ok": True}
    assert MASK.value(value) == {
        "user": {"name": "Ada", "credentials": HIDDEN},
        "rows": [{"id": 1, "token": HIDDEN}],
        "n": 3,
        "ok": True,
    }


def test_what_says_nothing_is_shown_under_a_sensitive_name_too() -> None:
    assert MASK.value({"token": None, "password": "", "secret": False, "pin": 0}) == {
        "token": None,
        "password": "",
        "secret": False,
        "pin": HIDDEN,
    }


def test_the_other_half_of_a_pair_is_hidden() -> None:
    assert MASK.value([["Authorization", "Bearer abc"], ["Accept", "*/*"]]) == [
        ["Authorization", HIDDEN],
        ["Accept", "*/*"],
    ]
    assert MASK.value({"name": "api_key", "value": "abc"}) == {"name": "api_key", "value": HIDDEN}
    assert MASK.value({"name": "colour", "value": "red"}) == {"name": "colour", "value": "red"}


def test_positional_arguments_are_hidden_by_the_names_of_the_parameters() -> None:
    assert MASK.arguments([5, "abc", "more"], {"secret": "x", "n": 1}, ["user", "token"]) == (
        [5, HIDDEN, "more"],
        {"secret": HIDDEN, "n": 1},
    )
    assert MASK.arguments(["abc"], {}, ["token", "never", "given"]) == ([HIDDEN], {})


def test_the_words_of_the_settings_take_the_place_of_ours() -> None:
    mask = Mask(["Invoice No", "vat"])
    assert mask.value({"invoice_no": "5", "vat_id": "X", "password": "seen", "private": 1}) == {
        "invoice_no": HIDDEN,
        "vat_id": HIDDEN,
        "password": "seen",
        "private": 1,
    }


def test_depth_without_end_is_hidden_instead_of_followed() -> None:
    value: object = "deep"
    for _ in range(500):
        value = [value]
    assert HIDDEN in json.dumps(MASK.value(value), ensure_ascii=False)


# --- putting back


STORED = {"user": "ada", "token": "t-1", "cards": [{"card": "4111"}, {"card": "4222"}]}
PAYLOADS = [{"n": 1, "token": "t-1"}, {"n": 2, "token": "t-2"}, {"n": 3, "token": "t-3"}]


def test_what_a_person_leaves_hidden_is_put_back() -> None:
    edited = MASK.value(STORED)
    edited["user"] = "grace"
    assert MASK.restored(edited, STORED) == {**STORED, "user": "grace"}


def test_what_a_person_writes_over_it_counts() -> None:
    assert MASK.restored({**MASK.value(STORED), "token": "new"}, STORED) == {**STORED, "token": "new"}


def test_what_only_equals_the_old_value_in_python_is_a_change() -> None:
    assert MASK.restored([True, 1.0, 0], [1, 1, False]) == [True, 1.0, 0]
    assert list(map(type, MASK.restored([True, 1.0, 0], [1, 1, False]))) == [bool, float, int]


def test_items_of_a_list_keep_what_is_hidden_in_their_places() -> None:
    one, two, three = MASK.value(PAYLOADS)
    changed = {"n": 7, "token": "t-2"}
    assert MASK.restored([one, {**two, "n": 7}, three], PAYLOADS) == [PAYLOADS[0], changed, PAYLOADS[2]]
    assert MASK.restored({"all": [[one, {**two, "n": 7}, three]]}, {"all": [PAYLOADS]})["all"][0][1] == changed
    assert MASK.restored(["a", "b", 5], ["a", "b"]) == ["a", "b", 5], "without anything hidden a list may change"
    twins = [{"token": "t-1"}, {"token": "t-2"}]
    assert MASK.restored([*MASK.value(twins), {"token": "t-3"}], twins) == [*twins, {"token": "t-3"}]
    assert MASK.restored(["new", HIDDEN], ["a-1", "a-2"], ["pin", "cvv"]) == ["new", "a-2"]


def test_items_with_something_hidden_are_neither_moved_nor_dropped() -> None:
    one, two, three = MASK.value(PAYLOADS)
    new = {"n": 4, "token": "t-4"}
    for edited in (
        [two, three],
        [three, one],
        [one, two],
        [new, one, two, three],
        [two, one, three],
        [one, two, three, one],
        [{**two, "n": 7}, one, three],
        [one, three, {**two, "n": 7}],
    ):
        with pytest.raises(MaskError):
            MASK.restored(edited, PAYLOADS)
    assert MASK.restored([new], PAYLOADS) == [new], "the values themselves may be given"


@pytest.mark.parametrize(
    "edited",
    [{"other": HIDDEN}, {"token": f"x{HIDDEN}"}, {"cards": HIDDEN}, {"user": ["a", HIDDEN]}, [HIDDEN], HIDDEN],
)
def test_something_hidden_in_another_place_is_refused(edited: object) -> None:
    with pytest.raises(MaskError):
        MASK.restored(edited, STORED)
