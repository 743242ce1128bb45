"""Files that a source may read, and those that it refuses."""

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from ledger import FileSource
from ledger.errors import InputError
from ledger.settings import Settings
from ledger.sources.listing import list_files
from ledger.sources.registry import source_of
from tests.support.webhdfs import Store, serving

ICEBERG = ("t/metadata/v1.gz.metadata.json", "t/data/day=1/0.parquet")
MIGRATED = ("t/metadata/00000-a.metadata.json", "t/day=1/000000_0")
HUDI = ("t/.hoodie/hoodie.properties", "t/day=1/0.parquet")


def make(folder, names):
    """Files of these names, without content."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_delta_table_is_not_read_as_its_files(tmp_path, partitioned):
    """Its folder has the files of rows that were overwritten, too: it is refused with its name, by
    whatever path its files are matched, and by the check before a run."""
    table = tmp_path / "in" / "t"
    rows = pa.table({"n": range(100), "day": ["a"] * 100})
    for _ in range(2):
        options = {"partition_by": "day"} if partitioned else {}
        write_deltalake(str(table), rows, mode="overwrite", **options)
    message = f"belongs to the Delta table {table}: expected files that all count"
    for path in ("in/**/*.parquet", "in/t/day=a/*.parquet" if partitioned else "in/t/*.parquet"):
        source = source_of("t", FileSource(path, format="parquet", schema="n LONG"))
        with pytest.raises(InputError, match=message):
            list_files(str(tmp_path / path))
        with pytest.raises(InputError, match=message):
            source.check(Settings(data=str(tmp_path)), "t", None)


def test_a_link_to_a_part_of_a_table_is_none_around_it(tmp_path):
    """The folders above the target of a link are looked at, too."""
    make(tmp_path, ["lake/t/_delta_log/0.json", "lake/t/day=a/0.parquet"])
    (tmp_path / "in").symlink_to(tmp_path / "lake" / "t" / "day=a")
    with pytest.raises(InputError, match=f"Delta table {tmp_path}/lake/t: "):
        list_files(f"{tmp_path}/in/*.parquet")


@pytest.mark.parametrize(
    ("kind", "names"), [("Iceberg", ICEBERG), ("Iceberg", MIGRATED), ("Hudi", HUDI)]
)
def test_no_table_is_read_as_its_files(tmp_path, kind, names):
    """On this machine, and on a store."""
    make(tmp_path, names)
    with serving(Store(tmp_path)) as store:
        for root in (str(tmp_path), store.url()):
            with pytest.raises(InputError, match=f"belongs to the {kind} table {root}/t: "):
                list_files(f"{root}/{names[1].replace('0.', '*.')}")


def test_what_looks_like_a_table_is_read(tmp_path):
    """Folders that are called ``metadata``, empty folders, and tables beside are none of it."""
    make(tmp_path, ["in/metadata/notes.json", "in/0.parquet", "in/metadata/1.parquet"])
    make(tmp_path, ["in/t/_delta_log/0.json", "in/u/0.parquet", "in/t/a.csv"])
    (tmp_path / "in" / ".hoodie").mkdir()
    names = [file.path.rpartition("/")[2] for file in list_files(f"{tmp_path}/in/*.parquet")]
    assert names == ["0.parquet"]
    assert len(list_files(f"{tmp_path}/in/[mu]*/*.parquet")) == 2
    assert len(list_files(f"{tmp_path}/in/t/*.csv")) == 1
