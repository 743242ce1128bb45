"""Access to the ledger's pages: Airflow's own login, and its permissions on the DAGs of pipelines.

A pipeline's DAG has the pipeline's name. Where batches ran without Airflow, too, and no DAG has
that name, Airflow's permissions on a DAG of that name count.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException


class Access:
    """The rights of the signed-in user. Raises HTTPException 401 if no user is signed in."""

    def __init__(self, user: GetUserDep):
        self._user = user

    def readable(self, pipelines: Sequence[str]) -> list[str]:
        """Return the pipelines whose batches the user may see, by read access to their DAGs."""
        dag_ids: set[str] = get_auth_manager().filter_authorized_dag_ids(
            dag_ids=set(pipelines), user=self._user, method="GET"
        )
        return [name for name in pipelines if name in dag_ids]

    def require(self, pipeline: str) -> None:
        """Raise HTTPException 403 unless the user may see the pipeline's batches."""
        self._require(pipeline, "GET", None)

    def require_records(self, pipeline: str) -> None:
        """Raise HTTPException 403 unless the user may see the pipeline's records: read access to
        the DAG and to its task logs, which quote records as well.
        """
        self.require(pipeline)
        self._require(pipeline, "GET", DagAccessEntity.TASK_LOGS)

    def may_run(self, pipeline: str) -> bool:
        """Return whether the user may create runs of the pipeline's DAG."""
        return self._may(pipeline, "POST", DagAccessEntity.RUN)

    def _require(self, pipeline: str, method: Any, entity: DagAccessEntity | None) -> None:
        if not self._may(pipeline, method, entity):
            raise HTTPException(403, "Forbidden")

    def _may(self, pipeline: str, method: Any, entity: DagAccessEntity | None) -> bool:
        details = DagDetails(id=pipeline, team_name=DagModel.get_team_name(pipeline))
        return bool(
            get_auth_manager().is_authorized_dag(
                method=method, access_entity=entity, details=details, user=self._user
            )
        )


SignedIn = Annotated[Access, Depends(Access)]
