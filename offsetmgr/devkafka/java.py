"""Finds the Java that runs Kafka."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from offsetmgr.devkafka.errors import DevKafkaError

_OLDEST: Final = 17
_ADVICE: Final = (
    f"install Java {_OLDEST} or newer (on Debian and Ubuntu: "
    "apt-get install openjdk-17-jre-headless) and put it on the PATH, or set JAVA_HOME"
)
_TIMEOUT_S: Final = 30


def find_java() -> str:
    """Return the path of a Java new enough, the one of JAVA_HOME first, as Spark does.

    Raises DevKafkaError where there is none.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    found = shutil.which(java)
    if found is None:
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        message = f"Kafka needs Java and there is none {where}: {_ADVICE}"
        raise DevKafkaError(message)
    version = _version(found)
    if version < _OLDEST:
        message = f"Kafka needs Java {_OLDEST} and {found} is Java {version}: {_ADVICE}"
        raise DevKafkaError(message)
    return found


@functools.lru_cache(maxsize=8)
def _version(java: str) -> int:
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        message = f"{java} does not run ({error}): {_ADVICE}"
        raise DevKafkaError(message) from error
    match = re.search(r'version "(\d+)', answer)
    return int(match.group(1)) if match else 0
