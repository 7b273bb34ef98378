"""Answers from a store of documents: speculative RAG and plain RAG."""

from ovspec.rag.indexing import IndexChoices, IndexProgress, IndexReport, index
from ovspec.rag.result import Draft, Durations, RagResult
from ovspec.rag.speculative_rag import RagSettings, SpeculativeRAG
from ovspec.rag.store import Hit, Store

__all__ = [
    "Draft",
    "Durations",
    "Hit",
    "IndexChoices",
    "IndexProgress",
    "IndexReport",
    "RagResult",
    "RagSettings",
    "SpeculativeRAG",
    "Store",
    "index",
]
