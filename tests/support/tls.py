"""A PostgreSQL server that takes connections over TLS alone, with certificates made for it."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.ports import free_port

PASSWORD = "tls-passphrase"
_WITHOUT = ("certified",)  # a login of a certificate
_HBA = """
hostssl all app 127.0.0.1/32 scram-sha-256
hostssl all certified 127.0.0.1/32 cert
hostssl all ledger_sql 127.0.0.1/32 trust
local all postgres trust
"""
_SETUP = f"""
CREATE ROLE app SUPERUSER LOGIN PASSWORD '{PASSWORD}';
CREATE ROLE certified SUPERUSER LOGIN;
CREATE DATABASE ledger OWNER app;
CREATE DATABASE warehouse OWNER app;
"""


def programs() -> Path | None:
    """The folder of a server's programs that have TLS; None: this machine has none."""
    for initdb in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True):
        linked = subprocess.run(
            ["ldd", initdb.with_name("postgres")], capture_output=True, text=True, check=False
        )
        if "libssl" in linked.stdout:
            return initdb.parent
    return None


def server_user() -> str | None:
    """Who runs servers that refuse root; None: this user."""
    return "postgres" if os.geteuid() == 0 else None


class Authority:
    """Signs certificates of its own making."""

    def __init__(self, name: str):
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = _named(name)
        self.certificate = self._signed(self.name, self.key.public_key(), ca=True)

    def issue(self, name: str) -> tuple[bytes, bytes]:
        """A certificate for 127.0.0.1, or a user, of this name, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        result = self._signed(_named(name), key.public_key(), ca=False)
        return _pem(result), key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def pem(self) -> bytes:
        """Its own certificate."""
        return _pem(self.certificate)

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, ca: bool
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(address, critical=False)
            .sign(self.key, hashes.SHA256())
        )


@dataclass(frozen=True)
class SecureServer:
    """``folder``: of the certificates: ``ca.pem``, ``other.pem`` (of no authority that it knows),
    ``client.pem``, ``client.key``."""

    port: int
    folder: Path

    def url(self, database: str, user: str = "app", **options: str) -> str:
        """An address with the options of libpq. All logins have one password, but some none."""
        text = "&".join(f"{name}={value}" for name, value in options.items())
        who = user if user in _WITHOUT else f"{user}:{PASSWORD}"
        return f"postgresql://{who}@127.0.0.1:{self.port}/{database}?{text}"

    def verified(self, database: str, user: str = "app") -> str:
        """The address that makes sure whom it talks to."""
        root = str(self.folder / "ca.pem")
        return self.url(database, user, sslmode="verify-full", sslrootcert=root)

    def through(self, port: int) -> "SecureServer":
        """As clients of what listens on another port and passes on to it have it."""
        return replace(self, port=port)


@contextmanager
def secure_server(bin: Path, hba: str = _HBA, setup: str = _SETUP) -> Iterator[SecureServer]:
    """A server of its own, gone afterwards. ``hba``: who may connect how; ``setup``: statements of
    its superuser, one a line."""
    user = server_user()
    folder = Path(tempfile.mkdtemp(prefix="ackledger-tls-"))
    folder.chmod(0o755)
    data, port = folder / "data", free_port()
    try:
        data.mkdir()
        _certify(folder)
        _give(user, folder, data, *folder.iterdir())
        _do(user, bin / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync")
        (data / "pg_hba.conf").write_text(hba)
        with (data / "postgresql.conf").open("a") as stream:
            stream.write(
                f"listen_addresses = '127.0.0.1'\nport = {port}\nfsync = off\nssl = on\n"
                f"unix_socket_directories = '{folder}'\nssl_ca_file = '{folder}/ca.pem'\n"
                f"ssl_cert_file = '{folder}/server.pem'\nssl_key_file = '{folder}/server.key'\n"
            )
        _do(user, bin / "pg_ctl", "-D", data, "-l", folder / "log", "-w", "start")
        try:
            psql = (bin / "psql", "-X", "-q", "-h", folder, "-p", port, "-U", "postgres")
            for statement in setup.strip().splitlines():
                _do(user, *psql, "-c", statement)
            yield SecureServer(port, folder)
        finally:
            _do(user, bin / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _certify(folder: Path) -> None:
    own, other = Authority("own"), Authority("other")
    (folder / "ca.pem").write_bytes(own.pem())
    (folder / "other.pem").write_bytes(other.pem())
    for name, subject in (("server", "127.0.0.1"), ("client", "certified")):
        certificate, key = own.issue(subject)
        (folder / f"{name}.pem").write_bytes(certificate)
        (folder / f"{name}.key").write_bytes(key)
        (folder / f"{name}.key").chmod(0o600)


def _give(user: str | None, *paths: Path) -> None:
    """Make the server's user the owner, but of the client's key."""
    if user is not None:
        owner = pwd.getpwnam(user)
        for path in paths:
            if path.name != "client.key":
                os.chown(path, owner.pw_uid, owner.pw_gid)


def _do(user: str | None, program: Path, *arguments: object) -> None:
    command = [str(argument) for argument in (program, *arguments)]
    done = subprocess.run(command, user=user, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, (command, done.stdout, done.stderr)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
