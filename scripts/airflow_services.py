"""Airflow's services on this machine: configured, started, watched and ended by their own pids.

Everything listens on 127.0.0.1. ``airflow standalone`` would open its log servers on every
interface, so the four services are started one by one, without them.
"""

import configparser
import io
import json
import os
import secrets
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

COMMANDS = {
    "api-server": ["api-server"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}
USER = "admin"
START_SECONDS = 120.0
STOP_SECONDS = 10.0


@dataclass(frozen=True)
class Service:
    """One started service. ``pid`` leads a session of its own; ``created`` distinguishes it from a
    later process of that pid.
    """

    name: str
    pid: int
    created: float


def configure(home: Path, port: int, sql_alchemy_conn: str, dags: Path) -> str:
    """Write ``airflow.cfg`` and the login below ``home``, readable by their owner alone; the
    password.

    Secrets stand in the file: an environment would hand them down to every task and Spark driver.
    """
    home.mkdir(parents=True, exist_ok=True)
    login = home / "passwords.json"
    password = _login(login)
    base = f"http://127.0.0.1:{port}"
    _write_private(
        home / "airflow.cfg",
        _as_text(
            {
                "core": {
                    "dags_folder": str(dags),
                    "load_examples": "False",
                    "executor": "LocalExecutor",
                    "auth_manager": (
                        "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"
                    ),
                    "simple_auth_manager_users": f"{USER}:admin",
                    "simple_auth_manager_passwords_file": str(login),
                    "execution_api_server_url": f"{base}/execution/",
                },
                "database": {"sql_alchemy_conn": sql_alchemy_conn},
                "api": {
                    "host": "127.0.0.1",
                    "port": str(port),
                    "workers": "1",
                    "base_url": base,
                    "secret_key": secrets.token_hex(32),
                },
                "api_auth": {"jwt_secret": secrets.token_hex(32)},
            }
        ),
    )
    return password


def start(home: Path, port: int, environment: Mapping[str, str]) -> Iterator[str]:
    """Start the services one by one and wait until all are healthy; yields what is waited for.

    Raises RuntimeError, with the end of its log, when one ends or is not healthy in time; the
    others are stopped then.
    """
    if not _is_free(port):
        raise RuntimeError(f"port {port} of 127.0.0.1 is taken: choose another, make up PORT=8081")
    (home / "logs").mkdir(parents=True, exist_ok=True)
    for name in COMMANDS:
        start_one(home, name, environment)
    try:
        yield from _until_healthy(home, port)
    except BaseException:
        stop(home)
        raise


def start_one(home: Path, name: str, environment: Mapping[str, str]) -> None:
    """Start one service, as the first of its kind or in place of one that has died."""
    with (home / "logs" / f"{name}.log").open("a") as log:
        process = subprocess.Popen(
            ["airflow", *COMMANDS[name]],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    _remember(home, Service(name, process.pid, psutil.Process(process.pid).create_time()))


def running(home: Path) -> list[Service]:
    """The recorded services that live."""
    return [service for service in _recorded(home) if _lives(service)]


def stop(home: Path) -> int:
    """End the recorded services with all that they started; how many processes were ended."""
    ended = 0
    for name, patience in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        processes = [process for service in _recorded(home) for process in _session_of(service)]
        for process in processes:
            _send(process, name)
        _, left = psutil.wait_procs(processes, timeout=patience)
        ended += len(processes) - len(left)
    (home / "services.json").unlink(missing_ok=True)
    return ended


def _until_healthy(home: Path, port: int) -> Iterator[str]:
    deadline = time.monotonic() + START_SECONDS
    while True:
        dead = {service.name for service in _recorded(home)} - {s.name for s in running(home)}
        waiting = _unhealthy(port)
        if not waiting and not dead:
            return
        if dead or time.monotonic() > deadline:
            name = next(iter(dead or waiting))
            log = home / "logs" / f"{name}.log"
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise RuntimeError(
                f"{tail}\nAirflow's {name} {'ended' if dead else 'is not healthy'}: see {log}"
            )
        yield ", ".join(waiting)
        time.sleep(0.5)


def _unhealthy(port: int) -> list[str]:
    """Services that do not report good health."""
    keys = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/api/v2/monitor/health", timeout=5
        ) as answer:
            health = json.load(answer)
    except (urllib.error.URLError, OSError, ValueError):
        return ["api-server"]
    return [
        name for name, key in keys.items() if (health.get(key) or {}).get("status") != "healthy"
    ]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _remember(home: Path, service: Service) -> None:
    # A killed one stays recorded while what it started lives: else no command would ever end that.
    services = [asdict(service) for service in _recorded(home) if _session_of(service)]
    (home / "services.json").write_text(json.dumps([*services, asdict(service)], indent=2))


def _recorded(home: Path) -> list[Service]:
    path = home / "services.json"
    return [Service(**service) for service in json.loads(path.read_text())] if path.exists() else []


def _lives(service: Service) -> bool:
    try:
        process = psutil.Process(service.pid)
        return process.create_time() == service.created and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _session_of(service: Service) -> list[psutil.Process]:
    """Every process in the session that the service leads, its orphans too; none of a later one."""
    processes: list[psutil.Process] = []
    if psutil.pid_exists(service.pid) and not _leads(service):
        return processes  # the number is another process's by now
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == service.pid and process.create_time() >= service.created:
                processes.append(process)
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            continue  # it has ended, or is not ours
    return processes


def _leads(service: Service) -> bool:
    try:
        return bool(psutil.Process(service.pid).create_time() == service.created)
    except psutil.NoSuchProcess:
        return True  # it has ended just now


def _send(process: psutil.Process, which: signal.Signals) -> None:
    try:
        process.send_signal(which)
    except psutil.NoSuchProcess:
        return  # it has ended


def _login(path: Path) -> str:
    """The password of an earlier start, or a new one."""
    if not path.exists():
        _write_private(path, json.dumps({USER: secrets.token_urlsafe(12)}))
    return str(json.loads(path.read_text())[USER])


def _as_text(sections: Mapping[str, Mapping[str, str]]) -> str:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_dict(
        {
            section: {name: value.replace("%", "%%") for name, value in options.items()}
            for section, options in sections.items()
        }
    )
    text = io.StringIO()
    parser.write(text)
    return text.getvalue()


def _write_private(path: Path, content: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w") as stream:
        stream.write(content)
