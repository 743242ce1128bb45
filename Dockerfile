# One image for every service of docker-compose.yml: Airflow, Spark and the ledger's command.
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 ackledger \
    && mkdir -p /opt/ackledger /data \
    && chown ackledger /opt/ackledger /data

USER ackledger
WORKDIR /opt/ackledger
COPY --chown=ackledger . .
RUN scripts/setup
ENV PATH=/opt/ackledger/.venv/bin:$PATH
