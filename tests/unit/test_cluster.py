"""What ``make cluster`` leaves on the machine."""

import os
import tempfile
from pathlib import Path

import pytest

from tests.cluster.accounts import clear_temporary

OWNER = 2_000_000_123  # above the numbers that systems give to users


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of another user")
def test_what_a_user_left_in_tmp_is_removed():
    """Its files, its folders with all that is in them and its links; not what a link leads to, nor
    what another user has there.
    """
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ackledger-own-") as own:
        (Path(own) / "inside").touch()
        left = [Path(f"{own}-{kind}") for kind in ("file", "folder", "link")]
        file, folder, link = left
        file.touch()
        folder.mkdir()
        (folder / "inside").touch()
        link.symlink_to(own)
        for path in left:
            os.chown(path, OWNER, OWNER, follow_symlinks=False)
        clear_temporary(OWNER)
        assert not [path for path in left if os.path.lexists(path)]
        assert (Path(own) / "inside").exists()
