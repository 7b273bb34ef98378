"""What the references share: the layouts of the CPU plugin's paged cache."""

from ovspec_ops.common.cache_layout import BLOCK_SIZE, decode_block

__all__ = ["BLOCK_SIZE", "decode_block"]
