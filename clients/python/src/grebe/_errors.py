"""What may go wrong."""

from __future__ import annotations

from typing import Optional


class GrebeError(Exception):
    """The server refused a request. Its text is the server's message."""

    def __init__(self, status: int, code: str, message: str, field: str = "", retry_after: Optional[float] = None):
        super().__init__(f"{code}: {message}")
        self.status = status  #: of HTTP
        self.code = code  #: such as invalid_argument
        self.message = message
        self.field = field  #: path of the field in question; may be empty
        self.retry_after = retry_after  #: seconds after which the server wants to be asked again


class TransportError(Exception):
    """The server did not answer: no connection, a connection that broke, no answer before the deadline, or an answer
    that is not one of Grebe.

    `sent` is False if the request surely did not arrive.
    """

    def __init__(self, message: str, sent: bool):
        super().__init__(message)
        self.sent = sent
