"""LangGraph: a checkpointer and a store over a bank.

    saver = PerdureSaver.open("sqlite:///memory.db")
    graph = builder.compile(checkpointer=saver, store=PerdureStore.open("sqlite:///memory.db"))

The messages of a thread are turns of the session ``langgraph/THREAD``; a checkpoint names them, and
holds the rest of the state.
"""

from perdure.integrations.framework_bank import missing

try:
    import langgraph.checkpoint.base
    import langgraph.store.base  # noqa: F401
except ImportError as exc:
    raise missing("langgraph", "langgraph") from exc

from perdure.integrations.langgraph.checkpoint_saver import PerdureSaver
from perdure.integrations.langgraph.document_store import PerdureStore

__all__ = ["PerdureSaver", "PerdureStore"]
