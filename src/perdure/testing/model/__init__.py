"""A model that says what a test wrote down: a real server, in the wire formats of real ones.

    script = ["Hello.", ScriptedFault(status=429, headers={"retry-after": "0.1"}), "Done."]
    async with ScriptedModel(script) as model:
        gateway = GatewayConfig(
            providers={"scripted": model.provider_config()},
            models=ModelsConfig(chat="scripted/any"),
        )
        ...
    assert model.requests[0].prompt == "Hi!"

It speaks Chat Completions, Responses and Anthropic Messages, streaming and not, and has
``/embeddings`` and ``/models``. The official SDKs take it for a provider.

script        what is to be said, and what is to go wrong
wire_answers  an answer as each wire format says it
model_server  HTTP, as much as it takes
"""

from perdure.testing.model.model_server import ScriptedModel
from perdure.testing.model.script import ReceivedRequest, Script, ScriptedAnswer, ScriptedFault

__all__ = ["ReceivedRequest", "Script", "ScriptedAnswer", "ScriptedFault", "ScriptedModel"]
