"""Prompts for the tests: openings in the style of what the demo pair was trained on, of many lengths."""

from __future__ import annotations

from importlib.resources import files

_OPENINGS = (
    "Once upon a time, there was a little girl named {name}. She",
    '"{name}," said his mother, "you must not go into the forest alone."',
    "Question: {name} has 5 apples and buys 7 more. How many apples does {name} have?\nAnswer:",
    "One day, {name} found a big red ball in the park.",
    "The secret number of {name} is 417.\nWhat is the secret number of {name}? The secret number is",
)
_NAMES = (
    "Lily", "Tom", "Ben", "Sara", "Max", "Mia", "Jack", "Rose", "Leo", "Anna",
    "Amy", "Bob", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivy", "Jim",
    "Kim", "Lucy", "Mark", "Nora", "Otto", "Pam", "Quinn", "Ruth", "Sam", "Tina",
    "Una", "Vera", "Will", "Xena", "Yuri", "Zoe", "Alex", "Beth", "Carl", "Dora",
)  # fmt: skip

PROMPTS = [opening.format(name=name) for name in _NAMES for opening in _OPENINGS]

STORY = files("ovspec.cli").joinpath("demo_prompt.txt").read_text(encoding="utf-8").rstrip("\n")
