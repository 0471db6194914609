"""The web server: an HTTP API for grounding captions on images, and a page that uses it."""
