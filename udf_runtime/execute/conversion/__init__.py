"""Values of Python, NumPy, pandas and Arrow as Arrow data of exact types, and back."""
