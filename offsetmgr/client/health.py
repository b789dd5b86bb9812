"""``python -m offsetmgr.client.health [URL]``: exits with 0 if the service is alive, else with 1.

For the probes of containers, which must be cheap.  They run next to the service: it is on loopback.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from offsetmgr.client.transport import Connection, Credentials, Request, Unreachable, parse_url
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_URL: Final = "http://127.0.0.1:8741"
TIMEOUT_S: Final = 8.0
"""With the start of Python it is less than the time limit of the probes in ``deploy/``."""


def main(arguments: Sequence[str]) -> int:
    """Return the exit status; without a URL, ask ``$OFFSETMGR_SERVICE``, else the default port."""
    url = arguments[0] if arguments else os.environ.get("OFFSETMGR_SERVICE", DEFAULT_URL)
    deadline = Deadline(TIMEOUT_S)
    try:
        address = parse_url(url, Credentials.from_environment(os.environ))
        with closing(Connection(address, deadline)) as connection:
            status = connection.exchange(Request("GET", "/livez", {}), deadline).status
    except (InvalidValueError, Unreachable) as error:
        sys.stderr.write(f"the service at {url}: {error}\n")
        return 1
    if status == HTTPStatus.OK:
        return 0
    sys.stderr.write(f"the service at {url} answered with status {status}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
