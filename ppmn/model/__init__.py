"""The network: image and text encoders, neck, matching, LCPA rounds, losses, weights."""
