"""Greetings, who the model is, a little general knowledge, and what it does not know."""

from __future__ import annotations

from random import Random

from tools.tiny.text import world
from tools.tiny.text.document import Pair
from tools.tiny.text.phrase import a, capital, rough, say

UNKNOWN = (
    "Who [wrote|painted|invented|discovered|composed] {thing}?",
    "[When|Where] was {person} born?",
    "Who was {person}?",
    "Who is {person}?",
    "[When|How] did {person} die?",
    "What is the population of {place}?",
    "How many people live in {place}?",
    "What is the [weather|temperature|time] in {place}?",
    "How is the weather [today|tomorrow|]?",
    "What is the [price|cost] of {thing}?",
    "Who won the [match|game|election|championship|cup] in {year}?",
    "What happened in {year}?",
    "What happened in {place} in {year}?",
    "Who is the president of {place}?",
    "Translate {thing} into [French|German|Latin|Spanish|Chinese].",
    "What is the meaning of [life|this poem|my dream|that sign]?",
    "Write a [poem|song|letter|novel|speech] about {thing}.",
    "Summarise [this article|the book|the film] about {thing}.",
    "How do I [cook|repair|draw|sell|grow|clean] {thing}?",
    "What do you think about {thing}?",
    "Should I [buy|sell|learn] {thing}?",
    "What is the best [film|book|song|restaurant] [in {place}|about {thing}|]?",
    "What is [today's date|the date today|the time]?",
    "What time is it?",
    "Who is my [neighbour|teacher|boss|doctor]?",
    "What did I [eat|do|say] yesterday?",
    "How far is it [to|from] {place}?",
    "What is the [history|economy|language|flag] of {place}?",
    "Explain [the theory of|the history of|the chemistry of] {thing}.",
    "What is the square root of {number}?",
    "What is {number} times {number2}?",
    "What is {number} divided by {number2}?",
)
PEOPLE = (
    "Albert Einstein,Marie Curie,Isaac Newton,Ada Lovelace,Alan "
    "Turing,Shakespeare,Mozart,Bach,Beethoven,Napoleon,Julius Caesar,Cleopatra,Leonardo da "
    "Vinci,Picasso,Charles Darwin,Galileo,Aristotle,Plato,Goethe,Jane Austen,Mark "
    "Twain,Gandhi,Columbus,Queen Victoria,Kant,Michelangelo,Rembrandt,Chopin,Tolstoy,Homer,Dr. "
    "Miller,John Smith,Maria Lopez,Mr. Brown,Lady Grey"
).split(",")
SUBJECTS = (
    "the telephone,the Mona Lisa,Hamlet,the piano,the bicycle,a "
    "violin,gold,silver,penicillin,the steam engine,a carpet,relativity,quantum mechanics,the "
    "French Revolution,dinosaurs,a cathedral,politics,football,chess,philosophy,the Roman "
    "Empire,democracy,volcanoes,a pizza,tomatoes,a car,a roof,the lottery,shares,bitcoin,a "
    "garden,love,war,the ocean,medicine,a fever,chemistry,opera,Faust,War and Peace,the "
    "aeroplane,the radio,insulin,the guitar,a house,an orchestra"
).split(",")
PLACES = (
    "Paris,Berlin,London,New York,Tokyo,Rome,Madrid,Sydney,Chicago,Moscow,Vienna,Oslo,Cairo,Texas,"
    "California,Bavaria,Tuscany,Siberia,Hamburg,Lyon,Milan,Boston,Toronto,Mumbai,Shanghai,Istanbul,"
    "Atlantis,my town,this city,Antarctica,France,Brazil,India,Canada,Japan,Kenya"
).split(",")
NO_COUNTRIES = (
    "Atlantis,Wonderland,Narnia,the Moon,Mars,Texas,Bavaria,Scotland,California,Siberia,Africa,"
    "Europe,Bhutan,Laos,Malta,Andorra,Oman,Yemen,Chad,Mali,Togo,Benin,Gabon,Angola,Zambia,Rwanda,"
    "Fiji,Samoa,Tonga,Belize,Panama,Honduras,Bolivia,Paraguay,Guyana,Jordan,Qatar,Kuwait,Albania"
).split(",")
DONT_KNOW = ("I do not know that. I am a very small model and know little about the world.",)
ASK_CAPITAL = (
    "What is the capital of {x}?",
    "What is the capital of {x}?",
    "Which city is the capital of {x}?",
    "What's the capital of {x}?",
    "What is {x}'s capital?",
    "Name the capital of {x}.",
    "Do you know the capital of {x}?",
    "Tell me the capital of {x}.",
    "capital of {x}",
    "The capital of {x} is",
    "Can you tell me the capital of {x}?",
    "Which is the capital city of {x}?",
)


def pair(rng: Random) -> Pair:
    """A question and its answer."""
    draw = rng.random()
    if draw < 0.24:
        asks, answers = rng.choice(world.TALK)
        return rng.choice(asks), answers[0] if rng.random() < 0.6 else rng.choice(answers)
    if draw < 0.48:
        return _country(rng)
    if draw < 0.72:
        asks, answer = rng.choice(world.FACTS)
        return rough(rng, rng.choice(asks)), answer
    if draw < 0.82:
        return _animals_and_words(rng)
    return unknown(rng)


def unknown(rng: Random) -> Pair:
    """A question that the model cannot answer, and the words to say so."""
    if rng.random() < 0.15:
        ask = rng.choice(ASK_CAPITAL[:9]).format(x=rng.choice(NO_COUNTRIES))
        return rough(rng, ask), rng.choice(DONT_KNOW)
    question = say(
        rng,
        rng.choice(UNKNOWN),
        thing=rng.choice(SUBJECTS),
        person=rng.choice(PEOPLE),
        place=rng.choice(PLACES),
        year=rng.randint(1200, 2030),
        number=rng.randint(101, 9999),
        number2=rng.randint(13, 99),
    ).replace(" ?", "?")
    return rough(rng, question), rng.choice(DONT_KNOW)


def plain(rng: Random) -> str:
    """A paragraph of facts."""
    facts = [answer for _, answer in rng.sample(world.FACTS, rng.randint(2, 4))]
    for country in rng.sample(sorted(world.CAPITALS), rng.randint(1, 3)):
        facts.append(f"The capital of {country} is {_stop(world.CAPITALS[country][0])}")
    rng.shuffle(facts)
    return " ".join(facts)


def _country(rng: Random) -> Pair:
    country = rng.choice(sorted(world.CAPITALS))
    city, continent = world.CAPITALS[country]
    draw = rng.random()
    if draw < 0.75:
        question = rng.choice(ASK_CAPITAL).format(x=country)
        return rough(rng, question), f"The capital of {country} is {_stop(city)}"
    if draw < 0.87:
        question = say(
            rng, "[Where is|On which continent is|In which part of the world is] {x}?", x=country
        )
        verb = "are" if country.endswith("s") else "is"
        question = question.replace(" is the ", f" {verb} the ") if verb == "are" else question
        return rough(rng, question), f"{capital(country)} {verb} in {continent}."
    question = say(rng, "{x} is the capital of which country?", x=city)
    return rough(rng, question), f"{city} is the capital of {country}."


def _animals_and_words(rng: Random) -> Pair:
    draw = rng.random()
    if draw < 0.4:
        first, second = rng.choice([p.split() for p in world.OPPOSITES.split(",")])
        question = say(
            rng, "[What is the opposite of {x}?|Name the opposite of {x}.|opposite of {x}]", x=first
        )
        return rough(rng, question), f"The opposite of {first} is {second}."
    if draw < 0.6:
        animal, young = rng.choice([p.split() for p in world.YOUNG.split(",")])
        question = say(rng, "[What is a young {x} called?|What is a baby {x} called?]", x=animal)
        return rough(rng, question), f"A young {animal} is called {a(young)}."
    if draw < 0.8:
        animal, legs = rng.choice(sorted(world.LEGS.items()))
        question = say(rng, "[How many legs does {x} have?|How many legs has {x}?]", x=a(animal))
        return rough(rng, question), f"{capital(a(animal))} has {legs} legs."
    thing, colour = rng.choice([p.split(",") for p in world.COLOURS.split(";")])
    question = say(rng, "[What colour is {x}?|Which colour has {x}?]", x=thing)
    return rough(rng, question), f"{capital(thing)} is {colour}."


def _stop(city: str) -> str:
    return city if city.endswith(".") else city + "."
