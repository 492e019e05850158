"""The tables of one MoE layer in docs/performance.md: `kt bench experts` over formats, shapes,
batches, variants and thread counts, as Markdown on stdout.

    python -m tools.speed_table                              all of it, about twenty minutes
    python -m tools.speed_table --dims qwen3-30b-a3b --format int8 --variant avx2
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

DIMS = {  # hidden, intermediate, experts, top-k
    "qwen3-30b-a3b": (2048, 768, 128, 8),
    "deepseek-v3": (7168, 2048, 32, 8),
}
FORMATS = ("q4_k", "int4", "mxfp4", "int8", "fp8", "bf16")
TOKENS = (1, 2, 8, 32, 128, 512, 2048)


def measure(dims: str, fmt: str, tokens: str, options: list[str]) -> dict[str, Any]:
    """The JSON of one `kt bench experts`."""
    hidden, intermediate, experts, top_k = DIMS[dims]
    command = [sys.executable, "-m", "kt", "bench", "experts", "--json"]
    command += ["--hidden", str(hidden), "--intermediate", str(intermediate)]
    command += ["--experts", str(experts), "--top-k", str(top_k)]
    command += ["--format", fmt, "--tokens", tokens, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def cell(point: dict[str, Any]) -> str:
    """Median milliseconds, and how much of it the larger floor is."""
    median = point["milliseconds"]["median"]
    return f"{median:.3g} ({point['reached']['median']['larger']:.0%})"


def row(head: str, report: dict[str, Any]) -> str:
    """One line of a table."""
    return " | ".join([f"| {head}", *map(cell, report["points"])]) + " |"


def say(line: str) -> None:
    """A line to stdout, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Prints one table for each shape and variant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dims", nargs="+", choices=DIMS, default=list(DIMS))
    parser.add_argument("--format", nargs="+", default=list(FORMATS))
    parser.add_argument("--variant", nargs="+", default=[""], help="default: the best")
    parser.add_argument("--threads", nargs="+", default=[""], help="default: as kt doctor says")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--seconds", default="0.4")
    args = parser.parse_args()
    for dims in args.dims:
        for variant in args.variant:
            title = False
            for fmt in args.format:
                for threads in args.threads:
                    options = ["--seconds", args.seconds]
                    options += ["--variant", variant] if variant else []
                    options += ["--threads", threads] if threads else []
                    report = measure(dims, fmt, args.tokens, options)
                    if not title:
                        tokens = " | ".join(args.tokens.split(","))
                        columns = "---|" * (len(report["points"]) + 1)
                        say(f"\n{dims}, {report['variant']['value']}\n")
                        say(f"| format, tokens | {tokens} |\n|{columns}")
                        title = True
                    head = f"{fmt}, {threads} threads" if threads else fmt
                    say(row(head, report))


if __name__ == "__main__":
    main()
