"""Documents looked up by words: a server's, or in this process.

searcher = SearchClient("http://HOST:8000")        # apps/services/retrieval, or its contract
searcher = WordIndex(read_documents(path))         # BM25 in memory
hits = await searcher.search("river otter", k=5)
"""

from turnwise.retrieval.client import SearchClient
from turnwise.retrieval.documents import Document, Searcher, read_documents
from turnwise.retrieval.words import WordIndex

__all__ = ["Document", "SearchClient", "Searcher", "WordIndex", "read_documents"]
