"""`make bench`: what edgeq and its peers cost in bytes, flushes and CPU, side by side in one run. See bench/__main__.py."""
