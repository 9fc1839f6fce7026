"""What fedbook costs: `fedbook bench engines | peers | growth | limit | prompts | index | bare`.

Competitors take turns in one process wherever they can, figures are medians, and comparisons are
ratios: seconds depend on the machine.
"""

from __future__ import annotations

from typing import Any

WHAT = ("engines", "peers", "growth", "limit", "prompts", "index", "bare")


def measure(
    what: str, figures: str | None = None, markdown: bool = False
) -> tuple[dict[str, Any], str]:
    """The numbers of one benchmark, and the same as text; `figures` is where pictures go."""
    if what == "engines":
        from fedbook.bench import engines

        out = engines.bench_engines()
        return out, engines.markdown(out) if markdown else engines.text(out)
    if what == "limit":
        from fedbook.bench import engines

        out = engines.bench_limit()
        return out, engines.limit_text(out)
    if what == "peers":
        from fedbook.bench import peers

        out = peers.bench_peers()
        return out, peers.markdown(out) if markdown else peers.text(out)
    if what == "growth":
        from fedbook.bench import growth
        from fedbook.results import default_folder

        out = growth.bench_growth()
        made = growth.draw(out, figures or default_folder("figures"))
        return out, "\n".join([growth.text(out), *map(str, made)])
    if what == "prompts":
        from fedbook.bench import prompts

        out = prompts.bench_prompts()
        return out, prompts.text(out)
    if what == "index":
        from fedbook.bench import index

        out = index.bench_index()
        return out, index.text(out)
    from fedbook.bench import bare

    out = bare.bench()
    return out, bare.text(out)
