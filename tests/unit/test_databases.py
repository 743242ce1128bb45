"""What holds for every database: addresses, and the options of drivers."""

import pytest
from sqlalchemy.engine import make_url

from ledger.databases.addresses import parsed, postgresql, resolved, shown
from ledger.databases.connections import arguments, engine_of
from ledger.errors import ConfigurationError


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+asyncpg"])
def test_postgresql_is_reached_by_one_driver(scheme):
    """Whatever driver an address of PostgreSQL names, or none."""
    url = postgresql(parsed(f"{scheme}://me@host/shop", "the url"), "the url")
    assert url.drivername == "postgresql+psycopg2"


def test_an_address_is_shown_without_its_secrets():
    """Neither with its password nor with those of libpq's options."""
    options = "password=hush&sslmode=require&sslpassword=hush&oauth_client_secret=hush"
    url = make_url(f"postgresql+psycopg2://me:hush@host/my%20shop?{options}")
    assert shown(url) == "postgresql+psycopg2://me:***@host/my shop?sslmode=require"


def test_another_database_is_no_postgresql():
    """It is refused by its scheme, without the password."""
    with pytest.raises(ConfigurationError, match=r"URL is not a URL.*, found mysql://") as caught:
        postgresql(make_url("mysql://me:secret@host/shop"), "SHOP_URL")
    assert "secret" not in str(caught.value)


def test_an_address_from_the_environment(monkeypatch):
    """The error names the variable, and what needs it; an empty one is not set."""
    monkeypatch.setenv("SHOP_URL", "")
    with pytest.raises(ConfigurationError, match=r"SHOP_URL is not set: .* the URL of my sink"):
        resolved("env:SHOP_URL", "my sink")
    monkeypatch.setenv("SHOP_URL", "postgres://me@host/shop")
    assert resolved("env:SHOP_URL", "my sink") == resolved("postgres://me@host/shop", "my sink")


def test_waits_are_the_address_s_own_where_it_has_them():
    """A dead peer is noticed by sources and sinks alike; other drivers get no options."""
    url = make_url("postgresql+psycopg2://me@host/shop?connect_timeout=3")
    options = arguments(url, application_name="ackledger")
    assert options["application_name"] == "ackledger"
    assert options["keepalives_idle"] == 10
    assert "connect_timeout" not in options
    assert arguments(make_url("sqlite:///shop.db"), application_name="ackledger") == {}


def test_a_database_without_its_driver():
    """The error names the driver, and not the password."""
    url = make_url("oracle+nothing://me:secret@host/shop")
    expected = pytest.raises(ConfigurationError, match=r"no driver for oracle\+nothing")
    with expected as caught, engine_of(url, "ackledger"):
        pass
    assert "secret" not in str(caught.value)
