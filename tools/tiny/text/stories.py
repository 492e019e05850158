"""Short stories for children: one hero, one friend, one thing, and an end."""

from __future__ import annotations

from random import Random

from tools.tiny.text.document import Pair
from tools.tiny.text.phrase import a, capital, say

# kind, pronouns (he, him, his), names
PEOPLE = (
    ("fox", ("he", "him", "his"), "Milo Felix Rusty Tom".split()),
    ("rabbit", ("she", "her", "her"), "Luna Daisy Clover Bella".split()),
    ("bear", ("he", "him", "his"), "Bruno Otto Barney Max".split()),
    ("mouse", ("she", "her", "her"), "Mina Pip Tilly Dot".split()),
    ("owl", ("she", "her", "her"), "Olive Wanda Hazel Ruth".split()),
    ("hedgehog", ("he", "him", "his"), "Henry Spike Ned Alfie".split()),
    ("duck", ("she", "her", "her"), "Dora Penny Molly Greta".split()),
    ("turtle", ("he", "him", "his"), "Theo Walter Toby Sam".split()),
    ("cat", ("she", "her", "her"), "Misty Nora Kitty Lily".split()),
    ("dog", ("he", "him", "his"), "Rex Benny Charlie Oscar".split()),
    ("squirrel", ("she", "her", "her"), "Hattie Nina Ruby Fern".split()),
    ("frog", ("he", "him", "his"), "Fred Hopper Gus Louis".split()),
    ("girl", ("she", "her", "her"), "Anna Mia Sophie Clara Emma Ida".split()),
    ("boy", ("he", "him", "his"), "Leo Finn Jonas Peter Noah Ben".split()),
)
TRAITS = "small kind brave curious shy cheerful clever patient sleepy friendly quiet young".split()
COLOURS = "red blue green yellow golden silver white purple orange brown".split()
THINGS = (
    "kite ball lamp boat hat cup drum box book key scarf bell wagon blanket basket spoon clock "
    "flute umbrella bicycle lantern ring button boot".split()
)
HOMES = (
    "in a small house by the sea",
    "at the edge of the forest",
    "near a quiet lake",
    "on a green hill",
    "in a village with a tall tower",
    "under an old oak tree",
    "beside a slow river",
    "in a garden full of flowers",
    "in a little town between two mountains",
    "next to an old mill",
)
PLACES = (
    "under the bridge",
    "behind the old oak tree",
    "in the tall grass",
    "beside the well",
    "on top of the hill",
    "between two big stones",
    "at the end of the lane",
    "inside a hollow log",
    "near the pond",
    "under a bench in the park",
)
FOODS = "bread soup apples berries cake pancakes honey cheese nuts carrots".split()

OPENINGS = (
    "[Once upon a time|Long ago|Once], there was {hero_a} [named|called] {hero}. {He} lived "
    "{home}.",
    "{hero} was {trait_hero_a} who lived {home}.",
    "{Home} lived {trait_hero_a} [named|called] {hero}.",
)
OWNS = (
    "{He} had {thing_a}, and {he} loved it more than anything else.",
    "{hero}'s [favourite|dearest] thing was {thing_a}.",
    "For {his} birthday, {hero} had been given {thing_a}.",
)

PLOTS = (
    # Lost and found.
    "{opening} {owns}\n\n[One morning|One windy day|One evening], the {thing} was gone. "
    "{hero} looked [under the bed|in the kitchen|behind the door] and [in the garden|on the "
    "roof|by the gate], but {he} could not find it. {He} [began to cry|felt very sad|did not "
    'know what to do].\n\n{Friend_the} {friend} came by and asked, "Why are you sad, '
    '{hero}?" "I have lost my {thing}," said {hero}. "[Then let us look together|I will '
    'help you|Two can see more than one]," said {friend}. They looked everywhere. At last '
    "they found the {thing} {place}.\n\n{hero} [laughed with joy|was so happy|hugged "
    '{friend}]. "Thank you, {friend}," {he} said. From that day on, {hero} took good care '
    "of the {thing}, and the two were friends for ever.",
    # Broken and mended.
    "{opening} {owns}\n\nOne day {hero} [ran too fast|was not careful|tripped over a stone], "
    'and the {thing} broke. "Oh no," said {hero}, "now it is [spoiled|broken] for '
    'ever."\n\n{hero} went to {friend}, {friend_a} who could mend almost anything. {friend} '
    'looked at the {thing} for a long time. "It needs [glue|a little glue|string|a new '
    'screw] and patience," {friend} said. They worked together [all afternoon|until the sun '
    "went down|for three days].\n\nIn the end the {thing} was [whole again|as good as "
    'new|even better than before]. "I thought it was lost," said {hero}. "[Most things can '
    'be mended|Many broken things can be mended]," said {friend}, "if somebody takes the '
    'time." Then they ate {food} together and were happy.',
    # Sharing.
    "{opening} {owns}\n\n[One day|One afternoon] {hero} met {friend_a} [named|called] "
    '{friend}. {friend} had nothing to play with. "May I play with your {thing}?" asked '
    '{friend}. "No," said {hero}, "it is mine." {friend} went away [slowly|sadly|without '
    "a word].\n\nBut playing alone was [not much fun|dull|boring], and {hero} thought about "
    "{friend}. So {he} took the {thing} and ran after {friend}. {He} found {friend} {place}. "
    '"I am sorry," said {hero}. "Let us play together."\n\nThey played until it was dark. '
    '"[It is more fun with two|Shared fun is double fun]," said {hero}. And from then on '
    "{hero} shared the {thing} [every day|gladly].",
    # Afraid of the dark, the storm, the deep water.
    "{opening} {He} was afraid of [the dark|thunder|deep water|the tall bridge|the cold "
    "wind]. Nobody knew it, not even {his} best friend {friend}.\n\nOne night {friend} "
    'knocked at the door. "I have lost my {thing} {place}," said {friend}. "Will you come '
    'with me?" {hero} wanted to say no. But {friend} needed help. {hero} took a deep breath '
    'and said, "[Yes, I will come|Let us go]."\n\nThey held hands and walked [slowly|step '
    "by step]. {hero}'s heart beat fast, but {he} did not stop. And there it was: the "
    '{thing}! "You are [so brave|very brave]," said {friend}. "I was afraid all the '
    'time," said {hero}. "[That is what brave means|Then you are even braver]," said '
    "{friend}, and they went home [smiling|singing|under the stars].",
    # A gift.
    "{opening} {His} best friend was {friend}, {friend_a}.\n\n{friend}'s birthday was coming, "
    "and {hero} wanted to give {friend} a present. But {hero} had no money. So {he} [thought "
    "for a long time|thought and thought|asked the wind for advice]. Then {he} had an idea. "
    "{He} would make {thing_a}.\n\n{hero} worked [for five days|every evening|in secret]. "
    "{His} fingers hurt, and the first one [was too small|fell apart|was crooked], but {he} "
    'did not give up. On the birthday {hero} gave {friend} the {thing}. "Did you make it '
    'yourself?" asked {friend}. "Yes," said {hero}.\n\n"It is the best present I ever '
    'got," said {friend}. They ate {food}, danced, and [laughed until late|sang until the '
    "moon rose]. The {thing} stands at {friend}'s window to this day.",
    # A stranger and his reward.
    "{opening}\n\n[One cold morning|One rainy day|One winter evening] {hero} found {friend_a} "
    '{place}. The {friend_kind} was hungry and wet. "My name is {friend}," said the '
    '{friend_kind}. "I have walked a long way." {hero} had only a little {food}, but {he} '
    'gave half of it to {friend}.\n\n{friend} ate, and was warm again. "You are kind," said '
    '{friend}. "I want to give you something." And {friend} gave {hero} {thing_a}.\n\n'
    "{hero} kept the {thing} for the rest of {his} life. Whenever {he} looked at it, {he} "
    "remembered that a small kindness [is never too small|can be a great thing|comes back one "
    "day].",
    # A race.
    "{opening}\n\nEvery [spring|summer|autumn] there was a race around the "
    "[lake|hill|village], and the winner got {thing_a}. {friend}, {friend_a}, was the fastest "
    'of all. "[I will win again|Nobody can beat me]," said {friend}.\n\nThe race began. '
    "{friend} ran ahead and was soon out of sight. But {place} {friend} fell and hurt a foot. "
    'Then {hero} came along. {He} could have run past and won. Instead {he} stopped. "[Lean '
    'on me|Take my hand]," said {hero}, and they walked to the end together.\n\nThey were '
    'the last of all. But everybody clapped, and the {thing} was given to {hero}. "[A good '
    'friend is better than a fast one|You won something better than a race]," said {friend}.',
    # Building something.
    "{opening} {He} wanted to [see the whole world|cross the river|reach the stars|sail far "
    'away]. "That is too hard for you," said [the crow|the old goat|everyone].\n\nBut '
    "{hero} [began all the same|did not listen]. {He} took {thing_a}, some wood and a long "
    'rope, and built and built. {friend}, {friend_a}, came to watch. "What are you doing?" '
    'asked {friend}. "I am building a [boat|tower|bridge]," said {hero}. "May I help?" '
    'asked {friend}. "Yes, please," said {hero}.\n\nWith two it went much faster. When it '
    'was ready, they put the {thing} on top. They had done it! "[Alone it was hard|What is '
    'too hard for one is easy for two]," said {hero}, and {friend} nodded. Then they looked '
    "at the [evening sky|setting sun] and were content.",
    # The seed.
    "{opening} One day {he} found a [tiny|small|strange] seed {place}. {He} put it into "
    '{thing_a} with some earth and gave it water.\n\nDay after day nothing happened. "It '
    'will never grow," said {friend}, {friend_a} who lived next door. "[We must be '
    'patient|Let us wait]," said {hero}. {He} gave it water every morning and [sang to '
    "it|told it stories|kept it in the sun] every evening.\n\nThen, on the "
    "[tenth|twentieth|first warm] day, there was a green leaf. The plant grew and grew, until "
    'it had a big [yellow|white|red] flower. "You were right," said {friend}. "[Good '
    'things take time|Some things only need time]," said {hero}, and gave {friend} a seed of '
    "the flower.",
    # The night sky.
    "{opening} {He} could not sleep, because {he} wanted to know [where the moon goes|what "
    "stars are made of|why the wind sings]. So one night {he} took {his} {thing} and went "
    'out.\n\n{Place_first} {he} met {friend}, {friend_a}. "Do you know [it|the answer]?" '
    'asked {hero}. "No," said {friend}, "but I would like to know it too." They sat down '
    "side by side, with the {thing} between them, and looked up for a long time. They counted "
    '[ten|twenty|a hundred] stars.\n\n"We have not found the answer," said {hero} at last. '
    '"No," said {friend}, "but we have found each other." {hero} smiled. Then they went '
    "home, and {hero} slept until the sun was high.",
)
CLOSINGS = ("The end.", "And that is the end of the story.", "")

ASK = (
    "Tell me a [short|little|] story.",
    "Tell me a story, please.",
    "Write a [short|little|] story.",
    "Can you tell me a story?",
    "I would like to hear a story.",
    "Please tell me a bedtime story.",
    "Tell a story for children.",
)
ASK_HERO = (
    "Tell me a story about {hero_plain_a}.",
    "Write a [short|] story about {hero_plain_a} named {hero}.",
    "Tell me a story about {hero_plain_a} and {friend_plain_a}.",
    "Tell me a story about {hero_plain_a} [called|named] {hero} and {thing_a}.",
    "Can you tell me a story about {hero} the {hero_kind}?",
    "I want a story about {thing_a}.",
    "Tell me a story about {hero} and {friend}.",
    "Write a story about {hero_plain_a} and {thing_a}.",
)


def pair(rng: Random) -> Pair:
    """A wish and a story that fulfils it."""
    story, fields = _story(rng)
    ask = say(rng, rng.choice(ASK if rng.random() < 0.4 else ASK_HERO), **fields)
    return ask, story


def plain(rng: Random) -> str:
    """A story by itself, with a title."""
    story, fields = _story(rng)
    return say(rng, "{hero} and the {thing}\n\n", **fields) + "\n\n" + story


def _story(rng: Random) -> tuple[str, dict[str, str]]:
    (kind, (he, him, his), names), (friend_kind, _, friends) = rng.sample(PEOPLE, 2)
    hero, friend = rng.choice(names), rng.choice(friends)
    while friend == hero:
        friend = rng.choice(friends)
    place, home = rng.choice(PLACES), rng.choice(HOMES)
    trait, friend_trait = rng.sample(TRAITS, 2)
    thing = f"{rng.choice(COLOURS)} {rng.choice(THINGS)}"
    fields = {
        "hero": hero,
        "hero_kind": kind,
        "hero_a": a(f"{rng.choice((trait + ' ', ''))}{kind}"),
        "hero_plain_a": a(kind),
        "trait_hero_a": a(f"{trait} {kind}"),
        "he": he,
        "him": him,
        "his": his,
        "He": capital(he),
        "His": capital(his),
        "friend": friend,
        "friend_kind": friend_kind,
        "friend_a": a(f"{friend_trait} {friend_kind}"),
        "friend_plain_a": a(friend_kind),
        "Friend_the": f"The {friend_kind}",
        "thing": thing,
        "thing_a": a(thing),
        "place": place,
        "Place_first": capital(place),
        "home": home,
        "Home": capital(home),
        "food": rng.choice(FOODS),
    }
    fields["opening"] = say(rng, rng.choice(OPENINGS), **fields)
    fields["owns"] = say(rng, rng.choice(OWNS), **fields)
    story = say(rng, rng.choice(PLOTS), **fields)
    closing = rng.choice(CLOSINGS)
    return (f"{story}\n\n{closing}" if closing else story), fields
