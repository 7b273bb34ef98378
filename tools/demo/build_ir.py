"""Export the demo pair's checkpoints to the IR that the package ships (``ovspec_models/demo_ir``).

    python tools/demo/build_ir.py [--out FOLDER]

``ovspec_models.export_model`` with fp16 weights, and the demo's own model card in place of the generated one.
"""

from __future__ import annotations

import shutil
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

from ovspec_models import OvspecConfig, export_model

DEMO = Path(__file__).resolve().parent
DEMO_IR = DEMO.parents[1] / "models" / "ovspec_models" / "demo_ir"


def build_ir(out: Path) -> Path:
    """Export target and draft as fp16 to the new folder `out`, and name their source in it."""
    export_model(DEMO / "target", out, draft_model=DEMO / "draft", weight_format="fp16", progress=print)
    for folder, role in ((out, "target"), (out / "draft", "draft")):
        config = OvspecConfig.load(folder)
        if config is None:
            raise RuntimeError(f"'{folder}' has no ovspec_config.json although it was just exported")
        # "target" and "draft" say little to someone who finds the file in site-packages.
        config.model.source = f"ovspec-demo-{role}"
        config.save(folder)
        shutil.copyfile(DEMO / "MODEL_CARD.md", folder / "README.md")
    return out


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEMO_IR, help="new folder (default: the package's own)")
    print(build_ir(parser.parse_args().out))


if __name__ == "__main__":
    main()
