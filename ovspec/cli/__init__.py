"""The `ovspec` command."""

from __future__ import annotations

import sys

import click

from ovspec.cli.bench import bench
from ovspec.cli.bundle import bundle
from ovspec.cli.calibrate import calibrate
from ovspec.cli.demo import demo
from ovspec.cli.eval import evaluate
from ovspec.cli.export import export
from ovspec.cli.generate import generate
from ovspec.cli.info import info


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="ovspec")
def cli() -> None:
    """Sparse verification for speculative decoding on OpenVINO."""


for command in (export, bundle, generate, calibrate, bench, evaluate, info, demo):
    cli.add_command(command)


def main() -> None:
    """Run the command line: one line and exit code 2 for what a user can mend."""
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.ClickException as error:
        fail(error.format_message())
    except click.Abort:
        sys.exit(130)
    except (ValueError, RuntimeError, OSError, MemoryError) as error:
        fail(str(error) or type(error).__name__)
    sys.exit(code if isinstance(code, int) else 0)


def fail(message: str) -> None:
    """Print one line and exit with 2."""
    click.echo(f"ovspec: error: {' '.join(message.split())}", err=True)
    sys.exit(2)
