"""The client for asyncio."""

from __future__ import annotations

import asyncio
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterable, List, Mapping, Optional, Sequence, TypeVar

from ._client import Candidate, Client, User
from ._messages import Batch, Json, RankResponse, RecommendResponse

T = TypeVar("T")


class AsyncClient:
    """Client for asyncio. Calls run in threads of its own, at most `concurrency` at a time; others wait.

    A call that is cancelled returns at once. Its request ends in the background, at its deadline at the latest.
    """

    def __init__(
        self,
        server: str = "http://127.0.0.1:8080",
        *,
        key: Optional[str] = None,
        timeout: float = 10.0,
        tls: Optional[ssl.SSLContext] = None,
        concurrency: int = 16,
    ):
        self._client = Client(server, key=key, timeout=timeout, tls=tls)
        self._client._open = set()  # closed by close, not by threads that end before it
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="grebe")

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits for calls under way and closes the connections."""
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
        self._client.close()

    async def _run(self, f: Callable[..., T], *args: Any, **fields: Any) -> T:
        begun = time.monotonic()  # a call that waits for a thread has begun

        def run() -> T:
            with self._client._since(begun):
                return f(*args, **fields)

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    async def call(
        self, method: str, path: str, body: Any = None, *, timeout: Optional[float] = None, repeatable: bool = True
    ) -> Json:
        """As Client.call."""
        return await self._run(self._client.call, method, path, body, timeout=timeout, repeatable=repeatable)

    async def rank(
        self, user: User, candidates: Sequence[Candidate], *, timeout: Optional[float] = None, **fields: Any
    ) -> RankResponse:
        """As Client.rank."""
        return await self._run(self._client.rank, user, candidates, timeout=timeout, **fields)

    async def recommend(
        self, user: User, n: int = 10, *, timeout: Optional[float] = None, **fields: Any
    ) -> RecommendResponse:
        """As Client.recommend."""
        return await self._run(self._client.recommend, user, n, timeout=timeout, **fields)

    async def put_item(self, id: str, **fields: Any) -> None:
        """As Client.put_item."""
        await self._run(self._client.put_item, id, **fields)

    async def get_item(self, id: str) -> Json:
        """As Client.get_item."""
        return await self._run(self._client.get_item, id)

    async def delete_item(self, id: str) -> None:
        """As Client.delete_item."""
        await self._run(self._client.delete_item, id)

    async def put_items(self, items: Iterable[Mapping[str, Any]], *, timeout: Optional[float] = None) -> Batch:
        """As Client.put_items."""
        return await self._run(self._client.put_items, list(items), timeout=timeout)

    async def put_user(self, id: str, **fields: Any) -> None:
        """As Client.put_user."""
        await self._run(self._client.put_user, id, **fields)

    async def get_user(self, id: str) -> Json:
        """As Client.get_user."""
        return await self._run(self._client.get_user, id)

    async def delete_user(self, id: str) -> None:
        """As Client.delete_user."""
        await self._run(self._client.delete_user, id)

    async def append_events(self, user: str, events: Iterable[Mapping[str, Any]]) -> Json:
        """As Client.append_events."""
        return await self._run(self._client.append_events, user, list(events))

    async def models(self) -> List[Json]:
        """As Client.models."""
        return await self._run(self._client.models)

    async def ready(self) -> bool:
        """As Client.ready."""
        return await self._run(self._client.ready)
