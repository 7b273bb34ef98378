"""What the references share: the layouts of the CPU plugin's paged cache."""
