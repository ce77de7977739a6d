"""Answers of the server. Fields that this version does not know are in `raw`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping

Json = Dict[str, Any]


@dataclass(frozen=True)
class Usage:
    """Tokens of a request."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    by_source: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Timing:
    """Milliseconds of a request."""

    queue: float = 0.0
    fetch: float = 0.0
    compute: float = 0.0
    total: float = 0.0


@dataclass(frozen=True)
class Ranked:
    """A candidate's place."""

    index: int  #: in the request
    id: str
    score: float
    logit: float
    tasks: Mapping[str, float] = field(default_factory=dict)  #: of models that have several


@dataclass(frozen=True)
class RankResponse:
    """Candidates, best first."""

    model: str
    request_id: str
    prefix: str
    results: List[Ranked]
    usage: Usage
    timing: Timing
    raw: Json = field(repr=False)

    def ids(self) -> List[str]:
        """Ids of the results, best first."""
        return [r.id for r in self.results]

    def scores(self) -> Any:
        """Scores of the results: an array of numpy if that is installed, or a list."""
        return _array([r.score for r in self.results])


@dataclass(frozen=True)
class Recommended:
    """An item of the catalog."""

    id: str
    codes: List[int]
    score: float
    boost: float = 0.0  #: part of the score
    rank_score: Optional[float] = None  #: of results that were ranked


@dataclass(frozen=True)
class RecommendResponse:
    """Items of the catalog, best first."""

    model: str
    request_id: str
    catalog_version: str
    results: List[Recommended]
    short: bool  #: fewer items than wanted came back
    short_reason: str
    usage: Usage
    timing: Timing
    raw: Json = field(repr=False)
    seed: Optional[int] = None  #: of a sampled answer
    fallback: str = ""  #: "popular": the results are items with many events

    def ids(self) -> List[str]:
        """Ids of the results, best first."""
        return [r.id for r in self.results]

    def scores(self) -> Any:
        """Scores of the results: an array of numpy if that is installed, or a list."""
        return _array([r.score for r in self.results])


@dataclass(frozen=True)
class Batch:
    """What became of the lines of a batch."""

    lines: int
    created: int
    replaced: int
    deleted: int
    unchanged: int
    failed: int
    errors: List[Json]  #: the first ones: line, code, message
    version: str


def _array(values: List[float]) -> Any:
    try:
        import numpy
    except ImportError:
        return values
    return numpy.array(values, dtype="float64")


def usage(m: Json) -> Usage:
    u = m.get("usage") or {}
    return Usage(
        u.get("prompt_tokens", 0), u.get("cached_tokens", 0), u.get("computed_tokens", 0), u.get("by_source") or {}
    )


def timing(m: Json) -> Timing:
    t = m.get("timing_ms") or {}
    return Timing(t.get("queue", 0.0), t.get("fetch", 0.0), t.get("compute", 0.0), t.get("total", 0.0))


def _results(m: Json) -> List[Any]:
    if not m:
        raise ValueError("it is empty")
    return m.get("results") or []


def models(m: Json) -> List[Json]:
    data = m["data"]
    if not isinstance(data, list):
        raise TypeError(f"data: want a list, not {type(data).__name__}")
    return data


def rank_response(m: Json) -> RankResponse:
    results = [
        Ranked(r["index"], r.get("id", ""), r["score"], r.get("logit", 0.0), r.get("tasks") or {})
        for r in _results(m)
    ]
    return RankResponse(
        m.get("model", ""), m.get("request_id", ""), m.get("prefix", ""), results, usage(m), timing(m), m
    )


def recommend_response(m: Json) -> RecommendResponse:
    results = [
        Recommended(r["id"], r.get("codes") or [], r["score"], r.get("boost", 0.0), r.get("rank_score"))
        for r in _results(m)
    ]
    return RecommendResponse(
        m.get("model", ""), m.get("request_id", ""), m.get("catalog_version", ""), results, m.get("short", False),
        m.get("short_reason", ""), usage(m), timing(m), m, m.get("seed"), m.get("fallback", ""),
    )


def batch(m: Json) -> Batch:
    return Batch(
        m.get("lines", 0), m.get("created", 0), m.get("replaced", 0), m.get("deleted", 0), m.get("unchanged", 0),
        m.get("failed", 0), m.get("errors") or [], m.get("version", ""),
    )
