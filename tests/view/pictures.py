"""Pictures to draw: a small one with everything in it, nasty ones, and random ones of any size."""

from __future__ import annotations

import random
from itertools import pairwise

from pullback.view.picture import Arrow, Box, Card, Group, Picture, Source, Step, Table

NASTY = (
    '</script><img src=x onerror="window.hacked=1;alert(1)">',
    "<!--<script>",
    "--><svg onload=alert(1)>",
    "\u2028line\u2029separators",
    "]]>&amp;&lt;\"'`${alert(1)}",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
    '\\"; } n0 -> n1 [label="\\',
    "tab\tand\nnew line\r\x00\x1b[31m",
    "half a pair \ud800",
    "中文 тест عربى 🙂",
    "__proto__",
    "constructor",
)


def small() -> Picture:
    """A linear layer in a model, and a loss: every kind of box, nested groups, amounts, steps and tables."""

    def source(line: int, text: str) -> Source:
        return Source("train.py", line, "forward", text)

    saved = Table(
        "Saved tensors", ("name", "shape", "bytes"), (("mat1", "(64, 32)", "8,192"), ("mat2", "(32, 8)", "1,024"))
    )
    boxes = (
        Box("x", "x", "(64, 32) float32", "input", None, Card((("shape", "(64, 32)"),))),
        Box("w", "weight", "(8, 32) float32", "parameter", "linear", amounts={"gradient": 0.5}),
        Box("b", "bias", "(8,) float32", "buffer", "linear"),
        Box(
            "addmm",
            "Addmm",
            "(64, 8) float32",
            "operation",
            "linear",
            Card((("bytes", "9,216"), ("calls", "1")), source(12, "return self.linear(x)"), (saved,)),
            {"memory": 9216.0, "gradient": 2.0, "time": 3e-5},
        ),
        Box(
            "swish",
            "Swish",
            "(64, 8) float32",
            "custom",
            "model",
            Card((), source(14, "h = Swish.apply(h)")),
            {"memory": 2048.0, "gradient": 1e-9},
        ),
        Box("mean", "Mean", "() float32", "operation", None, Card(), {"memory": 0.0, "gradient": float("inf")}),
        Box("loss", "loss", "() float32", "output"),
    )
    groups = (
        Group("model", "model", "Net", None, Card((("bytes", "11,264"),)), {"memory": 11264.0}),
        Group("linear", "linear", "Linear", "model", Card((("bytes", "9,216"),)), {"memory": 9216.0}),
    )
    pairs = (
        ("x", "addmm"),
        ("w", "addmm"),
        ("b", "addmm"),
        ("addmm", "swish"),
        ("addmm", "mean"),
        ("swish", "mean"),
        ("mean", "loss"),
    )
    steps = tuple(
        Step(key, f"{key} receives a cotangent.", Card((("norm", str(i)),)))
        for i, key in enumerate(("loss", "mean", "swish", "addmm", "w"))
    )
    tables = (Table("Memory by module", ("module", "bytes"), (("linear", "9,216"), ("model", "2,048"))),)
    return Picture(
        "a small net",
        (("nodes", "7"), ("device", "cpu")),
        boxes,
        groups,
        tuple(Arrow(a, b, "float32") for a, b in pairs),
        steps,
        tables,
    )


def nasty() -> Picture:
    """Every text is hostile somewhere."""
    boxes = tuple(
        Box(
            f"{text}{i}",
            text,
            text,
            "operation",
            f"group {text}{i}",
            Card(((text, text),), Source(text, i, text, text), (Table(text, (text, text), ((text, text),)),)),
        )
        for i, text in enumerate(NASTY)
    )
    groups = tuple(Group(f"group {text}{i}", text, text, None, Card(((text, text),))) for i, text in enumerate(NASTY))
    arrows = tuple(Arrow(a.key, b.key, NASTY[0]) for a, b in pairwise(boxes))
    steps = tuple(Step(box.key, box.label, Card(((box.label, box.label),))) for box in boxes)
    tables = tuple(Table(text, (text,), ((text,),)) for text in NASTY)
    return Picture(NASTY[0], tuple((text, text) for text in NASTY), boxes, groups, arrows, steps, tables)


def layered(count: int, seed: int = 0, *, depth: int = 2, near: int = 8) -> Picture:
    """A random layered graph of ``count`` boxes, in groups nested ``depth`` deep that hold about ten each."""
    draw = random.Random(seed)
    groups, boxes, arrows = [], [], []
    names = ("Addmm", "Relu", "Mul", "NativeLayerNorm", "T", "a rather long name of an operation of the user's own")
    made: set[str] = set()
    for i in range(count):
        parent = None
        for level in range(depth):
            key = f"g{level}:{i // 10 ** (depth - level)}"
            if key not in made:
                made.add(key)
                groups.append(Group(key, f"block.{key}", "Block", parent))
            parent = key
        if draw.random() < 0.1 and parent:
            parent = draw.choice((None, parent))
        kind = "parameter" if draw.random() < 0.2 else "operation"
        boxes.append(
            Box(f"b{i}", draw.choice(names), "(64, 8) float32", kind, parent, amounts={"memory": draw.random() * 1e6})
        )
        sources = {max(0, i - draw.randint(1, near)) for _ in range(2)} - {i}
        arrows += [Arrow(f"b{j}", f"b{i}") for j in sorted(sources) if kind == "operation"]
    return Picture(f"{count} boxes", (("nodes", str(count)),), tuple(boxes), tuple(groups), tuple(arrows))


def tangled(seed: int) -> Picture:
    """Boxes thrown into random nested groups, so that groups feed each other both ways."""
    draw = random.Random(seed)
    groups: list[Group] = []
    for i in range(draw.randint(0, 9)):
        groups.append(Group(f"g{i}", f"group {i}", "", draw.choice([None, *(g.key for g in groups)])))
    homes = [None, *(g.key for g in groups)]
    count = draw.randint(1, 40)
    boxes = tuple(
        Box(
            f"b{i}", f"box {i}" * draw.randint(1, 3), draw.choice(("", "(2,) float32")), "operation", draw.choice(homes)
        )
        for i in range(count)
    )
    arrows = tuple(Arrow(f"b{draw.randrange(i)}", f"b{i}") for i in range(1, count) for _ in range(draw.randint(0, 3)))
    return Picture(f"tangle {seed}", (), boxes, tuple(groups), arrows)
