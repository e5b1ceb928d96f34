"""Plain questions about pictures, their phrasings, and the answers that follow from the scene."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sgl_epd.demo.scene import COLOURS, SHAPES, Item, Scene

Rng = np.random.Generator
Answered = tuple[str, str]  # question, answer

ORDINALS = ("first", "second", "third")

DESCRIBE = (
    "What is in the image?",
    "What is in the picture?",
    "What do you see?",
    "What can you see in this image?",
    "Describe the image.",
    "Describe this picture.",
    "What does the image show?",
)
READ = (
    "What number is written here?",
    "What number is this?",
    "What number is in the image?",
    "What number is in the picture?",
    "What number do you see?",
    "Which number is shown?",
    "Read the number.",
    "What does it say?",
)
DIGIT_COUNT = (
    "How many digits does the number have?",
    "How many digits are there?",
    "How many digits do you see?",
)
LIST = (
    "What shapes are in the picture?",
    "What shapes are in the image?",
    "What shapes do you see?",
    "Which shapes are there?",
    "Which shapes can you see?",
    "List the shapes from left to right.",
    "List the shapes.",
)
COUNT = (
    "How many {} are there?",
    "How many {} are in the picture?",
    "How many {} are in the image?",
    "How many {} do you see?",
    "Count the {}.",
)
COLOUR = (
    "What colour is the {}?",
    "What color is the {}?",
    "Which colour does the {} have?",
)
PRESENCE = (
    "Is there {} in the picture?",
    "Is there {} in the image?",
    "Is there {}?",
    "Do you see {}?",
    "Can you see {}?",
)
PLACE = (
    "Where is the {}?",
    "In which corner is the {}?",
    "Where in the picture is the {}?",
)
IN_ORDER = (
    "What is in each image?",
    "What is in the images?",
    "What is in these images?",
    "What do the images show?",
    "Describe the images in order.",
    "Describe each image.",
    "What do you see in each picture?",
    "What is in each picture?",
)
NUMBERS_IN_ORDER = (
    "What numbers are written here?",
    "What numbers are in the images?",
    "Read the numbers in order.",
    "Which number is in each image?",
)
WHICH_IMAGE = (
    "What is in the {} image?",
    "What is in the {} picture?",
    "What does the {} image show?",
    "Describe the {} image.",
)
SMALL_TALK = (
    (("Hello", "Hello!", "Hi", "Hi!", "hello", "hi there", "Hey"), "Hello! Show me a picture and ask me about it."),
    (("Good morning", "Good morning!", "good evening", "Good afternoon"), "Hello! How can I help?"),
    (
        ("Who are you?", "What are you?", "What is your name?", "Which model are you?", "who are you"),
        "I am the demo model of SGL-EPD. I read numbers and shapes in pictures.",
    ),
    (
        ("What can you do?", "What do you do?", "How can you help me?", "Help", "what can you do"),
        "I can read handwritten numbers and name, count and find coloured shapes in up to three pictures.",
    ),
    (("How are you?", "How are you doing?", "how are you"), "I am fine, thank you."),
    (("Thank you", "Thanks", "Thank you!", "Thanks a lot!", "thanks"), "You are welcome."),
    (("Goodbye", "Bye", "Goodbye!", "Bye!", "See you"), "Goodbye!"),
    (
        ("Tell me a story.", "Write a poem.", "What is the weather like?", "Say something."),
        "I am a very small model. I only know about numbers and shapes in pictures.",
    ),
)


def pick(rng: Rng, options: Sequence[str]) -> str:
    return options[int(rng.integers(0, len(options)))]


def small_talk(rng: Rng) -> Answered:
    prompts, answer = SMALL_TALK[int(rng.integers(0, len(SMALL_TALK)))]
    return pick(rng, prompts), answer


def describe(rng: Rng, scene: Scene) -> Answered:
    return pick(rng, DESCRIBE), scene.content()


def read(rng: Rng, scene: Scene) -> Answered:
    return pick(rng, READ), scene.content()


def digit_count(rng: Rng, scene: Scene) -> Answered:
    return pick(rng, DIGIT_COUNT), str(len(scene.items))


def list_shapes(rng: Rng, scene: Scene) -> Answered:
    return pick(rng, LIST), scene.content()


def count(rng: Rng, scene: Scene) -> Answered:
    """How many shapes, circles, red shapes or red circles there are; sometimes none."""
    item = _shown_or_any(rng, scene, 0.75)
    form = int(rng.integers(0, 4))
    noun, matches = (
        ("shapes", lambda _: True),
        (f"{item.name}s", lambda i: i.name == item.name),
        (f"{item.colour} shapes", lambda i: i.colour == item.colour),
        (f"{item.colour} {item.name}s", lambda i: (i.colour, i.name) == (item.colour, item.name)),
    )[form]
    return pick(rng, COUNT).format(noun), str(sum(matches(i) for i in scene.items))


def presence(rng: Rng, scene: Scene) -> Answered:
    item = _shown_or_any(rng, scene, 0.5)
    if rng.random() < 0.5:
        question = pick(rng, PRESENCE).format(f"a {item.name}")
        found = any(i.name == item.name for i in scene.items)
    else:
        question = pick(rng, PRESENCE).format(item.phrase())
        found = any((i.colour, i.name) == (item.colour, item.name) for i in scene.items)
    return question, "yes" if found else "no"


def colour(rng: Rng, scene: Scene) -> Answered:
    """The colour of a shape whose kind occurs once; lists the shapes where there is none."""
    single = [i for i in scene.items if sum(j.name == i.name for j in scene.items) == 1]
    if not single:
        return list_shapes(rng, scene)
    item = single[int(rng.integers(0, len(single)))]
    return pick(rng, COLOUR).format(item.name), item.colour


def place(rng: Rng, scene: Scene) -> Answered:
    """The quarter of the picture that a shape is in; lists the shapes where that is ambiguous."""
    unique = [i for i in scene.items if _in_a_quarter(i) and scene.items.count(i) == 1]
    unique = [i for i in unique if sum((j.name, j.colour) == (i.name, i.colour) for j in scene.items) == 1]
    if not unique:
        return list_shapes(rng, scene)
    item = unique[int(rng.integers(0, len(unique)))]
    alone = sum(j.name == item.name for j in scene.items) == 1
    noun = item.name if alone and rng.random() < 0.5 else f"{item.colour} {item.name}"
    return pick(rng, PLACE).format(noun), quarter(item)


def quarter(item: Item) -> str:
    return f"{'top' if item.y < 0.5 else 'bottom'} {'left' if item.x < 0.5 else 'right'}"


def in_order(rng: Rng, scenes: Sequence[Scene]) -> Answered:
    """Everything in each picture, in the order of the pictures."""
    numbers_only = all(scene.kind == "number" for scene in scenes)
    phrasings = NUMBERS_IN_ORDER if numbers_only and rng.random() < 0.5 else IN_ORDER
    parts = [f"{ORDINALS[i]} image: {scene.content()}" for i, scene in enumerate(scenes)]
    return pick(rng, phrasings), ". ".join(parts)


def which_image(rng: Rng, scenes: Sequence[Scene]) -> Answered:
    """What one of several pictures shows."""
    index = int(rng.integers(0, len(scenes)))
    return pick(rng, WHICH_IMAGE).format(ORDINALS[index]), scenes[index].content()


Ask = Callable[[Rng, Scene], Answered]
ABOUT_NUMBERS: dict[str, Ask] = {"read": read, "describe": describe, "digit_count": digit_count}
ABOUT_SHAPES: dict[str, Ask] = {
    "list": list_shapes,
    "describe": describe,
    "count": count,
    "colour": colour,
    "presence": presence,
    "place": place,
}


def _shown_or_any(rng: Rng, scene: Scene, shown: float) -> Item:
    """A shape of the scene with probability `shown`, else any shape at all."""
    if rng.random() < shown:
        return scene.items[int(rng.integers(0, len(scene.items)))]
    return Item(pick(rng, SHAPES), pick(rng, COLOURS), 0.0, 0.0)


def _in_a_quarter(item: Item) -> bool:
    return abs(item.x - 0.5) > 0.08 and abs(item.y - 0.5) > 0.08
