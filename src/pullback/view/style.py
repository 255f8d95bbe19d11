"""The colours of a drawing, in light and in dark; a page and a static drawing share them."""

from __future__ import annotations

LIGHT = {
    "paper": "#fcfcfb",
    "ink": "#1d2330",
    "quiet": "#5c6678",
    "arrow": "#8c97aa",
    "accent": "#1f6feb",
    "frame": "#f3f5f8",
    "frame-line": "#c9d0db",
    "operation": "#eaf0f8",
    "operation-line": "#7f95b6",
    "custom": "#f1e9fb",
    "custom-line": "#8967c4",
    "parameter": "#fdf1d6",
    "parameter-line": "#bd8a1f",
    "buffer": "#f3f0e4",
    "buffer-line": "#978a5f",
    "input": "#dff2ec",
    "input-line": "#33907a",
    "output": "#fbe4e9",
    "output-line": "#c0516d",
    "group": "#ffffff",
    "group-line": "#9aa6b8",
}
DARK = {
    "paper": "#13161b",
    "ink": "#e7eaf0",
    "quiet": "#9aa4b5",
    "arrow": "#66728a",
    "accent": "#6cb0ff",
    "frame": "#1a1f27",
    "frame-line": "#39424f",
    "operation": "#222c3b",
    "operation-line": "#6580a8",
    "custom": "#2d2442",
    "custom-line": "#a084dc",
    "parameter": "#382c12",
    "parameter-line": "#cc9f45",
    "buffer": "#2c2a1e",
    "buffer-line": "#9d9168",
    "input": "#14322a",
    "input-line": "#4db596",
    "output": "#3b1e28",
    "output-line": "#db7690",
    "group": "#20262f",
    "group-line": "#66738a",
}
KINDS = ("operation", "custom", "parameter", "buffer", "input", "output", "group")
FONT = (
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', "
    "'PingFang SC', 'Hiragino Sans GB', 'Microsoft YaHei', 'Noto Sans CJK SC', sans-serif"
)
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', 'Noto Sans Mono CJK SC', monospace"


def variables() -> str:
    """The colours as properties of CSS: light, dark where the system is, and either where the page's switch says so."""
    light = "".join(f"--{name}:{value};" for name, value in LIGHT.items())
    dark = "".join(f"--{name}:{value};" for name, value in DARK.items())
    return (
        f":root{{color-scheme:light;--font:{FONT};--mono:{MONO};{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}"
    )


def _rules(colours: dict[str, str]) -> str:
    kinds = "".join(f".{kind}{{fill:{colours[kind]};stroke:{colours[f'{kind}-line']}}}" for kind in KINDS)
    return (
        f".paper{{fill:{colours['paper']}}}text{{fill:{colours['ink']}}}.detail,.count{{fill:{colours['quiet']}}}"
        f".arrow{{stroke:{colours['arrow']}}}.head{{fill:{colours['arrow']}}}"
        f".frame{{fill:{colours['frame']};stroke:{colours['frame-line']}}}{kinds}"
    )


def sheet() -> str:
    """The style of a static drawing, with plain colours, for programs that know no properties."""
    return (
        f"text{{font:600 13px {FONT}}}.detail,.count{{font:400 11px {FONT}}}.arrow{{fill:none}}"
        f".buffer{{stroke-dasharray:4 3}}.frame{{fill-opacity:.6}}{_rules(LIGHT)}"
        f"@media screen and (prefers-color-scheme:dark){{{_rules(DARK)}}}"
    )
