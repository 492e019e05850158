"""Small Python functions and questions about the language."""

from __future__ import annotations

from random import Random

from tools.tiny.text.document import Pair
from tools.tiny.text.phrase import rough, say

# what it does ("a function that ..."), name, parameters, body, remark
FIXED = (
    ("adds two numbers", "add", "a, b", "return a + b", "It returns the sum of a and b."),
    ("subtracts two numbers", "subtract", "a, b", "return a - b", "It returns a minus b."),
    ("multiplies two numbers", "multiply", "a, b", "return a * b", "It returns the product."),
    ("divides two numbers", "divide", "a, b", "return a / b", "b must not be zero."),
    ("returns the square of a number", "square", "x", "return x * x", "It multiplies x by itself."),
    ("returns the cube of a number", "cube", "x", "return x ** 3", "** raises to a power."),
    ("doubles a number", "double", "x", "return 2 * x", "It returns twice x."),
    ("halves a number", "halve", "x", "return x / 2", "The result is a float."),
    (
        "checks whether a number is even",
        "is_even",
        "n",
        "return n % 2 == 0",
        "The remainder of an even number divided by 2 is 0.",
    ),
    (
        "checks whether a number is odd",
        "is_odd",
        "n",
        "return n % 2 == 1",
        "The remainder of an odd number divided by 2 is 1.",
    ),
    (
        "checks whether a number is positive",
        "is_positive",
        "x",
        "return x > 0",
        "Zero is not positive.",
    ),
    (
        "checks whether a number is negative",
        "is_negative",
        "x",
        "return x < 0",
        "Zero is not negative.",
    ),
    (
        "returns the absolute value of a number",
        "absolute",
        "x",
        "return x if x >= 0 else -x",
        "Python has abs for it.",
    ),
    (
        "returns the larger of two numbers",
        "larger",
        "a, b",
        "return a if a > b else b",
        "Python has max for it.",
    ),
    (
        "returns the smaller of two numbers",
        "smaller",
        "a, b",
        "return a if a < b else b",
        "Python has min for it.",
    ),
    (
        "returns the sum of a list",
        "total",
        "numbers",
        "return sum(numbers)",
        "sum adds all elements.",
    ),
    (
        "returns the mean of a list",
        "mean",
        "numbers",
        "return sum(numbers) / len(numbers)",
        "The list must not be empty.",
    ),
    (
        "returns the largest number of a list",
        "largest",
        "numbers",
        "return max(numbers)",
        "The list must not be empty.",
    ),
    (
        "returns the smallest number of a list",
        "smallest",
        "numbers",
        "return min(numbers)",
        "The list must not be empty.",
    ),
    (
        "reverses a string",
        "reverse",
        "text",
        "return text[::-1]",
        "The slice goes through the text backwards.",
    ),
    (
        "reverses a list",
        "reverse",
        "items",
        "return items[::-1]",
        "The slice goes through the list backwards.",
    ),
    (
        "checks whether a word is a palindrome",
        "is_palindrome",
        "word",
        "return word == word[::-1]",
        "A palindrome reads the same backwards.",
    ),
    (
        "counts the vowels of a word",
        "count_vowels",
        "word",
        'return sum(letter in "aeiou" for letter in word.lower())',
        "True counts as 1.",
    ),
    (
        "counts the words of a text",
        "count_words",
        "text",
        "return len(text.split())",
        "split cuts the text at spaces.",
    ),
    (
        "returns the length of a list",
        "length",
        "items",
        "return len(items)",
        "len counts the elements.",
    ),
    (
        "returns the first element of a list",
        "first",
        "items",
        "return items[0]",
        "The list must not be empty.",
    ),
    (
        "returns the last element of a list",
        "last",
        "items",
        "return items[-1]",
        "The index -1 counts from the end.",
    ),
    (
        "removes duplicates from a list",
        "unique",
        "items",
        "return list(dict.fromkeys(items))",
        "A dict keeps the first of equal keys, in order.",
    ),
    ("sorts a list", "ordered", "items", "return sorted(items)", "The list itself is not changed."),
    (
        "sorts a list in descending order",
        "descending",
        "items",
        "return sorted(items, reverse=True)",
        "The largest element comes first.",
    ),
    (
        "makes a text upper case",
        "shout",
        "text",
        "return text.upper()",
        "The text itself is not changed.",
    ),
    (
        "makes a text lower case",
        "lower",
        "text",
        "return text.lower()",
        "The text itself is not changed.",
    ),
    (
        "joins words with spaces",
        "join_words",
        "words",
        'return " ".join(words)',
        "join puts the space between the words.",
    ),
    ("swaps two values", "swap", "a, b", "return b, a", "It returns both as a tuple."),
    (
        "squares every number of a list",
        "squares",
        "numbers",
        "return [n * n for n in numbers]",
        "It is a list comprehension.",
    ),
    (
        "returns the even numbers of a list",
        "evens",
        "numbers",
        "return [n for n in numbers if n % 2 == 0]",
        "It is a list comprehension with a condition.",
    ),
    (
        "returns the odd numbers of a list",
        "odds",
        "numbers",
        "return [n for n in numbers if n % 2 == 1]",
        "It is a list comprehension with a condition.",
    ),
    (
        "returns the positive numbers of a list",
        "positives",
        "numbers",
        "return [n for n in numbers if n > 0]",
        "It is a list comprehension with a condition.",
    ),
    (
        "computes the factorial of a number",
        "factorial",
        "n",
        "result = 1\nfor i in range(2, n + 1):\n    result *= i\nreturn result",
        "The factorial of 5 is 120.",
    ),
    (
        "computes the n-th Fibonacci number",
        "fibonacci",
        "n",
        "a, b = 0, 1\nfor _ in range(n):\n    a, b = b, a + b\nreturn a",
        "The sequence begins with 0, 1, 1, 2, 3, 5.",
    ),
    (
        "checks whether a number is prime",
        "is_prime",
        "n",
        "if n < 2:\n    return False\nfor i in range(2, n):\n    if n % i == 0:\n        "
        "return False\nreturn True",
        "A prime has no divisors but 1 and itself.",
    ),
    (
        "returns the greatest common divisor of two numbers",
        "gcd",
        "a, b",
        "while b:\n    a, b = b, a % b\nreturn a",
        "This is Euclid's algorithm.",
    ),
    (
        "counts how often an item is in a list",
        "count",
        "items, item",
        "return items.count(item)",
        "It returns 0 if the item is not there.",
    ),
    (
        "finds the position of an item in a list",
        "position",
        "items, item",
        "return items.index(item)",
        "It raises ValueError if the item is not there.",
    ),
    (
        "checks whether an item is in a list",
        "contains",
        "items, item",
        "return item in items",
        "The operator in does the work.",
    ),
    (
        "checks whether a list is empty",
        "is_empty",
        "items",
        "return len(items) == 0",
        "An empty list has the length 0.",
    ),
    (
        "converts Celsius to Fahrenheit",
        "to_fahrenheit",
        "celsius",
        "return celsius * 9 / 5 + 32",
        "0 degrees Celsius are 32 degrees Fahrenheit.",
    ),
    (
        "converts Fahrenheit to Celsius",
        "to_celsius",
        "fahrenheit",
        "return (fahrenheit - 32) * 5 / 9",
        "212 degrees Fahrenheit are 100 degrees Celsius.",
    ),
    (
        "computes the area of a rectangle",
        "area",
        "width, height",
        "return width * height",
        "The area is width times height.",
    ),
    (
        "computes the area of a circle",
        "circle_area",
        "radius",
        "return 3.141592653589793 * radius ** 2",
        "The first number is pi.",
    ),
    ("says hello to somebody", "greet", "name", 'return f"Hello, {name}!"', "It uses an f-string."),
    (
        "prints the numbers from 1 to n",
        "count_up",
        "n",
        "for i in range(1, n + 1):\n    print(i)",
        "range ends before its second argument.",
    ),
    (
        "counts down from n to 1",
        "count_down",
        "n",
        "for i in range(n, 0, -1):\n    print(i)",
        "The third argument of range is the step.",
    ),
    (
        "adds the numbers from 1 to n",
        "sum_to",
        "n",
        "return n * (n + 1) // 2",
        "This is the formula for the sum of the first n numbers.",
    ),
    (
        "flattens a list of lists",
        "flatten",
        "lists",
        "return [item for items in lists for item in items]",
        "The first for is the outer loop.",
    ),
    (
        "merges two dictionaries",
        "merge",
        "a, b",
        "return {**a, **b}",
        "Values of b win where keys are equal.",
    ),
    (
        "reads a file",
        "read_file",
        "path",
        "with open(path) as file:\n    return file.read()",
        "with closes the file at the end.",
    ),
    (
        "returns the digits of a number",
        "digits",
        "n",
        "return [int(d) for d in str(n)]",
        "It goes over the letters of the number.",
    ),
    (
        "adds the digits of a number",
        "digit_sum",
        "n",
        "return sum(int(d) for d in str(n))",
        "The digit sum of 123 is 6.",
    ),
    (
        "plays FizzBuzz",
        "fizzbuzz",
        "n",
        'if n % 15 == 0:\n    return "FizzBuzz"\nif n % 3 == 0:\n    return "Fizz"\n'
        'if n % 5 == 0:\n    return "Buzz"\nreturn str(n)',
        "15 is tested first, because it is a multiple of 3 and 5.",
    ),
    (
        "clamps a number to a range",
        "clamp",
        "x, low, high",
        "return max(low, min(x, high))",
        "The result is never below low or above high.",
    ),
    (
        "checks whether a year is a leap year",
        "is_leap",
        "year",
        "return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)",
        "2000 was a leap year, 1900 was not.",
    ),
    (
        "capitalizes every word of a text",
        "title",
        "text",
        "return text.title()",
        "Each word begins with a capital letter then.",
    ),
    (
        "removes spaces at both ends of a text",
        "trim",
        "text",
        "return text.strip()",
        "Spaces in the middle stay.",
    ),
    (
        "replaces spaces with underscores",
        "underscore",
        "text",
        'return text.replace(" ", "_")',
        "replace makes a new string.",
    ),
)
# The same with a number N.
NUMBERED = (
    ("adds {n} to a number", "add_{n}", "x", "return x + {n}", "It returns x plus {n}."),
    (
        "subtracts {n} from a number",
        "subtract_{n}",
        "x",
        "return x - {n}",
        "It returns x minus {n}.",
    ),
    ("multiplies a number by {n}", "times_{n}", "x", "return x * {n}", "It returns x times {n}."),
    (
        "checks whether a number is divisible by {n}",
        "divisible_by_{n}",
        "x",
        "return x % {n} == 0",
        "The remainder must be 0.",
    ),
    (
        "checks whether a number is greater than {n}",
        "above_{n}",
        "x",
        "return x > {n}",
        "It returns True or False.",
    ),
    (
        "checks whether a number is less than {n}",
        "below_{n}",
        "x",
        "return x < {n}",
        "It returns True or False.",
    ),
    (
        "returns the first {n} items of a list",
        "first_{n}",
        "items",
        "return items[:{n}]",
        "A shorter list is returned whole.",
    ),
    (
        "returns the last {n} items of a list",
        "last_{n}",
        "items",
        "return items[-{n}:]",
        "A shorter list is returned whole.",
    ),
    (
        "returns the numbers of a list that are greater than {n}",
        "above_{n}",
        "numbers",
        "return [x for x in numbers if x > {n}]",
        "It is a list comprehension with a condition.",
    ),
    (
        "repeats a text {n} times",
        "repeat_{n}",
        "text",
        "return text * {n}",
        "A string times a number repeats it.",
    ),
    (
        "returns a list of {n} zeros",
        "zeros_{n}",
        "",
        "return [0] * {n}",
        "A list times a number repeats it.",
    ),
)
ASK = (
    "Write a [|Python |small Python ]function that {does}.",
    "Write a Python function that {does}.",
    "[How do I write|Can you write|Please write|Give me|Show me] a [|Python ]function that {does}",
    "I need a [|Python ]function that {does}.",
    "Python function that {does}",
    "Define a function that {does} in Python.",
    "In Python, write a function that {does}.",
    "Code a function that {does}.",
)
FACTS = (
    (
        (
            "How do I print something in Python?",
            "How do I print text in Python?",
            "Write hello world in Python.",
            "Show me hello world in Python.",
        ),
        '```python\nprint("Hello, world!")\n```',
    ),
    (
        ("How do I make a list in Python?", "What is a list in Python?"),
        "A list holds values in order:\n\n```python\nnumbers = [1, 2, 3]\n```",
    ),
    (
        (
            "How do I make a dictionary in Python?",
            "What is a dict in Python?",
            "What is a dictionary in Python?",
        ),
        'A dictionary maps keys to values:\n\n```python\nages = {"Ada": 36, "Ben": 41}\n```',
    ),
    (
        ("How do I write a for loop in Python?", "What is a for loop?", "Show me a for loop."),
        "A for loop goes over the items of something:\n\n```python\nfor i in range(3):\n    "
        "print(i)\n```",
    ),
    (
        (
            "How do I write a while loop in Python?",
            "What is a while loop?",
            "Show me a while loop.",
        ),
        "A while loop runs as long as its condition holds:\n\n```python\nn = 3\nwhile n > 0:\n"
        "    print(n)\n    n -= 1\n```",
    ),
    (
        ("How do I write an if in Python?", "What is an if statement?", "Show me an if statement."),
        "An if runs its block only where the condition is true:\n\n```python\nif x > 0:\n"
        '    print("positive")\nelse:\n    print("not positive")\n```',
    ),
    (
        ("What is a function in Python?", "How do I define a function in Python?"),
        "A function is a named piece of code. def begins it, and return gives the result back:\n\n"
        "```python\ndef double(x):\n    return 2 * x\n```",
    ),
    (
        ("What is a tuple in Python?", "What is a tuple?"),
        "A tuple holds values in order, like a list, but cannot be changed:\n\n```python\n"
        "point = (3, 4)\n```",
    ),
    (
        ("What is a set in Python?", "How do I make a set in Python?"),
        'A set holds each value only once:\n\n```python\ncolours = {"red", "green"}\n```',
    ),
    (
        ("What is a variable in Python?", "What is a variable?"),
        "A variable is a name for a value:\n\n```python\nage = 36\n```",
    ),
    (
        ("What is a list comprehension?", "Show me a list comprehension."),
        "A list comprehension makes a list from another one:\n\n```python\n"
        "squares = [n * n for n in numbers]\n```",
    ),
    (
        ("How do I read a file in Python?", "How can I open a file in Python?"),
        'Use with and open:\n\n```python\nwith open("notes.txt") as file:\n    text = '
        "file.read()\n```",
    ),
    (
        ("What is a class in Python?", "Show me a class in Python."),
        "A class describes objects with data and methods:\n\n```python\nclass Dog:\n"
        "    def __init__(self, name):\n        self.name = name\n```",
    ),
    (
        ("How do I import a module in Python?", "What does import do?"),
        "import loads a module:\n\n```python\nimport math\nprint(math.sqrt(2))\n```",
    ),
    (
        ("How do I write a comment in Python?", "What is a comment in Python?"),
        "A comment begins with # and is not run:\n\n```python\n# This is a comment.\n```",
    ),
    (
        ("How do I get the length of a list?", "What does len do?"),
        "len gives the number of elements:\n\n```python\nlen([4, 5, 6])  # 3\n```",
    ),
    (
        ("What does range do?", "What is range in Python?"),
        "range gives whole numbers in order and ends before its stop:\n\n```python\n"
        "list(range(4))  # [0, 1, 2, 3]\n```",
    ),
)


def pair(rng: Random) -> Pair:
    """A wish for a function and the function."""
    if rng.random() < 0.15:
        asks, answer = rng.choice(FACTS)
        return rough(rng, rng.choice(asks)), answer
    does, code, remark = _function(rng, doc=rng.random() < 0.08)
    answer = f"```python\n{code}\n```"
    if rng.random() < 0.8:
        answer += f"\n\n{remark}"
    return rough(rng, say(rng, rng.choice(ASK), does=does)), answer


def plain(rng: Random) -> str:
    """A small module: a few functions with docstrings."""
    return "\n\n\n".join(_function(rng, doc=True)[1] for _ in range(rng.randint(2, 4)))


def _function(rng: Random, *, doc: bool) -> tuple[str, str, str]:
    """What it does, its code and a remark."""
    if rng.random() < 0.7:
        does, name, parameters, body, remark = rng.choice(FIXED)
    else:
        n = rng.randint(2, 20)
        does, name, parameters, body, remark = (
            part.replace("{n}", str(n)) for part in rng.choice(NUMBERED)
        )
    lines = [f"def {name}({parameters}):"]
    if doc:
        lines.append(f'    """{_imperative(does)}."""')
    lines += ["    " + line for line in body.splitlines()]
    return does, "\n".join(lines), remark


def _imperative(does: str) -> str:
    """ "adds two numbers" -> "Add two numbers"."""
    verb, _, rest = does.partition(" ")
    if verb.endswith(("ches", "shes")):
        verb = verb[:-2]
    elif verb.endswith("s"):
        verb = verb[:-1]
    return f"{verb.capitalize()} {rest}".strip()
