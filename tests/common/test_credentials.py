"""Secrets in URIs, wherever a text has them: what is printed and recorded holds none."""

from __future__ import annotations

import pyarrow.fs
import pytest

from common.credentials import without_credentials
from common.errors import is_users
from common.places import Place
from common.uris import PlaceError

WORD = "i" * 200_000


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("http://me:secret@host:5000/a", "http://host:5000/a"),
        ("postgresql://u:p%40ss@h/db and s3://k:s@b", "postgresql://h/db and s3://b"),
        ("https://token@github.com/a, https://u:p@ss@host/x", "https://github.com/a, https://host/x"),
        ("s3://KEY:SEC/RET+x@bucket/folder", "s3://bucket/folder"),  # not written %2F
        ("s3://KEY:SE?CRET@b/x s3://KEY:SE#C'RET@b/y", "s3://b/x s3://b/y"),
        ("s3://b/k?passphrase=q;token=z&region=eu", "s3://b/k?region=eu"),
        ("http://host:5000?x=b@c and http://host:5000, a@b", "http://host:5000?x=b@c and http://host:5000, a@b"),
        ("s3://b/k?access_key=abc&secret_key=def&region=eu", "s3://b/k?region=eu"),
        ("--store 's3://K:S@b/c?scheme=http&session%5Ftoken=x' --steps 3", "--store 's3://b/c?scheme=http' --steps 3"),
        ("data.store=s3://K:S@b/c?secret_key=x", "data.store=s3://b/c"),
        ("abfs://box@a.dfs.core.windows.net/p?sv=2&sig=a%3D&se=3", "abfs://box@a.dfs.core.windows.net/p?sv=2&se=3"),
        ("abfss://box:pw@a.dfs.core.windows.net/p", "abfss://box@a.dfs.core.windows.net/p"),
        (
            "https://b.s3.aws.com/k?X-Amz-Credential=a&X-Amz-Signature=b&X-Amz-Date=c",
            "https://b.s3.aws.com/k?X-Amz-Date=c",
        ),
        ("mssql+pyodbc:///?odbc_connect=DRIVER%3DX%3BPWD%3Dsecret", "mssql+pyodbc:///"),
        ("http://host:5000/@x", "http://host:5000/@x"),
        ("http://[::1]:5000/a?x=b@c", "http://[::1]:5000/a?x=b@c"),
        ("sqlite:////home/a:b@c/x.db", "sqlite:////home/a:b@c/x.db"),
        ("lr: 3@4; really? yes?", "lr: 3@4; really? yes?"),
        pytest.param(WORD + "://K:S@b", WORD + "://b", id="a long word, which once took minutes"),
        pytest.param("h://a:b," * 20_000, "h://a:b," * 20_000, id="many URIs in a word, which once took minutes"),
    ],
)
def test_what_is_left(text: str, public: str) -> None:
    assert without_credentials(text) == public == without_credentials(public)


def test_a_place_that_cannot_be_opened_is_named_without_them() -> None:
    for uri in (
        "s3://KEY:SEC/RET@bucket/x",
        "s3://KEY:SEC?RET@bucket/x",
        "nothing://KEY:SECRET@host/x?secret_key=SECRET",
    ):
        with pytest.raises(PlaceError) as caught:
            Place.parse(uri)
        assert "SEC" not in str(caught.value)


def test_a_bucket_that_is_silent_for_once_is_nobodys_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(uri: str) -> None:
        raise OSError(f"When resolving region for {uri}: AWS Error NETWORK_CONNECTION during HeadBucket operation")

    monkeypatch.setattr(pyarrow.fs, "FileSystem", type("Silent", (), {"from_uri": staticmethod(silent)}))
    with pytest.raises(ConnectionError, match="s3://silent cannot be opened") as caught:
        Place.parse("s3://KEY:SECRET@silent/x")
    assert not is_users(caught.value) and "SECRET" not in str(caught.value)


def test_a_runs_fields_keep_them_and_its_command_and_json_do_not() -> None:
    from pipelines.config.dotted import changes, options, with_fields
    from pipelines.config.run import to_json
    from pipelines.presets import PRESETS

    preset = PRESETS["demo-rec"]
    fields = {"data.store": "s3://KEY:SECRET@b/store", "tracking.uri": "https://me:SECRET@host"}
    run = with_fields(preset, fields)
    assert changes(run, preset) == fields and with_fields(preset, changes(run, preset)) == run
    assert options(run, preset) == ["--data.store", "s3://b/store", "--tracking.uri", "https://host"]
    assert "SECRET" not in str(to_json(run)) and to_json(run)["tracking"]["uri"] == "https://host"
