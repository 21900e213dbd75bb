"""Generated ids."""

from __future__ import annotations

from django_delayq.core import new_id


def test_random_ids_are_20_characters_that_no_command_takes_for_an_option() -> None:
    ids = {new_id() for _ in range(20_000)}
    assert len(ids) == 20_000
    assert {len(ident) for ident in ids} == {20}
    assert [ident for ident in ids if ident.startswith("-")] == []
