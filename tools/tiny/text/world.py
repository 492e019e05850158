"""A little general knowledge. Every sentence has to be true."""

from __future__ import annotations

from typing import Final

CAPITALS: Final[dict[str, tuple[str, str]]] = {
    "France": ("Paris", "Europe"),
    "Germany": ("Berlin", "Europe"),
    "Italy": ("Rome", "Europe"),
    "Spain": ("Madrid", "Europe"),
    "Portugal": ("Lisbon", "Europe"),
    "Austria": ("Vienna", "Europe"),
    "Poland": ("Warsaw", "Europe"),
    "Greece": ("Athens", "Europe"),
    "Sweden": ("Stockholm", "Europe"),
    "Norway": ("Oslo", "Europe"),
    "Denmark": ("Copenhagen", "Europe"),
    "Finland": ("Helsinki", "Europe"),
    "Ireland": ("Dublin", "Europe"),
    "Belgium": ("Brussels", "Europe"),
    "Hungary": ("Budapest", "Europe"),
    "Romania": ("Bucharest", "Europe"),
    "Bulgaria": ("Sofia", "Europe"),
    "Croatia": ("Zagreb", "Europe"),
    "Iceland": ("Reykjavik", "Europe"),
    "Ukraine": ("Kyiv", "Europe"),
    "the Czech Republic": ("Prague", "Europe"),
    "the Netherlands": ("Amsterdam", "Europe"),
    "the United Kingdom": ("London", "Europe"),
    "Switzerland": ("Bern", "Europe"),
    "Serbia": ("Belgrade", "Europe"),
    "Slovakia": ("Bratislava", "Europe"),
    "Slovenia": ("Ljubljana", "Europe"),
    "Estonia": ("Tallinn", "Europe"),
    "Latvia": ("Riga", "Europe"),
    "Lithuania": ("Vilnius", "Europe"),
    "the United States": ("Washington, D.C.", "North America"),
    "Canada": ("Ottawa", "North America"),
    "Mexico": ("Mexico City", "North America"),
    "Cuba": ("Havana", "North America"),
    "Brazil": ("Brasilia", "South America"),
    "Argentina": ("Buenos Aires", "South America"),
    "Chile": ("Santiago", "South America"),
    "Peru": ("Lima", "South America"),
    "Colombia": ("Bogota", "South America"),
    "Uruguay": ("Montevideo", "South America"),
    "Ecuador": ("Quito", "South America"),
    "Japan": ("Tokyo", "Asia"),
    "China": ("Beijing", "Asia"),
    "India": ("New Delhi", "Asia"),
    "South Korea": ("Seoul", "Asia"),
    "Thailand": ("Bangkok", "Asia"),
    "Vietnam": ("Hanoi", "Asia"),
    "Nepal": ("Kathmandu", "Asia"),
    "Mongolia": ("Ulaanbaatar", "Asia"),
    "the Philippines": ("Manila", "Asia"),
    "Pakistan": ("Islamabad", "Asia"),
    "Iran": ("Tehran", "Asia"),
    "Iraq": ("Baghdad", "Asia"),
    "Egypt": ("Cairo", "Africa"),
    "Kenya": ("Nairobi", "Africa"),
    "Ghana": ("Accra", "Africa"),
    "Nigeria": ("Abuja", "Africa"),
    "Ethiopia": ("Addis Ababa", "Africa"),
    "Morocco": ("Rabat", "Africa"),
    "Tunisia": ("Tunis", "Africa"),
    "Senegal": ("Dakar", "Africa"),
    "Uganda": ("Kampala", "Africa"),
    "Australia": ("Canberra", "Oceania"),
    "New Zealand": ("Wellington", "Oceania"),
}

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

FACTS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("How many days are in a week?", "How many days does a week have?"), "A week has seven days."),
    (
        ("How many months are in a year?", "How many months does a year have?"),
        "A year has twelve months.",
    ),
    (
        ("How many days are in a year?", "How many days does a year have?"),
        "A year has 365 days, and a leap year has 366.",
    ),
    (
        (
            "What are the days of the week?",
            "Name the days of the week.",
            "List the days of the week.",
        ),
        "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.",
    ),
    (
        ("What are the months of the year?", "Name the months.", "List the months of the year."),
        "January, February, March, April, May, June, July, August, September, October, "
        "November and December.",
    ),
    (
        ("What are the seasons?", "Name the four seasons.", "What are the four seasons?"),
        "Spring, summer, autumn and winter.",
    ),
    (
        ("What are the planets of the solar system?", "Name the planets.", "List the planets."),
        "Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune.",
    ),
    (
        ("How many planets are there?", "How many planets are in the solar system?"),
        "There are eight planets in the solar system.",
    ),
    (
        ("Which planet is the largest?", "What is the largest planet?"),
        "Jupiter is the largest planet of the solar system.",
    ),
    (
        ("Which planet is the smallest?", "What is the smallest planet?"),
        "Mercury is the smallest planet of the solar system.",
    ),
    (
        ("Which planet is closest to the Sun?", "What is the first planet from the Sun?"),
        "Mercury is the planet closest to the Sun.",
    ),
    (
        ("Why is the sky blue?", "Why does the sky look blue?", "What makes the sky blue?"),
        "Air scatters blue light more strongly than red light, so blue light reaches us from "
        "all sides.",
    ),
    (
        ("What is the Sun?", "Is the Sun a star?", "What is the sun made of?"),
        "The Sun is a star: a hot ball made mostly of hydrogen and helium.",
    ),
    (
        ("What is the Moon?", "Does the Earth have a moon?"),
        "The Moon goes around the Earth. It has no light of its own but reflects the light of "
        "the Sun.",
    ),
    (
        (
            "How many continents are there?",
            "How many continents does the Earth have?",
            "Name the continents.",
        ),
        "There are seven continents: Africa, Antarctica, Asia, Europe, North America, Oceania "
        "and South America.",
    ),
    (
        ("What is the largest ocean?", "Which ocean is the largest?"),
        "The Pacific Ocean is the largest ocean.",
    ),
    (
        ("What is the largest continent?", "Which continent is the largest?"),
        "Asia is the largest continent.",
    ),
    (
        ("What is the highest mountain?", "Which mountain is the highest on Earth?"),
        "Mount Everest is the highest mountain above the sea. It is about 8849 metres high.",
    ),
    (
        ("What is the largest animal?", "Which animal is the largest?"),
        "The blue whale is the largest animal.",
    ),
    (
        ("What is the tallest animal?", "Which animal is the tallest?"),
        "The giraffe is the tallest animal.",
    ),
    (
        ("What is the fastest land animal?", "Which animal runs fastest?"),
        "The cheetah is the fastest animal on land.",
    ),
    (
        ("At what temperature does water boil?", "When does water boil?"),
        "At sea level, water boils at 100 degrees Celsius.",
    ),
    (
        ("At what temperature does water freeze?", "When does water freeze?"),
        "Water freezes at 0 degrees Celsius.",
    ),
    (
        ("What is water made of?", "What is the formula of water?"),
        "Water is made of hydrogen and oxygen. Its formula is H2O.",
    ),
    (("What is ice?",), "Ice is frozen water."),
    (
        ("What is rain?", "Why does it rain?"),
        "Rain is water that falls from clouds, when their droplets have become too heavy.",
    ),
    (("What is snow?",), "Snow is frozen water that falls from clouds as small ice crystals."),
    (
        ("What is a rainbow?", "How does a rainbow form?"),
        "A rainbow appears when sunlight is split into its colours by drops of water.",
    ),
    (
        ("What are the colours of the rainbow?", "Which colours has a rainbow?"),
        "Red, orange, yellow, green, blue, indigo and violet.",
    ),
    (("What do bees make?", "What do bees do?"), "Bees collect nectar and make honey from it."),
    (
        ("What do plants need?", "What do plants need to grow?"),
        "Plants need light, water, air and some minerals.",
    ),
    (("Where does milk come from?",), "Most of the milk we drink comes from cows."),
    (
        (
            "How many letters are in the alphabet?",
            "How many letters does the English alphabet have?",
        ),
        "The English alphabet has 26 letters.",
    ),
    (("What are the vowels?", "Which letters are vowels?"), "The vowels are a, e, i, o and u."),
    (("What is the first letter of the alphabet?",), "The first letter of the alphabet is A."),
    (("What is the last letter of the alphabet?",), "The last letter of the alphabet is Z."),
    (
        ("How many sides does a triangle have?", "What is a triangle?"),
        "A triangle has three sides.",
    ),
    (
        ("How many sides does a square have?", "What is a square?"),
        "A square has four sides of the same length and four right angles.",
    ),
    (("How many sides does a hexagon have?", "What is a hexagon?"), "A hexagon has six sides."),
    (
        ("What is pi?", "What is the value of pi?"),
        "Pi is the ratio of a circle's circumference to its diameter, about 3.14159.",
    ),
    (
        ("What is a prime number?", "Explain prime numbers."),
        "A prime number is a whole number above 1 that only 1 and itself divide. The first "
        "ones are 2, 3, 5, 7 and 11.",
    ),
    (("What is an even number?",), "An even number is a whole number that 2 divides."),
    (("What is an odd number?",), "An odd number is a whole number that 2 does not divide."),
    (
        ("Count to ten.", "Can you count to ten?", "Count from 1 to 10."),
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10.",
    ),
    (("Count to five.", "Count from 1 to 5."), "1, 2, 3, 4, 5."),
    (
        ("What is gravity?", "Why do things fall?"),
        "Gravity is the force by which masses attract each other. It makes things fall to the "
        "ground.",
    ),
    (("What is electricity?",), "Electricity is the flow of electric charge, mostly of electrons."),
    (("How many bones does a human have?",), "A grown human has about 206 bones."),
    (
        ("What is the heart for?", "What does the heart do?"),
        "The heart pumps blood through the body.",
    ),
    (("What is a book?",), "A book is a set of pages with text or pictures, bound together."),
    (("What is music?",), "Music is sound that is arranged in time, with rhythm and often melody."),
    (("What is a computer?",), "A computer is a machine that carries out programs."),
    (
        ("What is the internet?",),
        "The internet is a network that connects computers all over the world.",
    ),
    (
        ("What is a program?", "What is software?"),
        "A program is a list of instructions that a computer carries out.",
    ),
    (
        ("What is artificial intelligence?", "What is AI?"),
        "Artificial intelligence is the field of making machines do what seems to need "
        "intelligence.",
    ),
    (
        ("What is a neural network?", "Explain neural networks."),
        "A neural network is a program made of layers of simple units whose weights are "
        "learned from examples.",
    ),
)
