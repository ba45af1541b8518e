"""Providers on loopback: three that answer as good, fair and cheap models would, and a judge.

Each knows the right department of every email and errs as often as its quality says: the same
emails in every run, because the errors come from a hash. None of them remembers anything.
"""

from __future__ import annotations

import hashlib
import tomllib
from importlib import resources

import msgspec

from perdure.core.messages import Usage
from perdure.testing.model import ReceivedRequest, ScriptedAnswer, ScriptedFault, ScriptedModel
from perdure.testing.model.script import Line

ROUTES = ("billing", "support", "sales", "legal", "people", "security", "spam")


class Email(msgspec.Struct, frozen=True, rename={"sender": "from"}):
    sender: str
    subject: str
    body: str
    route: str
    tricky: bool = False

    @property
    def text(self) -> str:
        return f"From: {self.sender}\nSubject: {self.subject}\n\n{self.body}"


class Quality(msgspec.Struct, frozen=True):
    """How often a provider is right, and what it takes."""

    plain: float
    tricky: float
    #: Dollars for a million tokens, in and out.
    input: float
    output: float
    seconds: float


#: Made up, in the order of real tiers: a large model, a middle one, a small one.
QUALITIES = {
    "atlas": Quality(plain=0.995, tricky=0.99, input=5.0, output=25.0, seconds=0.02),
    "birch": Quality(plain=0.99, tricky=0.97, input=0.8, output=4.0, seconds=0.01),
    "cedar": Quality(plain=0.93, tricky=0.45, input=0.1, output=0.4, seconds=0.005),
}


def load_emails() -> list[Email]:
    text = resources.files("examples.email_router").joinpath("emails.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text)["email"], list[Email])


#: How often the judge is right.
JUDGE_IS_RIGHT = 0.98


class Provider:
    """One of them, as a server. While `down`, it answers 503."""

    def __init__(self, name: str, emails: list[Email]) -> None:
        self.name = name
        self.quality = QUALITIES[name]
        self.down = False
        self._emails = {email.subject: email for email in emails}
        self.server = ScriptedModel(self._answer, models=(name,))

    def _answer(self, request: ReceivedRequest) -> Line:
        if self.down:
            return ScriptedFault(status=503, message=f"{self.name} is down.")
        prompt = request.prompt
        email = self._emails[_subject(prompt)]
        right = self.quality.tricky if email.tricky else self.quality.plain
        chance = _fraction(f"{self.name} reads {email.subject}")
        said = email.route if chance < right else _another(email.route, chance)
        tokens = sum(len(message.text) for message in request.messages) // 4
        return ScriptedAnswer(said, usage=Usage(input=tokens, output=4), delay=self.quality.seconds)


def judge(emails: list[Email]) -> ScriptedModel:
    """Reads an email and a route, and says whether that was right. Errs now and then, too."""
    known = {email.subject: email for email in emails}

    def answer(request: ReceivedRequest) -> Line:
        email = known[_subject(request.prompt)]
        said = request.prompt.split()[-2]  # in front of the closing mark
        is_right = said == email.route
        sees = _fraction(f"judge {said} {email.subject}") < JUDGE_IS_RIGHT
        verdict = {"score": float(is_right == sees), "reason": f"It was for {email.route}."}
        return ScriptedAnswer(msgspec.json.encode(verdict).decode())

    return ScriptedModel(answer, models=("judge",))


def _subject(text: str) -> str:
    return text.rpartition("Subject: ")[2].partition("\n")[0]


def _fraction(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / 2**48


def _another(route: str, chance: float) -> str:
    others = [each for each in ROUTES if each != route]
    return others[int(chance * 1_000) % len(others)]
