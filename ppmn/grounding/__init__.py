"""From an image and a caption to a mask for every noun phrase."""
