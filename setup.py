"""The packages of the wheel: ``migrations/`` goes into ``ledger``, and is none of its own."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["ledger", "ledger.*"]), "ledger.store.migrations"],
    package_dir={"ledger.store.migrations": "migrations"},
)
