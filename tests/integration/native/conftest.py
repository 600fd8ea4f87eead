"""One broker that tiers by itself, for all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.native.native_site import NativeSite, running_site
from servers.kafka_programs import KafkaPrograms


@pytest.fixture(scope="package")
def site(
    kafka_programs: KafkaPrograms, state_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NativeSite]:
    with running_site(kafka_programs, state_directory, tmp_path_factory.mktemp("native")) as running:
        yield running
