"""URIs: how they divide into a root and a path, and which are refused."""

from __future__ import annotations

import pytest

from common.uris import PlaceError, parse_uri, uri_of


@pytest.mark.parametrize(
    ("uri", "root", "path"),
    [
        ("s3://books/a%20b/c/?region=eu-west-1", "s3://books?region=eu-west-1", "books/a b/c"),
        ("mock:///a%20b", "mock://", "a b"),
        ("file:///tmp/a%20b/../c", "", "/tmp/c"),
    ],
)
def test_a_uri_is_a_root_and_a_path(uri: str, root: str, path: str):
    assert parse_uri(uri) == (root, path)
    assert not root or parse_uri(uri_of(root, path)) == (root, path)


@pytest.mark.parametrize("secret", ["sec'ret", 'sec"ret', "sec ret"])
def test_a_secret_that_could_be_shown_in_part_is_refused(secret: str):
    with pytest.raises(PlaceError, match="has a quote or a blank in a key or password: write %27") as caught:
        parse_uri(f"s3://KEY:{secret}@bucket/x?region=eu")
    assert "ret" not in str(caught.value)


@pytest.mark.parametrize("uri", ["foo://user:secret@host/x", "s3://user:secret@bucket/x?nonsense=1"])
def test_a_uri_that_nothing_opens_is_refused_without_its_credentials(uri: str):
    with pytest.raises(PlaceError, match="cannot be opened") as caught:
        parse_uri(uri)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("uri", ["s3://books/c#/store", "s3://books/c?region=x#", "file:///tmp/a#b", "file:///tmp/a?b"])
def test_a_uri_of_which_a_part_would_be_dropped_is_refused(uri: str):
    with pytest.raises(PlaceError, match=r"write %23 for # and %3F for \?"):
        parse_uri(uri)


@pytest.mark.parametrize("uri", ["file://my_books", "file://runs/store", "file://~/x"])
def test_a_file_uri_with_a_folder_in_place_of_a_machine_is_refused(uri: str):
    with pytest.raises(PlaceError, match="not a folder: write file:///whole/path, or the path alone"):
        parse_uri(uri)
    assert parse_uri("file://localhost/a/b") == parse_uri("file:///a/b") == ("", "/a/b")


@pytest.mark.parametrize(
    "uri",
    ["s3://", "s3:///books/x", "gs:///x", "abfs://", "abfs://@account.dfs.core.windows.net/x", "s3://KEY:secret@/x"],
)
def test_a_uri_without_a_bucket_is_refused(uri: str):
    with pytest.raises(PlaceError, match="names no bucket: write ") as caught:
        parse_uri(uri)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("uri", ["s3://[bucket]/runs", "s3://KEY:secret@[x/y"])
def test_a_uri_with_brackets_is_refused(uri: str):
    with pytest.raises(PlaceError, match=r"the URI s3://… has a bracket in its bucket or host") as caught:
        parse_uri(uri)
    assert "secret" not in str(caught.value)
