"""The client that blocks."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import random
import socket
import ssl
import threading
import time
import weakref
from typing import (
    Any, Callable, Dict, Iterable, Iterator, List, Mapping, MutableSet, Optional, Sequence, TypeVar, Union,
)
from urllib.parse import quote, urlsplit

from . import _messages
from ._errors import GrebeError, TransportError
from ._messages import Batch, Json, RankResponse, RecommendResponse

T = TypeVar("T")
User = Union[str, Mapping[str, Any]]
Candidate = Union[str, Mapping[str, Any]]

_MAX_ANSWER = 256 << 20  # bytes


class Client:
    """Asks a Grebe server.

    A request that the server did not take (429, 503, 504) or that did not reach it is sent again, after the time that
    the server asks for, until `timeout` seconds have passed since the call began. Events are sent again only if they
    surely did not arrive, or if each has an `id`, because the server ignores ids that it has seen.

    A client may be used by several threads. Each keeps a connection of its own, until `close`.
    """

    def __init__(
        self,
        server: str = "http://127.0.0.1:8080",
        *,
        key: Optional[str] = None,
        timeout: float = 10.0,
        tls: Optional[ssl.SSLContext] = None,
    ):
        """`key` is the API key. `timeout` is the deadline of a call in seconds, with all its repetitions."""
        parts = urlsplit(server)
        if "@" in server:  # the address stands in messages
            raise ValueError("leave user and password out of the server's address; `key` is the API key")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{server!r} is not an address such as http://127.0.0.1:8080")
        if not timeout > 0:
            raise ValueError(f"timeout: {timeout!r}, want a number of seconds above 0")
        self._https = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port or (443 if self._https else 80)
        self._base = parts.path.rstrip("/")
        self._key = key
        self._timeout = timeout
        self._tls = tls
        self._local = threading.local()
        self._lock = threading.Lock()
        self._open: MutableSet[http.client.HTTPConnection] = weakref.WeakSet()  # threads that end close theirs

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. A call under way in another thread fails."""
        with self._lock:
            connections, self._open = list(self._open), weakref.WeakSet()
        for c in connections:
            c.close()
        self._local = threading.local()

    def rank(
        self, user: User, candidates: Sequence[Candidate], *, timeout: Optional[float] = None, **fields: Any
    ) -> RankResponse:
        """Orders candidates for a user. Users and candidates are ids, or objects of the API.

        `fields` are others of the request: model, top_k, prefix, deadline_ms, request_id, explain. With explain,
        `raw["parts"]` says where the KV of each part of the prompt came from.
        """
        body = {"user": _named(user), "candidates": [_named(c) for c in candidates], **fields}
        return self._read(_messages.rank_response, self.call("POST", "/v1/rank", body, timeout=timeout))

    def recommend(
        self, user: User, n: int = 10, *, timeout: Optional[float] = None, **fields: Any
    ) -> RecommendResponse:
        """Generates items of the catalog for a user.

        `fields` are others of the request: model, beam_width, exclude, exclude_seen, filter, quota, boost, temperature,
        seed, fallback, rank, deadline_ms, explain. With explain, `raw["parts"]` is as of `rank`.
        """
        body = {"user": _named(user), "n": n, **fields}
        return self._read(_messages.recommend_response, self.call("POST", "/v1/recommend", body, timeout=timeout))

    def put_item(self, id: str, **fields: Any) -> None:
        """Adds or replaces an item: text, tokens, identifier, codes, attributes."""
        self.call("PUT", "/v1/items/" + quote(id, safe=""), {"id": id, **fields})

    def get_item(self, id: str) -> Json:
        """Returns an item."""
        return self.call("GET", "/v1/items/" + quote(id, safe=""))

    def delete_item(self, id: str) -> None:
        """Removes an item, and what is cached of it."""
        self.call("DELETE", "/v1/items/" + quote(id, safe=""))

    def put_items(self, items: Iterable[Mapping[str, Any]], *, timeout: Optional[float] = None) -> Batch:
        """Adds or replaces items as one version of the catalog. They have to fit into memory."""
        lines = b"".join(_encode(dict(i)) + b"\n" for i in items)
        return self._read(_messages.batch, self.call("POST", "/v1/items:batch", lines, timeout=timeout))

    def put_user(self, id: str, **fields: Any) -> None:
        """Adds or replaces a user: history, text, tokens, events."""
        self.call("PUT", "/v1/users/" + quote(id, safe=""), {"id": id, **fields})

    def get_user(self, id: str) -> Json:
        """Returns a user."""
        return self.call("GET", "/v1/users/" + quote(id, safe=""))

    def delete_user(self, id: str) -> None:
        """Removes a user, and what is cached for them."""
        self.call("DELETE", "/v1/users/" + quote(id, safe=""))

    def append_events(self, user: str, events: Iterable[Mapping[str, Any]]) -> Json:
        """Adds what a user did, oldest first: item, time, action, features, and an id if there is one."""
        listed = [dict(e) for e in events]
        path = "/v1/users/" + quote(user, safe="") + "/events"
        return self.call("POST", path, {"events": listed}, repeatable=all(e.get("id") for e in listed))

    def models(self) -> List[Json]:
        """Returns the models that the server has loaded."""
        return self._read(_messages.models, self.call("GET", "/v1/models"))

    def ready(self) -> bool:
        """Reports whether the server answers requests. It asks once."""
        try:
            self._send("GET", "/v2/health/ready", None, self._end(None))
        except (GrebeError, TransportError):
            return False
        return True

    def call(
        self, method: str, path: str, body: Any = None, *, timeout: Optional[float] = None, repeatable: bool = True
    ) -> Json:
        """Sends a request and returns the JSON of the answer. It is for calls that have no method of their own.

        `body` is an object, or bytes that are sent as they are.
        """
        data = body if body is None or isinstance(body, bytes) else _encode(body)
        end = self._end(timeout)
        pause, first = 0.02, True
        while True:
            try:
                answer = self._send(method, path, data, end)
                break
            except (GrebeError, TransportError) as e:
                if not first and method == "DELETE" and isinstance(e, GrebeError) and e.status == 404:
                    return {}  # what was sent before removed it
                wait = _wait(e, repeatable, pause)
                if wait is None or time.monotonic() + wait >= end:
                    raise
            time.sleep(wait)
            pause, first = min(2 * pause, 1.0), False
        return self._read(_object, answer)

    def _read(self, read: Callable[[Any], T], answer: Any) -> T:
        """Reads an answer. One of another server, or of a proxy, is not the program's mistake."""
        try:
            return read(answer)
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            where = f"{self._host}:{self._port}"
            raise TransportError(f"{where}: not an answer of Grebe: {type(e).__name__}: {e}", sent=True) from e

    def _end(self, timeout: Optional[float]) -> float:
        """Returns when a call that begins now, or began when `_since` says, has to end."""
        begun: float = getattr(self._local, "begun", None) or time.monotonic()
        return begun + (self._timeout if timeout is None else timeout)

    @contextlib.contextmanager
    def _since(self, begun: float) -> Iterator[None]:
        """Has this thread's calls begin at a time that has passed."""
        local = self._local
        local.begun = begun
        try:
            yield
        finally:
            local.begun = None

    def _send(self, method: str, path: str, data: Optional[bytes], end: float) -> bytes:
        left = end - time.monotonic()
        if left <= 0:
            raise TransportError("the deadline has passed before the request was sent", sent=False)
        headers = {"Accept": "application/json"}
        if data is not None:
            headers["Content-Type"] = "application/json"
        if self._key:
            headers["Authorization"] = "Bearer " + self._key
        sent = False
        try:
            c = self._connection(left)
            sock = c.sock
            sock.settimeout(max(1e-3, end - time.monotonic()))
            c.response_class = lambda s, *a, **k: http.client.HTTPResponse(_Within(s, end), *a, **k)  # type: ignore
            sent = True
            c.request(method, self._base + path, body=data, headers=headers)
            response = c.getresponse()
            parts, size = [], 0
            while not response.isclosed():
                parts.append(response.read(1 << 16))
                size += len(parts[-1])
                if size > _MAX_ANSWER:
                    raise http.client.HTTPException(f"an answer of more than {_MAX_ANSWER} bytes")
            answer = b"".join(parts)
            if response.length:  # read returns what there is
                raise http.client.IncompleteRead(answer, response.length)
        except (OSError, http.client.HTTPException) as e:
            self._drop()
            raise TransportError(f"{self._host}:{self._port}: {e or type(e).__name__}", sent) from e
        except BaseException:  # Ctrl-C in a notebook: the next call must not read this answer
            self._drop()
            raise
        if response.will_close:
            self._drop()
        if 200 <= response.status < 300:
            return answer
        raise _problem(response, answer)

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        """Returns this thread's connection, which is open."""
        c: Optional[http.client.HTTPConnection] = getattr(self._local, "connection", None)
        if c is not None and c.sock is not None and _idle(c.sock):
            c.sock.settimeout(timeout)
            return c
        self._drop()
        if self._https:
            c = http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)
        else:
            c = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        c.connect()
        c.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open.add(c)
        self._local.connection = c
        return c

    def _drop(self) -> None:
        c = getattr(self._local, "connection", None)
        if c is None:
            return
        self._local.connection = None
        with self._lock:
            self._open.discard(c)
        c.close()


class _Within:
    """A socket whose reads all end at one time, however slowly bytes come."""

    def __init__(self, sock: socket.socket, end: float):
        self._sock, self._end = sock, end

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self._sock, self._end))


class _Reader(io.RawIOBase):
    def __init__(self, sock: socket.socket, end: float):
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket open
        self._sock, self._end = sock, end

    def readable(self) -> bool:
        return True

    def readinto(self, b: Any) -> Optional[int]:
        left = self._end - time.monotonic()
        if left <= 0:
            raise socket.timeout("timed out")
        self._sock.settimeout(left)
        return self._raw.readinto(b)  # type: ignore

    def close(self) -> None:
        self._raw.close()
        super().close()


def _idle(s: socket.socket) -> bool:
    """Reports whether a connection between two requests is still open: the server sent nothing and did not close it."""
    s.settimeout(0)
    try:
        if isinstance(s, ssl.SSLSocket):
            s.read(1)
        else:
            s.recv(1, socket.MSG_PEEK)
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        pass
    return False


def _wait(e: Exception, repeatable: bool, pause: float) -> Optional[float]:
    """Returns the seconds after which to send a request again that failed so; None: not at all."""
    wait = pause * random.uniform(0.75, 1.25)  # many clients do not come back at the same moment
    if isinstance(e, TransportError):
        return wait if repeatable or not e.sent else None
    assert isinstance(e, GrebeError)
    if e.status not in (429, 503, 504) or not (repeatable or e.code == "resource_exhausted"):
        return None
    return max(wait, e.retry_after or 0.0)


def _problem(response: http.client.HTTPResponse, answer: bytes) -> GrebeError:
    after: Optional[float] = None
    try:
        after = max(0.0, float(response.headers.get("Retry-After", "")))
    except ValueError:
        pass
    code, message, field = str(response.status), response.reason or "", ""
    try:
        told = json.loads(answer)["error"]
        code, message, field = told["code"], told.get("message", ""), told.get("field", "")
    except (ValueError, KeyError, TypeError):
        pass  # a proxy's answer
    return GrebeError(response.status, code, message, field, after)


def _object(answer: bytes) -> Json:
    if not answer.strip():
        return {}
    m = json.loads(answer)
    if not isinstance(m, dict):
        raise TypeError(f"want an object, not {type(m).__name__}")
    return m


def _named(x: Union[str, Mapping[str, Any]]) -> Dict[str, Any]:
    return {"id": x} if isinstance(x, str) else dict(x)


def _plain(x: Any) -> Any:
    """Turns arrays and numbers of numpy, and tuples, into those of Python."""
    if hasattr(x, "tolist"):
        return x.tolist()
    raise TypeError(f"{type(x).__name__} cannot be sent")


def _encode(body: Any) -> bytes:
    return json.dumps(body, default=_plain, allow_nan=False, separators=(",", ":")).encode()
