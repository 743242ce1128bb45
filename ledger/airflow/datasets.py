"""OpenLineage's names of places, so that a graph of other tools continues here."""

from urllib.parse import urlsplit

NAMESPACE = "ackledger"  # of datasets between two steps, and of places that are no URL
_PORTS = {"postgres": 5432, "mysql": 3306}
_SCHEMES = {"postgresql": "postgres", "s3a": "s3", "s3n": "s3"}


def dataset(address: str) -> tuple[str, str]:
    """Return OpenLineage's namespace and name for an address: a path, a URL, or a database URL with
    ``#<table>``. Any other address is a name in the namespace ``ackledger``.
    """
    if address.startswith("/"):
        return "file", address
    url = urlsplit(address)
    scheme = url.scheme.partition("+")[0]
    scheme = _SCHEMES.get(scheme, scheme)
    if not scheme or "://" not in address:
        return NAMESPACE, address
    if scheme == "file":
        return "file", url.path
    host, table = url.netloc.rpartition("@")[2], url.fragment
    if not table:
        return f"{scheme}://{host}", url.path.lstrip("/") or "/"
    if scheme in _PORTS and not host.rpartition("]")[2].count(":"):
        host = f"{host or 'localhost'}:{_PORTS[scheme]}"
    if scheme == "postgres" and "." not in table:
        table = f"public.{table}"
    return f"{scheme}://{host}", ".".join(filter(None, (url.path.strip("/"), table)))
