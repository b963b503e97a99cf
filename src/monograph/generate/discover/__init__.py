"""Discovery of a decoder: its files, its inputs and outputs by role, its sizes."""
