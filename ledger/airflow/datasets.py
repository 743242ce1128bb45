"""Names of places as OpenLineage gives them, so that the graph of others goes on there."""

from urllib.parse import urlsplit

NAMESPACE = "ackledger"  # of what lies between two steps, and of places that are no URL
_PORTS = {"postgres": 5432, "mysql": 3306}
_SCHEMES = {"postgresql": "postgres", "s3a": "s3", "s3n": "s3"}


def dataset(address: str) -> tuple[str, str]:
    """Namespace and name, as OpenLineage names what is at a path, a URL, or a URL of a database
    with ``#<table>``; anything else is a name of our own.
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
    place = url.netloc.rpartition("@")[2]
    if not url.fragment:
        return f"{scheme}://{place}", url.path.lstrip("/") or "/"
    return _table(scheme, place, url.path.strip("/"), url.fragment)


def _table(scheme: str, place: str, database: str, table: str) -> tuple[str, str]:
    port = _PORTS.get(scheme)
    if port is not None and not place.rpartition("]")[2].count(":"):
        place = f"{place or 'localhost'}:{port}"
    if scheme == "postgres" and "." not in table:
        table = f"public.{table}"
    return f"{scheme}://{place}", ".".join(filter(None, (database, table)))
