"""Users of Airflow, and who of them may see and run what."""

import configparser
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

SEEN = ("chain", "dag")  # the DAGs that somebody sees who is no admin


class PerDag(SimpleAuthManager):
    """As Airflow's simple one, but who is no admin has rights on few DAGs alone, and somebody named
    ``blind`` cannot read its task logs.
    """

    def is_authorized_dag(
        self,
        *,
        method: Any,
        user: SimpleAuthManagerUser,
        access_entity: Any = None,
        details: Any = None,
    ) -> bool:
        if user.role != "ADMIN" and (details is None or details.id not in SEEN):
            return False
        if user.username == "blind" and str(access_entity).endswith("TASK_LOGS"):
            return False
        asked = {"method": method, "access_entity": access_entity, "details": details}
        return bool(super().is_authorized_dag(user=user, **asked))


def user(name: str, role: str) -> SimpleAuthManagerUser:
    """A user of a role of the simple auth manager: viewer, user, op, admin."""
    return SimpleAuthManagerUser(username=name, role=role.upper())


def token(home: Path, name: str, role: str) -> str:
    """What signs a user in at the API server of a running Airflow, signed with its secret."""

    class OfThis(SimpleAuthManager):
        """A class keeps its first secret, and each Airflow has its own."""

    written = configparser.ConfigParser(interpolation=None)
    written.read(home / "airflow.cfg")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", written["api_auth"]["jwt_secret"])
        return OfThis().generate_jwt(user(name, role))
