"""What is known about the user's model itself: its layers, its marks, and how to build only a part of it with the
right numbers.
"""
