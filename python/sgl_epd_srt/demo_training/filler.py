"""Meaningless but readable text, so that the model learns to find the question behind a long context."""

from __future__ import annotations

import numpy as np

from sgl_epd.demo.questions import pick
from sgl_epd.demo.scene import COLOURS, SHAPES

_WORDS = """
a about above after again all almost along also always an and another any are around as ask at away back be because
been before began behind being below between big book both box boy bring but by call came can car carry change children
city close cold come could country cut day did different do does door down draw each early earth eat end enough even
evening every example eye face fall family far farm fast father feel few field find fire first fish five follow food for
form four friend from garden gave get girl give go good great ground group grow had hand hard has have he head hear help
her here high him his home horse hour house how idea if important in into is it its just keep kind know land large last
late learn leave left letter life light like line list listen little live long look made make man many mark may mean
might mile money month moon more morning most mother mountain move much music must my name near need never new next
night no north note nothing now number of off often old on once one only open or order other our out over own page paper
part people place plan plant play point port put question quick rain read ready right river road rock room round run
said same saw say school sea second see sentence set she should show side small snow so some song soon sound south space
stand star start state still stone stop story street strong study such summer sun sure table take talk tell than that
the their them then there these they thing think this those thought three through time to today together told too
took town train travel tree true try turn two under until up us use very voice wait walk wall want warm was watch water
way we week well went were west what wheel when where which while white who whole why will wind window winter with
without wood word work world would write year yellow yes yesterday you young your server token image memory buffer
request model worker latency queue network batch cache encode decode prefill stream paper report figure value system
""".split()


def filler(rng: np.random.Generator, words: int) -> str:
    """About `words` words in sentences, with misleading colours, shapes and numbers here and there."""
    sentences, written = [], 0
    while written < words:
        length = int(rng.integers(4, 13))
        sentence = " ".join(_word(rng) for _ in range(length))
        sentences.append(sentence[0].upper() + sentence[1:] + pick(rng, (".", ".", ".", "?", "!", ";", ",")))
        written += length
    return pick(rng, (" ", " ", "\n")).join(sentences)


def _word(rng: np.random.Generator) -> str:
    roll = rng.random()
    if roll < 0.90:
        return pick(rng, _WORDS)
    if roll < 0.94:
        return f"{pick(rng, COLOURS)} {pick(rng, SHAPES)}"
    if roll < 0.97:
        return str(int(rng.integers(0, 10_000)))
    letters = rng.integers(ord("a"), ord("z"), size=int(rng.integers(2, 9)), endpoint=True)
    return "".join(chr(c) for c in letters)
