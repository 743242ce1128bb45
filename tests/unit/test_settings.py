"""Where relative paths of sources and sinks start."""

import pytest

from ledger import DeltaSink, FileSource, ParquetSink, Pipeline
from ledger.errors import ConfigurationError
from ledger.settings import Settings
from ledger.sources.listing import list_files
from ledger.store import embedded


@pytest.mark.parametrize(
    ("output", "path", "expected"),
    [
        (None, "out/a", "/data/out/a"),
        ("", "out/a", "/data/out/a"),
        ("/made", "out/a", "/made/out/a"),
        ("webhdfs://made", "out/a", "webhdfs://made/out/a"),
        ("file:///made", "out/a", "/made/out/a"),
        ("/made", "file:///else/a", "/else/a"),
        ("/made", "file://localhost/else/a", "/else/a"),
        ("/made", "file:/else/a", "/else/a"),
        ("/made", "/else/a", "/else/a"),
        ("/made", "webhdfs://else/a", "webhdfs://else/a"),
    ],
)
@pytest.mark.parametrize("kind", [ParquetSink, DeltaSink])
def test_where_a_sink_writes(kind, output, path, expected):
    """A sink's relative path starts from the output folder, by default the data folder."""
    pipeline = Pipeline("shop")
    pipeline.source("orders", FileSource("in.csv", schema="n INT"))
    pipeline.sink("out", kind(path), reads="orders")
    settings = Settings(data="/data", output=output)
    publisher = pipeline.step("out").sink.publisher(settings, "shop", "out")
    assert publisher.staging(1, 2).startswith(f"{expected}/_")


def test_where_a_source_is_read():
    """A source's relative path starts from the data folder, wherever the output goes."""
    assert Settings(data="/data", output="/made").data_path("in.csv") == "/data/in.csv"


def test_the_output_folder_is_a_variable(monkeypatch):
    """``ACKLEDGER_OUTPUT`` sets it."""
    monkeypatch.setenv("ACKLEDGER_OUTPUT", "/made")
    assert Settings().output_path("a") == "/made/a"


def test_the_name_of_the_data_folder_is_no_pattern(tmp_path, monkeypatch):
    """Of ``d[1]`` beside ``d1`` the named folder is read, whether it is named as a whole, as a URL,
    by the working folder, or holds the pattern of a source; it need not be listed."""
    for name in ("d[1]", "d1", "d*", "dx"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "in.csv").write_text(name)
    for name in ("d[1]", "d*"):
        monkeypatch.chdir(tmp_path / name)
        for data in (".", "", f"{tmp_path}/{name}", f"file://{tmp_path}/{name}/"):
            for path in ("in.csv", "*.csv", "./**/in.csv"):
                (file,) = list_files(Settings(data=data).data_path(path))
                assert file.path == f"{tmp_path}/{name}/in.csv"


def test_a_folder_that_ends_in_a_colon_makes_no_url():
    """A slash at the end of the data folder is none of ``://``."""
    settings = Settings(data="/data/a:/", output="/made/b:/")
    assert settings.data_path("in.csv") == "/data/a:/in.csv"
    assert settings.output_path("out") == "/made/b:/out"


def test_a_tilde_is_the_home_of_a_user_that_is_there(monkeypatch):
    """As of a shell: otherwise it is the first character of a name."""
    monkeypatch.setenv("HOME", "/me")
    monkeypatch.chdir("/")
    assert Settings(data="~/d").data_path("in.csv") == "/me/d/in.csv"
    assert Settings(data="~no user").data_path("~.csv") == "/~no user/~.csv"


@pytest.mark.parametrize(
    "path", ["//a/in.csv", "///a//in.csv", "/a/./in.csv/", "file:////a/in.csv"]
)
def test_a_path_begins_with_one_slash(path):
    """Hadoop takes the name behind two slashes for that of a host, and reads the rest."""
    settings = Settings(data="//d/", output="//o", storage="//s//t/")
    assert settings.data_path(path) == settings.output_path(path) == "/a/in.csv"
    assert settings.data_path("in.csv") == "/d/in.csv"
    assert (settings.output_path("out"), settings.storage_root()) == ("/o/out", "/s/t")


@pytest.mark.parametrize("name", ["d[1]", "a b", "h%41", "a+b", "a,b", "a'b", "a&b", "$HOME"])
def test_the_embedded_server_refuses_a_home_that_is_taken_for_another(tmp_path, name):
    """Its socket is named in a command of the shell and in a URL: it would be that of another
    folder, and so perhaps of another ledger."""
    with pytest.raises(ConfigurationError, match=r"ACKLEDGER_HOME=.*ACKLEDGER_DATABASE_URL"):
        embedded.running(tmp_path / name)
