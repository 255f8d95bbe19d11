"""``python -m benchmarks.readme``: put the figures of ``results.json`` into the READMEs, and draw the chart anew."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from benchmarks import chart, report
from benchmarks.chart import DTYPE, fastest_prepared
from benchmarks.dense_ours import CALLED
from benchmarks.sparse import BCOO, HAND
from benchmarks.targets import Entry, best, way

ROOT = Path(__file__).parents[1]
RESULTS, CHART = Path(__file__).with_name("results.json"), ROOT / "docs" / "benchmarks.png"
START, END = "<!-- benchmarks:start -->", "<!-- benchmarks:end -->"
READMES = {"en": ROOT / "README.md", "zh": ROOT / "README.zh-CN.md"}

WORDS = {
    "en": {
        "intro": "All contestants took turns in one run of `python -m benchmarks`{small}, on one thread ({processor}, "
        "PyTorch {torch}{jax}), after their numbers had been held against plain reverse passes in float64. "
        "Milliseconds, least of many turns; an empty cell was not measured. `benchmarks/results.json` has medians, "
        "memory, float64 and every other contestant.",
        "comma": ", ",
        "small": " at small sizes, which are no figures to quote",
        "chart": "The time of the best peer over the time of Pullback, problem by problem",
        "dense": [
            "dense, float32",
            "one call",
            "prepared or compiled",
            "best library on PyTorch",
            "by hand",
            "JAX, jitted",
        ],
        "sparse": ["sparse, float64", "prepared or compiled", "asdex, jitted", "coloring by hand or library"],
    },
    "zh": {
        "intro": "所有参赛者在一次 `python -m benchmarks`{small}中轮流运行，单线程（{processor}，"
        "PyTorch {torch}{jax}）；计时之前，每个结果都先与 float64 的逐行反向传播核对。"
        "单位为毫秒，取多轮中的最小值；空格表示没有测量。"
        "中位数、内存、float64 以及其余参赛者见 `benchmarks/results.json`。",
        "comma": "，",
        "small": "（小尺寸，数字不宜引用）",
        "chart": "各问题上，最快的同类工具用时与 Pullback 用时之比",
        "dense": ["稠密，float32", "一次调用", "预先准备或编译", "PyTorch 上最快的库", "手写", "JAX，已编译"],
        "sparse": ["稀疏，float64", "预先准备或编译", "asdex，已编译", "手写着色或库"],
    },
}
# What of a title or of a contestant's name is said otherwise in Chinese; the longer come first.
CHINESE = {
    "three inputs, three outputs": "三个输入，三个输出",
    ", one input": "，一个输入",
    ", each of 512 examples": "，512 个样本，逐样本",
    ", by the image": "，对图像求导",
    ", by 25,578 parameters": "，对 25,578 个参数求导",
    "transformer block, 32 tokens of 64": "Transformer 块，32 个 64 维词元",
    ", three neighbours": "，三个相邻输入",
    ", 64 examples, by parameters": "，64 个样本，对参数求导",
    "the Gram matrix J Jᵀ of G (NTK)": "G 的 Gram 矩阵 J Jᵀ（NTK）",
    "Hessian of an MLP's loss, 496 parameters": "MLP 损失的海森矩阵，496 个参数",
    "conv net": "卷积网络",
    "bundle adjustment": "光束法平差",
    "arrowhead": "箭头矩阵",
    "Rosenbrock Hessian": "Rosenbrock 函数的海森矩阵",
    "autoencoder": "自编码器",
    ", every entry": "，全部元素",
    "the input replicated, one reverse pass": "复制输入，一次反向传播",
    "a loop over the outputs": "对输出循环",
    "a loop over rows": "逐行循环",
    "a forward pass for each input": "每个输入一次前向传播",
    " of the sum": "（对批求和）",
    " of the gradient": "（对梯度）",
    ", math attention": "，math 注意力",
    ", then J Jᵀ for each parameter": "，再逐参数 J Jᵀ",
    ", then J Jᵀ": "，再 J Jᵀ",
    ", once for each output": "，每个输出一次",
    "by hand": "手写",
}


def said(text: str, language: str) -> str:
    """A title or a name in a language."""
    if language == "zh":
        for english, chinese in CHINESE.items():
            text = text.replace(english, chinese)
    return text


def cell(each: Entry | None, language: str, *, named: bool = False) -> str:
    """The milliseconds of a contestant, and its name where that is asked for."""
    if each is None:
        return ""
    number = report.milliseconds(each["min"])
    return f"{said(each['name'], language)}: {number}" if named else number


def dense_row(entry: Entry, language: str) -> list[str]:
    """The row of a dense problem."""
    return [
        f"{entry['key']}: {said(entry['title'].removesuffix(', small'), language)}",
        cell(way(entry, CALLED), language),
        cell(fastest_prepared(entry), language),
        cell(best(entry, "peer"), language, named=True),
        cell(best(entry, "hand"), language),
        cell(best(entry, "jax"), language),
    ]


def sparse_row(entry: Entry, language: str) -> list[str]:
    """The row of a sparse problem."""
    others = [each for each in (way(entry, HAND), best(entry, "hand"), best(entry, "peer")) if each]
    return [
        said(entry["title"], language),
        cell(fastest_prepared(entry), language),
        cell(way(entry, BCOO), language),
        cell(min(others, key=lambda each: float(each["min"]), default=None), language),
    ]


def table(headers: list[str], rows: list[list[str]]) -> list[str]:
    """A table in Markdown, numbers to the right."""
    lines = [headers, ["---"] + ["---:"] * (len(headers) - 1), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def block(record: dict[str, Any], language: str) -> str:
    """What stands between the marks."""
    words, about = WORDS[language], record["about"]
    versions = about["versions"]
    intro = str(words["intro"]).format(
        small=words["small"] if about["quick"] else "",
        processor=about["processor"],
        torch=versions["torch"],
        jax=f"{words['comma']}JAX {versions['jax']}" if "jax" in versions else "",
    )
    dense = [dense_row(each, language) for each in record["dense"] if each["dtype"] == DTYPE]
    sparse = [sparse_row(each, language) for each in record["sparse"]]
    lines = [START, intro, ""]
    for headers, rows in ((words["dense"], dense), (words["sparse"], sparse)):
        if rows:
            lines += [*table(list(headers), rows), ""]
    return "\n".join([*lines, f"![{words['chart']}](docs/benchmarks.png)", END])


def replaced(text: str, new: str) -> str:
    """A README with another block.

    Raises:
        ValueError: It does not have the two marks once each.
    """
    if text.count(START) != 1 or text.count(END) != 1:
        raise ValueError(f"a README has {START} and {END} once each")
    return re.sub(re.escape(START) + ".*" + re.escape(END), lambda _: new, text, flags=re.DOTALL)


@click.command()
def main() -> None:
    """Put the figures of benchmarks/results.json into both READMEs, and draw docs/benchmarks.png."""
    record = report.read(RESULTS)
    for language, path in READMES.items():
        path.write_text(replaced(path.read_text(encoding="utf-8"), block(record, language)), encoding="utf-8")
    chart.draw(record, CHART)


if __name__ == "__main__":
    main()
