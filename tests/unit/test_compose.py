"""The container stack, as far as it can be checked without a container engine.

``compose_spec.json`` is the schema that Docker Compose 1.29.2 ships (Apache License 2.0).
"""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.support.places import ROOT


@pytest.fixture(scope="module")
def validator():
    """The schema of the Compose Specification."""
    schema = Path(__file__).with_name("compose_spec.json").read_text()
    return jsonschema.Draft7Validator(json.loads(schema))


@pytest.fixture(scope="module")
def compose():
    """docker-compose.yml with its anchors resolved."""
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_compose_file_follows_the_specification(compose, validator):
    """The file is valid by the schema of the Compose Specification, kept beside this test."""
    assert [error.message for error in validator.iter_errors(compose)] == []


def test_schema_refuses_nonsense(validator):
    """The schema does check: an unknown key of a service is refused."""
    (error,) = validator.iter_errors({"services": {"postgres": {"imagge": "postgres"}}})
    assert "imagge" in error.message


def test_only_the_ui_is_published_and_on_loopback(compose):
    """One port is reachable from the host, on 127.0.0.1."""
    published = [
        port for service in compose["services"].values() for port in service.get("ports", [])
    ]
    assert published == ["127.0.0.1:8080:8080"]


def test_dependencies_and_volumes_exist(compose):
    """Every service that another waits for, and every volume that is mounted, is declared."""
    for service in compose["services"].values():
        assert set(service.get("depends_on", [])) <= set(compose["services"])
        for volume in service["volumes"]:
            assert volume.split(":")[0] in compose["volumes"]


def test_no_password_is_written_down():
    """Passwords come from the environment, and their absence is an error."""
    text = (ROOT / "docker-compose.yml").read_text()
    for line in text.splitlines():
        if re.search(r"PASSWORD|SECRET", line) and ":" in line and not line.startswith("#"):
            assert "${" in line, line


def test_only_drivers_have_an_address_of_the_ledger(compose):
    """Tasks of Airflow, where drivers run, have it; executors and Spark's master have none, and no
    password of it."""
    for name, service in compose["services"].items():
        of_ledger = {
            key: value
            for key, value in service["environment"].items()
            if key.startswith("PG") or "postgres" in value
        }
        if name.startswith("spark-"):
            assert of_ledger == {}, name
        elif name != "postgres":
            urls = {"ACKLEDGER_DATABASE_URL", "ACKLEDGER_READER_URL", "PGPASSWORD"}
            assert urls <= set(of_ledger), name


def test_commands_of_the_stack_exist(compose):
    """Each service's program is installed with the project."""
    programs = {
        service["command"][0] for service in compose["services"].values() if "command" in service
    }
    assert programs == {"sh", "airflow", "spark-class"}
    for module in re.findall(r"python -m ([\w.]+)", str(compose["services"]["init"]["command"])):
        assert (ROOT / (module.replace(".", "/") + ".py")).exists()
