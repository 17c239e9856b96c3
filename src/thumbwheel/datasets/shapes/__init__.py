"""The shapes of training data; one file and one line here for each."""

from thumbwheel.core.plugins import VariantTable
from thumbwheel.datasets.shape import Shape

SHAPES: VariantTable[type[Shape]] = VariantTable(
    "shape",
    "thumbwheel.shapes",
    {
        "chats": "thumbwheel.datasets.shapes.chats:Chats",
        "pairs": "thumbwheel.datasets.shapes.pairs:Pairs",
        "labels": "thumbwheel.datasets.shapes.labels:Labels",
        "scored": "thumbwheel.datasets.shapes.scored:ScoredAnswers",
        "prompts": "thumbwheel.datasets.shapes.prompts:Prompts",
        "groups": "thumbwheel.datasets.shapes.groups:Groups",
    },
)
