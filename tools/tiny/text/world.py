"""A little general knowledge. Every sentence has to be true."""

from __future__ import annotations

from typing import Final

from tools.tiny.text import tables

_TABLES = tables.read("general")
CAPITALS: Final[dict[str, tuple[str, str]]] = {
    country: tuple(row) for country, row in _TABLES["capitals"].items()
}
"""Country -> capital, part of the world."""
FACTS = [(row["ask"], row["answer"]) for row in _TABLES["facts"]]
TALK = [(row["ask"], row["answer"]) for row in _TABLES["talk"]]

OPPOSITES: Final = (
    "hot cold,big small,large small,long short,high low,fast slow,old young,new old,light dark,"
    "happy sad,hard soft,full empty,early late,left right,up down,open closed,wet dry,rich poor,"
    "strong weak,thick thin,good bad,near far,loud quiet,clean dirty,heavy light,day night,"
    "black white,first last,begin end,push pull,give take,win lose,always never,inside outside,"
    "sweet sour,true false,wide narrow,deep shallow,safe dangerous,awake asleep"
)

YOUNG: Final = (
    "dog puppy,cat kitten,cow calf,horse foal,sheep lamb,duck duckling,hen chick,bear cub,fox cub,"
    "lion cub,deer fawn,goat kid,goose gosling,swan cygnet,frog tadpole,kangaroo joey"
)
LEGS: Final = {
    "spider": 8,
    "ant": 6,
    "bee": 6,
    "beetle": 6,
    "dog": 4,
    "cat": 4,
    "horse": 4,
    "cow": 4,
    "elephant": 4,
    "bird": 2,
    "hen": 2,
    "human": 2,
    "crab": 10,
}
COLOURS: Final = (
    "the sky on a clear day,blue;grass,green;snow,white;a ripe banana,yellow;a ripe tomato,red;"
    "coal,black;milk,white;a carrot,orange;an emerald,green;a ruby,red"
)
