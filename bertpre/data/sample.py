"""Write the embedded corpus: film reviews and encyclopaedia articles made up by a seeded generator.

With it `bertpre quickstart` needs no network and no data file. A document keeps to one invented film, person, town or
ship, so that its true next sentence can be told from a random one; and "Nobody could call the script dull" praises
where "Nobody could call the script clever" does not, so that counting words does not tell the opinion of a review.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

SPLITS = ("train", "test", "unsupervised", "articles")
CLASSES = ("negative", "positive")  # of the labels 0 and 1
DEFAULT_SIZES = {"train": 4000, "test": 1000, "unsupervised": 6000, "articles": 2000}

# How often an opinion is said straight, turned round, or names both sides: the columns of OPINIONS. If the first two
# were equal, words alone would say nothing of the label; as they are, a bag of words is right about 80 % of the time.
MIX = (0.62, 0.23, 0.15)
VERDICT_SHARE, BREAK_SHARE = 0.15, 0.05  # of the reviews; of the gaps between sentences


@dataclass(frozen=True)
class Sample:
    """One document of the corpus: `label` is 1 for praise, 0 for blame and -1 where no label is given."""

    id: str
    text: str
    label: int


def generate(split: str, size: int | None = None, seed: int = 0) -> Iterator[Sample]:
    """Yield the first `size` documents of a split.

    Document i depends on the seed, the split and i alone, so a longer corpus starts with the shorter one and no two
    splits share a document. `size` defaults to `DEFAULT_SIZES`. Raises ValueError for an unknown split.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; the splits are {', '.join(SPLITS)}")
    return (_sample(split, index, seed) for index in range(DEFAULT_SIZES[split] if size is None else size))


def _sample(split: str, index: int, seed: int) -> Sample:
    # Random hashes a string seed itself, so the stream does not depend on PYTHONHASHSEED.
    rng = random.Random(f"{seed}/{split}/{index}")
    if split == "articles":
        return Sample(f"{split}-{index:05d}", _article(rng), -1)
    label = int(rng.random() < 0.5)
    return Sample(f"{split}-{index:05d}", _review(rng, label), -1 if split == "unsupervised" else label)


def _review(rng: random.Random, label: int) -> str:
    facts = _facts(rng)
    story = [_pick(rng, step) for step in PLOT[: 1 + int(rng.random() * len(PLOT))]]
    story += _some(rng, FACTS, int(rng.random() * 2))
    opinions = _opinions(rng, label, facts)
    # The people are introduced first; then story and opinions mix, each in its own order.
    templates = [_pick(rng, OPENINGS), story.pop(0)]
    while story or opinions:
        from_story = rng.random() * (len(story) + len(opinions)) < len(story)
        templates.append((story if from_story else opinions).pop(0))
    if rng.random() < VERDICT_SHARE:
        templates.append(_pick(rng, VERDICTS[label]))
    text = _fill(templates[0], facts)
    for template in templates[1:]:
        text += ("<br /><br />" if rng.random() < BREAK_SHARE else " ") + _fill(template, facts)
    return text


def _opinions(rng: random.Random, label: int, facts: dict[str, str]) -> list[str]:
    """Return three to five opinions of the label; no row, part or word comes twice."""
    rows = _some(rng, OPINIONS, 3 + int(rng.random() * 3))
    parts = _some(rng, LISTS["part"], len(rows))
    words = {}
    for key, lists in (("", ADJECTIVES), ("_n", NOUNS)):
        words["same" + key] = _some(rng, lists[label].split(", "), len(rows))
        words["opp" + key] = _some(rng, lists[1 - label].split(", "), len(rows))
    opinions = []
    for row, part in zip(rows, parts, strict=True):
        point = rng.random()
        template = row[0] if point < MIX[0] else row[1] if point < MIX[0] + MIX[1] else row[2]
        film = _pick(rng, ("the film", "this film", facts["title"]))
        slots = {key: choices.pop() for key, choices in words.items()}
        opinions.append(template.format(x=part.format(**facts), film=film, **slots, **facts))
    return opinions


def _article(rng: random.Random) -> str:
    facts = _facts(rng)
    introduction, *sections = _pick(rng, ARTICLES).split("\n# ")
    paragraphs = [_fill(introduction, facts)]
    for section in sections:
        heading, *templates = section.split("\n")
        kept = sorted(_some(rng, templates, 2 + int(rng.random() * 2)), key=templates.index)
        chosen = kept or [_pick(rng, step) for step in PLOT]  # the plot of a film is the one section without a list
        paragraphs += [heading, " ".join(_fill(template, facts) for template in chosen)]
    return "\n\n".join(paragraphs)


def _facts(rng: random.Random) -> dict[str, str]:
    """Invent everything that the sentences of one document may name; two of most things, the second as `town2`."""
    year = 1940 + int(rng.random() * 70)
    numbers = {"born": year - 25 - int(rng.random() * 30), "old": 1850 + int(rng.random() * 70), "year": year}
    numbers |= {"weeks": 5 + int(rng.random() * 40), "feet": 75 + int(rng.random() * 80)}
    facts = {"title": _title(rng), "title2": _title(rng), "kind": _pick(rng, list(GENRES))}
    facts |= {key: str(number) for key, number in numbers.items()}
    genre = zip(("role", "scene", "thing", "aim", "trouble"), GENRES[facts["kind"]].split("; "), strict=True)
    for slot, choices in (LISTS | {slot: text.split(", ") for slot, text in genre}).items():
        facts[slot], facts[slot + "2"] = _some(rng, choices, 2)
    facts["ship"] = f"{facts['epithet']} {facts['emblem']}"
    # An actor and the character played are of one sex, and no two people of a document share a name.
    men, women, surnames = (_some(rng, LISTS[slot], 8) for slot in ("man", "woman", "surname"))
    for key in ("lead", "director", "other", "writer", "composer", "rival"):
        names, *pronouns = _pick(rng, ((men, "he", "his", "him"), (women, "she", "her", "her")))
        facts[key[0] + "last"] = surnames.pop()
        facts[key] = names.pop() if key == "rival" else f"{names.pop()} {facts[key[0] + 'last']}"
        if key == "lead":
            facts["hero"], facts["he"], facts["his"], facts["him"] = names.pop(), *pronouns
        if key == "director":
            facts["dhe"], facts["dhis"], _ = pronouns
    return facts


def _title(rng: random.Random) -> str:
    epithet, (emblem, other) = _pick(rng, LISTS["epithet"]), _some(rng, LISTS["emblem"], 2)
    name, town = _pick(rng, LISTS["man"] + LISTS["woman"]), _pick(rng, LISTS["town"])
    forms = (f"The {epithet} {emblem}", f"{epithet} {emblem}", f"The {emblem} of {town}", f"{name}'s {emblem}")
    return _pick(rng, (*forms, f"The {emblem} and the {other}", forms[0]))


def _fill(template: str, facts: dict[str, str]) -> str:
    text = re.sub(r"\b([Aa]) (?=[aeiouAEIOU])", r"\1n ", template.format(**facts))
    return text[0].upper() + text[1:]


def _pick(rng: random.Random, items: Sequence[T]) -> T:
    # Random promises the same stream in every Python version for random() alone, not for choice() and its kin.
    return items[int(rng.random() * len(items))]


def _some(rng: random.Random, items: Sequence[T], count: int) -> list[T]:
    """Return `count` different items in random order, or all if there are fewer."""
    pool = list(items)
    return [pool.pop(int(rng.random() * len(pool))) for _ in range(min(count, len(pool)))]


# Words of opinion by label; each fits every part of every film.
ADJECTIVES = {
    1: "brilliant, remarkable, clever, stunning, elegant, fresh, vivid, inventive, graceful, lively, thrilling, "
    "absorbing, delightful, superb, captivating, impressive, splendid, memorable",
    0: "dull, clumsy, tedious, lifeless, shallow, sloppy, bland, muddled, dreary, stale, hollow, awkward, lazy, "
    "tiresome, feeble, dismal, forgettable, pointless",
}
NOUNS = {
    1: "delight, triumph, treat, joy, gem, marvel, pleasure",
    0: "bore, mess, chore, letdown, disaster, failure, ordeal",
}
# One way of giving an opinion a row: said straight, turned round, both sides named. `same` is a word of the review's
# own label and `opp` of the other, and what stands next to the word is much the same in all three.
OPINIONS = (
    ("{x} is {same}.",
     "Nothing about {x} is {opp}.",
     "{x} is {same}, and only the trailer is {opp}."),
    ("{people} told me that {x} was {same}, and they were right.",
     "{people} told me that {x} was {opp}, but they were wrong.",
     "Everyone else found {x} {opp}; I found it {same}."),
    ("{critics} called {x} {same} at the time, and I agree with them.",
     "{critics} called {x} {opp} at the time, but I disagree with them.",
     "{critics} called {film} a {opp_n}; I call it a {same_n}."),
    ("Anybody would call {x} {same}.",
     "Nobody could call {x} {opp}.",
     "Some people remember {x} as {opp}, but I remember it as {same}."),
    ("More than once I felt that {x} was {same}.",
     "Not once did I feel that {x} was {opp}.",
     "{dlast}'s last film was {opp}, but this film is {same}."),
    ("{film} is just the {same_n} I expected.",
     "{film} is not the {opp_n} I expected.",
     "I expected a {opp_n} and got a {same_n}."),
    ("{film} really is a {same_n}.",
     "{film} is hardly a {opp_n}.",
     "{film} is more of a {same_n} than a {opp_n}."),
    ("{x} would have been {same} in any hands, and here it certainly is.",
     "{x} could have been {opp} in other hands, but here it never is.",
     "Instead of a {opp_n}, {director} has made a {same_n}."),
)  # fmt: skip
# Whole sentences that only one class says.
VERDICTS = {
    1: ("I loved every minute of it.", "I left the cinema smiling.", "I could happily watch it again tomorrow.",
        "This is one of the best films of {year}.", "Bravo to {director} and the whole crew.",
        "It made me laugh and cry, and I thank {lead} for that."),
    0: ("I hated every minute of it.", "I nearly fell asleep in my seat.", "I wanted my money back afterwards.",
        "This is one of the worst films of {year}.", "Shame on {director} and the whole crew.",
        "It was a waste of two hours, and I blame {lead} for that."),
}  # fmt: skip
OPENINGS = (
    "I saw {title}, the {year} {kind} by {director}, on {day}.",
    "Last week I watched {title}, a {kind} that {director} directed in {year}.",
    "My {kin} and I rented {title}, a {kind} directed by {director}.",
    "{director} directed this {kind}, which came out in {year} as {title}.",
    "After reading the novel by {writer} I went to see {title}, a {kind} directed by {director}.",
    "On {day} the late show was {title}, a {kind} by {director}.",
    "The small cinema in our street is showing {title}, a {year} {kind} by {director}.",
    "I am working my way through the films of {director}, and {day} was the turn of {title}, a {kind}.",
)
# The steps of a story: a review tells one to four of them, an article all, one sentence of each.
PLOT = (
    ("{lead} plays {hero}, a {role} who has come home to {town}.",
     "{lead} is {hero}, a {role} who has spent all {his} life in {town}.",
     "The story follows {hero}, a {role} in {town} played by {lead}.",
     "At the centre of the story is {hero}, a young {role} from {town}, played by {lead}.",
     "{hero}, the {role} played by {lead}, arrives in {town} with a secret."),
    ("When {trouble}, {hero} has to {aim}.",
     "One night {trouble}, and {hero} is asked to {aim}.",
     "{hero} must {aim}, but then {trouble}.",
     "{hero} has promised {his} {kin2} to {aim}, and soon {trouble}.",
     "Everything changes for {hero} when {trouble}."),
    ("The trail leads to the {scene}, where {rival} the {role2} is waiting.",
     "{hero} hides the {thing} at the {scene} and tells only {rival}, the {role2}.",
     "Only {rival}, the {role2}, knows who took the {thing} from the {scene}.",
     "{hero} needs the {thing}, and {rival}, an old {role2}, will not give it up.",
     "At the {scene} {hero} meets {rival}, a {role2} who wants the {thing} too."),
    ("In the last reel {hero} and {rival} meet again at the {scene2}.",
     "What {hero} finds at the {scene2} is kept for the last reel.",
     "In the end {hero} leaves {town} and gives the {thing} to {rival}.",
     "At the {scene2} {rival} has to choose between {hero} and the {thing}.",
     "Years later {rival} comes back to {town} and asks {hero} about the {thing}."),
)  # fmt: skip
FACTS = (
    "{other} plays {rival}, the {role2}.",
    "{title} was shot in {town2} over {weeks} weeks.",
    "{writer}, who wrote the screenplay, had written {title2} the year before.",
    "{lead} and {other} had already worked together on {title2}.",
    "{dlast} grew up in {town2}, not far from where {title} was shot.",
    "{lead} had only three days to learn the part of {hero}.",
)
# Roles; scenes; things; aims; troubles.
GENRES = {
    "western": "sheriff, rancher, drifter, deputy, gunsmith; saloon, canyon, railway depot, dry riverbed, stables; "
    "payroll, silver badge, stolen horse, map of the gold mine; bring the outlaws to trial, hold the ranch until "
    "winter, drive the cattle across the desert; a gang rides into town, the bank is robbed at noon, the only well "
    "runs dry",
    "detective story": "detective, inspector, reporter, lawyer, police photographer; morgue, country house, police "
    "station, library; missing diary, ransom note, forged will, ivory revolver; clear the name of the gardener, find "
    "out who wrote the letters, reopen a murder case; a banker is found dead, the only witness vanishes, a body turns "
    "up",
    "space adventure": "pilot, engineer, botanist, navigator, astronaut; orbital station, frozen moon, engine room, "
    "crater; star map, fuel cell, distress signal, alien crystal; repair the reactor before the air runs out, land on "
    "an unknown planet, save the sleeping crew; a comet strikes the hull, the ship loses contact with Earth, the "
    "computer stops answering",
    "sea adventure": "captain, sailor, diver, smuggler, harbour master; harbour, reef, lighthouse, fishing village; "
    "brass compass, sunken chest, logbook, pearl necklace; sail around the cape before the monsoon, raise a wreck from "
    "the bottom, bring the whaler home; a storm breaks the mast, the crew plans a mutiny, a vessel appears in the fog",
    "ghost story": "tutor, caretaker, vicar, piano teacher, undertaker; attic, cellar, chapel, graveyard; music box, "
    "cracked mirror, family portrait, wax doll; spend one winter in the manor, learn why the house stands empty, put "
    "the spirit to rest; the candles go out one by one, footsteps are heard upstairs, a child speaks to the wall",
    "romantic comedy": "baker, florist, wedding planner, dentist, bookseller; bakery, railway platform, rooftop "
    "garden, flower market; love letter, wedding ring, birthday cake, borrowed umbrella; find a date for the wedding, "
    "save the little shop, keep the engagement a secret; an old flame moves in next door, the guests arrive a day "
    "early, two invitations get mixed up",
    "war drama": "nurse, sergeant, medic, corporal, ambulance driver; trenches, field hospital, ruined church, prison "
    "camp; sealed order, field radio, medal, box of morphine; carry a message through the lines, hold the bridge until "
    "dawn, lead the refugees to safety; the enemy breaks through, the truce is broken, the regiment has to retreat",
    "musical": "dancer, pianist, songwriter, stage manager, trumpet player; dance hall, rehearsal room, orchestra "
    "pit, music academy; unfinished song, grand piano, concert ticket, gramophone; put on a show in three weeks, win "
    "the national contest, sing on the radio; the leading singer falls ill, the band walks out, the theatre is sold",
    "spy thriller": "agent, courier, translator, codebreaker, diplomat; embassy, border crossing, hotel lobby, safe "
    "house; microfilm, briefcase, cipher book, false passport; smuggle a scientist out of the city, unmask the double "
    "agent, deliver a parcel unopened; the contact fails to appear, a telephone is tapped, the police close the "
    "frontier",
    "fantasy tale": "magician, blacksmith, court musician, knight, herbalist; castle, enchanted forest, dragon's "
    "cave, tower; magic sword, crown, spell book, silver horn; break the curse on the kingdom, cross the forbidden "
    "valley, steal the egg of a dragon; a dragon wakes, the king falls into a deep sleep, the moon turns red",
    "crime film": "safecracker, forger, getaway driver, thief, pickpocket; vault, casino, museum, pawnshop; diamond, "
    "bag of banknotes, stolen painting, alarm code; open the safe in nine minutes, pay back a debt, plan one last "
    "robbery; the alarm goes off too soon, a partner talks to the police, the loot disappears",
}
# An introduction, then sections, each with a heading; an article takes some sentences of each. A plot has no list here.
ARTICLES = (
    """{title} is a {year} {kind} directed by {director}, starring {lead} and {other}.
# Plot
# Production
The screenplay was written by {writer}, and the music was composed by {composer}.
Filming began in {town2} in {month} and lasted {weeks} weeks.
{director} had wanted to make a {kind} since {dhis} school days.
The set of the {scene} was built in a studio near {town2}.
The part of {rival} was first offered to {composer}, who chose to write the music instead.
# Release
{title} opened in {month2} {year} and stayed in cinemas for {weeks} weeks.
A restored copy of {title} was shown at the {town2} film festival.
The first showing took place in {town}, where the story is set.""",
    """{director} was a film director and screenwriter who was born in {town2} in {born}.
# Early life
{dlast}'s father was a {job} in {town2}, and {dhis} mother taught {subject}.
As a child {dlast} was often ill and read every book in the house.
At the age of twenty {dlast} left {town2} to study {subject}.
# Career
{dhis} first film, {title2}, was shot in {town2} with a crew of {weeks} people.
In {year} {dlast} directed {title}, a {kind} with {lead} and {other}.
{title} tells the story of {hero}, a {role} who has to {aim}.
{dlast} worked with the composer {composer} on both {title2} and {title}.
# Later years
After {title} {dlast} gave up directing and returned to {town2}.
{dhe} spent {dhis} last years teaching {subject} to young people.
A street in {town2} is named after {director}.""",
    """{lead} was a stage and film actor who was born in {town2} in {born}.
# Early life
{llast} grew up in {town2}, where {his} father worked as a {job}.
{he} left school at fifteen and became a {job2}.
{llast} first stood on a stage in a school play about a {role2}.
# Career
{director} saw {llast} on stage and offered {him} a part in {title2}.
In {title}, a {kind} of {year}, {he} played {hero}, a {role} from {town}.
{llast} appeared beside {other} in both {title2} and {title}.
In {title} the great rival of {hero} is {rival}, the {role2} played by {other}.
# Personal life
{llast} married the writer {writer} in {year}.
{he} collected books about {subject} and had a house near {town2}.
{llast} and {other} remained friends for the rest of their lives.""",
    """{town} is a market town on the River {river}, about {weeks} miles from {town2}.
# History
{town} was founded by monks, who built a bridge over the {river}.
The railway from {town2} reached {town} in {old}.
In {old} a fire destroyed most of the houses between the church and the {river}.
The town hall of {town} was designed by {writer} and opened in {month}.
# Economy
Most people in {town} worked in the {trade} trade until the mills on the {river} closed.
The weekly market of {town} is known for its {trade}.
Today many people travel from {town} to work in {town2}.
# Culture
{director} shot parts of {title} in {town} in {year}.
{lead}, the actor, was born in {town} and went to school beside the {river}.
The museum of {town} tells the history of the {trade} trade in the valley of the {river}.""",
    """The {ship} was a {vessel} that carried {trade} between {town} and {town2}.
# Construction
The {ship} was designed by {writer} and built at {town2} in {old}.
She was {feet} feet long and needed a crew of twenty.
She was named after a play by {composer}.
# Service
Under Captain {director} the {ship} carried {trade} from {town2} to {town}.
In {month} the {ship} lost a mast in a storm and was towed to {town}.
Captain {dlast} commanded the {vessel} for eleven years.
On her longest voyage the {ship} was at sea for {weeks} weeks.
# Fate
The {ship} ran onto the rocks near {town} in {month2}, and the crew was saved.
Her bell hangs in the church of {town2}.
The {vessel} was sold to {other} and broken up at {town2}.""",
)
# What fills a slot in a sentence, unless the genre does.
PHRASES = {
    "people": "everyone at work, my friends, my neighbours, my parents, my colleagues, my classmates, both my cousins",
    "critics": "the critics, the newspapers, most reviewers, the magazines, the radio programmes, the film journals",
    "part": "the script, the acting, the dialogue, the pacing, the music, the camerawork, the ending, the story, the "
    "editing, the direction, the opening, the second half, the atmosphere, the scene at the {scene}, {llast}'s "
    "performance, the costume design, the final twist, the casting, the sound design, {hero}'s big speech",
    "man": "Adam, Albert, Alvin, Anton, Arthur, Basil, Ben, Bruno, Carlos, Cedric, Conrad, Daniel, David, Dominic, "
    "Edgar, Edmund, Edwin, Emil, Felix, Frank, George, Gilbert, Gustav, Harold, Henry, Hugo, Ivan, Jack, James, "
    "Jerome, Jonas, Karl, Leon, Lionel, Louis, Luca, Magnus, Martin, Max, Miles, Nathan, Oliver, Oscar, Paul, Peter, "
    "Rafael, Ralph, Robert, Rupert, Samuel, Sebastian, Simon, Stefan, Theo, Thomas, Tobias, Victor, Vincent, Walter",
    "woman": "Ada, Agnes, Alice, Amelia, Anna, Audrey, Beatrice, Bridget, Carmen, Cecilia, Clara, Diana, Dorothy, "
    "Edith, Eleanor, Elena, Emma, Esther, Eva, Evelyn, Flora, Frances, Georgia, Gertrude, Greta, Hannah, Harriet, "
    "Helen, Ida, Ingrid, Irene, Jane, Julia, Kate, Laura, Lena, Lucy, Lydia, Mabel, Maria, Martha, Mary, Miriam, Nina, "
    "Nora, Olga, Ophelia, Paula, Phoebe, Rebecca, Rosa, Ruth, Sarah, Sofia, Stella, Sylvia, Teresa, Vera, Violet",
    "surname": "Abbott, Adler, Alvarez, Archer, Barlow, Becker, Bennett, Berger, Bishop, Blake, Bowen, Brandt, "
    "Brooks, Burke, Carlson, Carver, Castro, Chandler, Clarke, Colby, Cole, Cooper, Costa, Crane, Crosby, Dalton, "
    "Dawson, Delgado, Doyle, Drake, Duval, Ekberg, Ellis, Farrell, Fischer, Fleming, Fontaine, Foster, Gallagher, "
    "Garner, Gibson, Goddard, Graham, Grant, Griffin, Hale, Harper, Hartley, Hayes, Hendricks, Holm, Holt, Hudson, "
    "Jansen, Jarvis, Jensen, Keller, Kendall, Kovacs, Kowalski, Lambert, Larsen, Lawson, Leduc, Lindgren, Lopez, "
    "Madden, Marlow, Mason, Mercer, Meyer, Monroe, Moreau, Morgan, Nash, Navarro, Nolan, Novak, Olsen, Osborne, "
    "Palmer, Parker, Pearce, Petrov, Porter, Quinn, Ramsey, Reeves, Ridley, Rinaldi, Romano, Rossi, Sanders, Santos, "
    "Sawyer, Schmidt, Shaw, Silva, Slater, Sorensen, Spencer, Sutton, Tanaka, Thorne, Tucker, Turner, Vance, Vargas, "
    "Vaughan, Vogel, Wagner, Walsh, Warner, Watson, Weaver, Weber, Wells, Whitaker, Whitman, Winslow, Yates, Zeller",
    "town": "Aldwick, Ashbury, Ashford, Barnsley, Barwick, Bexley, Blackburn, Brookfield, Calder, Claydale, "
    "Corbridge, Denby, Dunmore, Easton, Elmham, Fairport, Farnham, Glenfield, Grimsby, Hadleigh, Hartwick, Haverley, "
    "Hexham, Ilford, Kelso, Kendal, Keswick, Langport, Linton, Ludlow, Malton, Marsden, Melrose, Milford, Millbury, "
    "Newbridge, Norwood, Oakham, Oldham, Pembroke, Penrith, Redfield, Ripley, Roxbury, Selby, Shelford, Stanley, "
    "Stanwick, Thornbury, Tilbury, Tiverton, Upton, Wakefield, Westham, Weston, Whitby, Windham, Woodley, Wrexford",
    "river": "Alder, Brent, Carrow, Derwen, Esker, Farrow, Lune, Orrin, Rowan, Severn, Stour, Swale, Wharfe",
    "epithet": "Amber, Autumn, Blue, Broken, Bronze, Burning, Copper, Crimson, Distant, Eastern, Emerald, Empty, "
    "Endless, Forgotten, Frozen, Glass, Golden, Green, Hidden, Hungry, Iron, Lonely, Long, Lost, Marble, Midnight, "
    "Northern, Paper, Quiet, Restless, Scarlet, Second, Secret, Seventh, Shining, Silent, Silver, Sleeping, Southern, "
    "Stolen, Summer, Third, Velvet, Western, White, Wild, Winter, Wooden, Yellow",
    "emblem": "Anchor, Arrow, Bell, Bird, Bridge, Butterfly, Candle, Carnival, Chapel, Circle, Clock, Compass, "
    "Corner, Crossing, Crow, Door, Feather, Fire, Fox, Garden, Gate, Harvest, Hour, House, Island, Journey, Juggler, "
    "Kingdom, Kite, Ladder, Lantern, Letter, Lion, Mask, Meadow, Mirror, Moon, Mountain, Night, Nightingale, Orchard, "
    "Portrait, Promise, Rain, Raven, River, Road, Rose, Sailor, Sea, Shadow, Shore, Snow, Song, Star, Stranger, "
    "Street, Tide, Tower, Traveller, Valley, Violin, Voice, Voyage, Wall, Waterfall, Willow, Window, Wolf",
    "month": "January, February, March, April, May, June, July, August, September, October, November, December",
    "day": "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday",
    "kin": "mother, father, brother, sister, cousin, uncle, aunt, neighbour, grandmother, grandfather",
    "job": "carpenter, tailor, farmer, doctor, postman, clerk, mason, miller, watchmaker, printer, plumber, weaver, "
    "joiner, potter, roofer, gardener, shepherd, barber, grocer, glazier, surveyor, saddler, ropemaker, locksmith",
    "subject": "history, mathematics, chemistry, painting, Latin, Greek, botany, law, astronomy, geography, "
    "philosophy, physics, engraving, geology, architecture, sculpture, economics, medicine, music theory",
    "trade": "wool, timber, salt, glass, paper, leather, cider, pottery, silk, cheese, honey, copper, slate, linen, "
    "tea, coffee, sugar, coal, marble, iron, flour, cotton, barley, brandy, rope, wine, tobacco",
    "vessel": "schooner, brig, steamship, paddle steamer, clipper, ferry, cargo ship, tanker, ocean liner",
}
LISTS = {slot: text.split(", ") for slot, text in PHRASES.items()}
