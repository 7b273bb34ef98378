"""What one pass reads and gives: rows, tables, results."""
