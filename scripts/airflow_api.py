"""Airflow's REST API, as the project's own Airflow is driven by programs."""

import json
import urllib.request
from typing import Any

from scripts.airflow_services import USER


class AirflowApi:
    """A session of the one user of an Airflow on 127.0.0.1."""

    def __init__(self, port: int, password: str):
        self.base, self.password = f"http://127.0.0.1:{port}", password
        login = {"username": USER, "password": password}
        self._token: str | None = None
        self._token = self._send("POST", "/auth/token", login)["access_token"]

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Ask Airflow's API."""
        return self._send(method, f"/api/v2{path}", body)

    def trigger(self, dag: str, **conf: Any) -> str:
        """Start a run by hand; its id."""
        body = {"logical_date": None, "conf": conf}
        return str(self.api("POST", f"/dags/{dag}/dagRuns", body)["dag_run_id"])

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """All runs of a DAG, oldest first."""
        return list(
            self.api("GET", f"/dags/{dag}/dagRuns?order_by=run_after&limit=100")["dag_runs"]
        )

    def tasks(self, dag: str, run: str) -> dict[str, str]:
        """State of each task of a run."""
        instances = self.api("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return {task["task_id"]: task["state"] for task in instances}

    def known_dags(self) -> list[str]:
        """The DAGs that have been parsed."""
        return [dag["dag_id"] for dag in self.api("GET", "/dags")["dags"]]

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
