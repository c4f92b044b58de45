from __future__ import annotations

from pathlib import Path

import pytest

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net import tokens
from pipesvc.net.addresses import parse

ADDRESS = parse("127.0.0.1:7700")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_token_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    token, path = tokens.ensure_token(tmp_path / "state")
    assert path == tmp_path / "state" / "token"
    assert mode(path) == 0o600
    assert len(token) >= 32
    assert tokens.ensure_token(tmp_path / "state") == (token, path)
    assert [entry.name for entry in path.parent.iterdir()] == ["token"]


def test_token_that_others_could_read_is_replaced(tmp_path: Path) -> None:
    token, path = tokens.ensure_token(tmp_path)
    path.chmod(0o644)
    other, _ = tokens.ensure_token(tmp_path)
    assert other != token
    assert mode(path) == 0o600


def test_pointer_leads_to_the_token_of_its_address_only(tmp_path: Path) -> None:
    environ = {"PIPESVC_HOME": str(tmp_path / "home")}
    token, path = tokens.ensure_token(tmp_path / "state")
    pointers = tokens.write_pointers([ADDRESS, parse("[::1]:7700")], path, environ=environ)
    assert pointers[0] == tmp_path / "home" / "tokens" / "127.0.0.1_7700"
    assert [mode(pointer) for pointer in pointers] == [0o600, 0o600]
    assert mode(pointers[0].parent) == 0o700
    assert token not in pointers[0].read_text()
    assert tokens.find_token(ADDRESS, environ=environ) == token
    assert tokens.find_token(parse("[::1]:7700"), environ=environ) == token
    assert tokens.find_token(parse("127.0.0.1:7701"), environ=environ) == ""


def test_pointer_of_a_later_server_is_not_removed(tmp_path: Path) -> None:
    environ = {"PIPESVC_HOME": str(tmp_path)}
    _, first = tokens.ensure_token(tmp_path / "first")
    second_token, second = tokens.ensure_token(tmp_path / "second")
    pointers = tokens.write_pointers([ADDRESS], first, environ=environ)
    tokens.write_pointers([ADDRESS], second, environ=environ)
    tokens.remove_pointers(pointers, first)
    assert tokens.find_token(ADDRESS, environ=environ) == second_token
    tokens.remove_pointers(pointers, second)
    assert not pointers[0].exists()
    tokens.remove_pointers(pointers, second)


def test_order_of_the_places_where_a_token_is_looked_for(tmp_path: Path) -> None:
    written = {}
    for name in ("option", "variable", "pointer"):
        written[name] = tokens.ensure_token(tmp_path / name)
    environ = {"PIPESVC_HOME": str(tmp_path / "home")}
    tokens.write_pointers([ADDRESS], written["pointer"][1], environ=environ)
    assert tokens.find_token(ADDRESS, environ=environ) == written["pointer"][0]
    environ["PIPESVC_TOKEN_FILE"] = str(written["variable"][1])
    assert tokens.find_token(ADDRESS, environ=environ) == written["variable"][0]
    environ["PIPESVC_TOKEN"] = "the-variable-itself"
    assert tokens.find_token(ADDRESS, environ=environ) == "the-variable-itself"
    assert tokens.find_token(ADDRESS, written["option"][1], environ=environ) == written["option"][0]


def test_nothing_found_is_an_empty_token(tmp_path: Path) -> None:
    environ = {"PIPESVC_HOME": str(tmp_path)}
    assert tokens.find_token(ADDRESS, environ=environ) == ""
    _, path = tokens.ensure_token(tmp_path / "state")
    tokens.write_pointers([ADDRESS], path, environ=environ)
    path.unlink()
    assert tokens.find_token(ADDRESS, environ=environ) == ""


@pytest.mark.parametrize("content", [None, b"", b"two words are no token", b"\xff\xfe" * 20])
def test_named_file_must_hold_a_token(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "named"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PipesvcError, match="named") as caught:
        tokens.find_token(ADDRESS, path, environ={})
    assert caught.value.code is ErrorCode.UNAUTHENTICATED
    with pytest.raises(PipesvcError, match="named"):
        tokens.find_token(ADDRESS, environ={"PIPESVC_TOKEN_FILE": str(path)})


def test_new_tokens_differ() -> None:
    assert tokens.new_token() != tokens.new_token()
