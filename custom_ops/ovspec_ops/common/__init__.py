"""What the references share: layouts of the CPU plugin's paged cache, rows of 8 bits."""
