"""Training of heads on a user's texts; needs torch, the extra `ovspec[train]`."""
