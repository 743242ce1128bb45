"""How far the schema is, without Alembic."""

import subprocess
import sys

from alembic.config import Config
from alembic.script import ScriptDirectory

from ledger.store import upgrade
from ledger.store.revisions import folder


def test_revisions_are_those_of_alembic():
    """The files' names say what Alembic reads in them."""
    config = Config()
    config.set_main_option("script_location", str(folder()))
    scripts = ScriptDirectory.from_config(config)
    assert upgrade.head() == scripts.get_current_head()
    revisions = [revision.revision for revision in scripts.walk_revisions()]
    assert revisions
    assert all(map(upgrade.is_known, revisions))
    assert not upgrade.is_known("9999")


def test_a_driver_does_not_import_alembic():
    """It migrates nothing, and would take a seventh longer to import."""
    program = "import ledger.run_step, sys; sys.exit('alembic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
