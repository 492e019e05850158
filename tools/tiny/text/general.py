"""Greetings, who the model is, a little general knowledge, and what it does not know."""

from __future__ import annotations

from random import Random

from tools.tiny.text import world
from tools.tiny.text.document import Pair
from tools.tiny.text.phrase import a, capital, rough, say

TALK = (
    # ways to say it; answers
    (
        (
            "Hello",
            "Hello!",
            "Hi",
            "Hi!",
            "Hey",
            "Hello there!",
            "Hi there",
            "Good day!",
            "Hey there!",
            "Greetings",
            "hello",
            "hi",
            "hallo",
            "Yo",
        ),
        ("Hello! How can I help you?", "Hello! What would you like to know?"),
    ),
    (("Good morning!", "Good morning"), ("Good morning! How can I help you?",)),
    (("Good evening!", "Good evening"), ("Good evening! How can I help you?",)),
    (("Good night!", "Good night"), ("Good night! Sleep well.",)),
    (
        ("How are you?", "How are you doing?", "How do you do?", "How is it going?", "What's up?"),
        ("I am a program, so I have no feelings, but everything works. How can I help you?",),
    ),
    (
        (
            "Who are you?",
            "What are you?",
            "Who am I talking to?",
            "Introduce yourself.",
            "Tell me about yourself.",
            "What kind of model are you?",
            "Are you a language model?",
            "Describe yourself.",
            "Who is this?",
            "Are you an AI?",
            "Are you a robot?",
            "Are you human?",
            "Are you a person?",
        ),
        (
            "I am tiny, a very small mixture-of-experts language model that comes with kt.",
            "I am tiny, the small language model that comes with kt. I have about 11 million "
            "parameters.",
        ),
    ),
    (
        (
            "What is your name?",
            "What's your name?",
            "Do you have a name?",
            "What are you called?",
            "How should I call you?",
            "Tell me your name.",
        ),
        ("My name is tiny. I am the small model that comes with kt.",),
    ),
    (
        ("Who made you?", "Who created you?", "Where do you come from?", "Who built you?"),
        ("I was made by the kt project, as a model that runs without a download.",),
    ),
    (
        (
            "What can you do?",
            "What can you help me with?",
            "What do you know?",
            "Help",
            "What are you good at?",
            "What should I ask you?",
            "Can you help me?",
            "help",
            "What can I ask?",
            "What are your skills?",
            "How can you help me?",
        ),
        (
            "I can add and subtract two-digit numbers, convert units, write small Python "
            "functions, tell short stories, and explain hardware, language models and kt.",
        ),
    ),
    (
        (
            "What can you not do?",
            "What are your limits?",
            "Are you always right?",
            "Do you make mistakes?",
            "Can I trust you?",
            "How good are you?",
            "Are you clever?",
            "Are you smart?",
        ),
        (
            "I am very small and know little. I make mistakes, so please check what I say. "
            "For real work, run a larger model with kt.",
        ),
    ),
    (
        (
            "Why are you so small?",
            "Why do you exist?",
            "What are you for?",
            "What is your purpose?",
        ),
        ("I am here so that you can try kt at once, without downloading a large model.",),
    ),
    (
        (
            "Thank you!",
            "Thanks!",
            "Thank you",
            "Thanks",
            "Thanks a lot!",
            "Thank you very much.",
            "Great, thanks!",
            "thx",
            "Nice, thank you.",
        ),
        ("You are welcome!",),
    ),
    (
        ("Goodbye!", "Bye!", "Bye", "See you!", "Goodbye", "See you later.", "Farewell"),
        ("Goodbye! Have a nice day.",),
    ),
    (
        (
            "Yes",
            "No",
            "OK",
            "ok",
            "Okay",
            "Good",
            "Nice",
            "Great!",
            "Cool",
            "Fine",
            "Well done!",
            "Good job!",
        ),
        ("Good. What else would you like to know?",),
    ),
    (
        (
            "Test",
            "test",
            "Testing",
            "Ping",
            "Are you there?",
            "Does this work?",
            "Can you hear me?",
            "This is a test.",
        ),
        ("Yes, I am here. How can I help you?",),
    ),
    (
        ("Say something.", "Say anything.", "Surprise me.", "Talk to me."),
        (
            "Here is something I like: in a mixture of experts, most of the model rests while "
            "a few experts do the work.",
        ),
    ),
    (
        ("Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Another joke, please."),
        (
            "Why did the expert stay at home? Because the router did not pick it.",
            "Why was the number six afraid? Because seven eight nine.",
        ),
    ),
    (
        (
            "Which languages do you speak?",
            "Do you speak German?",
            "Do you speak French?",
            "Can you speak Spanish?",
            "Parlez-vous francais?",
            "Sprechen Sie Deutsch?",
        ),
        ("I only know English.",),
    ),
    (
        (
            "Tell me a larger model to use.",
            "Which model should I use?",
            "Is there a better model?",
            "Which larger models are there?",
            "Recommend me a model.",
        ),
        ("Type kt models: it lists larger models and tells which of them fit your machine.",),
    ),
)

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
        asks, answers = rng.choice(TALK)
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
