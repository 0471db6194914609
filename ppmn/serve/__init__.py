"""The web page and its server: see the narrative on the photo."""
