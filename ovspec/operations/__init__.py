"""Which operation computes what, and the settings of each."""
