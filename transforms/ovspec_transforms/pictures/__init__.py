"""Language models of folders with pictures: their text embedding, and rows that pictures give."""
