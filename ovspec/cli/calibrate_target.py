"""Output of `ovspec calibrate`."""

from __future__ import annotations

from dataclasses import asdict

import click

from ovspec.calibrate.fidelity_meter import Fidelity
from ovspec.calibrate.fidelity_search import ENERGIES, Chosen, Found
from ovspec.calibrate.target_calibration import TargetCalibration
from ovspec.cli.options.output import print_rows
from ovspec.eval.setting import Setting
from ovspec_models.folder.sparse_verify import SparseVerify


def target_report(target: TargetCalibration, found: Found, target_kl: float) -> dict[str, object]:
    """The fields of the JSON object about the target."""
    experts, channels = target.experts, target.channels
    return {
        "target_kl": target_kl,
        "parts": {
            part.name: {"set": part.fields, "alone": asdict(part.alone) if part.alone else None}
            for part in found.parts
        },
        "joint": asdict(found.joint),
        "expert_mass": [[round(float(m), 5) for m in layer] for layer in experts.mass] if experts else None,
        "channel_densities": (
            {str(energy): channels.densities(energy) for energy in ENERGIES} if channels else None
        ),
    }


def show_target(found: Found, target_kl: float) -> None:
    """Print the setting of every part, and its KL alone and together with the others."""
    rows = [(part.name, _reads(part), *_cost(part.alone)) for part in found.parts]
    print_rows(("part", "reads", "KL alone", "top-1 alone"), [*rows, ("together", "", *_cost(found.joint))])
    bound = "of at most" if found.joint.kl <= target_kl else "and not at most"
    click.echo(
        f"mean KL {found.joint.kl:.2g} {bound} {target_kl:g} nats a position; verify='sparse' takes these "
        "settings, and is LOSSY by that"
    )


def _cost(found: Fidelity | None) -> tuple[str, str]:
    return (f"{found.kl:.2g}", f"{found.agreement:.4f}") if found else ("0", "1")


def _reads(part: Chosen) -> str:
    return Setting(SparseVerify(**part.fields)).name if part.alone else "everything"
