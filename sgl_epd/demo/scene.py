"""What a picture shows, apart from its pixels: the ground truth that questions are answered from."""

from __future__ import annotations

from dataclasses import dataclass

SHAPES = ("circle", "square", "triangle", "star")
COLOURS = ("red", "green", "blue", "yellow", "purple", "orange")


@dataclass(frozen=True)
class Item:
    """One digit or shape. `x` and `y` are its centre as fractions of the picture's width and height."""

    name: str  # "0".."9" or one of SHAPES
    colour: str  # one of COLOURS for shapes, "" for digits
    x: float
    y: float

    def phrase(self) -> str:
        if not self.colour:
            return self.name
        article = "an" if self.colour[0] in "aeiou" else "a"
        return f"{article} {self.colour} {self.name}"


@dataclass(frozen=True)
class Scene:
    """The items of a picture from left to right: the digits of a number, or shapes."""

    kind: str  # "number" or "shapes"
    items: tuple[Item, ...]

    def content(self) -> str:
        """The plain answer to "what is in the picture?"."""
        if self.kind == "number":
            return "".join(item.name for item in self.items)
        return ", ".join(item.phrase() for item in self.items)
