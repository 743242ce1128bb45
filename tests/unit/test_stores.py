"""Files of a store that is no local path, refuses what stores refuse, and fails now and then; and
what is the same of a local folder."""

import errno
import glob
import os
import re
import socket
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import fsspec
import pyarrow as pa
import pytest

from ledger import ParquetSink
from ledger.core.paths import is_local, literal
from ledger.deltas.root_files import read_listing, write_listing
from ledger.deltas.table_writer import TableWriter
from ledger.errors import (
    ConfigurationError,
    DeclarationError,
    InputError,
    LostFileError,
    UnavailableError,
)
from ledger.settings import Settings
from ledger.sources.files.blocks import Block, cut, parts
from ledger.sources.files.format import Format
from ledger.sources.listing import (
    find_files,
    list_files,
    look_at,
    most_records,
    require_unchanged,
    with_digests,
)
from ledger.storage import patterns, stores, webhdfs
from ledger.storage.folders import (
    beside,
    private_output,
    reachable,
    remove_run_folder,
    require_writable,
    size_of,
)
from ledger.storage.manifest import check_files, take_manifest
from tests.support.webhdfs import Store, serving

SCHEMA = pa.schema([("id", pa.int64())])
BYTES = bytes(range(256)) * 40
# Primes: a request that is tried again must not meet the same fault for ever.
FAULTS = {"unavailable": 17, "cut": 13, "broken": 3}


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The store, which fails nothing yet."""
    monkeypatch.setattr(stores, "PAUSE_SECONDS", 0.001)
    with serving(Store(tmp_path)) as store:
        yield store


def fail(store, **faults):
    """From now on the store fails with these faults."""
    for name, value in (faults or FAULTS).items():
        setattr(store, name, value)


def table(store, path, numbers):
    """Write a Parquet file of numbers; its path."""
    with TableWriter(store.url(path), SCHEMA) as writer:
        writer.write([pa.array(numbers, pa.int64())])
        return writer.finish()


def test_a_path_comes_back_as_it_was_written(store):
    """Listings have the URL with its host, which fsspec forgets, and names that a URL would quote
    stay as they are."""
    for name in ("a b/c=1/x.csv", "a b/c=2/y.csv", "a b/z.txt"):
        stores.write(store.url(name), b"1")
    assert [file.path for file in stores.files_below(store.url("a b"))] == [
        store.url("a b/c=1/x.csv"), store.url("a b/c=2/y.csv"), store.url("a b/z.txt"),
    ]  # fmt: skip
    assert [file.path for file in patterns.matching(store.url("a b/c=*/*.csv"))] == [
        store.url("a b/c=1/x.csv"), store.url("a b/c=2/y.csv"),
    ]  # fmt: skip
    assert [file.path for file in patterns.matching(store.url("**/x.csv"))] == [
        store.url("a b/c=1/x.csv")
    ]
    assert [file.path for file in patterns.matching(store.url("a b/z.txt"))] == [
        store.url("a b/z.txt")
    ]
    assert beside(store.url("a b/c=1"), "c=") == [store.url("a b/c=1"), store.url("a b/c=2")]


def test_what_fails_now_and_then_is_tried_again(store):
    """Files are written whole and read as they were written, while requests are answered 503,
    and connections end half-way."""
    fail(store)
    for number in range(20):
        stores.write(store.url(f"some/{number}"), BYTES[number:])
    for number in range(20):
        assert stores.read(store.url(f"some/{number}")) == BYTES[number:]
        with stores.opened(store.url(f"some/{number}")) as stream:
            stream.seek(5_000)
            assert stream.read(100) == BYTES[number:][5_000:5_100]
    assert len(stores.files_below(store.url("some"))) == 20
    assert min(store.events[fault] for fault in ("unavailable", "cut", "broken")) >= 2


def test_an_answer_503_is_no_content(store):
    """fsspec takes the words of a refusal for the content of a file, if they come with the second
    request: the ledger does not."""
    stores.write(store.url("file"), BYTES)
    plain = fsspec.filesystem("webhdfs", host="localhost", port=store.address.split(":")[1])
    fail(store, unavailable=2)
    with suppress(OSError):
        plain.cat_file("/file")
    fail(store, unavailable=5)
    for _ in range(6):
        assert stores.read(store.url("file")) == BYTES


def test_nothing_is_absent_because_a_store_is_down(store, tmp_path):
    """A store that answers nothing is an error that says so, never an empty folder or a file that
    is gone; once it answers the same call succeeds."""
    url = store.url("run=1")
    manifest_of = table(store, "run=1/part-0.parquet", range(3))
    manifest = take_manifest(url)
    fail(store, down=True)
    for call in (
        lambda: stores.exists(url),
        lambda: stores.entries(url),
        lambda: stores.files_below(url),
        lambda: patterns.matching(f"{url}/*"),
        lambda: stores.read(f"{url}/part-0.parquet"),
        lambda: stores.write(f"{url}/other", b""),
        lambda: stores.move(url, f"{url}0"),
        lambda: stores.remove_folder(url),
        lambda: take_manifest(url),
        lambda: check_files(manifest),
        lambda: size_of(url),
        lambda: list_files(f"{url}/*.parquet"),
        lambda: look_at(manifest_of),
        lambda: read_listing(url),
        lambda: require_writable(url, "ACKLEDGER_STORAGE"),
    ):
        with pytest.raises(UnavailableError, match="the store did not answer in 6 attempts"):
            call()
    fail(store, down=False)
    check_files(manifest)
    assert take_manifest(url) == manifest
    assert [path.name for path in (tmp_path / "run=1").iterdir()] == ["part-0.parquet"]


def test_a_file_is_whole_or_is_not_there(store, tmp_path):
    """A writer that raises leaves no file on the store, whether it had finished it or not."""
    for finishes in (False, True):
        with suppress(ZeroDivisionError), TableWriter(store.url("a.parquet"), SCHEMA) as file:
            file.write([pa.array([1], pa.int64())])
            if finishes:
                file.finish()
                assert (tmp_path / "a.parquet").exists()
            raise ZeroDivisionError
        assert not (tmp_path / "a.parquet").exists()


def test_a_rename_that_is_refused_without_an_error_is_one(store):
    """A store that says no to the rename of a folder, as HDFS does, by a word that fsspec drops."""
    stores.write(store.url("in/file"), b"1")
    with pytest.raises(OSError, match="the store refused it"):
        stores.move(store.url("in"), store.url("out"))
    assert stores.read(store.url("in/file")) == b"1"
    stores.move(store.url("in/file"), store.url("out/file"))
    assert not stores.exists(store.url("in/file"))
    assert stores.read(store.url("out/file")) == b"1"


def test_nothing_is_renamed_onto_what_is_there(store):
    """WebHDFS would put it inside, and say yes."""
    for folder in ("in", "out"):
        stores.write(store.url(f"{folder}/file"), b"1")
    store.movable = ("in",)
    with pytest.raises(FileExistsError, match="expected nothing there"):
        stores.move(store.url("in"), store.url("out"))
    with pytest.raises(OSError, match="the store refused it"):
        stores.move(store.url("missing"), store.url("other"))
    stores.move(store.url("missing"), store.url("out"))  # who does the same was faster


def test_a_local_folder_is_renamed_or_is_where_it_was(tmp_path, monkeypatch):
    """It is never copied instead, which readers would see file by file."""
    before, after = tmp_path / "in", tmp_path / "out"
    stores.write(f"{before}/file", b"1")

    def other_disk(*paths):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "rename", other_disk)
    with pytest.raises(OSError, match="cross-device"):
        stores.move(str(before), str(after))
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_url_of_a_file_is_a_local_path(tmp_path):
    """However it is written, nothing is asked for again or copied: a link leads to its file."""
    for scheme in ("file:", "file://", "file://localhost"):
        url = f"{scheme}{tmp_path}"
        assert is_local(url)
        assert stores.place_of(url) == str(tmp_path)
        stores.write(f"{url}/a", b"1")
        assert (tmp_path / "a").read_bytes() == b"1"
        stores.move(f"{url}/a", f"{url}/b")
        (tmp_path / "c").symlink_to("b")
        assert [entry.path for entry in patterns.matching(f"{url}/*")] == [f"{url}/b"]
        for name in ("b", "c"):
            stores.remove_file(f"{url}/{name}")
        assert stores.entries(url) == []
        assert ParquetSink(url).identity == ParquetSink(str(tmp_path)).identity


def test_local_patterns_follow_links(tmp_path):
    """A link is the file or the folder that it leads to; one that leads nowhere is none."""
    (tmp_path / "far").mkdir()
    (tmp_path / "far/a.csv").write_text("1")
    (tmp_path / "in/day").mkdir(parents=True)
    (tmp_path / "in/day/a.csv").write_text("1")
    (tmp_path / "in/day/b.csv").symlink_to(tmp_path / "far/a.csv")
    (tmp_path / "in/day/c.csv").symlink_to(tmp_path / "far/gone.csv")
    (tmp_path / "in/day/d.csv").symlink_to(tmp_path / "in/day/d.csv")
    (tmp_path / "in/linked").symlink_to(tmp_path / "off")
    (tmp_path / "in/all").symlink_to(tmp_path / "in")
    (tmp_path / "in/a-latest").symlink_to(tmp_path / "in/day")
    (tmp_path / "off").mkdir()
    (tmp_path / "off/a.csv").write_text("1")

    def shown(pattern):
        files = patterns.matching(f"{tmp_path}/{pattern}")
        return [file.path.removeprefix(f"{tmp_path}/") for file in files]

    near = ["in/day/a.csv", "in/day/b.csv"]
    for pattern in ("in/*/*.csv", "in/[adl]*/?.csv"):
        assert shown(pattern) == [*near, "in/linked/a.csv"]
    assert shown("in/**/*.csv") == near  # no folder twice, and none without end
    assert shown("*/day/a.csv") == near[:1]
    root, _, rest = str(tmp_path)[1:].partition("/")
    assert [file.name for file in patterns.matching(f"/{root[:-1]}*/{rest}/in/day/a.csv")] == [
        "a.csv"
    ]


def test_a_local_folder_that_cannot_be_listed_is_not_empty(tmp_path, monkeypatch):
    """Its error is raised, where the pattern leads into it."""
    for folder in ("a", "b"):
        stores.write(f"{tmp_path}/{folder}/x.csv", b"1")
    scandir = os.scandir

    def stale(path):
        if str(path).rstrip("/").endswith("/b"):
            raise OSError(errno.ESTALE, "Stale file handle")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", stale)
    for pattern in ("*/*.csv", "**/*.csv"):
        with pytest.raises(OSError, match="Stale"):
            patterns.matching(f"{tmp_path}/{pattern}")
    assert [file.name for file in patterns.matching(f"{tmp_path}/a*/*.csv")] == ["x.csv"]


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_runs_folder_is_seen_by_path_or_url(tmp_path, scheme):
    """A kind of sink of somebody's own may stage its rows at a URL of this machine."""
    (tmp_path / "shop").mkdir()
    assert reachable(f"{scheme}{tmp_path}/shop/out/batch=1/run=1")
    assert not reachable(f"{scheme}{tmp_path}/mart/out/batch=1/run=1")
    folder = f"{scheme}{tmp_path}/shop/out/batch=1/run=1"
    with private_output(folder):
        stores.write(f"{folder}/part", b"1")
    assert (tmp_path / "shop/out/batch=1/run=1/part").stat().st_mode & 0o077 == 0


def test_a_refusal_of_a_data_node_is_no_content(store):
    """The words that it sends instead of a block are an error, which may pass."""
    stores.write(store.url("in/file"), b"123456")
    store.lost = ("in",)
    with pytest.raises(UnavailableError, match="Could not obtain the last block"):
        stores.read(store.url("in/file"))


def test_the_time_of_a_file_is_the_same_in_every_time_zone(store, monkeypatch):
    """WebHDFS counts from the epoch."""
    stores.write(store.url("file"), b"1")
    seen = set()
    for zone in ("UTC", "America/New_York"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        (entry,) = patterns.matching(store.url("f*"))
        seen.add(stores.modified_at(entry))
    monkeypatch.undo()
    time.tzset()
    (at,) = seen
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=1)


def test_a_question_mark_does_not_end_a_path(store):
    """As in a pattern, and in a name."""
    for name in ("a1.csv", "a?.csv"):
        stores.write(store.url(f"in/{name}"), b"1")
    assert [file.name for file in patterns.matching(store.url("in/a?.csv"))] == ["a1.csv", "a?.csv"]


ODD_NAMES = [
    f"a{sign}b" for sign in [*"?[]{}*%#&+=:;,'\"\\ ~^|$!@()<>\n\té", "::", "[1]", "%41", "::c:"]
]


@pytest.mark.parametrize("where", ["here", "on the store"])
def test_a_name_is_never_syntax(store, tmp_path, where):
    """Whatever signs the names of folders and files have, each is found by patterns of its folder,
    and alone by its own name, is read, renamed and removed."""
    root = f"{tmp_path}/here" if where == "here" else store.url("there")
    # HDFS has no colon in a name.
    names = ODD_NAMES if where == "here" else [name for name in ODD_NAMES if ":" not in name]
    for name in names:
        stores.write(f"{root}/{name}/{name}.csv", name.encode())
    paths = sorted(f"{root}/{name}/{name}.csv" for name in names)
    assert [file.path for file in list_files(f"{root}/*/*.csv")] == paths
    assert [file.path for file in list_files(f"{root}/**/a*b.csv")] == paths
    for name in names:
        folder, escaped = f"{root}/{name}", f"{root}/{glob.escape(name)}"
        for pattern in (f"{escaped}/*", f"{escaped}/{glob.escape(name)}.csv"):
            (file,) = list_files(pattern)
            assert stores.read(file.path) == name.encode()
        stores.move(f"{folder}/{name}.csv", f"{folder}/{name}.txt")
        stores.remove_file(f"{folder}/{name}.txt")
        assert stores.entries(folder) == []
        assert stores.exists(folder)


@pytest.mark.parametrize("path", ["/a::b/f[1].parquet", "/a:b/x}y", "webhdfs://h:9870/a:b/c*"])
def test_what_spark_cannot_read_as_a_pattern_is_refused(path):
    """Hadoop takes no colon in a pattern, and Spark takes a name with a bracket for one."""
    with pytest.raises(ConfigurationError, match="expected no colon in a path with one of"):
        literal([path])


def test_what_spark_reads_as_a_pattern_is_escaped():
    """Names without such a sign stay as they are, with a colon, too; the port of a URL is none."""
    assert literal(["/a::b/c", "/a[1]/c", "webhdfs://h:9870/a{b}"]) == [
        "/a::b/c", "/a\\[1\\]/c", "webhdfs://h:9870/a\\{b\\}",
    ]  # fmt: skip


def test_a_url_is_no_chain():
    """fsspec takes ``::`` for the end of one URL and the beginning of another."""
    assert stores.place_of("s3://bucket/a::b/c.csv") == "bucket/a::b/c.csv"


def test_a_folder_is_removed_by_its_name_alone():
    """The client of an object store takes it for a pattern, and would remove others: such a URL is
    refused before anything is written."""
    root = f"memory://{uuid4()}"
    stores.write(f"{root}/d1/file", b"1")
    for sign in "[*?":
        url = f"{root}/d{sign}1]"
        with pytest.raises(ConfigurationError, match=r"expected a URL without any of \* \? \["):
            require_writable(url, "ACKLEDGER_STORAGE")
        with pytest.raises(ConfigurationError, match=r"expected a URL without any of \* \? \["):
            stores.remove_folder(url)
    assert stores.read(f"{root}/d1/file") == b"1"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("f[1].csv", "a file of just this name is there: write (.*)"),
        ("d[[]1]/g[1].csv", "a file of just this name is there: write (.*)"),
        ("d[1]", "a folder has this name: write (.*) for its files"),
        ("d[[]1]", "a folder has this name: write (.*) for its files"),
        ("d[[]1]/", "a folder has this name: write (.*) for its files"),
        ("_f.csv", r"begins with \. or _: rename it"),
        ("[_a-z].csv", r"/_\.csv: expected a name .* begins with \. or _: rename it"),
        ("f\0.csv", "expected a path, found: embedded null byte"),
    ],
)
def test_what_has_just_the_name_of_a_path_is_not_missing(tmp_path, path, message):
    """A path is a pattern of files: of something else that has just this name the error says which
    path to write, and that path finds it, also where no file is due.
    """
    (tmp_path / "d[1]").mkdir()
    (tmp_path / "d1").mkdir()
    for name in ("f[1].csv", "d[1]/g[1].csv", "d1/h.csv", "_f.csv", "_.csv"):
        (tmp_path / name).write_text("n\n")
    for allow_missing in (False, True):
        with pytest.raises(InputError, match=message) as raised:
            find_files("in", f"{tmp_path}/{path}", allow_missing=allow_missing)
        advised = re.search(message, str(raised.value)).groups()
        names = [file.path[-7:] for each in advised for file in find_files("in", each)]
        assert names == ["[1].csv"] * len(advised)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("**/*.csv", ["_c=1/4.csv", "a/3.csv"]),
        ("*/*.csv", ["_c=1/4.csv", "a/3.csv"]),
        ("_staging/*.csv", ["_staging/1.csv"]),
        ("_*/*.csv", ["_c=1/4.csv", "_staging/1.csv"]),
        ("**/_staging/**/*.csv", ["_staging/1.csv", "_staging/b/2.csv"]),
        ("**/.trash/*.csv", [".trash/0.csv"]),
        ("_staging/**/*.csv", ["_staging/1.csv", "_staging/b/2.csv"]),
    ],
)
def test_no_wildcard_leads_into_a_hidden_folder(store, tmp_path, pattern, names):
    """What writers keep there is not published; a path that asks for such a folder reads it."""
    files = ("_staging/1.csv", "_staging/b/2.csv", "a/3.csv", ".trash/0.csv", "_c=1/4.csv")
    for root in (f"{tmp_path}/here", store.url("there")):
        for name in files:
            stores.write(f"{root}/{name}", b"n\n1\n")
        paths = [file.path for file in list_files(f"{root}/{pattern}")]
        assert paths == [f"{root}/{name}" for name in names]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*/d.csv", "_us"),
        ("**/d.csv", "_us"),
        ("**", "_us"),
        ("?us/d.csv", "_us"),
        ("[!x]us/d.csv", "_us"),
        ("[!_]*/d.csv", ["eu"]),
        ("[!_.]*/**/d.csv", ["eu"]),
        ("_us/d.csv", ["_us"]),
        ("_[stu]*/d.csv", ["_staging", "_temporary-1", "_us"]),
        ("[_a-z]*/d.csv", ["_us", "eu"]),
        ("**/[_]us/d.csv", ["_us"]),
        ("**/_us/**", ["_us"]),
        ("**/*_*.csv", None),
        ("*/e.csv", ["eu"]),
    ],
)
def test_no_folder_with_matching_files_is_skipped_silently(store, tmp_path, pattern, expected):
    """A folder that begins with _ and is not a writer's is read if the path asks for it, and an
    error if a wildcard matches its files; those of writers stay out unless they are named."""
    folders = ("eu", "_us", "_staging", "_temporary-1", "_delta_log", ".h", "_staging/_us")
    for root in (f"{tmp_path}/here", store.url("there")):
        for folder in folders:
            stores.write(f"{root}/{folder}/d.csv", b"n\n1\n")
        stores.write(f"{root}/eu/e.csv", b"n\n1\n")
        stores.write(f"{root}/_us/_SUCCESS", b"")
        if isinstance(expected, list):
            paths = [file.path.rpartition("/")[0] for file in list_files(f"{root}/{pattern}")]
            assert paths == [f"{root}/{name}" for name in expected]
        elif expected is None:
            assert list_files(f"{root}/{pattern}") == []
        else:
            with pytest.raises(InputError, match=r"wildcard for the folder _us, .* write _us in"):
                list_files(f"{root}/{pattern}")


def test_a_path_is_the_one_that_spark_opens(tmp_path):
    """Behind a link ``..`` leads to the folder above the link's target, and Spark would go to the
    one above the link.
    """
    for name in ("data/ref/a.csv", "mount/ref/a.csv", "mount/v2/b.csv"):
        stores.write(f"{tmp_path}/{name}", b"n\n")
    (tmp_path / "data" / "current").symlink_to(tmp_path / "mount" / "v2")
    for name in ("a.csv", "*.csv"):
        (file,) = list_files(f"{tmp_path}/data/current/../ref/{name}")
        assert file.path == f"{tmp_path}/mount/ref/a.csv"


def test_what_is_gone_may_be_removed(store, tmp_path):
    """A try that was not answered may have done it."""
    for folder in (store.url("in"), str(tmp_path / "local")):
        stores.remove_file(f"{folder}/file")
        stores.remove_folder(folder)


def test_an_error_has_no_secrets(store):
    """Neither queries of URLs, which may have a token, nor a password that was written into one."""
    fail(store, down=True)
    with pytest.raises(UnavailableError) as raised:
        stores.exists(store.url("file"))
    assert "user.name" not in str(raised.value)
    assert "op=" not in str(raised.value)
    assert raised.value.__suppress_context__
    for use in (stores.exists, ParquetSink):
        with pytest.raises(ConfigurationError, match="expected no password") as raised:
            use(store.url("file").replace("://", "://bob:hunt@er2@"))
        assert "hunt" not in str(raised.value)
        assert "er2" not in str(raised.value)


def test_a_store_that_says_nothing_does_not_keep_a_driver(monkeypatch):
    """A request ends after a while."""
    monkeypatch.setattr(webhdfs, "TIMEOUT_SECONDS", (0.2, 0.2))
    monkeypatch.setattr(stores, "PAUSE_SECONDS", 0.001)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(UnavailableError, match="did not answer in 6 attempts"),
    ):
        stores.exists(f"webhdfs://127.0.0.1:{silent.getsockname()[1]}/file")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("hdfs://namenode:8020/file", r"expected webhdfs://.*found hdfs://"),
        ("viewfs://cluster/file", r"expected webhdfs://.*found viewfs://"),
        ("file://elsewhere/file", r"expected file:///.*found a host"),
        ("s3://buck*/file", r"expected wildcards in names of files"),
        ("/in/a**b/file", r"expected \*\* as the name of folders, found it in 'a\*\*b'"),
        ("nowhere://a/file", r"expected a path, or a URL of a store that fsspec knows, found now"),
        ("simplecache::s3://a/file", r"a store that fsspec knows, found simplecache::s3://"),
    ],
)
def test_what_is_refused(url, expected):
    """Hadoop's own protocols, whose client outside of Spark takes errors for absence, and what
    names no file."""
    with pytest.raises(ConfigurationError, match=expected):
        patterns.matching(url)


def test_a_source_says_which_folder_cannot_be_listed(tmp_path, monkeypatch):
    """Permanently, or for now."""
    for error, kind in ((PermissionError, InputError), (OSError, UnavailableError)):

        def refuse(path, error=error):
            raise error(errno.EIO, "no")

        monkeypatch.setattr(os, "scandir", refuse)
        with pytest.raises(kind, match=r"source files .*/\*\.csv"):
            list_files(f"{tmp_path}/*.csv")


def test_a_manifest_has_the_files_that_count(store):
    """Rows by the footers of a store's files, of all or of those that are named; a file that is
    gone or cut short later is named."""
    for number in range(4):
        table(store, f"run=1/p={number % 2}/part-{number}.parquet", range(number + 1))
    stores.write(store.url("run=1/_temporary/0/part-9.parquet"), b"half")
    fail(store)
    manifest = take_manifest(store.url("run=1"))
    assert (manifest.rows, [file.first_position for file in manifest.files]) == (10, [0, 1, 4, 6])
    assert take_manifest(store.url("run=1"), {"part-3.parquet"}).rows == 4
    check_files(manifest)
    stores.remove_file(manifest.paths[1])
    with pytest.raises(LostFileError, match=r"part-2.parquet: expected \d+ bytes .* it is gone"):
        check_files(manifest)


def test_root_files_are_listed_on_the_store(store):
    """What counts of a run's root files is written and read as a whole."""
    fail(store)
    write_listing(store.url("roots"), [])
    assert read_listing(store.url("roots")) == []
    with pytest.raises(LostFileError, match=r"files.json is gone"):
        read_listing(store.url("others"))


def test_a_run_is_removed_with_its_batch(store, tmp_path):
    """The folder of the last run takes that of its batch with it, and is removed once."""
    for run in (1, 2):
        stores.write(store.url(f"step/batch=1/run={run}/file"), BYTES)
    assert size_of(store.url("step")).bytes == 2 * len(BYTES)
    fail(store)
    remove_run_folder(store.url("step/batch=1/run=1"), 1)
    assert (tmp_path / "step/batch=1/run=2/file").exists()
    for _ in range(2):
        remove_run_folder(store.url("step/batch=1/run=2"), 2)
    assert list((tmp_path / "step").iterdir()) == []


def test_a_sources_file_is_cut_into_blocks_of_a_store(store):
    """A text is listed, counted and cut, and each block reads the bytes that it was cut from."""
    lines = b"".join(b"%d,x\n" % number for number in range(5_000))
    stores.write(store.url("in/a.csv"), lines)
    stores.write(store.url("in/_hidden.csv"), lines)
    fail(store)
    (file,) = list_files(store.url("in/*.csv"))
    assert (file.path, file.bytes) == (store.url("in/a.csv"), len(lines))
    (now,) = require_unchanged("orders", [file])
    assert now.version
    assert replace(now, version="") == file
    assert most_records(file, "csv") == 5_000
    form = Format("csv", None, ["id", "name"], None, {}, False)
    blocks = [Block.at(block.place) for block in cut(file.path, form, None)]
    assert b"".join(part for block in blocks for part in parts(block)) == lines


def test_a_store_without_versions_has_small_files_compared_by_content(tmp_path):
    """Once more after the reading; where there is a version, that says as much as the digest."""
    for path, is_versioned in (("memory://b/a.csv", False), (f"{tmp_path}/a.csv", True)):
        stores.write(path, b"n\n1\n")
        (before,) = require_unchanged("numbers", with_digests(list_files(path)))
        assert bool(before.version) is is_versioned
        assert (before.digest is None) is is_versioned
        time.sleep(0.01)  # the clock of a file system may stand still as long
        stores.write(path, b"n\n2\n")
        same_time = replace(before, modified_at=look_at(path).modified_at)
        words = "another version" if is_versioned else "other content"
        with pytest.raises(InputError, match=f"found {words} of that size and time"):
            require_unchanged("numbers", [same_time])


@pytest.mark.parametrize("scheme", ["s3", "s3a", "gs", "abfss", "hdfs", "memory"])
def test_a_parquet_folder_needs_a_store_that_renames_folders(scheme):
    """An object store is refused when the sink is declared, or when its run looks where the output
    goes, with what to use instead."""
    with pytest.raises(DeclarationError, match=rf"found {scheme}://.*Use DeltaSink there"):
        ParquetSink(f"{scheme}://bucket/out")
    settings = Settings(output=f"{scheme}://bucket")
    with pytest.raises(DeclarationError, match=rf"found {scheme}://.*Use DeltaSink there"):
        ParquetSink("out").publisher(settings, "shop", "out").plan(None, None)


def test_a_store_that_renames_no_folder_is_refused_before_anything_is_staged(store, tmp_path):
    """Its protocol does not show that: a rename is tried, and leaves nothing."""
    publisher = ParquetSink(store.url("out")).publisher(Settings(), "shop", "out")
    with pytest.raises(ConfigurationError, match=r"this one does not.*Use DeltaSink there"):
        publisher.plan(SCHEMA, None)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    store.movable = ("out",)
    publisher.plan(SCHEMA, None)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_parquet_folder_that_is_closed_says_so(store):
    """What is refused there is the writing, not the rename."""
    stores.write(store.url("out/file"), b"1")
    store.closed = ("out",)
    publisher = ParquetSink(store.url("out")).publisher(Settings(), "shop", "out")
    with pytest.raises(ConfigurationError, match=r"the store refused: .*Check the login"):
        publisher.plan(SCHEMA, None)
