"""Facts to be planted in a chat, and what a model may say of them, in other words each time."""

from __future__ import annotations

from typing import NamedTuple

FACTS = 20


class Fact(NamedTuple):
    """Something that is planted: ways to name it, its value, and the one that it had before."""

    names: tuple[str, ...]
    value: str
    sort: str = "plain"
    former: str = ""
    #: What is said of it in a whole sentence, instead of its name and value.
    own: tuple[str, ...] = ()
    #: Another fact that is said in the same sentence.
    beside: str = ""

    @property
    def said(self) -> str:
        if self.sort == "pair":
            return f"By the way, {self.beside}, please keep that in mind." if self.beside else ""
        if self.former:
            return f"From now on, {self.names[0]} is {self.value}, please keep that in mind."
        return f"By the way, {self.names[0]} is {self.value}, please keep that in mind."

    @property
    def asked(self) -> str:
        return f"What is {self.names[0]}?"

    def worded(self, run: int) -> str:
        if self.own and run % 2 == 0:
            return self.own[run // 2 % len(self.own)].format(self.value)
        name = self.names[run % len(self.names)]
        text = _WORDINGS[run % len(_WORDINGS)].format(name=name, value=self.value)
        return f"{text[0].upper()}{text[1:]}"

    @property
    def before(self) -> Fact:
        """The fact as it was, before it changed."""
        return self._replace(value=self.former, former="")


_WORDINGS = (
    "{name} is {value}.",
    "the value of {name} is {value}.",
    "{value} is used as {name}.",
    "for {name}, {value} was settled on.",
    "{name}: {value}.",
    "it was decided that {value} serves as {name}.",
    "{value} has been chosen to be {name}.",
    "one should take {value} for {name}.",
    "know that {name} equals {value}.",
    "{name} was set to {value}, and stays so.",
)
_NAMES = (
    ("the staging port", "the port of the staging server", "the port on which staging listens"),
    ("the backup hour", "the hour of backups", "the hour at which the backup begins"),
    ("the release branch", "the branch of releases", "the branch that a release is cut from"),
    ("the name of my cat", "the cat's name", "what my cat is called by name"),
    ("the wifi passphrase hint", "the hint of the wifi passphrase", "the passphrase hint for wifi"),
    ("the project codename", "the codename of the project", "the codename that the project has"),
    ("my favourite tea", "the favourite tea of mine", "the tea that is my favourite"),
    ("the license plate", "the plate of the license", "the license plate of the car"),
    ("the retry limit", "the limit of retries", "the limit for each retry"),
    ("the tax advisor", "the advisor for tax", "the advisor who does the tax"),
    ("the garden gate code", "the code of the garden gate", "the gate code for the garden"),
    ("the review day", "the day of reviews", "the day on which a review is held"),
    ("the database engine", "the engine of the database", "the engine that the database runs on"),
    ("the paint colour", "the colour of the paint", "the colour that the paint has"),
    ("the ferry timetable", "the timetable of the ferry", "the timetable by which the ferry goes"),
    ("the font of the report", "the report's font", "the font that the report is set in"),
    ("the emergency contact", "the contact for an emergency", "the contact in any emergency"),
    ("the yoga teacher", "the teacher of yoga", "the teacher in the yoga class"),
    ("the session timeout", "the timeout of a session", "the timeout after which a session ends"),
    ("the anniversary place", "the place of the anniversary", "the place for our anniversary"),
)
_VALUES = (
    *("Marigold", "Quillon", "Tarvost", "Bellamy", "Zephyrine", "Orrick", "Dunmore", "Halvard"),
    *("Ysolde", "Carrow", "Ptarmigan", "Vesper", "Lindqvist", "Ambrose", "Thistlewood", "Corvane"),
    *("Juniper", "Rosalind", "Ekström", "Falkirk"),
)
#: Facts that differ by a word.
_ALIKE = {
    "the {} port": ("testing", "demo", "preview"),
    "the code of the {} gate": ("northern", "southern", "western"),
    "the owner of the {} service": ("billing", "search", "mail"),
}
_ALIKE_VALUES = (
    *("Hollis", "Merriweather", "Pemberton", "Quarrington", "Silvester", "Tamsin"),
    *("Underhill", "Wexcombe", "Yarrow"),
)
#: Facts that change: their names, the old value, the new one.
_CHANGING = (
    (
        ("the meeting room", "the room of meetings", "the room for each meeting"),
        "Aldwych",
        "Brackley",
    ),
    (
        ("the courier firm", "the firm of couriers", "the firm that the courier is from"),
        "Cedric",
        "Dorset",
    ),
    (
        ("the lunch caterer", "the caterer of lunch", "the caterer who brings lunch"),
        "Elwood",
        "Fenwick",
    ),
    (
        ("the lead designer", "the designer in the lead", "the lead among designers"),
        "Gideon",
        "Harriet",
    ),
    (
        ("the spare laptop", "the laptop to spare", "the laptop kept as a spare"),
        "Ingram",
        "Jocasta",
    ),
    (
        ("the mirror host", "the host of the mirror", "the host that the mirror is on"),
        "Kelvin",
        "Lomond",
    ),
)

#: The same, as a model would put it: a verb for a noun, a word more, a word less.
_OWN = (
    ("Staging listens on {}.", "The staging server's port is {}.", "Port for staging: {}."),
    ("Backups start at {}.", "The nightly backup is scheduled for {}.", "Backup time is {}."),
    ("Releases are cut from {}.", "The branch used for releasing is {}.", "{} is for releases."),
    ("The user's cat is called {}.", "User has a cat named {}.", "{} is the user's cat."),
    ("The hint for the wifi is {}.", "Wifi passphrase: the hint is {}.", "{} hints at the wifi."),
    ("The project is codenamed {}.", "Its codename is {}.", "{} is what the project is called."),
    ("Favourite tea: {}.", "The user prefers the tea {}.", "{} is the tea that the user likes."),
    ("The car has the plate {}.", "License plate: {}.", "{} is on the license plate."),
    ("Requests are retried up to {}.", "The limit for retrying is {}.", "Retry limit: {}."),
    ("{} advises on taxes.", "The user's tax advisor is {}.", "For tax questions, ask {}."),
    ("{} opens the garden gate.", "Garden gate: code {}.", "The code to the garden gate is {}."),
    ("Reviews take place on {}.", "{} is for reviewing.", "The day of the review is {}."),
    ("The project uses {} as its database.", "Data is stored with the engine {}.", "Engine: {}."),
    ("It is painted in {}.", "The colour to paint with is {}.", "Paint: colour {}."),
    ("Ferries go by {}.", "The timetable for the ferry is {}.", "{} has the times of the ferry."),
    ("Reports are set in {}.", "{} is the font for reporting.", "The report uses the font {}."),
    ("In an emergency, call {}.", "{} is to be contacted in emergencies.", "Contact: {}."),
    ("{} teaches yoga.", "The user's yoga teacher is {}.", "Yoga classes are led by {}."),
    (
        "Sessions expire after {}.",
        "The timeout of sessions is {}.",
        "{} is how long a session lasts.",
    ),
    ("The anniversary is celebrated at {}.", "{} is the place to celebrate.", "Place: {}."),
)
#: Facts that are said in one sentence.
_PAIRS = (
    (("the tracing host", "Norwell"), ("the metrics host", "Ottery")),
    (("the spelling of the client's name", "Penhallow"), ("the client's city", "Quimper")),
    (("the nurse on the upper ward", "Rothwell"), ("the nurse on the lower ward", "Selwyn")),
)


def planted(count: int) -> list[Fact]:
    """Facts of all sorts; a few of each, if so many are enough."""
    plain = [
        Fact(names, value, own=own) for names, value, own in zip(_NAMES, _VALUES, _OWN, strict=True)
    ]
    names = [
        tuple(each.format(word) for each in (name, f"{name} here", f"{name}, ours"))
        for name, words in _ALIKE.items()
        for word in words
    ]
    alike = [Fact(name, value, "alike") for name, value in zip(names, _ALIKE_VALUES, strict=True)]
    changing = [Fact(names, new, "changing", old) for names, old, new in _CHANGING]
    pairs = list[Fact]()
    for one, other in _PAIRS:
        said = " and ".join(f"{name} is {value}" for name, value in (one, other))
        for (name, value), beside in ((one, said), (other, "")):
            called = (name, f"{name} here", f"{name}, ours")
            pairs.append(Fact(called, value, "pair", beside=beside))
    few = max(count // 4, 1)
    if count < FACTS:
        alike, changing, pairs = alike[:few], changing[:few], pairs[:2]
    return [*plain[:count], *alike, *changing, *pairs]
