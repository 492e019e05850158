"""`kt doctor`: what this machine is, what kt will use of it, and what could be better."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from kt import settings
from kt.cli import render, render_doctor
from kt.cli.verdicts import Line, judge
from kt.kernels.variants import Variant, select
from kt.machine import codec
from kt.machine.facts import Machine
from kt.machine.survey import measured, survey
from kt.units import Choice

SCHEMA = 1


@dataclass(frozen=True)
class Report:
    """The machine, the variant chosen for it, and a verdict on every fact."""

    machine: Machine
    variant: Choice[Variant]
    lines: tuple[Line, ...]

    def to_json(self) -> dict[str, Any]:
        """As documented in docs/doctor.md."""
        name = Choice(self.variant.value.name, self.variant.reason)
        workers = self.machine.worker_cpus
        threads = Choice(len(workers.value), workers.reason)
        return {
            "schema": SCHEMA,
            "choices": {"variant": codec.encode(name), "threads": codec.encode(threads)},
            "verdicts": [asdict(line) for line in self.lines],
            "machine": self.machine.to_json(),
        }


def doctor(
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    bandwidth: Annotated[
        bool, typer.Option(help="Measure how fast memory is read (at most two seconds).")
    ] = True,
) -> None:
    """Survey this machine: what kt will use, and why."""
    machine = survey()
    variant = select(machine.cpu, settings.load().variant)  # may refuse, so before the measurement
    if bandwidth:
        machine = measured(machine)
    report = Report(machine, variant, judge(machine, variant))
    if json_output:
        render.json(report.to_json())
    else:
        render_doctor.doctor(report.lines)
