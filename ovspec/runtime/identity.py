"""What keeps a model from the promise that a row's logits do not depend on what else is in its pass."""

from __future__ import annotations

from ovspec.runtime.cache import CacheTensor, cache_layout


def identity_breakers(
    attention: str, linear: str, stock_products: int, caches: tuple[CacheTensor, ...], block_size: int
) -> tuple[str, ...]:
    """Sentences that name each cause, with its remedy; none where outputs are promised to be identical.

    Args:
        attention: "native" or "stock", what computes attention.
        linear: the same for linear layers.
        stock_products: products with weights that OpenVINO computes.
        caches: the model's cache tensors.
        block_size: tokens per cache block.
    """
    found = []
    if attention == "stock":
        found.append(
            "attention='stock': OpenVINO's attention sums in an order that follows the rows of a pass; "
            "use attention='native'"
        )
    if stock_products:
        remedy = "use linear='native'" if linear == "stock" else "linear='native' does not take their weights"
        found.append(
            f"{stock_products} products with weights are OpenVINO's, which picks kernels by the number of "
            f"rows; {remedy}"
        )
    keys = (spec for spec in caches if spec.name.startswith("key_cache."))
    if any(cache_layout(spec, block_size) == "u8 by channel" for spec in keys):
        found.append(
            "u8 keys by channel: every new token rounds its whole block anew; use "
            "KEY_CACHE_QUANT_MODE=BY_TOKEN"
        )
    return tuple(found)
