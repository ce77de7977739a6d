"""Client of a Grebe server. See Client and AsyncClient."""

from ._async import AsyncClient
from ._client import Client
from ._errors import GrebeError, TransportError
from ._messages import Batch, Ranked, RankResponse, Recommended, RecommendResponse, Timing, Usage

__all__ = [
    "AsyncClient", "Batch", "Client", "GrebeError", "Ranked", "RankResponse", "Recommended", "RecommendResponse",
    "Timing", "TransportError", "Usage",
]
