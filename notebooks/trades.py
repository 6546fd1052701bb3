"""A small language for the notebooks that train within seconds: documents about one person with one trade."""

import random

TRADES = {  # the place, the tool, the thing that is made, what it is made of, and the verb
    "baker": ("bakery", "tray", "bread", "flour", "bakes"),
    "potter": ("yard", "wheel", "bowl", "clay", "forms"),
    "weaver": ("mill", "loom", "carpet", "wool", "weaves"),
    "doctor": ("clinic", "spoon", "medicine", "powder", "mixes"),
    "tailor": ("shop", "needle", "coat", "cloth", "sews"),
    "smith": ("forge", "hammer", "sword", "iron", "beats"),
    "painter": ("studio", "brush", "portrait", "paint", "draws"),
    "printer": ("cellar", "press", "book", "paper", "prints"),
}
NAMES = [
    "anna", "bruno", "clara", "david", "elena", "felix", "greta", "henry",
    "irene", "jonas", "karla", "louis", "maria", "nils", "olga", "peter",
]  # fmt: skip
DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday"]
ADJECTIVES = ["new", "good", "heavy", "small", "clean", "fine"]
SENTENCES = [
    "{name} is a {job}.",
    "the {job} works in the {place}.",
    "on {day} {name} {verb} the {thing}.",
    "the {thing} is made of {stuff}.",
    "{name} uses the {tool} and {verb} a {adjective} {thing}.",
    "the {tool} in the {place} is {adjective}.",
    "{name} buys {stuff} on {day}.",
    "without {stuff} the {job} has no {thing}.",
    "a {job} needs a {adjective} {tool}.",
    "{name} sells the {thing} in the {place}.",
]


def write_document(rng: random.Random, length: int = 8) -> list[str]:
    """Sentences about one person and one trade, in no particular order."""
    job, name = rng.choice(list(TRADES)), rng.choice(NAMES)
    place, tool, thing, stuff, verb = TRADES[job]
    facts = {"job": job, "name": name, "place": place, "tool": tool, "thing": thing, "stuff": stuff, "verb": verb}
    return [
        template.format(**facts, day=rng.choice(DAYS), adjective=rng.choice(ADJECTIVES)).capitalize()
        for template in rng.choices(SENTENCES, k=length)
    ]
