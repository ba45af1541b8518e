"""A scripted model: a real server that says what a test wrote down.

    script = ["Hello.", ScriptedFault(status=429, headers={"retry-after": "0.1"}), "Done."]
    async with ScriptedModel(script) as model:
        gateway = GatewayConfig(
            providers={"scripted": model.provider_config()},
            models=ModelsConfig(chat="scripted/any"),
        )
        ...
    assert model.requests[0].prompt == "Hi!"

It speaks Chat Completions, Responses and Anthropic Messages, streaming and not, and has
``/embeddings`` and ``/models``. The official SDKs accept it. Its batch modes (`model.batches`) are
those of Anthropic and OpenAI, with `BatchFaults`; name it a provider with ``batch=True``.
"""

from perdure.testing.model.batch_server import BatchFaults, BatchServer
from perdure.testing.model.model_server import ScriptedModel
from perdure.testing.model.script import ReceivedRequest, Script, ScriptedAnswer, ScriptedFault

__all__ = [
    "BatchFaults",
    "BatchServer",
    "ReceivedRequest",
    "Script",
    "ScriptedAnswer",
    "ScriptedFault",
    "ScriptedModel",
]
