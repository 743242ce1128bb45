"""Errors of Spark's clients."""

from inspect import signature
from typing import Any

import pytest
from pyspark.errors.exceptions.connect import SparkConnectGrpcException


def server_error(code: Any, text: str = "failed to connect to all addresses") -> Exception:
    """What the client of a Connect server raises for a status."""
    if "grpc_status_code" not in signature(SparkConnectGrpcException).parameters:
        pytest.skip("before Spark 4.1 an error of Connect has no status")
    return SparkConnectGrpcException(text, grpc_status_code=code)
