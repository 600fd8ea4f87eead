"""Makes the golden logs again, with a real broker from the published jars: `make golden`. See README.md beside it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from golden.logs import make_golden_logs
from golden.metadata_topic import let_it_tier, metadata_kafka, metadata_topic_of
from golden.older_formats import OLDER_LOGS, make_older_logs
from servers.kafka_programs import KafkaPrograms

HERE = Path(__file__).parent
STATE = HERE.parent.parent / ".state"


def main() -> None:
    """Write the golden logs into this directory; the first time on a machine Kafka's jars are downloaded."""
    with tempfile.TemporaryDirectory() as work:
        programs = KafkaPrograms.fetched(STATE)
        logs = make_golden_logs(programs, HERE, Path(work))
        with metadata_kafka(programs, Path(work) / "tiering") as kafka:
            let_it_tier(kafka)
            metadata_topic_of(kafka).save(HERE)
        make_older_logs(programs, STATE, OLDER_LOGS, Path(work) / "older")
    size = sum(path.stat().st_size for path in logs.log_dir.rglob("*") if path.is_file())
    sys.stdout.write(f"{logs.log_dir}: {size:,} bytes\n")


if __name__ == "__main__":
    main()
